#!/usr/bin/env python3
"""How far is the analytic mode of `flambeau plan` from TPU's compiler?

    bench/analytic_error.py [--only TEXT] [--results FOLDER]

Plans every bundled configuration on the pods that it is meant for, and a few with other checkpoint policies and tensor parallelism, with
libtpu and with --analytic. Prints the table of docs/planning.md: the analytic answer's error in FLOPs, HBM a device, HBM bytes moved and
collective bytes. Reports are kept as those of scripts/plan_all.py are, and shared with it. Needs a build and libtpu.
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import plan_all  # noqa: E402
from plan_all import Plan  # noqa: E402

PLANS = (
    *plan_all.PLANS,
    *(Plan("configs/llama3/1b.toml", "v5p:2x2x2", ("--activation_checkpoint.mode", mode)) for mode in ("none", "selective", "full")),
    Plan("configs/llama3/8b.toml", "v5p:2x2x4", ("--parallelism.tensor_parallel_degree", "4", "--training.sequences_per_microbatch", "4")),
)

HEAD = ("configuration", "pod", "FLOPs", "HBM GiB, compiled", "analytic", "error", "HBM bytes moved", "collective bytes")


def cells(plan, compiled, analytic):
    def error(number):
        a, b = number(compiled), number(analytic)
        return f"{b / a - 1:+z.1%}" if a else "none" if not b else "of 0"

    memory = lambda r: r["memory"]["total"]
    work = {key: error(lambda r: r["work"][key]) for key in ("flops", "hbm_bytes", "collective_bytes")}
    return [plan.label, plan.topology, work["flops"], *(f"{memory(r) / 2**30:.2f}" for r in (compiled, analytic)), error(memory),
            work["hbm_bytes"], work["collective_bytes"]]


def reports(plan, results, timeout):
    """The compiler's and the analytic one."""
    return (plan_all.run_by("libtpu.*", plan, results, timeout), plan_all.run_by(".*analytic.*", plan, results, timeout, "--analytic"))


def main():
    options = plan_all.parser_of(__doc__, 1800).parse_args()
    plans = plan_all.chosen(PLANS, options.only)
    print(plan_all.row(HEAD) + "\n" + plan_all.rule(HEAD), flush=True)
    for plan in plans:
        print(plan_all.row(cells(plan, *reports(plan, options.results, options.timeout))), flush=True)


if __name__ == "__main__":
    main()

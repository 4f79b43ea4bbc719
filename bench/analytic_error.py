#!/usr/bin/env python3
"""How far is the analytic mode of `flambeau plan` from TPU's compiler?

    bench/analytic_error.py [--only TEXT] [--results FOLDER]

Plans every bundled configuration on the pods that it is meant for, and a few with other checkpoint policies and tensor parallelism, with
libtpu and with --analytic. Prints the tables of docs/planning.md: the analytic answer's error in FLOPs, HBM a device, HBM bytes moved and
collective bytes, of each plan and of each generation. Its rules were made with v5e's answers at hand; other generations test them. Reports are kept as those of scripts/plan_all.py are, and shared with it. Needs a build and libtpu.
"""

import pathlib
import statistics
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

FITTED = {"v5e"}  # generations
HEAD = ("configuration", "pod", "fitted", "FLOPs", "HBM GiB, compiled", "analytic", "error", "HBM bytes moved", "collective bytes")
MEANS = ("generation", "fitted", "plans", "HBM, mean error", "lowest", "highest", "HBM bytes moved, mean error", "lowest", "highest")


def generation_of(topology):
    return topology.partition(":")[0]


def fitted(generation):
    return "yes" if generation in FITTED else "no"


def memory_of(report):
    return report["memory"]["total"]


def traffic_of(report):
    return report["work"]["hbm_bytes"]


def error(number, compiled, analytic):
    """Of the analytic answer: negative where it is too low; none where the compiler's is 0."""
    return number(analytic) / number(compiled) - 1 if number(compiled) else None


def cells(plan, compiled, analytic):
    def text(number):
        off = error(number, compiled, analytic)
        return f"{off:+z.1%}" if off is not None else "of 0" if number(analytic) else "none"

    return [plan.label, plan.topology, fitted(generation_of(plan.topology)), text(lambda r: r["work"]["flops"]),
            *(f"{memory_of(r) / 2**30:.2f}" for r in (compiled, analytic)), text(memory_of), text(traffic_of),
            text(lambda r: r["work"]["collective_bytes"])]


def means(topologies, memory_errors, traffic_errors):
    """The rows of the second table, of as many plans; those of no fitted generation together come last."""
    def row(title, fit, chosen):
        figures = [f(errors[i] for i in chosen) for errors in (memory_errors, traffic_errors) for f in (statistics.fmean, min, max)]
        return [title, fit, str(len(chosen)), *(f"{x:+z.1%}" for x in figures)]

    generations = [generation_of(t) for t in topologies]
    rows = [row(g, fitted(g), [i for i, other in enumerate(generations) if other == g]) for g in dict.fromkeys(generations)]
    others = [i for i, g in enumerate(generations) if g not in FITTED]
    return rows + [row("all others", "no", others)] if others else rows


def reports(plan, results, timeout):
    """The compiler's and the analytic one."""
    return (plan_all.run_by("libtpu.*", plan, results, timeout), plan_all.run_by(".*analytic.*", plan, results, timeout, "--analytic"))


def main():
    options = plan_all.parser_of(__doc__, 1800).parse_args()
    plans = plan_all.chosen(PLANS, options.only)
    print(plan_all.row(HEAD) + "\n" + plan_all.rule(HEAD), flush=True)
    topologies, memory, traffic = [], [], []
    for plan in plans:
        both = reports(plan, options.results, options.timeout)
        print(plan_all.row(cells(plan, *both)), flush=True)
        topologies.append(plan.topology)
        memory.append(error(memory_of, *both))
        traffic.append(error(traffic_of, *both))
    print("\n" + plan_all.row(MEANS) + "\n" + plan_all.rule(MEANS))
    for row in means(topologies, memory, traffic):
        print(plan_all.row(row))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Does the compiler's first phase tell the memory of the whole compilation? Real models on several generations, planned both ways.

    bench/plan_phases.py [--only TEXT] [--results FOLDER]

`flambeau plan` runs the first phase alone unless it is told `--full`; this says how far its HBM is from what the whole compilation
allocates. It takes minutes a model. Reports are kept as those of scripts/plan_all.py are. Prints the table of
docs/planning.md; exit code 1 when a difference is larger than BOUND. Needs a build and libtpu.
"""

import dataclasses
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import plan_all  # noqa: E402
from plan_all import Plan  # noqa: E402

BOUND = 0.005  # relative, of HBM a device

# Three generations, both families, the checkpoint policies that keep something and nothing, with and without tensor parallelism.
PLANS = (
    Plan("configs/qwen3/0.6b.toml", "v5e:2x2"),
    Plan("configs/llama3/1b.toml", "v5e:2x4"),
    Plan("configs/llama3/1b.toml", "v5p:2x2x1", ("--activation_checkpoint.mode", "full")),
    Plan("configs/qwen3/1.7b.toml", "v6e:2x4", ("--parallelism.tensor_parallel_degree", "2")),
    Plan("configs/qwen3/4b.toml", "v6e:2x4"),
    Plan("configs/llama3/3b.toml", "v5p:2x2x2"),
)

WORK = {"FLOPs": "flops", "HBM bytes moved": "hbm_bytes", "collective bytes": "collective_bytes"}
HEAD = ("configuration", "pod", "first phase, MiB", "whole, MiB", "HBM", *WORK)


@dataclasses.dataclass(frozen=True)
class Comparison:
    plan: Plan
    first: dict
    whole: dict

    def relative(self, number) -> float:
        """How much more the first phase says."""
        first, whole = number(self.first), number(self.whole)
        return first / whole - 1 if whole else float(first != 0)

    @property
    def memory(self) -> float:
        return self.relative(lambda r: r["memory"]["total"])

    @property
    def holds(self) -> bool:
        return abs(self.memory) <= BOUND

    def cells(self) -> list[str]:
        mib = [f"{r['memory']['total'] / 2**20:,.1f}" for r in (self.first, self.whole)]
        work = [f"{self.relative(lambda r: r['work'][key]):+z.1%}" for key in WORK.values()]
        return [self.plan.label, self.plan.topology, *mib, f"{self.memory:+z.3%}" + ("" if self.holds else " **outside**"), *work]


def compare(plan: Plan, results: pathlib.Path, timeout: int) -> Comparison:
    return Comparison(plan, plan_all.run_by("libtpu, first phase", plan, results, timeout),
                      plan_all.run_by("libtpu, whole compilation", plan, results, timeout, "--full"))


def main() -> int:
    options = plan_all.parser_of(__doc__, 7200).parse_args()
    plans = plan_all.chosen(PLANS, options.only)
    print(plan_all.row(HEAD) + "\n" + plan_all.rule(HEAD), flush=True)
    outside = []
    for plan in plans:
        comparison = compare(plan, options.results, options.timeout)
        print(plan_all.row(comparison.cells()), flush=True)
        if not comparison.holds:
            outside.append(plan.command)
    for command in outside:
        print(f"further apart than {BOUND:.1%}: {command}", file=sys.stderr)
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())

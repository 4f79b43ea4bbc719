#!/usr/bin/env python3
"""The compiler's first phase tells the memory of the whole compilation: real models on several generations, planned both ways.

    tests/python/plan_phases.py [--only TEXT] [--results FOLDER]

`flambeau plan` runs the first phase alone unless it is told `--full`; this says how far its HBM is from what the whole compilation
allocates. It takes minutes a model. Reports stay in the folder and are not made again while they are newer than flambeau. Prints the table that
docs/planning.md shows; exit code 1 when a difference is larger than BOUND.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAMBEAU = ROOT / "build" / "flambeau"
BOUND = 0.005  # relative, of HBM a device
TIMEOUT = 7200


@dataclasses.dataclass(frozen=True)
class Case:
    config: str
    topology: str
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.config} {self.topology}"

    def command(self, *args: str) -> list[str]:
        return [str(FLAMBEAU), "plan", f"configs/{self.config}.toml", "--topology", self.topology, *self.overrides, *args]


# Three generations, both families, the checkpoint policies that keep something and nothing, with and without tensor parallelism.
CASES = (
    Case("qwen3/0.6b", "v5e:2x2"),
    Case("llama3/1b", "v5e:2x4"),
    Case("llama3/1b", "v5p:2x2x1", ("--activation_checkpoint.mode", "full")),
    Case("qwen3/1.7b", "v6e:2x4", ("--parallelism.tensor_parallel_degree", "2")),
    Case("qwen3/4b", "v6e:2x4"),
    Case("llama3/3b", "v5p:2x2x2"),
)


def report(case: Case, results: pathlib.Path, *args: str) -> dict:
    file = results / f"{'-'.join([*case.name.split(), *args]).replace('/', '_')}.json"
    if not file.exists() or file.stat().st_mtime < FLAMBEAU.stat().st_mtime:
        file.unlink(missing_ok=True)
        done = subprocess.run(case.command("--no-changes", "--json", str(file), *args), cwd=ROOT, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=TIMEOUT)
        if not file.exists():  # that it does not fit is an answer
            raise RuntimeError(f"{' '.join(case.command(*args))}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return json.loads(file.read_text())


@dataclasses.dataclass(frozen=True)
class Comparison:
    case: Case
    first: dict
    whole: dict

    def __post_init__(self):
        assert (self.first["source"], self.whole["source"]) == ("libtpu, first phase", "libtpu, whole compilation")

    def relative(self, number) -> float:
        """How much more the first phase says."""
        return (number(self.first) - number(self.whole)) / number(self.whole)

    @property
    def memory(self) -> float:
        return self.relative(lambda r: r["memory"]["total"])

    @property
    def holds(self) -> bool:
        return abs(self.memory) <= BOUND

    def row(self) -> str:
        mib = [f"{r['memory']['total'] / 2**20:,.1f}" for r in (self.first, self.whole)]
        work = [f"{self.relative(lambda r: r['work'][what]):+.1%}" for what in ("flops", "hbm_bytes", "collective_bytes")]
        seconds = [f"{r['planned_s']:.0f}" for r in (self.first, self.whole)]
        return "| " + " | ".join([self.case.config + (" " + " ".join(self.case.overrides) if self.case.overrides else ""), self.case.topology,
                                  *mib, f"{self.memory:+.3%}" + ("" if self.holds else " **outside**"), *work, *seconds]) + " |"


HEAD = ("| configuration | pod | first phase, MiB | whole, MiB | HBM | FLOPs | HBM bytes moved | collective bytes | first phase, s | whole, s |\n"
        "|---|---|---|---|---|---|---|---|---|---|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="the cases whose name contains this")
    parser.add_argument("--results", type=pathlib.Path, default=ROOT / "outputs" / "phases", help="folder of the reports")
    options = parser.parse_args()
    results = options.results.resolve()
    results.mkdir(parents=True, exist_ok=True)
    print(HEAD, flush=True)
    outside = []
    for case in (c for c in CASES if options.only in c.name):
        comparison = Comparison(case, report(case, results), report(case, results, "--full"))
        print(comparison.row(), flush=True)
        if not comparison.holds:
            outside.append(case.name)
    for name in outside:
        print(f"further apart than {BOUND:.1%}: {name}", file=sys.stderr)
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())

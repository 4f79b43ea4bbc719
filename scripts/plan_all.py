#!/usr/bin/env python3
"""Plans every bundled configuration on the pods that it is meant for, and writes docs/plans.md (`make plan-all`).

    scripts/plan_all.py [--only TEXT] [--jobs N] [--results FOLDER] [--output FILE]

Each plan is one `flambeau plan FILE --topology POD ... --json RESULT`. A result that is newer than flambeau, the configuration, libtpu and
JAX is taken as it is, so an interrupted run goes on where it ended. The scripts of bench/ that plan do it by `make` and `run` of this one.
"""

import argparse
import concurrent.futures
import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
FLAMBEAU = ROOT / "build" / "flambeau"
JAX_PYTHON = pathlib.Path(os.environ.get("FLAMBEAU_PYTHON") or ROOT / ".venv-jax" / "bin" / "python")
RESULTS = ROOT / "outputs" / "plans"  # where reports are kept
DEVICES_A_CHIP = {"tpu7x": 2}


@dataclasses.dataclass(frozen=True)
class Plan:
    config: str
    topology: str
    overrides: tuple[str, ...] = ()

    @property
    def command(self) -> str:
        """As a user types it; the comment at the start of the configuration has the same line."""
        return shlex.join(["build/flambeau", "plan", self.config, "--topology", self.topology, *self.overrides])

    @property
    def chips(self) -> int:
        return math.prod(map(int, self.topology.partition(":")[2].split("x")))

    @property
    def devices(self) -> int:
        return self.chips * DEVICES_A_CHIP.get(self.topology.partition(":")[0], 1)

    @property
    def label(self) -> str:
        """For the rows of tables: llama3/8b, activation_checkpoint.mode full."""
        pairs = [f"{key.removeprefix('--')} {value}" for key, value in zip(self.overrides[::2], self.overrides[1::2], strict=True)]
        return ", ".join([self.config.removeprefix("configs/").removesuffix(".toml"), *pairs])

    def file_name(self, *more: str) -> str:
        """Of the kept report of this plan, made with these options: whatever changes the report is part of it, also the Python that
        makes kernels for attention."""
        words = [self.config.removeprefix("configs/"), self.topology, *self.overrides, *more, os.environ.get("FLAMBEAU_PYTHON", "")]
        return re.sub(r"[^\w.]+", "-", " ".join(words).strip()) + ".json"


# The pods that configs/ are meant for, in the table's order.
PLANS = (
    Plan("configs/llama3/1b.toml", "v5e:2x4"),
    Plan("configs/llama3/3b.toml", "v6e:2x4"),
    Plan("configs/llama3/8b.toml", "v5e:4x4"),
    Plan("configs/llama3/70b.toml", "v6e:16x16"),
    Plan("configs/llama3/70b.toml", "tpu7x:4x4x4"),
    Plan("configs/llama3/405b.toml", "v5p:8x8x16"),
    Plan("configs/llama3/405b.toml", "v5p:16x16x24", ("--parallelism.data_parallel_replicate_degree", "3")),
    Plan("configs/qwen3/0.6b.toml", "v5e:2x2"),
    Plan("configs/qwen3/1.7b.toml", "v5e:2x4"),
    Plan("configs/qwen3/4b.toml", "v6e:2x4"),
    Plan("configs/qwen3/8b.toml", "v6e:4x4"),
    Plan("configs/qwen3/14b.toml", "v5p:4x4x4"),
    Plan("configs/qwen3/32b.toml", "v5p:4x4x8"),
)


# ---- running -------------------------------------------------------------------------------------------------------------


def inputs_of(plan):
    """What a result depends on, as files. With JAX attention runs in other kernels."""
    libtpu = importlib.util.find_spec("libtpu")
    packages = [pathlib.Path(libtpu.origin)] if libtpu and libtpu.origin else []
    return [FLAMBEAU, ROOT / plan.config, *packages, *JAX_PYTHON.parent.parent.glob("lib/python3*/site-packages/jax/__init__.py")]


def make(plan, file, timeout, *more, flambeau=None):
    """Plans, whatever there is already: the report, also written to `file`, or {"failure": what was said}. `more` are options of
    `flambeau plan`. No changes are looked for when it does not fit."""
    file.unlink(missing_ok=True)
    command = [flambeau or FLAMBEAU, "plan", plan.config, "--topology", plan.topology, *plan.overrides, *more, "--no-changes", "--json", file]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return {"failure": f"took more than {timeout} s (--timeout)"}
    # That it does not fit is an answer too: then there is a file whatever the exit code is.
    if not file.exists():
        said = [line for line in done.stderr.splitlines() if line.strip()] or ["nothing was said"]
        return {"failure": f"exit code {done.returncode}: {said[-1]}"}
    print(f"{' '.join([plan.command, *more])}: {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    return json.loads(file.read_text())


def run(plan, results, timeout, *more):
    """`make`, unless the folder `results` has a report that is newer than all that it depends on."""
    file = results.resolve() / plan.file_name(*more)
    if file.exists() and all(i.stat().st_mtime < file.stat().st_mtime for i in inputs_of(plan)):
        return json.loads(file.read_text())
    results.mkdir(parents=True, exist_ok=True)
    return make(plan, file, timeout, *more)


def run_by(source, plan, results, timeout, *more):
    """`run`, and SystemExit where the report's source does not match the pattern `source`: without libtpu a plan is analytic."""
    report = run(plan, results, timeout, *more)
    if not re.fullmatch(source, report.get("source", "")):
        raise SystemExit(f"{plan.command}: expected a report by {source}, got {report.get('failure', report.get('source'))}")
    return report


def parser_of(doc, timeout):
    """The command line that scripts which plan have in common; `timeout`: the usual one, in seconds."""
    parser = argparse.ArgumentParser(description=doc.split("\n\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="the plans whose command contains this")
    parser.add_argument("--timeout", type=int, default=timeout, metavar="S", help=f"longest plan (default: {timeout})")
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, metavar="FOLDER", help="of the reports (default: outputs/plans)")
    return parser


def chosen(plans, text):
    """Those whose command contains `text`."""
    if not FLAMBEAU.exists():
        sys.exit(f"{FLAMBEAU} is not built; run `make build`")
    found = [plan for plan in plans if text in plan.command]
    if not found:
        sys.exit(f"no plan's command contains {text!r}")
    return found


# ---- the page ------------------------------------------------------------------------------------------------------------


COLUMNS = ("configuration", "pod", "mesh", "tokens a step", "attention", "checkpoint", "HBM GiB a device", "of", "TFLOP", "HBM GB moved",
           "collectives GB", "step s, estimate", "tokens/s/chip", "MFU", "planned in s")


def row(cells):
    """Of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def rule(cells):
    """What stands under the head of one."""
    return "|---" * len(cells) + "|"


def cells(plan, report):
    first = [f"`{plan.config}`", plan.topology]
    if "failure" in report:
        return first + [report["failure"].replace("|", "\\|")] + [""] * (len(COLUMNS) - 3)
    memory, work = report["memory"], report["work"]
    mesh = " x ".join(f"{axis} {degree}" for axis, degree in report["mesh"].items() if degree > 1) or "1 device"
    used = f"{memory['total'] / 2**30:.1f}"
    known = lambda value, form: "?" if value is None else format(value, form)
    return first + [mesh, f"{report['tokens_per_step']:,}", report["attention"], report["activation_checkpoint"],
                    f"**{used}**" if report["fits"] is False else used, f"{memory['limit'] / 2**30:.1f}",
                    f"{work['flops'] / 1e12:.1f}", f"{work['hbm_bytes'] / 1e9:.0f}", f"{work['collective_bytes'] / 1e9:.1f}",
                    f"{report['estimate']['step_s']:.2f}", known(report["tokens_per_second_per_chip"], ",.0f"), known(report["mfu"], ".0%"),
                    f"{report['planned_s']:.0f}"]


def page(plans, reports):
    sources = sorted({r["source"] for r in reports if "source" in r})
    lines = ["# Plans of the bundled configurations", "",
             "Made by `make plan-all`: what the compiler for these TPUs, or the analytic mode, says of a training step, without a TPU. HBM is",
             "of one device, bold where it does not fit; work is of one device and one step, with what the backward pass recomputes.",
             "Times, and what is computed from them, are estimates. Attention is `chunked` where no Python with JAX makes kernels for it.",
             "[planning.md](planning.md) says how to read a plan.", "",
             f"Memory and work by: {'; '.join(sources) or 'nothing, all failed'}.", "",
             row(COLUMNS), rule(COLUMNS), *(row(cells(plan, report)) for plan, report in zip(plans, reports))]
    lines += ["", "The commands:", "", "<!-- test: skip: minutes of compilation -->", "```sh", *(plan.command for plan in plans), "```", ""]
    return "\n".join(lines)


def main():
    parser = parser_of(__doc__, 1800)
    parser.add_argument("--jobs", type=int, default=1, help="plans at a time (default: 1)")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs" / "plans.md", help="the page, which is printed instead with --only")
    options = parser.parse_args()
    plans = chosen(PLANS, options.only)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        reports = list(pool.map(lambda plan: run(plan, options.results, options.timeout), plans))
    if options.only:
        print(page(plans, reports))
    else:
        options.output.write_text(page(plans, reports))
        print(f"wrote {options.output}")
    failed = [f"{plan.command}: {report['failure']}" for plan, report in zip(plans, reports) if "failure" in report]
    sys.exit("\n".join(failed) if failed else 0)


if __name__ == "__main__":
    main()

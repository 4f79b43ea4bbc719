#!/usr/bin/env python3
"""How far the analytic mode of `flambeau plan` is from TPU's compiler: a table for docs/planning.md.

    bench/analytic_error.py [--only TEXT]...

Plans every bundled configuration twice on the pod that it is meant for, with libtpu and with --analytic, and prints the analytic
answer's error in FLOPs, HBM a device, HBM traffic and bytes sent. tpu7x is left out: its compilations take minutes. Needs a build and
libtpu.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import plan_all  # noqa: E402

POLICIES = ("none", "selective", "full")


def plans(only):
    table = [p for p in plan_all.PLANS if not p.topology.startswith("tpu7x")]
    for policy in POLICIES:
        table.append(plan_all.Plan("configs/llama3/1b.toml", "v5p:2x2x2", ("--activation_checkpoint.mode", policy)))
    table.append(plan_all.Plan("configs/llama3/8b.toml", "v5p:2x2x4", (
        "--parallelism.tensor_parallel_degree", "4", "--training.sequences_per_microbatch", "4")))
    return [p for p in table if not only or any(text in p.command for text in only)]


def report(plan, *more):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "plan.json"
        command = [plan_all.FLAMBEAU, "plan", plan.config, "--topology", plan.topology, *more, "--json", path,
                   *plan.overrides]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if not path.exists():
            raise SystemExit(f"{plan.command}: {done.stderr.strip()}")
        return json.loads(path.read_text())


def figures(facts):
    return [facts["work"]["flops"], facts["memory"]["total"], facts["work"]["hbm_bytes"], facts["work"]["collective_bytes"]]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", default=[], help="plans whose command contains this")
    arguments = parser.parse_args()
    print("| configuration | pod | FLOPs | HBM a device, GiB | analytic | error | HBM traffic | sent |")
    print("|---|---|---|---|---|---|---|---|")
    for plan in plans(arguments.only):
        compiled, analytic = figures(report(plan)), figures(report(plan, "--analytic"))
        errors = [f"{100 * (b / a - 1):+.1f} %" if a else "none" for a, b in zip(compiled, analytic)]
        config = " ".join([plan.config.removeprefix("configs/"), *plan.overrides])
        print(f"| {config} | {plan.topology} | {errors[0]} | {compiled[1] / 2**30:.2f} | {analytic[1] / 2**30:.2f} | {errors[1]} | "
              f"{errors[2]} | {errors[3]} |", flush=True)


if __name__ == "__main__":
    main()

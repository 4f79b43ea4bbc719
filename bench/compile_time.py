#!/usr/bin/env python3
"""How long a training step takes to trace and compile as the model gets deeper: Flambeau beside JAX, layers as a loop and written out.

    bench/compile_time.py [--layers 6,126] [--unrolled 6,12] [--rounds N] [--contenders flambeau,jax] [--quick] [--json FILE]

The step is that of train_step.py: Llama 3, forward, loss, backward, clipping and AdamW in float32, each layer's activations recomputed
in the backward pass. Widths are small: compile time depends on what the program says, not on the sizes in it. Each measurement is a
process of its own, nothing compiled earlier is used, and contenders take turns. See README.md for how to read the numbers.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import sysconfig

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts"))

import plan_all  # noqa: E402

CASE = dict(dim=128, heads=8, kv_heads=4, ffn_dim=384, vocab_size=2048, batch=1, context=128)
CONTENDERS = ("flambeau", "jax")
WHAT = ("trace_s", "compile_s", "total_s", "processor_s")


class BenchmarkError(Exception):
    pass


def measure(contender, layers, mode, options):
    case = json.dumps(CASE | {"layers": layers})
    command = {"flambeau": [str(options.worker)],
               "jax": [str(plan_all.JAX_PYTHON), "-B", str(HERE / "workers" / "jax_compile_worker.py")]}[contender]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false",
        "FLAMBEAU_SITE_PACKAGES": os.environ.get("FLAMBEAU_SITE_PACKAGES", sysconfig.get_path("purelib")),
    }
    try:
        done = subprocess.run([*command, case, mode], capture_output=True, text=True, env=environment, timeout=options.timeout)
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{contender} ({mode}, {layers} layers) took more than {options.timeout} s (--timeout)") from None
    if done.returncode != 0:
        tail = "\n".join(done.stderr.splitlines()[-15:])
        raise BenchmarkError(f"{contender} ({mode}, {layers} layers) ended with status {done.returncode}; leave it out with "
                             f"--contenders, or see what it said:\n{tail}")
    return json.loads(done.stdout.splitlines()[-1])


def run(options):
    if "flambeau" in options.contenders and not options.worker.exists():
        raise BenchmarkError(f"{options.worker} is not built; run `make build`")
    load = os.getloadavg()[0]
    print(f"widths {CASE}; load average {load:.1f}", flush=True)
    if load > 0.5:
        print("warning: something else keeps this machine busy; believe the ratios of processor seconds first")
    keys = [(mode, contender, layers)
            for mode, depths in (("scan", options.layers), ("unrolled", options.unrolled))
            for contender in options.contenders for layers in depths]
    runs = {key: [] for key in keys}
    for index in range(options.rounds):
        for mode, contender, layers in keys:
            runs[mode, contender, layers].append(measure(contender, layers, mode, options))
        print(f"round {index + 1}/{options.rounds} done", flush=True)
    rows = [{"mode": mode, "name": contender, "layers": layers}
            | {what: statistics.median(one[what] for one in runs[mode, contender, layers]) for what in WHAT}
            for mode, contender, layers in keys]
    ratios = ratios_of(rows)
    report(rows, ratios)
    if options.json:
        result = {"benchmark": "compile_time", "case": CASE, "load_before": load, "rows": rows, "ratios": ratios}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def ratios_of(rows):
    """Deepest over shallowest, of each contender and mode with several depths."""
    out = []
    for key in dict.fromkeys((r["mode"], r["name"]) for r in rows):
        same = sorted((r for r in rows if (r["mode"], r["name"]) == key), key=lambda r: r["layers"])
        if len(same) > 1:
            out.append({"mode": key[0], "name": key[1], "layers": [same[0]["layers"], same[-1]["layers"]]}
                       | {what: same[-1][what] / same[0][what] for what in WHAT})
    return out


def report(rows, ratios):
    print(f"\n{'':10} {'layers are':10} {'layers':>6} {'trace s':>8} {'compile s':>10} {'total s':>8} {'processor s':>12}")
    for r in rows:
        print(f"{r['name']:10} {r['mode']:10} {r['layers']:6} {r['trace_s']:8.2f} {r['compile_s']:10.2f} {r['total_s']:8.2f} "
              f"{r['processor_s']:12.2f}")
    for r in ratios:
        shallow, deep = r["layers"]
        print(f"{r['name']}, {r['mode']}: {deep} layers take {r['total_s']:.2f} times as long as {shallow} (tracing {r['trace_s']:.2f}, "
              f"compiling {r['compile_s']:.2f}, processor {r['processor_s']:.2f})")


def parse_arguments():
    def depths(text):
        try:
            values = [int(word) for word in text.split(",") if word]
        except ValueError:
            values = [0]
        if any(v < 1 for v in values):
            raise argparse.ArgumentTypeError(f"expected numbers of layers separated by commas, got {text!r}")
        return values

    def contenders(text):
        names = text.split(",")
        for name in names:
            if name not in CONTENDERS:
                raise argparse.ArgumentTypeError(f"unknown contender {name!r}; choose from {','.join(CONTENDERS)}")
        return names

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--layers", type=depths, default=[6, 126], help="depths as a loop (default: 6,126)")
    parser.add_argument("--unrolled", type=depths, default=[6, 12], help="depths written out (default: 6,12)")
    parser.add_argument("--contenders", type=contenders, default=list(CONTENDERS), help="default: flambeau,jax")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each, whose median counts (default: 3)")
    parser.add_argument("--quick", action="store_true", help="Flambeau alone, 2 and 16 layers as a loop, once")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there as well")
    parser.add_argument("--timeout", type=int, default=900, metavar="S", help="longest measurement (default: 900)")
    parser.add_argument("--worker", type=pathlib.Path, default=HERE.parent / "build" / "compile_time_worker", metavar="FILE",
                        help="Flambeau's contender (default: build/compile_time_worker)")
    options = parser.parse_args()
    if options.quick:
        options.layers, options.unrolled, options.contenders, options.rounds = [2, 16], [], ["flambeau"], 1
    if options.rounds < 1:
        parser.error(f"--rounds: expected at least 1, got {options.rounds}")
    return options


def main():
    try:
        run(parse_arguments())
    except BenchmarkError as error:
        sys.exit(f"compile_time: error: {error}")


if __name__ == "__main__":
    main()

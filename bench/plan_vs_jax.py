#!/usr/bin/env python3
"""Compares what TPU's compiler makes of Flambeau's training step and of an equivalent JAX program, on a machine without TPUs.

    bench/plan_vs_jax.py [--case 8b,70b,32b,405b] [--set KEY=VALUE ...] [--whole] [--json FILE] [--markdown FILE] [--keep FOLDER]

Flambeau's program is what `flambeau plan CONFIG --topology POD --write-program FILE` writes; JAX's is workers/jax_pod_step.py for the same
sizes, mesh, batch, activation checkpointing and form of attention. Both go through build/inspect_program: the same libtpu with its own
defaults, one reader. Prints the tables of docs/plan_vs_jax.md. See README.md for what is compared.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT / "scripts"))

import plan_all  # noqa: E402


class BenchmarkError(Exception):
    pass


@dataclasses.dataclass(frozen=True)
class Case:
    config: str
    generation: str  # as users say it
    shape: tuple[int, ...]

    @property
    def pod(self):
        return f"{self.generation}:{'x'.join(map(str, self.shape))}"

    @property
    def topology(self):
        """libtpu's name."""
        return self.pod.replace("v5p:", "v5:")

    @property
    def wrap(self):
        """Where links close to a torus: of 2-D generations at 16 chips, of 3-D ones in pods of whole cubes."""
        if len(self.shape) == 2:
            return [int(size == 16) for size in self.shape] + [0]
        return [int(all(size % 4 == 0 for size in self.shape))] * 3

    @property
    def devices(self):
        return math.prod(self.shape) * (2 if self.generation == "tpu7x" else 1)


CASES = {
    "8b": Case("configs/llama3/8b.toml", "v5e", (4, 4)),
    "70b": Case("configs/llama3/70b.toml", "v6e", (16, 16)),
    "32b": Case("configs/qwen3/32b.toml", "v5p", (4, 4, 8)),
    "405b": Case("configs/llama3/405b.toml", "v5p", (8, 8, 16)),  # with tensor and sequence parallelism
}

# What a family fixes for all of its sizes, beyond what `flambeau check` prints.
FAMILIES = {
    "llama3": {"rope_theta": 5e5, "rope_factor": 8.0, "norm_epsilon": 1e-5},
    "qwen3": {"rope_theta": 1e6, "norm_epsilon": 1e-6, "qk_norm": True, "head_dim": 128},
}


# ---- the two programs ----------------------------------------------------------------------------------------------------


def run(command, what, timeout, **more):
    """Standard output of a command and the seconds that it took."""
    begin = time.perf_counter()
    try:
        done = subprocess.run([str(word) for word in command], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                              **more)
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{what} took more than {timeout} s (--timeout)") from None
    if done.returncode != 0:
        tail = "\n".join(done.stderr.splitlines()[-15:])
        raise BenchmarkError(f"{what} ended with status {done.returncode}:\n{tail}")
    return done.stdout, time.perf_counter() - begin


def overrides_of(options):
    return [word for key, value in options.set for word in (f"--{key}", value)]


def settings_of(case, options):
    """The resolved configuration as a tree, and the model's sizes and number of parameters."""
    out, _ = run([options.flambeau, "check", case.config, *overrides_of(options)], "flambeau check", options.timeout)
    sizes = re.search(r"^# sizes: (.+)$", out, re.M)[1]
    sizes = {name: int(value) for name, value in (pair.split(" ") for pair in sizes.split(", "))}
    return tomllib.loads(out), sizes, int(re.search(r"^# parameters: ([\d,]+)$", out, re.M)[1].replace(",", ""))


def jax_request(case, settings, sizes, parameters, attention):
    """What workers/jax_pod_step.py is asked for. BenchmarkError for what it does not do."""
    training, parallelism, checkpoint = settings["training"], settings["parallelism"], settings["activation_checkpoint"]
    expected = {
        "model.scan": (settings["model"]["scan"], [True]),
        "activation_checkpoint.mode": (checkpoint["mode"], ["none", "selective", "full"]),
        "activation_checkpoint.selective_ops": (checkpoint["selective_ops"], [["matmul", "attention"], "matmul,attention"]),
        "parallelism.fsdp_reshard_after_forward": (parallelism["fsdp_reshard_after_forward"], ["default", "always"]),
        "optimizer.name": (settings["optimizer"]["name"], ["AdamW"]),
        "optimizer.state_dtype": (settings["optimizer"]["state_dtype"], ["float32"]),
        "loss.z_loss": (settings["loss"]["z_loss"], [0]),
    }
    for key, (value, known) in expected.items():
        if value not in known:
            raise BenchmarkError(f"expected {key} to be one of {known}, got {value!r}: the JAX program has nothing else")
    replicate, tensor = parallelism["data_parallel_replicate_degree"], parallelism["tensor_parallel_degree"]
    mesh = {"replicate": replicate, "shard": case.devices // (replicate * tensor), "tensor": tensor}
    if math.prod(mesh.values()) != case.devices:
        raise BenchmarkError(f"expected degrees whose product is the {case.devices} devices of {case.pod}, got {mesh}")
    rows = training["num_tokens_per_microbatch_per_dp_rank"] // training["max_context_length"]
    family = FAMILIES[settings["model"]["name"]]
    D, H, K, F, V, L = (sizes[key] for key in ("dim", "heads", "kv_heads", "ffn_dim", "vocab_size", "layers"))
    E = family.get("head_dim", D // H)
    layer = D * E * (2 * H + 2 * K) + 3 * D * F + 2 * D + (2 * E if family.get("qk_norm") else 0)
    without_head = L * layer + V * D + D
    if parameters not in (without_head, without_head + V * D):
        raise BenchmarkError(f"expected {without_head + V * D} parameters, or {without_head} with a tied head, got {parameters}")
    return {
        "model": {**sizes, "head_dim": E, "tied": parameters == without_head, **family},
        "options": {"context": training["max_context_length"], "checkpoint": checkpoint["mode"], "attention": attention,
                    "documents": settings["data"]["document_mask"], "loss_chunks": settings["loss"]["chunks"],
                    "compute": training["mixed_precision_param"], "max_norm": training["max_norm"],
                    "beta1": settings["optimizer"]["beta1"], "beta2": settings["optimizer"]["beta2"],
                    "epsilon": settings["optimizer"]["eps"], "weight_decay": settings["optimizer"]["weight_decay"]},
        "mesh": mesh,
        "rows": rows * mesh["replicate"] * mesh["shard"],
    }


def write_programs(case, folder, options):
    """Two files, and what both compute."""
    ours, theirs = folder / "flambeau.mlir", folder / "jax.mlir"
    if options.program:
        ours.write_bytes(options.program.read_bytes())
    else:
        plan = plan_all.Plan(case.config, case.pod, tuple(overrides_of(options)))
        # The program is the same without the compiler, which `inspect` runs.
        report = plan_all.make(plan, folder / "plan.json", options.timeout, "--analytic", "--write-program", str(ours), flambeau=options.flambeau)
        if "failure" in report:
            raise BenchmarkError(f"{plan.command}: {report['failure']}")
    # Where ours uses a kernel for attention, so does theirs.
    attention = options.attention or ("splash" if "tpu_custom_call" in ours.read_text() else "blockwise")
    request = jax_request(case, *settings_of(case, options), attention)
    run([options.python, "-B", HERE / "workers" / "jax_pod_step.py", json.dumps(request), theirs], "JAX's lowering", options.timeout,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"})
    return ours, theirs, request


# ---- what the compiler makes of them -------------------------------------------------------------------------------------


MEASURES = (  # name, key, divisor
    ("HBM GiB a chip", "memory", 2**30),
    ("TFLOP", "flops", 1e12),
    ("HBM GB moved", "traffic", 1e9),
    ("collectives GB", "collectives", 1e9),
)


def inspect(program, case, options):
    command = [options.inspect, program, "--topology", case.topology, "--wrap", ",".join(map(str, case.wrap)), "--time-limit", options.timeout]
    out, seconds = run(command + (["--whole"] if options.whole else []), f"inspect_program {program.name}", options.timeout + 60)
    answer = json.loads(out)
    if "out_of_memory" in answer:
        raise BenchmarkError(f"{program.name} does not fit {case.pod}: {answer['out_of_memory'].splitlines()[0]}")
    kinds = {}
    for c in answer["collectives"]:
        kinds[c["kind"]] = kinds.get(c["kind"], 0) + c["bytes"] * c["runs"]
    return {
        "memory": answer["memory"]["total"], "flops": answer["flops"], "traffic": answer.get("hbm_bytes"),
        "collectives": sum(kinds.values()), "collectives_by_kind": kinds, "compile_s": seconds, "exact": answer["exact"],
        "state_bytes": sum(p["bytes"] for p in answer["parameters"] if p["aliased"]),
        "loops": [loop["trips"] for loop in answer["loops"]], "remarks": answer["remarks"],
    }


def compare(name, case, folder, options):
    ours, theirs, request = write_programs(case, folder, options)
    result = {"case": name, "config": case.config, "pod": case.pod, "attention": request["options"]["attention"], "request": request,
              "flambeau": inspect(ours, case, options), "jax": inspect(theirs, case, options)}
    states = [result[who]["state_bytes"] for who in ("flambeau", "jax")]
    # Both keep the same state in place, or they are not the same step.
    if abs(states[0] - states[1]) > 1e-3 * states[1]:
        raise BenchmarkError(f"{name}: the programs do not update the same state: {states[0]:,} and {states[1]:,} bytes a device")
    for who in ("flambeau", "jax"):
        if not result[who]["exact"]:
            print(f"warning: {name}: not all loops of {who}'s program have a known trip count: its work is a lower bound", flush=True)
        for remark in result[who]["remarks"]:
            print(f"warning: {name}, {who}: {remark}", flush=True)
    return result


def number(value, divisor):
    """Four digits, never as a power of ten."""
    if value is None:
        return "?"
    value /= divisor
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def ratio(ours, theirs):
    """Bold where we are worse."""
    if ours is None or not theirs:
        return "?"
    text = f"{ours / theirs:.3f}"
    return f"**{text}**" if float(text) > 1 else text


def table(results):
    """Markdown."""
    header = ["model, pod, attention", "program"] + [name for name, _, _ in MEASURES]
    lines = [plan_all.row(header), plan_all.rule(header)]
    for r in results:
        title = f"{r['config'].removeprefix('configs/').removesuffix('.toml')}, {r['pod']}, {r['attention']}"
        for who in ("flambeau", "jax"):
            lines.append(plan_all.row([title if who == "flambeau" else "", who, *(number(r[who][key], divisor) for _, key, divisor in MEASURES)]))
        lines.append(plan_all.row(["", "**ratio**", *(ratio(r["flambeau"][key], r["jax"][key]) for _, key, _ in MEASURES)]))
    return "\n".join(lines)


def check_same_computation(options):
    """Runs both steps on this machine's CPU, small and in float32: losses, gradient norms and states must agree."""
    run([sys.executable, "-B", HERE / "train_step.py", "--contenders", "flambeau,jax.pod", "--rounds", "1", "--steps", "1"],
        "comparing both steps on the CPU (bench/train_step.py)", options.timeout)
    print("the first steps of both programs agree on the CPU", flush=True)


# ---- command line --------------------------------------------------------------------------------------------------------


def parse_arguments():
    def cases(text):
        names = text.split(",")
        for name in names:
            if name not in CASES:
                raise argparse.ArgumentTypeError(f"unknown case {name!r}; choose from {','.join(CASES)}")
        return names

    def setting(text):
        key, equals, value = text.partition("=")
        if not equals:
            raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
        return key, value

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--case", type=cases, default=list(CASES), metavar="LIST", help=f"of {','.join(CASES)} (default: all)")
    parser.add_argument("--set", type=setting, action="append", default=[], metavar="KEY=VALUE", help="override a key of the configuration")
    parser.add_argument("--attention", choices=("blockwise", "splash"), help="JAX's form (default: a kernel where ours has one)")
    parser.add_argument("--whole", action="store_true", help="compile to the end, not the first phase alone (minutes each)")
    parser.add_argument("--check", action="store_true", help="first see that both compute the same, small, on the CPU")
    parser.add_argument("--program", type=pathlib.Path, metavar="FILE", help="with one case: this StableHLO text in place of `flambeau plan`'s")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table there as well")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="leave the programs there")
    parser.add_argument("--timeout", type=int, default=900, metavar="S", help="longest command (default: 900)")
    parser.add_argument("--python", default=plan_all.JAX_PYTHON, metavar="FILE", help="a Python that has JAX (default: that of .venv-jax)")
    parser.add_argument("--flambeau", type=pathlib.Path, default=ROOT / "build" / "flambeau", metavar="FILE")
    parser.add_argument("--inspect", type=pathlib.Path, default=ROOT / "build" / "inspect_program", metavar="FILE")
    options = parser.parse_args()
    if options.program and len(options.case) != 1:
        parser.error("--program goes with one --case")
    return options


def main():
    options = parse_arguments()
    os.environ["FLAMBEAU_PYTHON"] = str(options.python)  # flambeau's kernels are made by it, too
    try:
        for program in (options.flambeau, options.inspect):
            if not program.exists():
                raise BenchmarkError(f"{program} is not built; run `make build`")
        if options.check:
            check_same_computation(options)
        results = []
        for name in options.case:
            with tempfile.TemporaryDirectory(prefix="flambeau-plan-") as scratch:
                folder = options.keep.resolve() / name if options.keep else pathlib.Path(scratch)
                folder.mkdir(parents=True, exist_ok=True)
                results.append(compare(name, CASES[name], folder, options))
            for who in ("flambeau", "jax"):
                print(f"{name}: {who}'s program compiled in {results[-1][who]['compile_s']:.1f} s", file=sys.stderr, flush=True)
        print(table(results))
        if options.markdown:
            options.markdown.write_text(table(results) + "\n")
        if options.json:
            options.json.write_text(json.dumps({"benchmark": "plan_vs_jax", "whole": options.whole, "results": results}, indent=1) + "\n")
    except BenchmarkError as error:
        sys.exit(f"plan_vs_jax: error: {error}")


if __name__ == "__main__":
    main()

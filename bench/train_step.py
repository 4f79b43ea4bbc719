#!/usr/bin/env python3
"""Times one training step of Flambeau, JAX and PyTorch side by side: the same Llama, data and arithmetic on the same CPUs.

    bench/train_step.py [--case small|54m] [--rounds N] [--contenders LIST] [--json FILE]

A step is everything: forward, loss, backward, clipping of the global norm, AdamW, all in float32, until the loss has been
read. Each contender is a process of its own (workers/, build/train_step_worker) that computes only when it is its turn. They
start from the same files, and before anything is timed their first losses, gradient norms and states are compared: when
they are not the same computation, the benchmark fails. Then they take turns, a few steps each, round after round; medians
are reported. See README.md for how to read the numbers.
"""

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from importlib import metadata

HERE = pathlib.Path(__file__).resolve().parent
WORKERS = HERE / "workers"
sys.path[:0] = [str(WORKERS), str(HERE.parent / "scripts")]
sys.dont_write_bytecode = True

import numpy as np
from safetensors.numpy import save_file

import plan_all
from protocol import Case

CASES = {
    "small": dict(layers=6, dim=256, heads=8, kv_heads=4, ffn_dim=768, vocab_size=2048, batch=4, context=256),
    "54m": dict(layers=16, dim=512, heads=8, kv_heads=4, ffn_dim=1536, vocab_size=4096, batch=2, context=512),
}
ARITHMETIC = dict(norm_epsilon=1e-5, learning_rate=3e-4, beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, max_norm=1.0)

# Rows by name -> processes to run; of several the faster one is reported as the row, each one under its own name too.
CONTENDERS = {
    "flambeau": ["flambeau"],
    "jax": ["jax.unrolled", "jax.scan"],
    "torch.eager": ["torch.eager"],
    "torch.compile": ["torch.compile"],
    "jax.pod": ["jax.pod"],  # the program of plan_vs_jax.py; takes part when it is asked to
}
USUAL_CONTENDERS = ["flambeau", "jax", "torch.eager", "torch.compile"]

CHECKED_STEPS = 6
# Relative. Losses would show another model, norms another gradient, states another optimizer or clipping (weight decay
# alone moves the weights' norm by more than this in six steps).
TOLERANCES = {"losses": 1e-4, "grad_norms": 1e-3, "parameters": 1e-5, "exp_avg": 1e-3, "exp_avg_sq": 2e-3}

BATCHES = 8


class BenchmarkError(Exception):
    pass


# ---- what all of them compute --------------------------------------------------------------------------------------------


def rope_tables(positions, head_dim):
    """cos and sin [positions, head_dim / 2] with Llama 3.1's frequencies: theta 500000, scaling 8, 1 to 4 of 8192."""
    theta, factor, low, high, original = 500000.0, 8.0, 1.0, 4.0, 8192.0
    frequencies = (1 / theta ** (np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)
    wavelengths = 2 * np.pi / frequencies
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    frequencies = (smooth * frequencies + (1 - smooth) * frequencies / factor).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    return np.cos(angles), np.sin(angles)


def random_weights(case, random):
    def normal(*shape, std=0.02):
        return random.standard_normal(shape, dtype=np.float32) * np.float32(std)

    D, F, E = case.dim, case.ffn_dim, case.head_dim
    weights = {"model.embed_tokens.weight": normal(case.vocab_size, D, std=1), "model.norm.weight": 1 + normal(D),
               "lm_head.weight": normal(case.vocab_size, D, std=2 * D**-0.5)}
    for i in range(case.layers):
        name, depth = f"model.layers.{i}.", (2 * (i + 1)) ** -0.5
        weights |= {
            name + "input_layernorm.weight": 1 + normal(D),
            name + "self_attn.q_proj.weight": normal(case.heads * E, D, std=0.1),
            name + "self_attn.k_proj.weight": normal(case.kv_heads * E, D, std=0.1),
            name + "self_attn.v_proj.weight": normal(case.kv_heads * E, D),
            name + "self_attn.o_proj.weight": normal(D, case.heads * E, std=0.02 * depth),
            name + "post_attention_layernorm.weight": 1 + normal(D),
            name + "mlp.gate_proj.weight": normal(F, D),
            name + "mlp.up_proj.weight": normal(F, D),
            name + "mlp.down_proj.weight": normal(D, F, std=0.02 * depth),
        }
    return weights


def write_inputs(case, folder):
    """The files of workers/protocol.py. Returns the number of parameters that are multiplied by."""
    random = np.random.default_rng(0)
    weights = random_weights(case, random)
    # As frequent as words are: then gradients add up and the first steps are clipped, as those of a real run.
    frequency = 1 / np.arange(1, case.vocab_size + 1)
    tokens = random.choice(case.vocab_size, (BATCHES, case.batch, case.context + 1), p=frequency / frequency.sum())
    labels = np.ascontiguousarray(tokens[..., 1:])
    labels[random.random(labels.shape) < 0.05] = -100  # so that the mean over valid tokens alone is compared as well
    cos, sin = rope_tables(case.context, case.head_dim)
    save_file(weights, folder / "model.safetensors")
    save_file({"tokens": np.ascontiguousarray(tokens[..., :-1]), "labels": labels, "rope.cos": cos, "rope.sin": sin},
              folder / "data.safetensors")
    (folder / "case.json").write_text(json.dumps(dataclasses.asdict(case)))
    return sum(w.size for name, w in weights.items() if name != "model.embed_tokens.weight")


def step_gflop(case, multiplied_parameters):
    """Useful work of a step in 1e9 operations, by formula: 6 operations a token for each parameter multiplied by (all
    but the embedding), and for attention 6 L H (d_qk + d_v) for each key that a token sees, (S + 1) / 2 on average. What a
    contender computes beyond that (the masked half of the scores, elementwise work) does not count."""
    keys = (case.context + 1) / 2
    per_token = 6 * multiplied_parameters + 6 * case.layers * case.heads * 2 * case.head_dim * keys
    return per_token * case.batch * case.context / 1e9


# ---- contenders ----------------------------------------------------------------------------------------------------------


def command_of(name, folder, worker):
    if name == "flambeau":
        return [str(worker), str(folder)]
    library, mode = name.split(".")
    python = plan_all.JAX_PYTHON if library == "jax" else sys.executable
    return [str(python), "-B", str(WORKERS / f"{library}_worker.py"), str(folder), mode]


def environment(cpus, folder):
    """The same threads for everyone, and caches of programs compiled earlier for nobody."""
    for name in ("inductor", "cache"):
        (folder / name).mkdir(exist_ok=True)
    threads = str(len(cpus))
    return os.environ | {
        "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads,
        "JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "XDG_CACHE_HOME": str(folder / "cache"),
        "FLAMBEAU_SITE_PACKAGES": os.environ.get("FLAMBEAU_SITE_PACKAGES", sysconfig.get_path("purelib")),
    }


class Worker:
    """A contender's process, and what it has told so far."""

    def __init__(self, name, folder, cpus, options):
        self.name, self.timeout = name, options.timeout
        self.log = open(folder / f"{name}.log", "w+")
        self.process = subprocess.Popen(
            command_of(name, folder, options.worker), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
            text=True, env=environment(cpus, folder), preexec_fn=lambda: os.sched_setaffinity(0, cpus))
        self.rounds = []  # of lists of seconds
        self.busy_s = 0.0  # processor time while it was its turn
        self.answer("start")

    def ask(self, command):
        before = self.processor_time()
        try:
            self.process.stdin.write(command + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died: reading the answer says how
        answer = self.answer(command)
        self.busy_s += self.processor_time() - before
        return answer

    def answer(self, command):
        timer = threading.Timer(self.timeout, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timed_out = not timer.is_alive()
        timer.cancel()
        if line:
            return json.loads(line)
        self.process.wait()
        self.log.seek(0)
        tail = "".join(self.log.readlines()[-25:])
        why = (f"did not answer \"{command}\" within {self.timeout} s (--timeout)" if timed_out
               else f"ended at \"{command}\" with status {self.process.returncode}")
        raise BenchmarkError(f"{self.name} {why}; leave it out with --contenders, or see what it said:\n{tail}")

    def processor_time(self):
        """Seconds of all its threads so far."""
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def build(self):
        self.built = self.ask("build")
        rest = self.ask(f"steps {CHECKED_STEPS - len(self.built['losses'])}")
        self.facts = {key: self.built[key] + rest[key] for key in ("losses", "grad_norms")}
        self.facts |= {key: [value] for key, value in self.ask("state").items()}

    def close(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


def expect_same_computation(workers):
    """BenchmarkError unless all workers computed the same in their first steps."""
    reference = workers[0]
    for worker in workers:
        for what, tolerance in TOLERANCES.items():
            for i, (got, want) in enumerate(zip(worker.facts[what], reference.facts[what], strict=True)):
                if not abs(got - want) <= tolerance * abs(want):
                    when = f"of step {i + 1}" if what in ("losses", "grad_norms") else f"(norm) after step {CHECKED_STEPS}"
                    raise BenchmarkError(
                        f"{worker.name} and {reference.name} do not compute the same: {what} {when} are {got:.7g} and "
                        f"{want:.7g}, more than {tolerance:g} apart relatively; their times cannot be compared")


# ---- running and reporting ----------------------------------------------------------------------------------------------


def start_all(names, folder, cpus, options):
    workers = []
    try:
        for name in names:
            worker = Worker(name, folder, cpus, options)
            workers.append(worker)
            worker.build()
            losses = " ".join(f"{x:.5f}" for x in worker.facts["losses"])
            print(f"{name}: compiled in {worker.built['compile_time_s']:.2f} s, first step after "
                  f"{worker.built['first_step_s']:.2f} s, losses {losses}", flush=True)
    except BaseException:
        close_all(workers)
        raise
    return workers


def close_all(workers):
    for worker in workers:
        worker.close()


def take_turns(workers, options):
    """Runs the rounds; the order turns with each round so that none always follows the same one."""
    for index in range(options.rounds):
        shift = index % len(workers)
        for worker in workers[shift:] + workers[:shift]:
            worker.rounds.append(worker.ask(f"steps {options.steps}")["seconds"])
        times = ", ".join(f"{w.name} {statistics.median(w.rounds[-1]):.3f}" for w in workers)
        print(f"round {index + 1}/{options.rounds}: {times} s", flush=True)


def warn_of_idle_work(workers, begin_times, elapsed):
    """Those that wait must not take the processors from the one whose turn it is."""
    for worker in workers:
        idle = worker.processor_time() - begin_times[worker.name][0] - (worker.busy_s - begin_times[worker.name][1])
        if idle > 0.02 * elapsed:
            print(f"warning: {worker.name} used {idle:.1f} s of processor time in {elapsed:.0f} s while it was not its turn")


def row(worker, case, gflop):
    seconds = [s for one in worker.rounds for s in one]
    low, median, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
    return {
        "name": worker.name, "case": case.name, "step_time_s": median, "step_time_quartiles_s": [low, high],
        "compile_time_s": worker.built["compile_time_s"], "first_step_s": worker.built["first_step_s"],
        "gflops": gflop / median, "rounds_s": [statistics.median(one) for one in worker.rounds],
    }


def rows_of(workers, wanted, case, gflop):
    """One row for each wanted name, then those of the variants that a row was chosen from."""
    by_name = {w.name: row(w, case, gflop) for w in workers}
    chosen, variants = [], []
    for name in wanted:
        candidates = [by_name[v] for v in CONTENDERS[name]]
        best = min(candidates, key=lambda r: r["step_time_s"])
        chosen.append(best | {"name": name} | ({"variant": best["name"]} if len(candidates) > 1 else {}))
        variants += candidates if len(candidates) > 1 else []
    return chosen, variants


def ratios_of(rows):
    """How many times a peer's step time is Flambeau's: of the medians, and the median of the rounds' own ratios, which does
    not see a load on the machine that changes slowly."""
    ours = next((r for r in rows if r["name"] == "flambeau"), None)
    if ours is None:
        return {}
    return {peer["name"]: {"of_medians": peer["step_time_s"] / ours["step_time_s"],
                           "by_round": statistics.median(t / o for t, o in zip(peer["rounds_s"], ours["rounds_s"]))}
            for peer in rows if peer is not ours}


def report(rows, variants, ratios):
    print(f"\n{'':14} {'case':6} {'step s':>8} {'quartiles':>15} {'GFLOP/s':>8} {'compile s':>10} {'first step s':>13}")
    for r in rows + variants:
        low, high = r["step_time_quartiles_s"]
        spread = f"{low:.3f}-{high:.3f}"
        note = f"  ({r['variant']})" if "variant" in r else ""
        print(f"{r['name']:14} {r['case']:6} {r['step_time_s']:8.4f} {spread:>15} {r['gflops']:8.1f} "
              f"{r['compile_time_s']:10.2f} {r['first_step_s']:13.2f}{note}")
    for name, ratio in ratios.items():
        print(f"flambeau's step is {ratio['of_medians']:.2f} times as fast as {name}'s ({ratio['by_round']:.2f} by round)")


def versions():
    kernels = HERE.parent / "python" / "flambeau" / "tpu_attention.py"  # which tells what it depends on
    jax = subprocess.run([plan_all.JAX_PYTHON, kernels, "--versions"], capture_output=True, text=True).stdout.strip()
    return {"python": platform.python_version(), "torch": metadata.version("torch"), "numpy": metadata.version("numpy"),
            **dict(name.split() for name in jax.split(", ") if name)}


def run(options):
    cpus = sorted(os.sched_getaffinity(0))[: options.threads]
    case = Case(name=options.case, threads=len(cpus), **CASES[options.case], **ARITHMETIC)
    if "torch.compile" in options.contenders and " " in sys.prefix:
        print(f"torch.compile is left out: PyTorch's Inductor cannot link in a folder with a space in its name, {sys.prefix}")
        options.contenders.remove("torch.compile")
    if "flambeau" in options.contenders and not options.worker.exists():
        raise BenchmarkError(f"{options.worker} is not built; run `make bench`, "
                             "or scripts/build.sh build \"\" train_step_worker")
    with tempfile.TemporaryDirectory(prefix="flambeau-bench-") as name:
        folder = pathlib.Path(name)
        gflop = step_gflop(case, write_inputs(case, folder))
        load = os.getloadavg()[0]
        print(f"case {case.name}: {gflop:.2f} GFLOP a step, {case.threads} threads; load average {load:.1f}", flush=True)
        if load > 0.5:
            print("warning: something else keeps this machine busy; the times below are longer than they need be")
        workers = start_all([v for c in options.contenders for v in CONTENDERS[c]], folder, cpus, options)
        try:
            expect_same_computation(workers)
            print(f"the first {CHECKED_STEPS} steps of all contenders agree")
            begin, begin_times = time.perf_counter(), {w.name: (w.processor_time(), w.busy_s) for w in workers}
            take_turns(workers, options)
            warn_of_idle_work(workers, begin_times, time.perf_counter() - begin)
        finally:
            close_all(workers)
    rows, variants = rows_of(workers, options.contenders, case, gflop)
    ratios = ratios_of(rows)
    report(rows, variants, ratios)
    if options.json:
        result = {"benchmark": "train_step", "case": dataclasses.asdict(case), "gflop_per_step": gflop, "load_before": load,
                  "machine": platform.machine(), "versions": versions(), "rows": rows + variants, "ratios": ratios}
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def parse_arguments():
    def contender_list(text):
        names = text.split(",")
        for name in names:
            if name not in CONTENDERS:
                raise argparse.ArgumentTypeError(f"unknown contender {name!r}; choose from {','.join(CONTENDERS)}")
        return names

    def count(text):
        if not text.isdigit() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
        return int(text)

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--case", choices=CASES, default="small", help="a model of 5.8M or 54M parameters (default: small)")
    parser.add_argument("--rounds", type=count, default=10, help="how often each contender has its turn (default: 10)")
    parser.add_argument("--steps", type=count, default=3, help="steps in a turn (default: 3)")
    parser.add_argument("--contenders", type=contender_list, default=list(USUAL_CONTENDERS), metavar="LIST",
                        help=f"who takes part, separated by commas, of {','.join(CONTENDERS)} (default: {','.join(USUAL_CONTENDERS)})")
    parser.add_argument("--threads", type=count, default=1024, help="CPUs to use (default: all that this process may)")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the results there as well")
    parser.add_argument("--timeout", type=count, default=900, metavar="S", help="longest wait for one answer (default: 900)")
    parser.add_argument("--worker", type=pathlib.Path, default=HERE.parent / "build" / "train_step_worker", metavar="FILE",
                        help="Flambeau's contender (default: build/train_step_worker)")
    return parser.parse_args()


def main():
    try:
        run(parse_arguments())
    except BenchmarkError as error:
        sys.exit(f"train_step: error: {error}")


if __name__ == "__main__":
    main()

"""The loss is one number: ten steps of a debug model give the same losses and gradient norms on every mesh, with the layers written
out or as a loop, under every activation-checkpoint policy and however a step is cut into microbatches.

A run is one `flambeau train`. It is compared with the plainest run of its model and dtype: one device, layers written out, one
microbatch. `cover(...)` chooses runs so that every pair of choices occurs in one of them. As a program (`make loss-matrix`) this
runs the cover and writes docs/loss_identity.md; test_loss_identity.py runs a part of it.
"""

import argparse
import dataclasses
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = 10
ROWS, CONTEXT = 32, 32  # of a step, whatever the mesh and the accumulation
TEXT = ROOT / "LICENSE"  # the same bytes on every machine; 11,358 of them, of which the steps read 10,240
# Where training is unstable (the first steps of Qwen3 at its own rate are) roundings grow with every step, whatever makes them.
LEARNING_RATES = {"llama3": 1e-4, "qwen3": 1e-5}
# Relative bounds on losses and on gradient norms.
BOUNDS = {"float32": (3e-6, 1e-5), "bfloat16": (2e-4, 2e-3)}


@dataclasses.dataclass(frozen=True)
class Mesh:
    replicate: int = 1
    shard: int = 1
    tensor: int = 1

    @property
    def devices(self) -> int:
        return self.replicate * self.shard * self.tensor

    @property
    def name(self) -> str:
        axes = [f"{axis} {size}" for axis, size in dataclasses.asdict(self).items() if size > 1]
        return " x ".join(axes) or "1 device"


MESHES = [Mesh(), Mesh(shard=2), Mesh(tensor=2), Mesh(tensor=4), Mesh(replicate=2, shard=2), Mesh(shard=8), Mesh(replicate=2, shard=4),
          Mesh(shard=2, tensor=4), Mesh(replicate=2, shard=2, tensor=2)]
LAYERS = ["unrolled", "none", "full", "selective", "budget"]  # the last four: as a loop, with this activation-checkpoint mode
ACCUMULATION = [1, 4]
MODELS = ["llama3", "qwen3"]


@dataclasses.dataclass(frozen=True)
class Run:
    model: str
    dtype: str
    mesh: Mesh = Mesh()
    layers: str = "unrolled"
    accumulation: int = 1

    @property
    def name(self) -> str:
        return f"{self.model} {self.dtype}, {self.mesh.name}, {self.layers}, accumulation {self.accumulation}"

    @property
    def reference(self) -> "Run":
        return Run(self.model, self.dtype)

    def arguments(self) -> list[str]:
        words = {
            "data.source": TEXT,
            "training.steps": STEPS,
            "training.max_context_length": CONTEXT,
            "training.sequences_per_microbatch": ROWS // self.accumulation // (self.mesh.replicate * self.mesh.shard),
            "training.sequences_per_train_step": ROWS,
            "training.mixed_precision_param": self.dtype,
            "parallelism.data_parallel_replicate_degree": self.mesh.replicate,
            "parallelism.data_parallel_shard_degree": self.mesh.shard,
            "parallelism.tensor_parallel_degree": self.mesh.tensor,
            "debug.virtual_devices": self.mesh.devices,
            "model.scan": str(self.layers != "unrolled").lower(),
            "optimizer.lr": LEARNING_RATES[self.model],
            "lr_scheduler.warmup_steps": 2,
            "loss.chunks": 4,
            "metrics.log_freq": 1,
            "checkpoint.enable": "false",
            "validator.enable": "false",
            "data.bigram": "false",
            "sampling.tokens": 0,
            "debug.stats": "true",
        }
        if self.layers != "unrolled":
            words["activation_checkpoint.mode"] = self.layers
        return [word for key, value in words.items() for word in (f"--{key}", str(value))]


@dataclasses.dataclass
class Result:
    losses: list[float]
    norms: list[float]
    first: str  # checksum of the first parameters
    stderr: str
    seconds: float
    programs: dict[str, str]  # StableHLO texts by name


def train(run: Run, extra: Sequence[str] = ()) -> Result:
    """Trains; the StableHLO text of the step is among the result. Raises RuntimeError with all output when the run fails."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder, "metrics.jsonl")
        command = [ROOT / "build" / "flambeau", "train", ROOT / "configs" / run.model / "debug.toml", *run.arguments(),
                   "--metrics.jsonl", metrics, "--dump_folder", folder, *extra]
        dumps = pathlib.Path(folder, "programs")
        dumps.mkdir()
        start = time.monotonic()
        done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env={**os.environ, "FLAMBEAU_DUMP": str(dumps)}, timeout=1200)
        if done.returncode != 0:
            raise RuntimeError(f"{run.name}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        first = re.search(r"first parameters ([0-9a-f]{16})", done.stdout + done.stderr)
        assert first, f"{run.name}: no checksum of the first parameters\n{done.stdout}\n{done.stderr}"
        return Result([line["loss"] for line in lines], [line["grad_norm"] for line in lines], first[1], done.stderr,
                      time.monotonic() - start, {p.stem.rsplit("-", 1)[0]: p.read_text() for p in sorted(dumps.glob("*.mlir"))})


def largest_difference(got: list[float], want: list[float]) -> float:
    assert len(got) == len(want) > 0, (len(got), len(want))
    return max(abs(g - w) / abs(w) for g, w in zip(got, want))


@dataclasses.dataclass
class Comparison:
    run: Run
    loss: float
    norm: float
    same_start: bool
    rematerializations: int

    @property
    def holds(self) -> bool:
        loss, norm = BOUNDS[self.run.dtype]
        return self.loss <= loss and self.norm <= norm and self.same_start and self.rematerializations == 0


def compare(run: Run, result: Result, reference: Result) -> Comparison:
    return Comparison(run, largest_difference(result.losses, reference.losses), largest_difference(result.norms, reference.norms),
                      result.first == reference.first, result.stderr.count("Involuntary full rematerialization"))


def cover(*choices: list) -> list[tuple]:
    """Few combinations in which every pair of values of two different choices occurs (greedy)."""
    missing = {(i, a, j, b) for (i, x), (j, y) in itertools.combinations(enumerate(choices), 2) for a in range(len(x)) for b in range(len(y))}
    rows = []
    while missing:
        def gain(row):
            return sum((i, row[i], j, row[j]) in missing for i, j in itertools.combinations(range(len(row)), 2))
        best = max(itertools.product(*(range(len(c)) for c in choices)), key=gain)
        missing -= {(i, best[i], j, best[j]) for i, j in itertools.combinations(range(len(best)), 2)}
        rows.append(tuple(choice[k] for choice, k in zip(choices, best)))
    return rows


def matrix(models: list[str]) -> list[Run]:
    runs = [Run(model, dtype, mesh, layers, accumulation) for model in models
            for mesh, layers, accumulation, dtype in cover(MESHES, LAYERS, ACCUMULATION, list(BOUNDS))]
    return [run for run in runs if run != run.reference]


def page(comparisons: list[Comparison], planned: int) -> str:
    rates = ", ".join(f"{model} {rate:g}" for model, rate in LEARNING_RATES.items())
    lines = [
        "# Loss identity", "",
        f"{STEPS} steps of {ROWS} rows of {CONTEXT} tokens of [LICENSE](../LICENSE), by the debug models (learning rates {rates}), each run compared with the plainest "
        f"one of its model and dtype (one device, layers written out, one microbatch). The table holds the largest relative difference of the losses and of "
        "the gradient norms over the steps. All runs begin with the same parameters, bit by bit. "
        '"Layers" says "unrolled" where they are written out, else the activation-checkpoint mode of their loop. '
        f"{len(comparisons)} of {planned} runs; written by `make loss-matrix`.", "",
        "Bounds: " + "; ".join(f"{dtype} {loss:g} and {norm:g}" for dtype, (loss, norm) in BOUNDS.items()) + ".", "",
        "| model | dtype | mesh | layers | accumulation | loss | gradient norm |", "|---|---|---|---|---|---|---|"]
    for c in comparisons:
        mark = "" if c.holds else " **outside**"
        lines.append(f"| {c.run.model} | {c.run.dtype} | {c.run.mesh.name} | {c.run.layers} | {c.run.accumulation} | {c.loss:.1e} | "
                     f"{c.norm:.1e}{mark} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--page", type=pathlib.Path, default=ROOT / "docs" / "loss_identity.md", help="where the table goes")
    options = parser.parse_args()
    references, comparisons = {}, []
    runs = matrix(options.models)
    for i, run in enumerate(runs):
        if run.reference not in references:
            references[run.reference] = train(run.reference)
        result = train(run)
        comparisons.append(compare(run, result, references[run.reference]))
        c = comparisons[-1]
        print(f"{i + 1}/{len(runs)} {'ok ' if c.holds else 'OUT'} {run.name}: loss {c.loss:.1e}, norm {c.norm:.1e}, "
              f"{'same' if c.same_start else 'OTHER'} start, {c.rematerializations} rematerializations, {result.seconds:.0f} s", flush=True)
        options.page.write_text(page(comparisons, len(runs)))  # what there is, also of a matrix that is stopped
    failed = [c.run.name for c in comparisons if not c.holds]
    print(f"{len(comparisons) - len(failed)} of {len(comparisons)} runs within the bounds; {options.page}")
    for name in failed:
        print(f"outside: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What the Python contenders of bench/train_step.py share: the case, its data, and the conversation with the benchmark.

A contender is a process that answers one line with one line of JSON:

    (start)   {"ready": true}          everything is imported and the data is in memory
    build     {"compile_time_s", "first_step_s", "seconds", "losses", "grad_norms"}     makes the model, runs step 1
              (or the first few: as many as there are losses)
    steps N   {"seconds": [N], "losses": [N], "grad_norms": [N]}     a step lasts until its loss has been read
    state     {"parameters", "exp_avg", "exp_avg_sq"}     the L2 norm of each, over all tensors together
    quit      (no answer)

The folder that it is given holds case.json, model.safetensors (Hugging Face's names and shapes) and data.safetensors (tokens
and labels [batches, B, S], of which step n takes number (n - 1) mod batches; rope.cos and rope.sin [S, E / 2]).
"""

import json
import os
import pathlib
import sys
import time
from dataclasses import dataclass

from safetensors.numpy import load_file


@dataclass(frozen=True)
class Case:
    name: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    ffn_dim: int
    vocab_size: int
    batch: int
    context: int
    threads: int
    norm_epsilon: float
    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    max_norm: float

    @property
    def head_dim(self):
        return self.dim // self.heads


class Contender:
    """One way to run the training step. Step numbers count from 1."""

    def build(self):
        """Makes the model and the optimizer and compiles what can be compiled without running; returns the seconds of that
        compilation, or None when compilation happens within the first step."""
        raise NotImplementedError

    def step(self, batch):
        """Runs one step on batch number `batch` to its end; returns (loss, norm of the gradients before clipping)."""
        raise NotImplementedError

    def state(self):
        """Lists of arrays: parameters, exp_avg, exp_avg_sq."""
        raise NotImplementedError


def load(folder):
    """The case, the weights by name, and the data by name, as NumPy arrays."""
    folder = pathlib.Path(folder)
    case = Case(**json.loads((folder / "case.json").read_text()))
    return case, load_file(folder / "model.safetensors"), load_file(folder / "data.safetensors")


def take_standard_output():
    """The stream for answers. Whatever else is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


def serve(answers, contender, batches):
    """Answers the benchmark until it says quit or goes away."""
    done = 0

    def run(count):
        nonlocal done
        seconds, losses, grad_norms = [], [], []
        for _ in range(count):
            begin = time.perf_counter()
            loss, grad_norm = contender.step(done % batches)
            seconds.append(time.perf_counter() - begin)
            losses.append(float(loss))
            grad_norms.append(float(grad_norm))
            done += 1
        return {"seconds": seconds, "losses": losses, "grad_norms": grad_norms}

    def build():
        begin = time.perf_counter()
        compile_time = contender.build()
        steps = run(1)
        first_step = time.perf_counter() - begin
        if compile_time is None:
            # Compiled within the first step: what that took over an ordinary one. The second may still finish something.
            steps = {key: values + more for (key, values), more in zip(steps.items(), run(2).values())}
            compile_time = max(0.0, steps["seconds"][0] - steps["seconds"][2])
        return steps | {"compile_time_s": compile_time, "first_step_s": first_step}

    def state():
        import numpy as np

        def norm(arrays):
            return float(np.sqrt(sum(float(np.sum(np.square(np.asarray(a), dtype=np.float64))) for a in arrays)))

        return dict(zip(("parameters", "exp_avg", "exp_avg_sq"), map(norm, contender.state())))

    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "quit":
            return
        answer = {"build": build, "state": state, "steps": lambda: run(int(arguments[0]))}[command]()
        print(json.dumps(answer), file=answers)

"""Ways to compute attention, in whole training steps: the same losses, and what the step's program holds."""

import re

import pytest

import loss_identity
from loss_identity import Mesh, Run

CONTEXT = 1000  # which no block length divides, and which is no other size of the model


def train(attention: str, layers: str, steps: int = 1):
    return loss_identity.train(
        Run("llama3", "float32", Mesh(), layers),
        ["--training.max_context_length", CONTEXT, "--training.sequences_per_microbatch", 1, "--training.sequences_per_train_step", 1,
         "--training.steps", steps, "--model.attention", attention])


def squares(program: str) -> list[str]:
    """Types with as many elements as there are pairs of a query and a key."""
    return [t for t in set(re.findall(r"tensor<([0-9x]+)x[a-z]", program)) if t.split("x").count(str(CONTEXT)) >= 2]


@pytest.mark.timeout(900)
def test_chunked_equals_dense_without_a_square():
    dense, chunked = train("dense", "full", 3), train("chunked", "full", 3)
    loss, norm = loss_identity.BOUNDS["float32"]
    assert loss_identity.largest_difference(chunked.losses, dense.losses) <= loss
    assert loss_identity.largest_difference(chunked.norms, dense.norms) <= norm
    assert squares(dense.programs["train_step"])
    assert squares(chunked.programs["train_step"]) == []


@pytest.mark.timeout(900)
def test_selective_keeps_attention():
    """With activation_checkpoint.mode = "selective" the backward loop runs attention's gradient alone, with "full" its forward loop too."""
    whiles = {mode: train("chunked", mode).programs["train_step"].count("stablehlo.while") for mode in ("none", "selective", "full")}
    assert whiles["none"] == whiles["selective"] == whiles["full"] - 1


def test_a_python_that_is_not_there_is_said(flambeau, tmp_path):
    """Kernels are made by a Python with JAX. A mistyped one is no reason to stop: attention is chunked, and a line says why."""
    done = flambeau("plan", "configs/llama3/8b.toml", "--topology", "v5e:4x4", "--model.attention", "flash", "--analytic", "--write-program", "step.mlir",
                    env={"FLAMBEAU_PYTHON": "/nowhere/python"})
    assert "chunked instead of flash: /nowhere/python has no JAX" in done.stderr
    assert "tpu_custom_call" not in (tmp_path / "step.mlir").read_text()

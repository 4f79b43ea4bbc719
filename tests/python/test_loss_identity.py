"""A part of the loss matrix (loss_identity.py), and what else a mesh must not change."""

import functools

import pytest

import loss_identity
from loss_identity import Mesh, Run

# Every mesh of eight devices and one of four, every kind of layers, both accumulations, both dtypes.
SELECTED = [
    Run("llama3", "float32", Mesh(shard=8), "full", 1),
    Run("llama3", "float32", Mesh(replicate=2, shard=4), "none", 4),
    Run("llama3", "float32", Mesh(tensor=4), "unrolled", 4),
    Run("llama3", "bfloat16", Mesh(replicate=2, shard=2, tensor=2), "selective", 1),
    Run("qwen3", "float32", Mesh(shard=2, tensor=4), "budget", 4),
    Run("qwen3", "bfloat16", Mesh(shard=8), "full", 1),
]

reference = functools.cache(lambda run: loss_identity.train(run))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("run", SELECTED, ids=lambda run: run.name)
def test_same_losses(run):
    comparison = loss_identity.compare(run, loss_identity.train(run), reference(run.reference))
    assert comparison.holds, comparison


def test_cover_has_every_pair():
    choices = [list(range(n)) for n in (9, 5, 2, 2)]
    rows = loss_identity.cover(*choices)
    for i in range(4):
        for j in range(i):
            assert {(row[i], row[j]) for row in rows} == {(a, b) for a in choices[i] for b in choices[j]}
    assert len(rows) < 60


def checkpointed(run, folder, steps):
    return loss_identity.train(run, ["--checkpoint.enable", "true", "--checkpoint.interval", "4", "--dump_folder", str(folder),
                                     "--lr_scheduler.total_steps", "8", "--training.steps", str(steps)])


@pytest.mark.timeout(1800)
def test_checkpoint_of_one_mesh_resumes_on_another(tmp_path):
    meshes = [Mesh(shard=4), Mesh(shard=2, tensor=2)]
    first, second = (Run("llama3", "float32", mesh, "full", 1) for mesh in meshes)
    whole = checkpointed(first, tmp_path / "whole", 8)
    begun = checkpointed(first, tmp_path / "moved", 4)
    moved = checkpointed(second, tmp_path / "moved", 8)
    loss, norm = loss_identity.BOUNDS["float32"]
    assert begun.losses == whole.losses[:4]
    assert len(moved.losses) == 4
    assert loss_identity.largest_difference(moved.losses, whole.losses[4:]) <= loss
    assert loss_identity.largest_difference(moved.norms, whole.norms[4:]) <= norm

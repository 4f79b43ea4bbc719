"""The TPU kernels of attention compute attention: by JAX's interpreter on the CPU, alone and in whole training steps."""

import json
import os
import re
import subprocess

import numpy as np
import pytest
import torch

from conftest import JAX_PYTHON, ROOT, needs_jax

RESULTS = ("output", "dq", "dk", "dv")
CASES = {
    "one block": dict(batch=1, heads=2, kv_heads=2, length=128, block_q=128, block_kv=128, documents=False, dtype="float32"),
    "grouped heads, documents": dict(batch=2, heads=4, kv_heads=2, length=256, block_q=128, block_kv=128, documents=True, dtype="float32"),
    "long blocks of queries": dict(batch=1, heads=3, kv_heads=1, length=512, block_q=256, block_kv=128, documents=True, dtype="float32"),
    "long blocks of keys": dict(batch=2, heads=2, kv_heads=1, length=512, block_q=128, block_kv=512, documents=False, dtype="float32"),
    "wide heads": dict(batch=1, heads=2, kv_heads=1, length=256, head_dim=256, block_q=128, block_kv=256, documents=True, dtype="float32"),
    "bfloat16": dict(batch=2, heads=4, kv_heads=1, length=384, block_q=384, block_kv=128, documents=True, dtype="bfloat16"),
}


def interpret(mode, folder):
    done = subprocess.run([JAX_PYTHON, ROOT / "tests/python/interpret_kernels.py", mode, folder], capture_output=True, text=True, timeout=800,
                          env=os.environ | {"JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr


def inputs_of(case, generator):
    """Queries are scaled already, as the kernels want them. Documents end anywhere, at the borders of blocks and within them."""
    def normal(heads):
        shape = (case["batch"], heads, case["length"], case["head_dim"])
        return torch.randn(shape, generator=generator).to(getattr(torch, case["dtype"]))

    arrays = {"query": normal(case["heads"]) / case["head_dim"] ** 0.5, "key": normal(case["kv_heads"]), "value": normal(case["kv_heads"]),
              "gradient": normal(case["heads"])}
    if case["documents"]:
        ends = torch.zeros(case["batch"], case["length"], dtype=torch.int32)
        ends[:, 128] = 1
        for row in ends:
            row[torch.randint(1, case["length"], (4,), generator=generator)] = 1
        arrays["documents"] = ends.cumsum(1).int()
    return arrays


def plain_attention(arrays, dtype):
    """PyTorch's, and its gradients."""
    query, key, value = (arrays[name].to(dtype).requires_grad_() for name in ("query", "key", "value"))
    mask = torch.ones(query.shape[2], query.shape[2], dtype=torch.bool).tril()
    if "documents" in arrays:
        documents = arrays["documents"]
        mask = mask & (documents[:, None, :, None] == documents[:, None, None, :])
    output = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=1.0, enable_gqa=True)
    return dict(zip(RESULTS, (output.detach(), *torch.autograd.grad(output, (query, key, value), arrays["gradient"].to(dtype)))))


def error(got, expected):
    """The largest, as a part of the largest value."""
    return ((got.double() - expected).abs().max() / expected.abs().max()).item()


@needs_jax
def test_kernels_compute_attention(tmp_path):
    """All cases in one process: importing JAX and its first compilation take longer than a case."""
    generator = torch.Generator().manual_seed(0)
    cases = [{"head_dim": 128, **case} for case in CASES.values()]
    arrays = [inputs_of(case, generator) for case in cases]
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    np.savez(tmp_path / "in.npz", **{f"{i}.{name}": a.float().numpy() if a.is_floating_point() else a.numpy()
                                     for i, of_case in enumerate(arrays) for name, a in of_case.items()})
    interpret("attention", tmp_path)
    got = np.load(tmp_path / "out.npz")
    for i, (name, case) in enumerate(zip(CASES, cases)):
        exact = plain_attention(arrays[i], torch.float64)
        # In bfloat16 what PyTorch's own attention loses on the same arrays: both round probabilities and results.
        own = plain_attention(arrays[i], torch.bfloat16) if case["dtype"] == "bfloat16" else None
        for result in RESULTS:
            bound = 2 * error(own[result], exact[result]) if own else 1e-5
            off = error(torch.from_numpy(got[f"{i}.{result}"]), exact[result])
            assert off <= bound, f"{name}: {result} is off by {off}, at most {bound} is right"


# ---- whole steps ------------------------------------------------------------------------------------------------------------

MODEL = ["--model.n_heads", "2", "--model.n_kv_heads", "1", "--model.n_layers", "1", "--model.dim", "256", "--model.ffn_dim", "128",
         "--training.max_context_length", "256", "--optimizer.name", "SGD"]
ELEMENTS = {"i64": np.int64, "ui64": np.uint64, "f32": np.float32}


def arguments_of(program):
    """Values for a recorded step: tokens, labels, positions and documents, numbers of the optimizer that are all 1, a table, weights. With a
    rate and a decay of 1 the new weights of SGD are their clipped gradients, negated."""
    random = np.random.default_rng(0)
    head = program[:program.index(") -> (")]
    values = []
    for number, text in enumerate(re.findall(r"%arg\d+: tensor<([^>]*)>", head)):
        *dims, element = text.split("x")
        shape = [int(d) for d in dims]
        if number < 4:
            tokens = lambda: random.integers(0, 256, shape)
            value = [tokens, tokens, lambda: np.broadcast_to(np.arange(shape[-1]), shape), lambda: np.sort(random.integers(0, 3, shape))][number]()
        elif element != "f32":
            value = np.zeros(shape)
        else:
            value = np.ones(shape) if number == 4 else 0.05 * random.standard_normal(shape)
        values.append(np.ascontiguousarray(value, ELEMENTS[element]))
    return values


@needs_jax
@pytest.mark.parametrize("rows, blocks", [(1, (256, 128)), (2, (128, 256))])
def test_a_step_with_kernels_is_the_dense_one(flambeau, tmp_path, rows, blocks):
    """What the program gives the kernels and makes of their results: a whole step of flambeau's, with one row a device and with several."""
    def write(attention, *more):
        file = tmp_path / f"{attention}.mlir"
        flambeau("plan", "configs/llama3/debug.toml", "--topology", "v5e-1", "--analytic", "--model.attention", attention, *MODEL, *more,
                 "--training.sequences_per_microbatch", rows, "--training.sequences_per_train_step", rows, "--write-program", file,
                 env={"FLAMBEAU_PYTHON": str(JAX_PYTHON)})
        return file.read_text()

    flash = write("flash", "--model.attention_block_q", blocks[0], "--model.attention_block_kv", blocks[1])
    dense = write("dense")
    assert flash.count("tpu_custom_call") == 3 and "tpu_custom_call" not in dense
    np.savez(tmp_path / "in.npz", **{str(i): value for i, value in enumerate(arguments_of(dense))})
    (tmp_path / "kernels.json").write_text(json.dumps(dict(batch=rows, heads=2, kv_heads=1, length=256, head_dim=128, dtype="float32",
                                                           documents=True, block_q=blocks[0], block_kv=blocks[1])))
    interpret("programs", tmp_path)
    got, expected = (np.load(tmp_path / f"{attention}.npz") for attention in ("flash", "dense"))
    assert len(got.files) == len(expected.files) >= 11 and all(np.any(expected[name]) for name in expected.files[:-1])
    for name in expected.files:
        a, b = (torch.from_numpy(of[name]) for of in (got, expected))
        if b.is_floating_point():
            rounding = 2**-24 * 0.25 / b.abs().max().item()  # a new weight comes out of sums of the size of the old ones
            assert error(a, b.double()) <= 1e-5 + rounding, f"result {name}"
        else:
            assert torch.equal(a, b), f"result {name}"

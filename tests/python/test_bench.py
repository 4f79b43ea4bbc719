"""The benchmarks run and say what they promise; their numbers are for quiet machines."""

import argparse
import json
import subprocess
import sys

import pytest

from conftest import FLAMBEAU, ROOT

sys.path.insert(0, str(ROOT / "bench"))
import plan_vs_jax


def test_compile_time_does_not_grow_with_depth(root, tmp_path):
    out = subprocess.run([sys.executable, root / "bench/compile_time.py", "--quick", "--json", tmp_path / "out.json"], capture_output=True,
                         text=True, timeout=600)
    assert out.returncode == 0, out.stderr
    assert "flambeau, scan: 16 layers take" in out.stdout
    result = json.loads((tmp_path / "out.json").read_text())
    assert [row["layers"] for row in result["rows"]] == [2, 16]
    (ratio,) = result["ratios"]
    assert ratio["processor_s"] < 1.4  # layers written out: 1.8


def request_for_jax(case, *settings):
    options = argparse.Namespace(flambeau=FLAMBEAU, set=list(settings), timeout=100)
    return plan_vs_jax.jax_request(case, *plan_vs_jax.settings_of(case, options), "blockwise")


@pytest.mark.parametrize("name, mesh, rows, tied", [
    ("8b", (1, 16, 1), 16, False), ("70b", (1, 256, 1), 256, False), ("32b", (1, 128, 1), 512, False),
    ("405b", (1, 128, 8), 512, False)])
def test_jax_program_has_the_configuration_s_sizes(name, mesh, rows, tied):
    """A model of another number of parameters is refused by jax_request itself."""
    request = request_for_jax(plan_vs_jax.CASES[name])
    assert (tuple(request["mesh"].values()), request["rows"], request["model"]["tied"]) == (mesh, rows, tied)
    assert request["options"]["checkpoint"] == "full" and request["options"]["documents"]


def test_jax_program_follows_overrides_and_refuses_what_it_has_not():
    case = plan_vs_jax.Case("configs/qwen3/0.6b.toml", "v5p", (2, 2, 1))
    request = request_for_jax(case, ("parallelism.tensor_parallel_degree", "2"), ("data.document_mask", "false"))
    assert request["mesh"] == {"replicate": 1, "shard": 2, "tensor": 2} and request["rows"] == 4
    assert request["model"]["tied"] and request["model"]["qk_norm"] and not request["options"]["documents"]
    with pytest.raises(plan_vs_jax.BenchmarkError, match="optimizer.name"):
        request_for_jax(case, ("optimizer.name", "SGD"))

"""The bundled configurations: each is valid, also on as many devices as the pods that it is meant for have."""

import re
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
from plan_all import PLANS

FILES = sorted(str(file.relative_to(ROOT)) for file in ROOT.glob("configs/*/*.toml"))
REAL = [file for file in FILES if not file.endswith("/debug.toml")]


def name_of(file: str) -> tuple[str, str]:
    """configs/qwen3/0.6b.toml -> qwen3, 0.6b"""
    _, family, name = file.split("/")
    return family, name.removesuffix(".toml")


@pytest.mark.parametrize("file", FILES)
def test_is_valid_and_says_what_it_is(flambeau, file):
    family, size = name_of(file)
    resolved = flambeau("check", file).stdout
    assert re.search(rf'^name = "{family}" ', resolved, re.M)
    assert re.search(rf'^flavor = "{size}" ', resolved, re.M | re.I)
    comment = (ROOT / file).read_text().partition("\n\n")[0]
    assert all(line.startswith("#") for line in comment.splitlines())
    assert re.search(rf"build/flambeau (train|plan) {file}", comment)


@pytest.mark.parametrize("family", sorted({name_of(file)[0] for file in FILES}))
def test_every_flavor_has_one(flambeau, family):
    refusal = flambeau("check", f"configs/{family}/debug.toml", "--model.flavor", "none of them", code=2).stderr
    flavors = re.search(r"expected one of (.+?), got", refusal)[1].lower().replace('"', "").split(", ")
    assert sorted(flavors) == sorted(name_of(file)[1] for file in FILES if name_of(file)[0] == family)


def test_every_real_one_is_planned():
    assert {plan.config for plan in PLANS} == set(REAL)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.label} {plan.topology}")
def test_fits_the_devices_of_its_pod(flambeau, plan):
    """The degrees multiply out to the pod's devices and divide the model; the comment names the command."""
    assert plan.command in (ROOT / plan.config).read_text()
    settings = flambeau("check", plan.config, *plan.overrides).stdout
    replicas, tensor, rows = (int(re.search(rf"^{key} = (\d+) ", settings, re.M)[1]) for key in (
        "data_parallel_replicate_degree", "tensor_parallel_degree", "sequences_per_microbatch"))
    assert re.search(r"^data_parallel_shard_degree = -1 ", settings, re.M)
    assert plan.devices % (replicas * tensor) == 0
    shards = plan.devices // (replicas * tensor)
    on_pod = flambeau("check", plan.config, *plan.overrides, "--parallelism.data_parallel_shard_degree", str(shards)).stdout
    assert f"= 1 microbatches x {replicas * shards * rows} sequences x" in on_pod

"""The bundled configurations: each is valid, also on as many devices as the pods that it is meant for have."""

import os
import re
import sys

import pytest

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import plan_all
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
    assert re.search(rf"flambeau (train|plan) {file}", comment)


@pytest.mark.parametrize("family", sorted({name_of(file)[0] for file in FILES}))
def test_every_flavor_has_one(flambeau, family):
    refusal = flambeau("check", f"configs/{family}/debug.toml", "--model.flavor", "none of them", code=2).stderr
    flavors = re.search(r"expected one of (.+?), got", refusal)[1].lower().replace('"', "").split(", ")
    assert sorted(flavors) == sorted(name_of(file)[1] for file in FILES if name_of(file)[0] == family)


def test_every_real_one_is_planned():
    assert {plan.config for plan in PLANS} == set(REAL)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
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


# ---- scripts/plan_all.py -------------------------------------------------------------------------------------------------


@pytest.fixture
def planner(monkeypatch, tmp_path):
    """planner(script) puts a shell script in place of flambeau; $file is where it shall write its report."""

    def replace(script):
        program = tmp_path / "flambeau"
        program.write_text(f'#!/bin/sh\nfor file; do :; done\n{script}\n')
        program.chmod(0o755)
        os.utime(program, (1, 1))
        monkeypatch.setattr(plan_all, "FLAMBEAU", program)
        return program

    return replace


def test_a_plan_that_fails_is_a_row_of_the_page(planner, tmp_path):
    planner("echo 'flambeau: [plan] expected A | B, got C; do D' >&2; exit 2")
    report = plan_all.run(PLANS[0], tmp_path, 60)
    assert report == {"failure": "exit code 2: flambeau: [plan] expected A | B, got C; do D"}
    (row,) = (line for line in plan_all.page(PLANS[:1], [report]).splitlines() if line.startswith(f"| `{PLANS[0].config}`"))
    assert "expected A \\| B, got C" in row
    assert row.replace("\\|", "").count("|") == len(plan_all.COLUMNS) + 1


def test_a_plan_is_made_again_when_what_it_depends_on_changes(planner, tmp_path):
    program = planner(f'echo x >>{tmp_path}/runs; echo "{{\\"run\\": $(wc -l <{tmp_path}/runs)}}" >"$file"')
    runs = [plan_all.run(PLANS[0], tmp_path, 60)["run"] for _ in range(2)]
    newer = next(tmp_path.glob("*.json")).stat().st_mtime + 1
    os.utime(program, (newer, newer))
    runs.append(plan_all.run(PLANS[0], tmp_path, 60)["run"])
    assert runs == [1, 1, 2]

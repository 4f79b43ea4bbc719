"""What makes the tables of docs/ that show plans: scripts/plan_all.py and the scripts of bench/ that use it."""

import os
import re
import sys

import pytest

from conftest import ROOT, needs_libtpu

sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "bench")]
import analytic_error
import plan_all
import plan_phases
import plan_vs_jax
from plan_all import PLANS, Plan

# Compiles to the end in seconds.
SMALL = Plan("configs/llama3/debug.toml", "v5e:2x2", (
    "--model.scan", "true", "--training.mixed_precision_param", "bfloat16", "--model.n_layers", "2"))


# ---- plans that are made and kept ----------------------------------------------------------------------------------------


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


@pytest.fixture
def counting_planner(planner, tmp_path):
    """Each run's report says how many there have been."""
    return planner(f'echo x >>{tmp_path}/runs; echo "{{\\"run\\": $(wc -l <{tmp_path}/runs)}}" >"$file"')


def test_a_plan_that_fails_is_a_row_of_the_page(planner, tmp_path):
    planner("echo 'flambeau: [plan] expected A | B, got C; do D' >&2; exit 2")
    report = plan_all.run(PLANS[0], tmp_path, 60)
    assert report == {"failure": "exit code 2: flambeau: [plan] expected A | B, got C; do D"}
    (row,) = (line for line in plan_all.page(PLANS[:1], [report]).splitlines() if line.startswith(f"| `{PLANS[0].config}`"))
    assert "expected A \\| B, got C" in row
    assert row.replace("\\|", "").count("|") == len(plan_all.COLUMNS) + 1


def test_a_plan_is_computed_anew_when_what_it_depends_on_changes(counting_planner, tmp_path):
    results = tmp_path / "results"
    runs = [plan_all.run(PLANS[0], results, 60)["run"] for _ in range(2)]
    newer = next(results.glob("*.json")).stat().st_mtime + 1
    os.utime(counting_planner, (newer, newer))
    runs.append(plan_all.run(PLANS[0], results, 60)["run"])
    assert runs == [1, 1, 2]


def test_plans_that_differ_are_kept_apart(counting_planner, monkeypatch, tmp_path):
    config, topology = PLANS[0].config, PLANS[0].topology
    plans = [PLANS[0], Plan(config, "v5e:4x4"), *(Plan(config, topology, ("--loss.chunks", n)) for n in ("4", "16"))]
    requests = [(plan, more) for plan in plans for more in ((), ("--full",), ("--analytic",))]
    runs = [plan_all.run(plan, tmp_path / "results", 60, *more)["run"] for plan, more in requests]
    assert runs == list(range(1, len(requests) + 1))
    assert [plan_all.run(plan, tmp_path / "results", 60, *more)["run"] for plan, more in requests] == runs
    monkeypatch.setenv("FLAMBEAU_PYTHON", "/opt/with_jax/bin/python")
    assert plan_all.run(PLANS[0], tmp_path / "results", 60)["run"] == len(requests) + 1


# ---- small cases ---------------------------------------------------------------------------------------------------------


@needs_libtpu
def test_first_phase_tells_the_whole_compilation_s_memory(tmp_path):
    comparison = plan_phases.compare(SMALL, tmp_path, 600)
    assert comparison.holds and comparison.memory == pytest.approx(0, abs=plan_phases.BOUND)
    cells = comparison.cells()
    assert len(cells) == len(plan_phases.HEAD) and cells[:2] == [SMALL.label, "v5e:2x2"] and cells[5] == "+0.0%"  # FLOPs
    comparison.first["memory"]["total"] *= 1.006
    assert not comparison.holds and comparison.cells()[4] == "+0.600% **outside**"


@needs_libtpu
@pytest.mark.parametrize("topology, fitted", [("v5e:2x2", "yes"), ("v4:2x2x1", "no"), ("v5p:2x2x1", "no"), ("v6e:2x2", "no")])
def test_analytic_error(tmp_path, topology, fitted):
    """Also of generations that its rules were not fitted to: memory within 15 %, the bound that docs/planning.md states. Rows are long enough
    that memory on the chip, which the mode knows little of, does not decide."""
    plan = Plan(SMALL.config, topology, (*SMALL.overrides, "--training.sequences_per_microbatch", "16", "--training.max_context_length", "1024"))
    compiled, analytic = analytic_error.reports(plan, tmp_path, 600)
    cells = dict(zip(analytic_error.HEAD, analytic_error.cells(plan, compiled, analytic), strict=True))
    assert cells["fitted"] == fitted
    assert float(cells["HBM GiB, compiled"]) == pytest.approx(compiled["memory"]["total"] / 2**30, abs=0.005)
    error = {key: float(cells[key].removesuffix("%")) for key in ("FLOPs", "error", "collective bytes")}
    assert error["error"] == pytest.approx(100 * (analytic["memory"]["total"] / compiled["memory"]["total"] - 1), abs=0.05)
    assert abs(error["error"]) < 15 and abs(error["FLOPs"]) < 2 and abs(error["collective bytes"]) < 0.1


def test_means_of_analytic_errors_are_signed():
    rows = analytic_error.means(["v5e:2x2", "v5p:2x2x1", "v5p:2x2x2", "v4:2x2x1"], [0.5, -0.1, 0.2, -0.3], [0.0, 0.1, 0.1, -0.2])
    assert rows == [
        ["v5e", "yes", "1", "+50.0%", "+50.0%", "+50.0%", "+0.0%", "+0.0%", "+0.0%"],
        ["v5p", "no", "2", "+5.0%", "-10.0%", "+20.0%", "+10.0%", "+10.0%", "+10.0%"],
        ["v4", "no", "1", "-30.0%", "-30.0%", "-30.0%", "-20.0%", "-20.0%", "-20.0%"],
        ["all others", "no", "3", "-6.7%", "-30.0%", "+20.0%", "+0.0%", "-20.0%", "+10.0%"],
    ]


def test_without_the_compiler_nothing_is_compared(planner, tmp_path):
    planner('echo \'{"source": "analytic"}\' >"$file"')
    for compare in (plan_phases.compare, analytic_error.reports):
        with pytest.raises(SystemExit, match="expected a report by libtpu.*got analytic"):
            compare(SMALL, tmp_path, 60)


def test_table_beside_jax_marks_where_ours_is_worse():
    ours = {"memory": 3 * 2**30, "flops": 12.974e15, "traffic": 1.1e9, "collectives": 0}
    theirs = {"memory": 4 * 2**30, "flops": 12.974e15, "traffic": 1e9, "collectives": None}
    result = {"config": "configs/llama3/8b.toml", "pod": "v5e:4x4", "attention": "splash", "flambeau": ours, "jax": theirs}
    assert plan_vs_jax.table([result]).splitlines()[2:] == [
        "| llama3/8b, v5e:4x4, splash | flambeau | 3 | 12,974 | 1.1 | 0 |",
        "|  | jax | 4 | 12,974 | 1 | ? |",
        "|  | **ratio** | 0.750 | 1.000 | **1.100** | ? |",
    ]


# ---- the pages -----------------------------------------------------------------------------------------------------------


def tables(page):
    """Of a page: the cells of each table, row by row, without the rule under the head."""
    found = re.findall(r"(?:^\|.*\n)+", (ROOT / "docs" / page).read_text(), re.M)
    return [[tuple(cell.strip() for cell in line[1:-1].split("|")) for i, line in enumerate(table.splitlines()) if i != 1] for table in found]


@pytest.mark.parametrize("page, head, labels", [
    ("plans.md", plan_all.COLUMNS, [(f"`{plan.config}`", plan.topology) for plan in PLANS]),
    ("planning.md", plan_phases.HEAD, [(plan.label, plan.topology) for plan in plan_phases.PLANS]),
    ("planning.md", analytic_error.HEAD, [(plan.label, plan.topology) for plan in analytic_error.PLANS]),
])
def test_page_has_the_table_that_is_printed(page, head, labels):
    (table,) = (table for table in tables(page) if table[0] == tuple(head))
    assert [row[:2] for row in table[1:]] == labels
    assert {len(row) for row in table} == {len(head)}


def test_means_of_the_page_are_those_of_its_table():
    (plans,), (means,) = ([t[1:] for t in tables("planning.md") if t[0] == head] for head in (analytic_error.HEAD, analytic_error.MEANS))
    column = lambda name: [float(row[analytic_error.HEAD.index(name)].removesuffix("%")) / 100 for row in plans]
    expected = analytic_error.means([row[1] for row in plans], column("error"), column("HBM bytes moved"))
    assert [row[:3] for row in means] == [tuple(row[:3]) for row in expected]
    for row, want in zip(means, expected):
        for cell, figure in zip(row[3:], want[3:]):
            assert abs(float(cell[:-1]) - float(figure[:-1])) <= 0.1  # the table's figures are rounded


def test_first_phases_of_the_page_are_within_the_bound():
    (table,) = (table for table in tables("planning.md") if table[0] == plan_phases.HEAD)
    for row in table[1:]:
        first, whole = (float(cell.replace(",", "")) for cell in row[2:4])
        assert abs(first / whole - 1) <= plan_phases.BOUND, row


def test_page_beside_jax_has_all_cases_twice():
    measures = [name for name, _, _ in plan_vs_jax.MEASURES]
    with_figures = [table for table in tables("plan_vs_jax.md") if list(table[0][2:]) == measures]
    for table, attention in zip(with_figures, ("blockwise", "splash"), strict=True):
        titles = [row[0] for row in table[1:] if row[0]]
        assert titles == [f"{case.config.removeprefix('configs/').removesuffix('.toml')}, {case.pod}, {attention}"
                          for case in plan_vs_jax.CASES.values()]


def test_planning_has_the_ratios_of_the_page_beside_jax():
    ratios = []
    for table in tables("plan_vs_jax.md"):
        titles = [row[0] for row in table if row[1] == "flambeau"]
        ratios += [(title, row[2:]) for title, row in zip(titles, [row for row in table if row[1] == "**ratio**"], strict=True)]
    (short,) = (table for table in tables("planning.md") if table[0][0] == "ratio to JAX's")
    name = {"blockwise": "loops", "splash": "kernels"}
    assert [(row[0], row[1], row[2:]) for row in short[1:]] == [
        (title.rpartition(", ")[0], name[title.rpartition(", ")[2]], figures) for title, figures in ratios]

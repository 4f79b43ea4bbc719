"""`flambeau plan` as a user meets it: what it says against counts by hand, steps that do not fit, bad input, signals, the search.

Plans of debug models compile in seconds; the one of several slices and the search take longest.
"""

import functools
import json
import os
import pathlib
import re
import signal
import subprocess
import time

import pytest

from conftest import FLAMBEAU, ROOT, needs_libtpu

LLAMA, QWEN, EIGHT_B = "configs/llama3/debug.toml", "configs/qwen3/debug.toml", "configs/llama3/8b.toml"
SCAN = ["--model.scan", "--training.mixed_precision_param", "bfloat16"]
KINDS = {"parameters", "gradients", "optimizer_states", "batch", "saved_activations", "temporaries", "collective_buffers", "padding"}
GIB = 1 << 30


@pytest.fixture
def plan(flambeau, tmp_path):
    """plan(config, "v5e:2x2", ...) is the report of JSON; with `code` 2 the line of the message."""

    def run(config, topology, *args, code=0, env=None):
        file = tmp_path / "plan.json"
        file.unlink(missing_ok=True)
        done = flambeau("plan", config, "--topology", topology, "--json", file, *args, code=code, env=env)
        return json.loads(file.read_text()) if code != 2 else message(done)

    return run


def message(done) -> str:
    """The one line of a refusal."""
    assert done.stdout == "", done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("flambeau: "), done.stderr
    assert len(lines[0]) < 700, done.stderr
    return lines[0]


# ---- by hand ----------------------------------------------------------------------------------------------------------------


class Counts:
    """Of a dense decoder, from its sizes."""

    def __init__(self, dim, layers, heads, kv_heads, head_dim, ffn, vocab=320, tied=False, qk_norm=False):
        self.layer = dim * (heads + 2 * kv_heads) * head_dim + heads * head_dim * dim + 3 * dim * ffn  # matrices of one
        self.layers, self.head, self.attention_dim, self.w13 = layers, vocab * dim, heads * head_dim, layers * 2 * ffn * dim
        norms = layers * (2 * dim + (2 * head_dim if qk_norm else 0)) + dim
        self.parameters = layers * self.layer + norms + self.head * (1 if tied else 2)

    def flops(self, tokens, context):
        """Forward and backward of `tokens` tokens: three products of each matrix, two of attention forward and five backward (it
        recomputes the scores), of all pairs since a row is one block."""
        return 2 * tokens * 3 * (self.layers * self.layer + self.head) + 7 * 2 * tokens * context * self.attention_dim * self.layers


MODELS = {LLAMA: Counts(dim=256, layers=6, heads=8, kv_heads=4, head_dim=32, ffn=768),
          QWEN: Counts(dim=256, layers=8, heads=16, kv_heads=8, head_dim=128, ffn=3072, tied=True, qk_norm=True)}


@needs_libtpu
@pytest.mark.parametrize("config, topology, devices", [(LLAMA, "v5e:2x4", 8), (QWEN, "v5e-4", 4)])
def test_counts_by_hand(plan, tmp_path, config, topology, devices):
    counts, rows, context = MODELS[config], 4, 256
    got = plan(config, topology, *SCAN, "--activation_checkpoint.mode", "selective", "--html", "plan.html", "--tokens", "1e9",
               "--price-per-chip-hour", "1.2")
    assert got["source"] == "libtpu, first phase" and got["exact"] and got["fits"] and got["warnings"] == []
    assert (got["devices"], got["chips"], got["slices"], got["mesh"]) == (devices, devices, 1, {"shard": devices})
    assert got["device_kind"] == "TPU v5 lite" and got["memory"]["limit"] == pytest.approx(15.75 * GIB, rel=1e-3)
    assert (got["context"], got["sequences_per_device"], got["accumulation"]) == (context, rows, 1)
    assert got["activation_checkpoint"] == "selective"
    tokens = rows * context * devices
    assert got["tokens_per_step"] == tokens
    # Memory.
    assert got["parameters"] == counts.parameters
    kinds = got["memory"]["by_kind"]
    assert set(kinds) <= KINDS and sum(kinds.values()) == got["memory"]["total"]
    state = 4 * counts.parameters // devices  # float32
    assert state <= kinds["parameters"] <= 1.01 * state
    assert 2 * state <= kinds["optimizer_states"] <= 1.1 * 2 * state  # some are not updated where they lie
    assert max(used for _, used in got["memory"]["over_step"]) <= got["memory"]["total"]
    assert all(0 <= at <= 1 for at, _ in got["memory"]["over_step"])
    names = [b["name"] for b in got["memory"]["largest"]]
    w13 = next(b for b in got["memory"]["largest"] if b["name"] == "layers.*.feed_forward.{w1,w3}.weight")
    assert {"layers.*.feed_forward.{w1,w3}.weight, exp_avg", "layers.*.feed_forward.{w1,w3}.weight, exp_avg_sq"} <= set(names)
    assert w13["kind"] == "parameters" and w13["bytes"] == 4 * counts.w13 // devices + w13["padding"]
    # Work.
    assert got["work"]["flops"] == pytest.approx(counts.flops(tokens // devices, context), rel=0.01)
    assert got["peak_flops"] == 197e12 and got["estimate"]["compute_s"] == pytest.approx(got["work"]["flops"] / 197e12, rel=1e-9)
    assert got["work"]["collective_bytes"] == sum(c["bytes"] for c in got["collectives"])
    # FSDP: every matrix of the layers is gathered once forward in bfloat16, and its float32 gradient is summed.
    assert {c["axes"] for c in got["collectives"]} == {"shard"} and {c["group_size"] for c in got["collectives"]} == {devices}
    gathered = sum(c["bytes"] for c in got["collectives"] if (c["kind"], c["place"], c["type"]) == ("all-gather", "layers, forward", "bf16"))
    assert gathered == pytest.approx(2 * counts.layers * counts.layer, rel=0.01)
    summed = sum(c["bytes"] for c in got["collectives"] if c["place"] == "layers, backward" and c["type"] == "f32" and
                 c["kind"] in {"reduce-scatter", "all-reduce"})
    assert summed == pytest.approx(4 * counts.layers * counts.layer, rel=0.01)
    assert all(0 <= c["overlapped"] <= c["bytes"] for c in got["collectives"])
    # Time, days and price.
    step = got["estimate"]["step_s"]
    assert step >= max(got["estimate"]["compute_s"], got["estimate"]["hbm_s"]) > 0
    assert got["tokens_per_second_per_chip"] == pytest.approx(tokens / step / devices, rel=1e-6)
    assert got["mfu"] == pytest.approx(got["model_flops"] / 197e12 / step, rel=1e-6)
    assert got["mfu_causal"] == pytest.approx(got["model_flops_causal"] / 197e12 / step, rel=1e-6)
    attention = 6 * counts.layers * 2 * counts.attention_dim  # TorchTitan's count of a pair of a query and a key
    assert got["model_flops"] - got["model_flops_causal"] == pytest.approx(attention * (context - 1) / 2 * tokens / devices, rel=1e-6)
    assert got["days"] == pytest.approx(1e9 / tokens * step / 86400, rel=1e-6)
    assert got["price"] == pytest.approx(got["days"] * 24 * devices * 1.2, rel=1e-6)
    check_page((tmp_path / "plan.html").read_text(), got)


def check_page(page, report):
    assert page.lstrip().lower().startswith("<!doctype html>") and page.rstrip().endswith("</html>")
    without_names = page.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not re.search(r"https?:|<script|<link|<iframe|@import|url\(|\ssrc=", without_names)
    assert "<svg" in page
    for said in [report["model"], report["pod"], report["memory"]["largest"][0]["name"], "estimate"]:
        assert said in page


@needs_libtpu
def test_terminal_says_the_same(flambeau, tmp_path):
    done = flambeau("plan", LLAMA, "--topology", "v5e:2x2", *SCAN, "--json", "a.json")
    report = json.loads((tmp_path / "a.json").read_text())
    assert done.stderr == "" and "\x1b" not in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 100
    first = done.stdout.splitlines()[0]
    assert first.startswith("fits: ") and f"of {report['memory']['limit'] / GIB:.2f} GiB" in first
    for said in [report["pod"], report["source"], report["memory"]["largest"][0]["name"], "estimate", "all-gather"]:
        assert said in done.stdout


@needs_libtpu
def test_loops_are_told_apart_whatever_is_kept(plan):
    """With everything kept, the forward loop does much of the backward's work ahead."""
    got = plan(LLAMA, "v5e:2x2", *SCAN, "--activation_checkpoint.mode", "none", "--training.sequences_per_microbatch", "64")
    assert {"layers, forward", "layers, backward"} <= {c["place"] for c in got["collectives"]}
    kept = got["memory"]["by_kind"]["saved_activations"]
    w13_out = 6 * 64 * 256 * 2 * 768 * 2  # of each layer, bfloat16
    assert w13_out < kept < got["memory"]["total"]


@needs_libtpu
def test_eight_billion_parameters_cost_little(tmp_path):
    """Against the same plan of a debug model, in processor time on the same machine: neither recording nor reading what was compiled
    grows with the number of layers or their sizes. Memory is of flambeau or of its child, whichever took more."""
    def cost(config, *more):
        with open(tmp_path / "out", "w+") as out:
            process = subprocess.Popen([FLAMBEAU, "plan", ROOT / config, "--topology", "v5e:4x4", *more], stdin=subprocess.DEVNULL, stdout=out)
            _, status, used = os.wait4(process.pid, 0)  # of this process and its children alone
            process.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            assert process.returncode == 0 and out.read().startswith("fits: ")
        return used.ru_utime + used.ru_stime, used.ru_maxrss

    small, _ = cost(LLAMA, *SCAN)
    large, memory = cost(EIGHT_B)
    assert large < 5 * small
    assert memory < 4 * 2**20  # KiB


# ---- what does not fit --------------------------------------------------------------------------------------------------------


@needs_libtpu
def test_proposes_changes_that_hold(plan):
    large = [*SCAN, "--training.sequences_per_microbatch", "256", "--training.max_context_length", "1024"]
    got = plan(LLAMA, "v5e-1", *large, code=1)
    assert not got["fits"] and got["memory"]["total"] > got["memory"]["limit"]
    assert sum(got["memory"]["by_kind"].values()) == got["memory"]["total"]
    compiled = [c for c in got["changes"] if not c["failure"]]
    fitting = [c for c in compiled if c["fits"]]
    assert fitting and all(c["total"] < got["memory"]["total"] and c["keys"] for c in compiled)
    for change in {id(c): c for c in (fitting[0], fitting[-1])}.values():
        overrides = [word for key, value in change["keys"].items() for word in (f"--{key}", value)]
        again = plan(LLAMA, "v5e-1", *large, *overrides)
        assert again["fits"] and again["memory"]["total"] == change["total"]
        assert again["tokens_per_step"] == got["tokens_per_step"]


@needs_libtpu
def test_proposes_nothing_when_told(plan):
    got = plan(EIGHT_B, "v5e:2x2", "--no-changes", code=1)
    assert not got["fits"] and got["changes"] == []
    assert 30 * GIB < got["memory"]["total"] < 80 * GIB  # float32 weights and two states alone: 22.4 GiB


# ---- bad input ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args, said", [
    (["--topology", ""], "expected a pod of v4, v5e, v5p, v6e or tpu7x"),
    (["--topology", "v9z:2x2"], "v9z:2x2"),
    (["--topology", "gpu"], "expected a pod of"),
    (["--topology", "v5e"], "expected a shape or a size"),
    (["--topology", "v5e:0x4"], "at least 1"),
    (["--topology", "v5e-0"], "nearest: v5e-1"),
    (["--topology", "v5p:-2x2x1"], "at least 1"),
    (["--topology", "v5e:3x5"], "nearest"),
    (["--topology", "v5e:32x32"], "at most 256 chips"),
    (["--topology", "v5e:2x2x2"], "expected 2 dimensions"),
    (["--topology", "v5p:16x16x28"], "at most 6,144 chips"),
    (["--topology", "v5p-2047"], "nearest"),
    (["--topology", "v5e:99999999999999999999x2"], "at most 256 chips"),
    (["--topology", "v5e:2x2;rm"], "expected a shape"),
    (["--topology", "v5e:2x2", "--slices", "0"], "--slices"),
    (["--topology", "v5e:2x2", "--slices", "-3"], "--slices"),
    (["--topology", "v5e:2x2", "--slices", "two"], "--slices"),
    (["--topology", "v5e:2x2", "--slices", "257"], "expected 1 to 256 slices"),
    (["--topology", "v5p:16x16x24", "--slices", "4"], "at most 18,432 chips"),
    ([], "--topology"),
    (["--topology", "v5e:2x2", "--parallelism.data_parallel_shard_degree", "3"], "4 devices"),
    (["--topology", "v5e:2x4", "--parallelism.tensor_parallel_degree", "3"], "8 devices"),
    (["--topology", "v5e:2x4", "--parallelism.tensor_parallel_degree", "0"], "tensor_parallel_degree"),
    (["--topology", "v5e:2x4", "--parallelism.tensor_parallel_degree", "8"], "divisor of model.n_kv_heads = 4"),
    (["--topology", "v5p:4x8x12"], "divisor of model.dim = 256, got 384"),
    (["--topology", "v5e:2x2", "--training.sequences_per_train_step", "7"],
     "training.sequences_per_train_step: expected a multiple of 4 (a microbatch of 4 sequences), got 7; choose for example 8"),
    (["--topology", "v5e:2x2", "--training.sequences_per_train_step", "8"],
     "expected a multiple of 16 (a microbatch of 4 sequences on each of 4 data-parallel ranks), got 8; choose for example 16"),
    (["--topology", "v5e:2x2", "--model.nothing", "1"], "model.nothing"),
    (["--topology", "v5e:2x2", "--model.flavor", "9T"], "9T"),
    (["--topology", "v5e:2x2", "--full", "--analytic"], "--full or --analytic"),
    (["--topology", "v5e:2x2", "--time-limit", "0"], "--time-limit"),
    (["--topology", "v5e:2x2", "--time-limit", "1e10"], "--time-limit: expected an integer from 1 to 10000000, got 1e10"),
    (["--topology", "v5e:2x2", "--memory-limit", "-1"], "--memory-limit"),
    (["--topology", "v5e:2x2", "--memory-limit", "1e10"], "--memory-limit: expected a number from 0.001 to 1000000, got 1e10"),
    (["--topology", "v5e:2x2", "--memory-limit", "nan"], "--memory-limit: expected a number"),
    (["--topology", "v5e:2x2", "--tokens", "abc"], "--tokens: expected a number from 0 to 1e+18, got abc"),
    (["--topology", "v5e:2x2", "--serach"], "unknown option --serach; did you mean --search?"),
    (["--topology", "v5e:2x2", "--jsn", "a"], "unknown option --jsn; did you mean --json?"),
    (["--topology", "v5e:2x2", "--model.flavour", "debug"], "did you mean model.flavor?"),
    (["--topology", "v5e:2x2", "--search", "--html", "a.html"], "--html excludes --search"),
    (["--topology", "v5e:2x2", "--search", "--tokens", "1e9"], "--tokens excludes --search"),
    (["--topology", "v5e:2x2", "--search", "--no-changes"], "--no-changes excludes --search"),
    (["--topology", "v5e:2x2", "--best", "a.toml"], "--best requires --search"),
    (["--topology", "v5e:2x2", "--search", "--search-compilations", "0"], "--search-compilations: expected an integer from 1"),
    (["--topology", "v5e:2x2", "--search", "--search-record", "/no/such/folder/record"], "/no/such/folder/record"),
    (["--topology", "v5e:2x2", "--price-per-chip-hour", "-1"], "--price-per-chip-hour"),
    (["--topology", "v5e:2x2", "--plugin", "/no/such/libtpu.so"], "/no/such/libtpu.so"),
], ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else None)
def test_bad_input(flambeau, args, said):
    assert said in message(flambeau("plan", LLAMA, *args, code=2))


def test_missing_config(flambeau):
    assert "no-such.toml" in message(flambeau("plan", "no-such.toml", "--topology", "v5e:2x2", code=2))


@needs_libtpu
@pytest.mark.parametrize("option", ["--json", "--html", "--write-program"])
def test_unwritable_file(flambeau, option):
    assert "/no/such/folder/file" in message(flambeau("plan", LLAMA, "--topology", "v5e-1", *SCAN, option, "/no/such/folder/file", code=2))


@needs_libtpu
@pytest.mark.parametrize("limit, said", [(["--time-limit", "1"], "within 1 s"), (["--memory-limit", "0.05"], "within 51 MiB of memory")])
def test_limits(flambeau, tmp_path, limit, said):
    env = {}
    if "--time-limit" in limit:  # a compiler that takes long on any machine
        slow = tmp_path / "slow"
        slow.write_text("#!/bin/sh\nexec sleep 600\n")
        slow.chmod(0o755)
        env["FLAMBEAU_TOPOLOGY_COMPILER"] = str(slow)
    assert said in message(flambeau("plan", EIGHT_B, "--topology", "v5e:4x4", *limit, code=2, env=env))


# ---- no child stays -------------------------------------------------------------------------------------------------------------


def children_of(pid) -> list[int]:
    return [int(word) for word in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def alive(pid) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@needs_libtpu
@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM], [signal.SIGINT, signal.SIGINT], [signal.SIGKILL]],
                         ids=lambda signals: " ".join(s.name for s in signals))
def test_a_signal_ends_the_child_too(tmp_path, signals):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen([FLAMBEAU, "plan", ROOT / EIGHT_B, "--topology", "v5e:4x4", "--full"], cwd=tmp_path, text=True,
                               env={**os.environ, "TMPDIR": str(temporary)}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: children_of(process.pid) and list(temporary.glob("flambeau_compile_*/dump/*")))  # libtpu is at work
        (child,) = children_of(process.pid)
        for number in signals:
            process.send_signal(number)
        out, error = process.communicate(timeout=30)
    finally:
        process.kill()
    wait_until(lambda: not alive(child), 10)
    assert out == ""
    if signals == [signal.SIGKILL]:
        return  # nobody is left to remove the folder
    if len(signals) == 1:
        assert process.returncode == 128 + signals[0] and error.splitlines() == ["flambeau: interrupted"]
        assert list(temporary.iterdir()) == []
    else:
        assert process.returncode in {-signal.SIGINT, 128 + signal.SIGINT}


# ---- several slices, no compiler ------------------------------------------------------------------------------------------------


@needs_libtpu
def test_two_slices(plan):
    got = plan(LLAMA, "v5e:2x2", *SCAN, "--slices", "2", "--model.n_layers", "2", "--activation_checkpoint.mode", "full",
               "--parallelism.data_parallel_replicate_degree", "2")
    assert got["source"] == "libtpu, whole compilation"
    assert (got["slices"], got["devices"], got["mesh"]) == (2, 8, {"replicate": 2, "shard": 4})
    # Gradients are summed over the copies of the model, a quarter of them a device, in whole tiles; two layers' loop may be written out.
    across = [c for c in got["collectives"] if c["axes"] == "replicate"]
    assert {c["kind"] for c in across} == {"all-reduce"} and {c["group_size"] for c in across} == {2}
    summed = sum(c["bytes"] for c in across if c["type"] == "f32")
    assert 1 <= summed / (4 * 2 * MODELS[LLAMA].layer / 4) < 1.5
    assert any("data-centre network" in line for line in got["estimate"]["assumptions"])


def test_without_libtpu(flambeau, plan, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    got = plan(LLAMA, "v5e:2x2", *SCAN, env={"FLAMBEAU_SITE_PACKAGES": str(empty)})
    assert got["source"] == "analytic" and "pip install libtpu" in got["warnings"][0]
    done = flambeau("plan", LLAMA, "--topology", "v5e:2x2", "--full", code=2, env={"FLAMBEAU_SITE_PACKAGES": str(empty)})
    assert "pip install libtpu" in message(done)


# ---- the search -----------------------------------------------------------------------------------------------------------------

SEARCH = ["plan", LLAMA, "--topology", "v5e:2x2", *SCAN, "--search", "--search-compilations", "3", "--search-record", "record.jsonl",
          "--best", "best.toml", "--json", "search.json"]


@needs_libtpu
def test_search(flambeau, tmp_path):
    first = flambeau(*SEARCH)
    result = json.loads((tmp_path / "search.json").read_text())
    compiled = [c for c in result["candidates"] if c["compiled"]]
    assert result["considered"] >= len(result["candidates"]) > len(compiled) >= 3
    assert result["found"] and result["candidates"][: len(compiled)] == compiled and compiled[0]["fits"]
    rates = [c["tokens_per_second_per_chip"] for c in compiled if c["fits"]]
    assert rates == sorted(rates, reverse=True)
    (given,) = [c for c in compiled if c["given"]]
    assert given["tokens_per_second_per_chip"] <= rates[0]
    # The best is a configuration for training, and it is what was planned.
    best = tmp_path / "best.toml"
    assert "parameters" in flambeau("check", best).stdout
    flambeau("plan", best, "--topology", "v5e:2x2", "--json", "best.json")
    again = json.loads((tmp_path / "best.json").read_text())
    assert (again["memory"]["total"], again["estimate"]["step_s"]) == (compiled[0]["total"], compiled[0]["step_s"])
    # Nothing is compiled again.
    record = tmp_path / "record.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    assert len(lines) == len(compiled)
    deaf = {"FLAMBEAU_TOPOLOGY_COMPILER": "/bin/false"}
    second = flambeau(*SEARCH, env=deaf)
    assert second.stdout == first.stdout and record.read_text() == "".join(lines)
    # Killed while it wrote a line: that one is compiled again, and no other.
    record.write_text("".join(lines[1:]) + lines[0][:40])
    assert flambeau(*SEARCH).stdout == first.stdout
    assert record.read_text().splitlines(keepends=True) == [*lines[1:], lines[0][:40] + "\n", lines[0]]
    # What failed is no answer: with a compiler that never gives one nothing fits, and nothing is remembered.
    record.unlink()
    failed = flambeau(*SEARCH, code=2, env=deaf)
    assert record.read_text() == "" and "expected answers of the compiler, got none" in failed.stderr
    assert all(c["failure"] for c in json.loads((tmp_path / "search.json").read_text())["candidates"] if c["compiled"])


@needs_libtpu
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="NOT TESTED: there is no /dev/full")
def test_record_on_a_full_disk(flambeau):
    """What a thread of the search raises ends as a message."""
    words = [word if word != "record.jsonl" else "/dev/full" for word in SEARCH]
    assert "cannot write /dev/full" in message(flambeau(*words, code=2))


@needs_libtpu
def test_interrupted_search_goes_on(flambeau, tmp_path):
    record = tmp_path / "record.jsonl"
    process = subprocess.Popen([FLAMBEAU, SEARCH[0], ROOT / LLAMA, *SEARCH[2:]], cwd=tmp_path, text=True, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        wait_until(lambda: record.exists() and record.read_text().count("\n") >= 1)
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130 and out == ""
    assert error.splitlines() == ["flambeau: interrupted; the same command goes on from record.jsonl"]
    before = record.read_text()
    flambeau(*SEARCH)
    assert record.read_text().startswith(before)
    assert len({json.loads(line)["key"] for line in record.read_text().splitlines()}) == record.read_text().count("\n")

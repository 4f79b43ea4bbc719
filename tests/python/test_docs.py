"""Every command and every Python example of the documentation is run; see docs.py for how a page marks exceptions."""

import os
import re
import subprocess
import sys

import docs
import pytest
from conftest import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "bench/README.md", *ROOT.glob("docs/**/*.md")])
BLOCK_SECONDS = 600


@pytest.fixture
def workplace(tmp_path):
    """A folder that looks like the checkout after `make build`, so that what commands write lands elsewhere."""
    for entry in ROOT.iterdir():
        if entry.name not in {"outputs", ".git", ".pytest_cache"}:
            (tmp_path / entry.name).symlink_to(entry)
    return tmp_path


def run(block, folder):
    environment = {**os.environ, "PATH": f"{folder}/.venv/bin{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-c"] if block.language in docs.PYTHON else ["bash", "-euo", "pipefail", "-c"]
    return subprocess.run([*command, block.script()], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=BLOCK_SECONDS)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page(page, workplace):
    for block in docs.blocks(page.read_text()):
        if block.skip is not None:
            continue
        done = run(block, workplace)
        where = f"{page.relative_to(ROOT)}, line {block.line}:\n{block.script()}\n"
        assert done.returncode == 0, f"{where}exit code {done.returncode}\n{done.stdout[-8000:]}"
        for text in block.expect:
            assert text in done.stdout, f"{where}the output lacks {text!r}\n{done.stdout[-8000:]}"


def test_benchmarks_have_the_options_that_pages_give_them():
    """Also those of commands that are skipped."""
    given = {}
    for page in PAGES:
        for command in (c for block in docs.blocks(page.read_text()) for c in block.commands()):
            if (found := docs.options(command)) is not None:
                given.setdefault(found[0], set()).update(found[1])
    assert {f"bench/{p.name}" for p in (ROOT / "bench").glob("*.py")} <= set(given), "bench/README.md shows how each is run"
    for script, words in given.items():
        text = subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
        assert words <= set(re.findall(r"--[\w-]+", text)), script


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links(page):
    missing = [t for t in docs.links(page.read_text()) if t and not (page.parent / t).exists()]
    assert not missing, f"{page.relative_to(ROOT)} links to files that are not there: {missing}"


# The reader of pages itself.

def fenced(language, *lines, notes=()):
    return "\n".join([*notes, f"```{language}", *lines, "```"]) + "\n"


@pytest.mark.parametrize("page, scripts", [
    (fenced("sh", "cat <<E", "", "# a", "E"), ["cat <<E\n\n# a\nE"]),
    (fenced("console", "$ # why", "$ ls # all"), ["ls # all"]),
    (fenced("sh", "build/flambeau plan configs/llama3/8b.toml --topology v5e:4x4", ".venv/bin/python bench/compile_time.py",
            notes=["<!-- test: skip: minutes -->"]),
     ["build/flambeau plan configs/llama3/8b.toml --topology v5e:4x4\n.venv/bin/python bench/compile_time.py"]),
    (fenced("console", "$ ls \\", ">   -l", "total 0", "$ pwd"), ["ls -l\npwd"]),
    (fenced("text", "$ rm"), []),
    ("text `$ ls`\n" + fenced("python", "print(1)") + fenced("bash", "ls"), ["print(1)", "ls"]),
    (fenced("sh", "build/flambeau train a.toml", "ls", "A=1 build/flambeau plan b", notes=["<!-- test: append: --x 2 -->", ""]),
     ["build/flambeau train a.toml --x 2\nls\nA=1 build/flambeau plan b --x 2"]),
    ("1. step\n" + "   ```sh\n   ls\n   ```\n", ["ls"]),
    (fenced("sh", 'make train ARGS="--training.steps 3"', "git clone https://a/b.git flambeau", "cd flambeau && make test",
            notes=["<!-- test: skip: run by .ci/run -->"]),
     ['make train ARGS="--training.steps 3"\ngit clone https://a/b.git flambeau\ncd flambeau && make test']),
])
def test_blocks(page, scripts):
    assert [b.script() for b in docs.blocks(page)] == scripts


@pytest.mark.parametrize("page, message", [
    (fenced("", "ls"), "give this block a language"),
    ("```sh\nls\n", "not closed"),
    (fenced("console", "$ ls \\"), "backslash"),
    (fenced("sh", "ls", notes=["<!-- test: skip: slow -->"]), "only set-up, benchmarks and plans of real models may be skipped"),
    (fenced("sh", "build/flambeau plan configs/llama3/debug.toml --topology v5e:2x2", notes=["<!-- test: skip: slow -->"]), "only set-up"),
    (fenced("sh", "build/flambeau train configs/llama3/8b.toml --device cpu", notes=["<!-- test: skip: slow -->"]), "only set-up"),
    (fenced("sh", ".venv/bin/python bench/compile_time.py --quick", notes=["<!-- test: skip: slow -->"]), "only set-up"),
    (fenced("sh", "cd x && ls", notes=["<!-- test: skip: slow -->"]), "only set-up"),
    (fenced("python", "1", notes=["<!-- test: skip: slow -->"]), "always run"),
    (fenced("sh", "ls", notes=["<!-- test: append: -l -->"]), "changes nothing"),
    (fenced("sh", "ls", notes=["<!-- test: ignore: it -->"]), "test notes are append, expect, skip"),
    ("<!-- test: expect: x -->\nprose\n" + fenced("sh", "ls"), "right before a code block"),
    (fenced("toml", "a = 1", notes=["<!-- test: expect: x -->"]), "not run"),
    (fenced("sh", "ls") + "<!-- test: expect: x -->", "no block after it"),
])
def test_pages_that_cannot_be_tested(page, message):
    with pytest.raises(docs.DocError, match=message):
        for block in docs.blocks(page):
            block.script()


@pytest.mark.parametrize("command, found", [
    (".venv/bin/python bench/a.py --b 2 --c-d  # --e", ("bench/a.py", {"--b", "--c-d"})),
    ("scripts/b.py", ("scripts/b.py", set())),
    ("build/flambeau plan a.toml --full", None),
    ("scripts/setup.sh jax", None),
])
def test_options_of_scripts(command, found):
    assert docs.options(command) == found


def test_link_targets():
    page = "[a](docs/a.md#part) [b](https://x/y) ![c](c.png 'title') [d](#here) `[e](e)`\n```text\n[f](f)\n```\n<img src=\"g.svg\">"
    assert docs.links(page) == ["docs/a.md", "c.png", "g.svg"]


def test_a_workplace_runs_commands_in_order(workplace):
    page = fenced("sh", "mkdir -p outputs && echo 7 > outputs/x") + fenced("python", "print(open('outputs/x').read())")
    results = [run(block, workplace) for block in docs.blocks(page)]
    assert [r.returncode for r in results] == [0, 0] and results[1].stdout.strip() == "7"
    assert run(docs.blocks(fenced("sh", "false", "true"))[0], workplace).returncode == 1

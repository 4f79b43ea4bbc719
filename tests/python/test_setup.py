"""The road into the project, walked with stand-ins for apt, sudo and Python: what a machine lacks, and where it is stopped."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
import skips
from conftest import ROOT

REQUIRED = [line for line in (ROOT / "scripts/apt-packages.txt").read_text().split("\n")
            if line and not line.startswith(("#", "optional "))]

# Makes environments whose pip takes its time when told so, as a download does.
FAKE_PYTHON = r"""#!/bin/bash
real='{real}'
case "$1 $2" in
  "-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && echo made >> "$LOG" ;;
  "-m pip")
    echo "pip ${{*: -1}}" >> "$LOG"
    [ -z "${{SLOW_PIP:-}}" ] || sleep 60
    [ -z "${{FAIL_PIP:-}}" ] || {{ echo "no such release"; exit 1; }}
    if [ "$3" = download ]; then
      while [ "$1" != -d ]; do shift; done
      mkdir -p "$2/p/vendor/xla/pjrt/c" && touch "$2/p/vendor/xla/pjrt/c/pjrt_c_api.h" && tar -C "$2" -czf "$2/p.tar.gz" p
    fi ;;
  *) exec "$real" "$@" ;;
esac
"""


class Machine:
    """A checkout in a path with spaces, and a PATH that begins with stand-ins. `log` is what they were asked to do."""

    def __init__(self, folder: pathlib.Path):
        self.bin, self.root, self.log_file = folder / "bin", folder / "a checkout", folder / "log"
        self.bin.mkdir()
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        for name in ["pyproject.toml", *(p.name for p in ROOT.glob("requirements*.txt"))]:
            shutil.copy(ROOT / name, self.root)
        self.log_file.touch()
        self.environment = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "LOG": str(self.log_file)}
        for name in ["FLAMBEAU_SKIP_APT", "FLAMBEAU_TORCH_INDEX", "CXX", "CC"]:
            self.environment.pop(name, None)
        self.environment["PYTHON"] = "python3"
        self.command("python3", FAKE_PYTHON.format(real=sys.executable))

    def command(self, name: str, text: str):
        path = self.bin / name
        path.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)

    def has_apt(self, missing: list[str], user: str, available: list[str] = ()):
        self.command("dpkg-query", f'case "${{*: -1}}" in {"|".join(missing) or "-"}) exit 1 ;; *) printf "installed " ;; esac')
        self.command("apt-cache", f'case "$2" in {"|".join(available) or "-"}) echo "Candidate: 1" ;; *) echo "Candidate: (none)" ;; esac\n'
                                  "for i in {1..5000}; do echo '    a long table of versions'; done")
        self.command("apt-get", 'echo "apt-get $*" >> "$LOG"')
        self.command("id", f'echo {0 if user == "root" else 1000}')
        self.command("sudo", 'shift; "$@"' if user == "sudoer" else "exit 1")

    def setup(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run([self.root / "scripts/setup.sh", *arguments], env=self.environment | environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, timeout=60)

    @property
    def log(self) -> str:
        return self.log_file.read_text()


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_says_which_command_to_run_when_it_may_not(machine):
    machine.has_apt(missing=["mold", "libfmt-dev", "clang-19"], user="somebody", available=["clang-19"])
    done = machine.setup("system")
    assert done.returncode == 1 and machine.log == ""
    assert re.search(r"^ +sudo apt-get update && sudo apt-get install -y --no-install-recommends mold libfmt-dev$", done.stdout, re.M)


def test_optional_packages_stop_nobody(machine):
    machine.has_apt(missing=["clang-19"], user="somebody", available=["clang-19"])
    done = machine.setup("system")
    assert done.returncode == 0 and "clang-19 would make the build faster" in done.stdout


@pytest.mark.parametrize("user", ["root", "sudoer"])
def test_installs_only_what_is_missing(machine, user):
    machine.has_apt(missing=["mold", "libfmt-dev", "clang-19", "libclang-rt-19-dev"], user=user, available=["clang-19"])
    assert machine.setup("system").returncode == 0
    update, required, optional = machine.log.splitlines()
    assert update.endswith("update") and required.endswith("install -y --no-install-recommends mold libfmt-dev")
    assert optional.endswith("install -y --no-install-recommends clang-19")


def test_does_not_ask_again_for_what_the_distribution_lacks(machine):
    machine.has_apt(missing=["clang-19", "libclang-rt-19-dev"], user="root")
    for _ in range(2):
        assert machine.setup("system").returncode == 0
    assert machine.log.count("update") == 1 and "install" not in machine.log


def test_a_failing_apt_shows_why(machine):
    machine.has_apt(missing=["mold"], user="root")
    machine.command("apt-get", 'echo "E: unable to locate"; exit 100')
    done = machine.setup("system")
    assert done.returncode == 1 and "E: unable to locate" in done.stdout and "install_required.log" in done.stdout


def test_everything_once(machine):
    machine.has_apt(missing=[], user="somebody")
    first, second = machine.setup(), machine.setup()
    assert first.returncode == second.returncode == 0, first.stdout
    assert machine.log.count("made") == 1 and machine.log.count("pip") == 4
    assert second.stdout.count("up to date") == len(second.stdout.splitlines())
    assert (machine.root / ".setup/pjrt-headers/xla/pjrt/c/pjrt_c_api.h").exists()

    (machine.root / "requirements-plugins.txt").write_text("another==1\n")
    machine.log_file.write_text("")
    assert machine.setup().returncode == 0 and machine.log == "pip requirements-plugins.txt\n"


def test_jax_has_an_environment_of_its_own(machine):
    machine.has_apt(missing=[], user="somebody")
    assert machine.setup().returncode == 0 and not (machine.root / ".venv-jax").exists()
    machine.log_file.write_text("")
    first, second = machine.setup("jax"), machine.setup("jax")
    assert first.returncode == second.returncode == 0, first.stdout
    assert machine.log == "made\npip requirements-jax.txt\n" and (machine.root / ".venv-jax/bin/python").exists()


def test_a_checkout_that_moved_gets_another_environment(machine):
    machine.has_apt(missing=[], user="somebody")
    assert machine.setup().returncode == 0
    machine.root = machine.root.rename(machine.root.with_name("moved"))
    assert machine.setup().returncode == 0 and machine.log.count("made") == 2


def test_an_environment_that_was_left_half_made_is_made_anew(machine):
    machine.has_apt(missing=[], user="somebody")
    half = subprocess.Popen([machine.root / "scripts/setup.sh"], env=machine.environment | {"SLOW_PIP": "1"}, start_new_session=True,
                            stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while "pip" not in machine.log and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(half.pid, signal.SIGKILL)
    half.wait()
    assert machine.log.count("made") == 1 and (machine.root / ".venv").exists()
    done = machine.setup()
    assert done.returncode == 0, done.stdout
    assert machine.log.count("made") == 2 and machine.setup().stdout.count("up to date") == 6


def test_a_failing_pip_shows_why_and_is_tried_again(machine):
    machine.has_apt(missing=[], user="somebody")
    done = machine.setup(FAIL_PIP="1")
    assert done.returncode == 1 and "no such release" in done.stdout and "install_requirements.log" in done.stdout
    assert machine.setup().returncode == 0


def test_a_python_that_does_not_serve_is_refused(machine):
    machine.has_apt(missing=[], user="somebody")
    machine.command("old", "exit 1")
    done = machine.setup(PYTHON="old")
    assert done.returncode == 1 and "is not a Python from 3.11 to 3.14" in done.stdout


def test_the_build_asks_for_setup(machine):
    done = subprocess.run([machine.root / "scripts/build.sh", "build"], env=machine.environment, text=True, capture_output=True)
    assert done.returncode == 1 and "run make setup" in done.stderr


def test_an_old_compiler_is_passed_over(machine):
    for name in ["clang++-19", "clang++", "g++", "g++-14", "g++-13", "g++-12"]:
        machine.command(name, "echo 11.4.0")
    done = subprocess.run([machine.root / "scripts/build.sh", "build"], env=machine.environment, text=True, capture_output=True)
    assert done.returncode == 1 and "no compiler found" in done.stderr


@pytest.mark.parametrize("path", sorted(ROOT.glob("requirements*.txt")), ids=lambda p: p.name)
def test_everything_is_pinned(path):
    lines = [line.partition(" #")[0].strip() for line in path.read_text().splitlines() if line.strip() and line[0] != "#"]
    assert lines and all(re.match(r"[\w.-]+==[\w.+]+( |;|$)", line) for line in lines)


def test_what_two_environments_have_is_the_same():
    pins = {path: dict(re.findall(r"^([\w-]+)==([\w.]+)", (ROOT / path).read_text(), re.M)) for path in ("requirements.txt", "requirements-jax.txt")}
    both, jax = pins["requirements.txt"], pins["requirements-jax.txt"]
    assert {"numpy", "safetensors"} <= both.keys() & jax.keys()
    assert {name: jax[name] for name in both.keys() & jax.keys()} == {name: both[name] for name in both.keys() & jax.keys()}


def test_a_skipped_test_fails_the_run(tmp_path):
    """Of C++ and of Python, but for those of the list."""
    results = tmp_path / "gtest"
    results.mkdir()
    test = {"name": "Runs", "result": "COMPLETED"}
    report = {"testsuites": [{"name": "Suite", "testsuite": [test, {"name": "Waits", "result": "SKIPPED", "skipped": [{"message": "no TPU\n"}]}]}]}
    check = lambda: subprocess.run([sys.executable, ROOT / "tests/skips.py", results], text=True, capture_output=True)
    assert check().returncode == 1  # no results at all
    (results / "a_test.json").write_text(json.dumps(report))
    done = check()
    assert done.returncode == 1 and "Suite.Waits: no TPU" in done.stderr and "Suite.Runs" not in done.stderr
    del report["testsuites"][0]["testsuite"][1]
    (results / "a_test.json").write_text(json.dumps(report))
    assert check().returncode == 0
    assert skips.unexpected({"tests/python/test_plan.py::test_record_on_a_full_disk": "none", "tests/python/test_plan.py::test_search": "none"}) == [
        "tests/python/test_plan.py::test_search: none"]

    (tmp_path / "test_it.py").write_text("import pytest\ndef test_a():\n    pytest.skip('why not')\ndef test_b():\n    pass\n")
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.importorskip('nothing_of_that_name')\n")
    (tmp_path / "conftest.py").write_text((ROOT / "tests/python/conftest.py").read_text().replace(
        "ROOT = pathlib.Path(__file__).resolve().parents[2]", f"ROOT = pathlib.Path({str(ROOT)!r})"))
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path, tmp_path], text=True, capture_output=True)
    assert run.returncode == 1, run.stdout
    for line in ("test_it.py::test_a: Skipped: why not", "test_whole.py: Skipped: could not import 'nothing_of_that_name'"):
        assert f"not in the list of tests/skips.py: {line}" in run.stdout, run.stdout


def test_help_lists_every_target():
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)[1].split()
    shown = subprocess.run(["make", "-C", ROOT, "--no-print-directory", "help"], text=True, capture_output=True, check=True).stdout
    assert re.findall(r"^  make ([\w-]+)", shown, re.M) == targets

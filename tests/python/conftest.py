"""What the Python tests share: where the checkout and its programs are, and how to run `flambeau`."""

import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import skips  # noqa: E402

FLAMBEAU = ROOT / "build" / "flambeau"
# Tests depend on nothing that somebody has set, cached or installed beside: no settings of other runs, no files of the user, and
# no kernels but where a test asks for a Python that has JAX: that of `.venv-jax`, or the one that FLAMBEAU_PYTHON names (`make test`
# names the former).
JAX_PYTHON = pathlib.Path(os.environ.get("JAX_PYTHON_OF_TESTS") or os.environ.get("FLAMBEAU_PYTHON") or ROOT / ".venv-jax" / "bin" / "python")
SITE_PACKAGES = os.environ.get("FLAMBEAU_SITE_PACKAGES") or sysconfig.get_path("purelib")
for name in [n for n in os.environ if re.match("(FLAMBEAU|XLA|JAX|TF|TPU|PJRT|LC|NO_COLOR|COLUMNS|LINES)(_|$)", n)]:
    del os.environ[name]
os.environ["JAX_PYTHON_OF_TESTS"] = str(JAX_PYTHON)  # for the processes that pytest-xdist starts, which come here after this one
HOME = tempfile.TemporaryDirectory(prefix="flambeau_home_")
os.environ.update(FLAMBEAU_SITE_PACKAGES=SITE_PACKAGES, FLAMBEAU_PYTHON="/bin/false", HOME=HOME.name, XDG_CACHE_HOME=f"{HOME.name}/.cache",
                  LANG="C.UTF-8", TERM="dumb", HF_HUB_OFFLINE="1")

LIBTPU = pathlib.Path(SITE_PACKAGES, "libtpu", "libtpu.so")
needs_libtpu = pytest.mark.skipif(not LIBTPU.exists(), reason=f"NOT TESTED, libtpu is not installed: there is no {LIBTPU}")
needs_jax = pytest.mark.skipif(not JAX_PYTHON.exists(), reason=f"NOT TESTED, there is no JAX at {JAX_PYTHON}; run scripts/setup.sh jax")

# Files that take longest, so that they do not come last where files run in parallel.
LONGEST = ("test_loss_identity", "test_train", "test_docs", "test_plan", "test_train_reference", "test_mesh_programs", "test_attention")

skipped = {}


def pytest_collection_modifyitems(items):
    names = {name: i for i, name in enumerate(LONGEST)}
    items.sort(key=lambda item: names.get(item.path.stem, len(LONGEST)))


def pytest_runtest_logreport(report):
    if report.skipped and not hasattr(report, "wasxfail"):
        skipped[report.nodeid] = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


pytest_collectreport = pytest_runtest_logreport  # of whole files


def pytest_sessionfinish(session, exitstatus):
    """A test that is skipped and not in the list of tests/skips.py fails the run."""
    if skips.unexpected(skipped) and exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    for line in skips.unexpected(skipped):
        terminalreporter.write_line(f"skipped, and not in the list of tests/skips.py: {line}", red=True)


@pytest.fixture(scope="session")
def root() -> pathlib.Path:
    return ROOT


@pytest.fixture(scope="session")
def flambeau_path() -> pathlib.Path:
    assert FLAMBEAU.exists(), f"{FLAMBEAU} is not built; run `make build`"
    return FLAMBEAU


@pytest.fixture
def flambeau(flambeau_path, tmp_path):
    """flambeau("train", "configs/llama3/debug.toml", ...) runs the program in an empty folder; relative names of files of the
    checkout are made absolute. Fails with all output when the exit code is not `code`."""

    def run(*args, code: int = 0, timeout: float = 600, env: dict[str, str] | None = None) -> subprocess.CompletedProcess:
        words = [str(ROOT / a) if isinstance(a, str) and "/" in a and (ROOT / a).exists() else str(a) for a in args]
        done = subprocess.run([str(flambeau_path), *words], cwd=tmp_path, env={**os.environ, **(env or {})}, timeout=timeout,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == code, f"flambeau {' '.join(words)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


def pythons(*runs):
    """Runs several Pythons side by side, each a (code, variables of the environment). Gives (exit code, standard output, standard error) of each."""
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **own})
                 for code, own in runs]
    outputs = [process.communicate(timeout=600) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs)]


def inspect_program(text: str, path: pathlib.Path, *args: str, code: int = 0):
    """What `inspect_program` says of a StableHLO text, which is written to `path`; with `code` 2, what it wrote to standard error."""
    program = ROOT / "build" / "inspect_program"
    assert program.exists(), f"{program} is not built; run `make build`"
    path.write_text(text)
    done = subprocess.run([program, path, *args], cwd=ROOT, capture_output=True, text=True, timeout=600)
    if "'tpu' is not installed" in done.stderr:
        pytest.skip(f"NOT TESTED, libtpu is not installed: {done.stderr}")
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout) if code == 0 else done.stderr

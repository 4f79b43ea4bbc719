"""What the Python tests share: where the checkout and its programs are, and how to run `flambeau`."""

import json
import os
import pathlib
import subprocess
import sysconfig

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAMBEAU = ROOT / "build" / "flambeau"
LIBTPU = pathlib.Path(os.environ.get("FLAMBEAU_SITE_PACKAGES") or sysconfig.get_path("purelib"), "libtpu", "libtpu.so")
needs_libtpu = pytest.mark.skipif(not LIBTPU.exists(), reason=f"NOT TESTED, libtpu is not installed: there is no {LIBTPU}")


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

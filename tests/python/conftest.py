"""What the Python tests share: where the checkout and its programs are, and how to run `flambeau`."""

import os
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FLAMBEAU = ROOT / "build" / "flambeau"


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

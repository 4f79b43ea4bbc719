"""The benchmarks run and say what they promise; their numbers are for quiet machines."""

import json
import subprocess
import sys


def test_compile_time_does_not_grow_with_depth(root, tmp_path):
    out = subprocess.run([sys.executable, root / "bench/compile_time.py", "--quick", "--json", tmp_path / "out.json"], capture_output=True,
                         text=True, timeout=600)
    assert out.returncode == 0, out.stderr
    assert "flambeau, scan: 16 layers take" in out.stdout
    result = json.loads((tmp_path / "out.json").read_text())
    assert [row["layers"] for row in result["rows"]] == [2, 16]
    (ratio,) = result["ratios"]
    assert ratio["processor_s"] < 1.4  # layers written out: 1.8

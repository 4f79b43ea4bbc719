"""Which tests may be skipped where the project is set up as a whole, and whether others were.

    tests/skips.py FOLDER

reads what the C++ tests wrote there (`build/test_results`) and fails with the names of those that were skipped and are not in the
list. tests/python/conftest.py asks `unexpected` of the Python tests. A test that cannot run where CI runs it tests nothing: make it run.
"""

import json
import pathlib
import re
import sys

# Patterns of whole names ("Suite.Test", "tests/python/test_plan.py::test_name[case]"): why.
ALLOWED = {
    r"tests/python/test_plan\.py::test_record_on_a_full_disk": "there is no /dev/full",
}


def unexpected(skipped: dict[str, str]) -> list[str]:
    """Lines to show, of skipped tests and their reasons."""
    return [f"{name}: {reason}" for name, reason in sorted(skipped.items()) if not any(re.fullmatch(p, name) for p in ALLOWED)]


def skipped_in(folder: pathlib.Path) -> dict[str, str]:
    found = {}
    for file in sorted(folder.glob("*.json")):
        for suite in json.loads(file.read_text())["testsuites"]:
            for test in suite["testsuite"]:
                if test["result"] == "SKIPPED":
                    found[f"{suite['name']}.{test['name']}"] = " ".join(m["message"].strip() for m in test.get("skipped", [])) or file.stem
    return found


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    if not any(folder.glob("*.json")):
        print(f"skips: no results of tests in {folder}", file=sys.stderr)
        return 1
    lines = unexpected(skipped_in(folder))
    for line in lines:
        print(f"skipped, and not in the list of tests/skips.py: {line}", file=sys.stderr)
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())

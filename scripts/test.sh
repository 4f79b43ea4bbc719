#!/usr/bin/env bash
# Runs the tests of a build: scripts/test.sh [FOLDER]. The Python tests need the ordinary one, `build`.
set -euo pipefail
tool=test
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
source "$root/scripts/lib.sh"

folder=${1:-build}
# What somebody has set for his own runs is nothing to the tests, nor are his files and what he has cached. tests/python/conftest.py does
# the same where pytest is started by itself.
unset NO_COLOR COLUMNS LINES "${!FLAMBEAU_@}" "${!XLA_@}" "${!JAX_@}" "${!TF_@}" "${!TPU_@}" "${!PJRT_@}" "${!LC_@}"
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
export LANG=C.UTF-8 TERM=dumb HOME=$home XDG_CACHE_HOME=$home/.cache
# The programs find plugins in the environment beside the checkout also when another environment is active.
export FLAMBEAU_SITE_PACKAGES
FLAMBEAU_SITE_PACKAGES=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# A Python that has JAX: kernels are made and computed with it.
export FLAMBEAU_PYTHON=$root/.venv-jax/bin/python

limit=1200
if [ "$folder" != build ]; then
  limit=3600
  # Torch and the plugins are not instrumented: what they keep for ever and what they synchronise by themselves is theirs.
  export ASAN_OPTIONS=detect_container_overflow=0:detect_stack_use_after_return=1
  export LSAN_OPTIONS="suppressions='$root/cmake/sanitizers/leaks.txt':print_suppressions=0"
  export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
  export TSAN_OPTIONS="suppressions='$root/cmake/sanitizers/threads.txt':ignore_noninstrumented_modules=1"
fi

status=0
rm -rf "$folder/test_results"
ctest --test-dir "$folder" --output-on-failure --no-tests=error --timeout "$limit" -j "${JOBS:-$(default_jobs)}" || status=$?
.venv/bin/python tests/skips.py "$folder/test_results" || status=$?
if [ "$folder" = build ]; then
  # Both halves run, so that one look shows all that is wrong.
  .venv/bin/python -m pytest tests/python -q -n "${JOBS:-$(default_jobs)}" --dist loadfile --no-loadscope-reorder || status=$?
fi
exit "$status"

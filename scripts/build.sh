#!/usr/bin/env bash
# Configures and builds: scripts/build.sh FOLDER [SANITIZERS [TARGET...]], for example scripts/build.sh build-asan address,undefined
#
# Variables:
#   CXX, CC   the compiler; default: clang++-19 (or a newer clang++), which builds faster, else g++ from version 12 on
#   JOBS      compilations at once; default: one a core, fewer when memory is short
set -euo pipefail
tool=build
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
source "$root/scripts/lib.sh"

folder=${1:?the build folder}
sanitizers=${2:-}
shift $(($# < 2 ? $# : 2))

compiler_version() { "$1" -dumpfullversion -dumpversion 2>/dev/null | head -n 1 || true; }

# A sanitizer's runtime can be a package of its own; a compiler without it does not serve.
links_sanitizers() {
  [ -z "$sanitizers" ] || echo 'int main() {}' | "$1" -fsanitize="$sanitizers" -x c++ - -o /dev/null 2>/dev/null
}

choose_compiler() {
  local candidate version oldest
  if [ -n "${CXX:-}" ]; then return; fi
  for candidate in clang++-19 clang++ g++ g++-14 g++-13 g++-12; do
    version=$(compiler_version "$candidate")
    case $candidate in
      clang*) oldest=19 ;;
      *) oldest=12 ;;
    esac
    if [ -n "$version" ] && version_at_least "$version" "$oldest" && links_sanitizers "$candidate"; then
      CXX=$candidate
      return
    fi
  done
  die "no compiler found: clang++ from version 19 or g++ from version 12 on is needed${sanitizers:+, with the runtime of -fsanitize=$sanitizers}" \
    "Install one (apt-get install g++), or name it with CXX=..."
}

matching_c_compiler() { # clang++-19 -> clang-19, g++-13 -> gcc-13
  local candidate=${CXX/clang++/clang}
  candidate=${candidate/g++/gcc}
  if command -v "$candidate" >/dev/null; then echo "$candidate"; else echo cc; fi
}

configure() {
  # What a cache remembers of another compiler or another place misleads; the objects stay, and ninja knows which are stale.
  rm -rf "$folder/CMakeCache.txt" "$folder/CMakeFiles/$(cmake --version | sed -n 's/^cmake version //p')"
  cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_C_COMPILER="$CC" \
    -DFLAMBEAU_PYTHON="$root/.venv/bin/python" -DFLAMBEAU_PJRT_HEADERS="$root/.setup/pjrt-headers" \
    -DFLAMBEAU_SANITIZE="$sanitizers"
}

choose_compiler
CC=${CC:-$(matching_c_compiler)}
[ -x .venv/bin/python ] && [ -d .setup/pjrt-headers ] || die "nothing is set up here yet; run make setup"
version_at_least "$(cmake --version | sed -n 's/^cmake version //p')" 3.25 || die "CMake 3.25 or newer is needed"

take_lock
stamp=$folder/.configured
identity=$(hash_of "$root" "$CXX $(compiler_version "$CXX")" "$CC" "$sanitizers" \
  "$(cat .venv/.stamps/requirements .venv/.stamps/make_venv .setup/pjrt-headers/.stamp)")
[ -f "$folder/build.ninja" ] || rm -f "$stamp"
stage "configuring $folder with $CXX $(compiler_version "$CXX")" "$stamp" "$identity" configure

start=$SECONDS
quiet=()
[ -t 1 ] || quiet=(--quiet)
ninja -C "$folder" -j "${JOBS:-$(default_jobs)}" "${quiet[@]}" "$@"
say "$folder is built ($((SECONDS - start)) s)"

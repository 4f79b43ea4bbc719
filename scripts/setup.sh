#!/usr/bin/env bash
# Brings a fresh machine to where the build can start: system packages, a Python environment in .venv, PJRT plugins and
# headers. All of it is pinned, runs again only when its inputs change, and may be interrupted at any point.
#
#   scripts/setup.sh             everything
#   scripts/setup.sh system      only the system packages
#   scripts/setup.sh jax         everything, and JAX in .venv-jax: tests and benchmarks compare with it
#
# Variables:
#   PYTHON                 the interpreter to make .venv from (3.11 to 3.14; default: the first that serves)
#   FLAMBEAU_TORCH_INDEX   address of a package index to look for torch in as well; one of CPU builds saves gigabytes
#   FLAMBEAU_SKIP_APT=1    do not look at system packages: they come from elsewhere
set -euo pipefail
tool=setup
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
source "$root/scripts/lib.sh"

venv=.venv
venv_python=$venv/bin/python

# --- Which Python -----------------------------------------------------------------------------------------------------

python_serves() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; }

choose_python() {
  local candidate
  if [ -n "${PYTHON:-}" ]; then
    python_serves "$PYTHON" || die "PYTHON=$PYTHON is not a Python from 3.11 to 3.14, the versions that torch and the plugins have builds for"
    python=$PYTHON
    return
  fi
  # The one that .venv was made with stays.
  if [ -f "$venv/.stamps/make_venv" ] && python=$("$venv_python" -c 'import sys; print(sys._base_executable)' 2>/dev/null); then
    if python_serves "$python"; then return; fi
  fi
  for candidate in python3 /usr/bin/python3 python3.13 python3.12 python3.11 python3.14; do
    if python_serves "$candidate"; then
      python=$candidate
      return
    fi
  done
  python=
}

# Debian splits what other builds of Python hold together: what the chosen one lacks, as package names.
python_packages() {
  if [ -z "$python" ]; then
    echo python3 python3-venv python3-dev
    return
  fi
  "$python" - <<'PY'
import importlib.util, os, sys, sysconfig
lacks = []
if not importlib.util.find_spec("venv") or not importlib.util.find_spec("ensurepip"):
    lacks.append("venv")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    lacks.append("dev")
name = "python%d.%d" % sys.version_info[:2]
print(*(f"{name}-{part}" for part in lacks))
PY
}

# --- System packages --------------------------------------------------------------------------------------------------

# Output is captured, not piped to `grep -q`, which stops reading and so makes the writer fail.
installed() { [[ " $(dpkg-query -W -f '${db:Status-Status} ' "$1" 2>/dev/null)" == *" installed "* ]]; }

packages_missing() { # required | optional
  local kind=$1 package
  while read -r package; do
    installed "$package" || echo "$package"
  done < <(case $kind in
    required) grep -vE '^(#|optional |$)' scripts/apt-packages.txt ;;
    optional) sed -n 's/^optional //p' scripts/apt-packages.txt ;;
  esac)
}

available() { [[ "$(apt-cache policy "$1" 2>/dev/null)" =~ Candidate:\ [^\(] ]]; }

# How root is had without a question, if at all: prints a prefix for commands, or fails.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    echo env
  elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    echo "sudo -n"
  else
    return 1
  fi
}

apt_install() { # packages
  local prefix
  prefix=$(as_root)
  $prefix env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "$@"
}

install_required() { apt_install $required; }

# Nothing hangs on these: when they cannot be had, the build takes g++.
install_optional() {
  local package have=
  for package in $optional; do
    if available "$package"; then have+=" $package"; fi
  done
  [ -z "$have" ] || apt_install $have || echo "the optional packages$have did not install; going on without"
}

system_packages() {
  [ -z "${FLAMBEAU_SKIP_APT:-}" ] || return 0
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this system has no apt: see scripts/apt-packages.txt for what must be installed"
    return
  fi
  required="$(packages_missing required | xargs) $(python_packages)"
  required=${required# } required=${required% }
  optional=$(packages_missing optional | xargs)
  # What the distribution turned out not to have is not asked for again.
  local optional_stamp=.setup/optional-packages.stamp
  if stamped "$optional_stamp" "$(hash_of "$optional")"; then optional=; fi

  if [ -z "$required$optional" ]; then
    say "system packages: up to date"
    return
  fi
  if ! as_root >/dev/null; then
    if [ -z "$required" ]; then
      say "system packages: up to date ($optional would make the build faster)"
      return
    fi
    die "these system packages are missing, and installing them needs root: $required" \
      "Run this once, then the same make command again:" \
      "" \
      "    sudo apt-get update && sudo apt-get install -y --no-install-recommends $required" \
      "" \
      "(or set FLAMBEAU_SKIP_APT=1 when they come from elsewhere)"
  fi
  # A source list of somebody else's that does not answer is no reason to stop: the installation tells.
  $(as_root) apt-get -o DPkg::Lock::Timeout=300 update >.setup/log/apt_update.log 2>&1 ||
    say "apt-get update had errors (.setup/log/apt_update.log); going on"
  if [ -n "$required" ]; then
    run_logged "system packages ($required)" install_required
  fi
  if [ -n "$optional" ]; then
    run_logged "optional system packages ($optional)" install_optional
    write_stamp "$optional_stamp" "$(hash_of "$(packages_missing optional | xargs)")"
  fi
}

# --- The Python environment -------------------------------------------------------------------------------------------

# pip that was stopped half-way leaves files that no later pip accounts for: then the environment is made anew.
installing=.setup/pip-at-work

pip() {
  touch "$installing" && "$venv_python" -m pip install "$@" && rm "$installing"
}

make_venv() {
  rm -f "$installing"
  remove_tree "$venv"
  "$python" -m venv "$venv"
}

install_requirements() {
  local index=()
  [ -z "${FLAMBEAU_TORCH_INDEX:-}" ] || index=(--extra-index-url "$FLAMBEAU_TORCH_INDEX")
  # The CPU build carries a mark of its own; an index without it has the CUDA build, which serves as well but is large.
  pip "${index[@]}" -r requirements.txt "torch==2.13.0+cpu" ||
    { echo "No CPU build of torch; trying any build." && pip "${index[@]}" -r requirements.txt; }
}

install_plugins() { pip --no-deps -r requirements-plugins.txt; }

install_package() { pip --no-deps --no-build-isolation -e .; }

python_environment() {
  # A checkout that moved, and a Python that was upgraded or removed, make an environment useless.
  identity=$(hash_of "$root" "$("$python" -c 'import sys; print(sys.version, sys.base_prefix)')")
  if [ -e "$installing" ] || ! "$venv_python" -c '' 2>/dev/null; then rm -f "$venv/.stamps/make_venv"; fi
  stage "Python environment" "$venv/.stamps/make_venv" "$identity" make_venv
  stage "Python packages (torch; the longest download)" "$venv/.stamps/requirements" \
    "$(hash_of "$(cat requirements.txt)" "${FLAMBEAU_TORCH_INDEX:-}")" install_requirements
  stage "PJRT plugins" "$venv/.stamps/plugins" "$(hash_of "$(cat requirements-plugins.txt)")" install_plugins
  stage "PJRT headers" .setup/pjrt-headers/.stamp "$(hash_of "$(cat requirements-headers.txt)")" fetch_headers
  stage "the package flambeau, in place" "$venv/.stamps/package" "$(hash_of "$(cat pyproject.toml)")" install_package
}

# In an environment of its own: what is in .venv is the same whether JAX has been asked for or not.
make_jax_environment() {
  remove_tree .venv-jax
  "$python" -m venv .venv-jax
  .venv-jax/bin/python -m pip install -r requirements-jax.txt
}

# --- PJRT headers -----------------------------------------------------------------------------------------------------

# pip checks the hash. Of the archive only vendor/xla is taken.
fetch_headers() {
  local download=.setup/pjrt-download fresh=.setup/pjrt-headers.new
  rm -rf "$download" "$fresh"
  "$venv_python" -m pip download --no-deps --no-binary :all: --no-build-isolation --require-hashes \
    -d "$download" -r requirements-headers.txt
  "$venv_python" - "$download" "$fresh" <<'PY'
import pathlib, sys, tarfile
download, fresh = map(pathlib.Path, sys.argv[1:])
(archive,) = download.glob("*.tar.gz")
with tarfile.open(archive) as tar:
    for member in tar.getmembers():
        _, _, name = member.name.partition("/")
        if member.isfile() and (name == "LICENSE" or name.startswith("vendor/xla/")) and ".." not in name.split("/"):
            target = fresh / name.removeprefix("vendor/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(tar.extractfile(member).read())
assert (fresh / "xla/pjrt/c/pjrt_c_api.h").exists(), "the archive has no pjrt_c_api.h"
PY
  remove_tree .setup/pjrt-headers
  mv "$fresh" .setup/pjrt-headers
  rm -rf "$download"
}

# --- In order ---------------------------------------------------------------------------------------------------------

what=${1:-all}
take_lock
rm -rf .setup/trash
choose_python
system_packages
[ "$what" != system ] || exit 0
[ -n "$python" ] || choose_python
[ -n "$python" ] || die "no Python from 3.11 to 3.14 found; install one, or name it with PYTHON=..."
python_environment
if [ "$what" = jax ]; then
  stage "JAX" .venv-jax/.stamp "$(hash_of "$identity" "$(cat requirements-jax.txt)")" make_jax_environment
fi

# Sourced by the other scripts. Expects `root`, the checkout; works there, with paths relative to it.
#
# A *stage* is a function that runs once for each content of its inputs. Its stamp, a file with the hash of those inputs, is
# written last and by a rename: a stage that was interrupted has no stamp and runs again, so it must be able to.

cd "$root"
unset PYTHONHOME PYTHONPATH CDPATH
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_USER=0
mkdir -p .setup/log

say() { printf '%s: %s\n' "$tool" "$*"; }

die() {
  printf '%s: error: %s\n' "$tool" "$1" >&2
  shift
  [ $# -eq 0 ] || printf '    %s\n' "$@" >&2
  exit 1
}

hash_of() { printf '%s\n' "$@" | sha256sum | cut -d' ' -f1; }

write_stamp() { # FILE TEXT
  printf '%s\n' "$2" >"$1.new" && mv "$1.new" "$1"
}

stamped() { # FILE TEXT: whether the stamp says so
  [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]
}

# Removes a folder so that an interruption leaves either all of it or nothing under its name.
remove_tree() {
  [ -e "$1" ] || return 0
  mkdir -p .setup/trash
  mv "$1" ".setup/trash/$$-$RANDOM"
  rm -rf .setup/trash
}

# run_logged LABEL FUNCTION: one line, with the time it took; the output goes to a log whose end is shown on failure.
run_logged() {
  local label=$1 function=$2 start=$SECONDS status=0
  local log=.setup/log/$function.log
  printf '%s: %s ...' "$tool" "$label"
  # A subshell of its own: `set -e` holds inside it, and `exit` ends only the function.
  set +e
  (set -e; "$function") >"$log" 2>&1
  status=$?
  set -e
  if [ $status -ne 0 ]; then
    printf ' failed after %d s\n' $((SECONDS - start))
    tail -n 40 "$log" | sed 's/^/    /' >&2
    die "$label failed; the whole log is in $log"
  fi
  printf ' done in %d s\n' $((SECONDS - start))
}

stage() { # LABEL STAMP HASH FUNCTION
  if stamped "$2" "$3"; then
    say "$1: up to date"
    return
  fi
  rm -f "$2"
  run_logged "$1" "$4"
  mkdir -p "$(dirname "$2")"
  write_stamp "$2" "$3"
}

# Two runs at once would write the same files: the second waits.
take_lock() {
  exec 9>.setup/lock
  flock --nonblock 9 || { say "another setup runs in this checkout; waiting for it" && flock 9; }
}

version_at_least() { # HAVE WANT
  [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

# How many compilations at once: one a core, and one for each 1.5 GB of memory, which a file with torch's headers can take.
default_jobs() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1500000) }' /proc/meminfo 2>/dev/null || echo "$cores")
  [ "${memory:-1}" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}

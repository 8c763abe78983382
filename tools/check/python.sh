#!/usr/bin/env bash
# Tests the Python package, built and installed as a user would have it, in environments made from lock files.
#
#   python.sh all                     every suite below, one after the other
#   python.sh core [PYTEST ARGS]      format, lint and types; every test that needs no engine, with and without the native helper
#   python.sh engines                 the tests that drive engines, one engine after the other
#   python.sh vllm|sglang|lmcache [PYTEST ARGS]   the tests that drive that engine, the released package
#   python.sh env NAME                makes the environment NAME, or finds it made, and prints its path
#
# Environments are kept outside the checkout, in ${QUIRE_CACHE:-${XDG_CACHE_HOME:-~/.cache}/quire}/envs, by the hash of
# all that they are made from; they are never changed once made. The package goes into a folder of its own for each run.
# The core suite needs any Python from 3.10 on. An engine whose Python (3.12) or packages cannot be had is skipped in one
# line that says why; with QUIRE_ENGINES_REQUIRED=1 that is a failure.
set -euo pipefail
shopt -s inherit_errexit
exec </dev/null
cd "$(dirname "$0")/../.."
root=$PWD
engines=(vllm sglang lmcache)
cache="${QUIRE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/quire}"
kept_days=30 # an environment that no run used for so long is removed
limit=40m    # of one suite
shares=3     # processes that share the core suite, which waits for most of its time
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

say() { printf '== %s\n' "$*" >&2; }

# usable PYTHON VERSIONS: it runs, is one of the versions, and can make environments.
usable() {
  "$1" -I -c '
import sys
import ensurepip, venv
sys.exit("%d.%d" % sys.version_info[:2] not in sys.argv[1].split())' "$2" >/dev/null 2>&1
}

# find_python VERSIONS: the path of the first interpreter of one of the versions, by its usual names and places.
find_python() {
  local candidate version
  for candidate in ${QUIRE_PYTHON:-} python3 $(printf 'python%s ' $1); do
    if candidate="$(command -v "$candidate" 2>/dev/null)" && usable "$candidate" "$1"; then
      "$candidate" -I -c 'import os, sys; print(os.path.realpath(sys.executable))'
      return
    fi
  done
  for version in $1; do
    for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version"*/bin/python3 /usr/local/bin/python"$version" \
      "$HOME"/.local/share/uv/python/cpython-"$version"*/bin/python3 /opt/python*/bin/python"$version"; do
      if [ -x "$candidate" ] && usable "$candidate" "$1"; then
        echo "$candidate"
        return
      fi
    done
  done
  return 1
}

# missing NAME: what the machine lacks to run an engine, in a few words; nothing if it lacks nothing.
missing() {
  local tool
  for tool in gcc g++ readelf; do
    command -v "$tool" >/dev/null || echo "$tool"
  done
  [ "$1" != vllm ] || ldconfig -p 2>/dev/null | grep libnuma.so.1 >/dev/null || echo libnuma1
  [ "$1" != sglang ] || [ -e /usr/include/openssl/sha.h ] || echo 'OpenSSL headers'
}

# environment NAME: prints the path of the environment, which it makes where it is not there. On failure prints why.
environment() {
  local name=$1 versions='3.11 3.12 3.13 3.10' python lacks key dir
  if [ "$name" != core ]; then
    versions=3.12
    lacks="$(missing "$name" | paste -sd, | sed 's/,/, /g')"
    [ -z "$lacks" ] || { echo "this machine lacks $lacks"; return 1; }
  fi
  python="$(find_python "$versions")" || { echo "no Python of version ${versions// / or } with ensurepip was found"; return 1; }
  key="$({ cat python/engines/{"$name.txt",install.sh,cudastubs.py}; "$python" -VV; uname -m; } | sha256sum | cut -c1-16)"
  dir="$cache/envs/$name-$key"
  mkdir -p "$cache/envs"
  (
    flock 9
    if [ ! -e "$dir/complete" ]; then
      say "environment $name, with $python: $dir"
      if ! python/engines/install.sh "$name" "$dir" "$python" >"$dir.log" 2>&1; then
        rm -rf "$dir"
        echo "its packages cannot be installed: $(tail -n 1 "$dir.log" | cut -c1-300) ($dir.log)"
        exit 1
      fi
      rm -f "$dir.log"
    fi
    touch "$dir/complete" # says that it is whole, and when it was used last
  ) 9>"$dir.lock" || return 1
  prune "$name" "$dir"
  echo "$dir"
}

# prune NAME DIR: removes environments of the name that nobody used for long, but for DIR.
prune() {
  local mark old
  find "$cache/envs" -mindepth 2 -maxdepth 2 -path "*/$1-*/complete" -mtime +"$kept_days" 2>/dev/null | while read -r mark; do
    old="$(dirname "$mark")"
    [ "$old" = "$2" ] || (flock -n 9 && rm -rf "$old" && rm -f "$old.lock") 9>"$old.lock" || true
  done
}

# package: builds a wheel of python/ and installs it, alone, into a folder. Prints the folder.
package() {
  local core=$1 site="$scratch/site" source="$scratch/source"
  [ ! -d "$site" ] || { echo "$site"; return; }
  mkdir "$source"
  tar -C python --exclude=__pycache__ --exclude='*.so' --exclude='*.egg-info' --exclude=build --exclude=dist -cf - . | tar -C "$source" -xf -
  "$core/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --no-index --wheel-dir "$scratch/wheel" "$source" >&2
  "$core/bin/python" -m pip install --quiet --no-deps --no-index --target "$site" "$scratch"/wheel/*.whl >&2
  echo "$site"
}

# tests ENV SITE PYTEST ARGS: pytest on the installed package. A run in which nothing passed fails.
tests() {
  local env=$1 site=$2
  shift 2
  PATH="$env/bin:$PATH" PYTHONPATH="$site" QUIRE_TESTS_MUST_RUN=1 timeout -k 10 "$limit" \
    "$env/bin/pytest" -q --durations=10 --durations-min=5 -p no:cacheprovider -c python/pyproject.toml --rootdir python "$@"
}

lint() {
  local core=$1
  say 'ruff, mypy'
  "$core/bin/ruff" format --no-cache --check --quiet --diff python
  "$core/bin/ruff" check --no-cache --quiet python
  (cd python && "$core/bin/mypy" --cache-dir "$cache/mypy" --no-error-summary)
}

no_engines="not ($(printf '%s or ' "${engines[@]}" | sed 's/ or $//'))"

core() {
  local env site
  env="$(environment core)" || { echo "core: $env" >&2; return 1; }
  lint "$env"
  site="$(package "$env")"
  [ $# -gt 0 ] || set -- -n "$shares" --dist load --maxschedchunk 1 --max-worker-restart 0 python/tests
  say 'python core'
  tests "$env" "$site" -m "$no_engines" "$@"
  say 'python core, without the native helper'
  QUIRE_KV_NATIVE=0 tests "$env" "$site" -m "$no_engines and not once" "$@"
}

engine() {
  local name=$1 core env site
  shift
  core="$(environment core)" || { echo "core: $core" >&2; return 1; }
  if ! env="$(environment "$name")"; then
    say "SKIPPED: the tests of $name: $env"
    [ -z "${QUIRE_ENGINES_REQUIRED:-}" ]
    return
  fi
  site="$(package "$core")"
  say "python $name"
  tests "$env" "$site" -m "$name" "${@:-python/tests}"
}

all_engines() {
  local name
  for name in "${engines[@]}"; do engine "$name"; done
}

what="${1:-all}"
shift || true
case "$what" in
all)
  core
  all_engines
  ;;
engines) all_engines ;;
core) core "$@" ;;
vllm | sglang | lmcache) engine "$what" "$@" ;;
env) environment "${1:?the name of an environment}" ;;
*)
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac

#!/usr/bin/env bash
# Quire beside other stores on one machine, in one run: run.sh HARNESS DIR setup|smoke|time|func|report
#
#   setup   clients of all stores in environments under DIR, redis-server by apt (as root), this checkout's binary and package
#   smoke   every store once, quickly: does it start and answer
#   time    get, put and exists of each store, in turn, PASSES times
#   func    what each store does when memory is short, bytes flip and servers die
#   report  tables of what was measured, in DIR/report.txt
#
# HARNESS is the folder of the driver (bench.py, report.py). kvblockd's server is on no registry: KVREPO names a git directory
# of its public repository, rudraymehra/KVStash; without one it is left out. Servers run on loopback in a network namespace of
# their own; nothing outside DIR and /dev/shm is written. PEERS, PASSES, REPS and SIZES choose less.
set -euo pipefail
harness=${1:?the folder of the driver} dir=${2:?a folder to work in} what=${3:-report}
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
out=${OUT:-$dir/results.jsonl}
jemalloc=/usr/lib/x86_64-linux-gnu/libjemalloc.so.2
timed=(quire-shm quire-data quire-grpc kvblockd mooncake-je mooncake-shm redis-raw redis-py files-tmpfs)
tested=(quire-shm quire-data quire-disk kvblockd mooncake redis-raw files-tmpfs)
mkdir -p "$dir/bin"

# environment NAME PACKAGES: DIR/v-NAME with the packages in it.
environment() {
  local env="$dir/v-$1"
  [ -x "$env/bin/python" ] || python3 -m venv "$env"
  shift
  "$env/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
}

setup() {
  if ! command -v redis-server >/dev/null; then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends redis-server libcurl4 libibverbs1 rdma-core librdmacm1 libnuma1 liburing2 libjemalloc2
  fi
  environment redis redis==8.1.0 hiredis==3.5.0 numpy
  environment mooncake mooncake-transfer-engine-non-cuda==0.3.13.post1 numpy
  environment kvblockd kvblockd==0.1.0 numpy
  (cd "$root" && CGO_ENABLED=0 go build -trimpath -o "$dir/bin/quire" ./cmd/quire)
  rm -rf "$dir/source"
  mkdir "$dir/source"
  tar -C "$root/python" --exclude=__pycache__ --exclude='*.so' --exclude='*.egg-info' --exclude=build -cf - . | tar -C "$dir/source" -xf -
  environment quire numpy grpcio protobuf xxhash "setuptools>=77"
  environment quire --force-reinstall --no-deps "$dir/source"
  "$dir/v-quire/bin/python" -c 'from quire_kv import kernels; assert kernels.NATIVE, kernels.why_not'
  if [ -n "${KVREPO:-}" ] && [ ! -x "$dir/bin/kvblockd" ]; then
    mkdir -p "$dir/kvsrc"
    git -C "$KVREPO" archive HEAD cmd internal pkg go.mod go.sum | tar -x -C "$dir/kvsrc"
    (cd "$dir/kvsrc" && go build -o "$dir/bin/" ./cmd/kvblockd)
  fi
}

# alone COMMAND: in a network namespace with loopback only, and cubic there for everybody: other congestion controls are
# several times slower on loopback on some kernels.
alone() {
  unshare -n bash -c 'ip link set lo up
    ip route change local 127.0.0.0/8 dev lo table local congctl cubic 2>/dev/null || true
    ip route replace local 127.0.0.1 dev lo table local congctl cubic 2>/dev/null || true
    exec "$@"' -- "$@"
}

# one PEER ARGS: the driver on one store. What fails is said and does not end the run.
one() {
  local peer=$1 env preload='' run=("$harness/bench.py")
  shift
  case $peer in
  quire-*) env=quire run=("$here/quire_peer.py" "$harness") ;;
  mooncake*) env=mooncake preload=$([ ! -e "$jemalloc" ] || echo "$jemalloc") ;;
  kvblockd*) env=kvblockd ;;
  *) env=redis ;;
  esac
  if [ "$peer" = kvblockd ] && [ ! -x "$dir/bin/kvblockd" ]; then
    echo "kvblockd is left out: it was not built (KVREPO)"
    return
  fi
  if LD_PRELOAD=$preload alone timeout "${LIMIT:-600}" "$dir/v-$env/bin/python" "${run[@]}" "$peer" --dir "$dir" --out "$out" "$@" >>"$dir/run.log" 2>&1; then
    echo "$(date +%T) $peer $*"
  else
    echo "$(date +%T) $peer $* FAILED; see $dir/run.log" >&2
  fi
}

report() {
  python3 "$harness/report.py" "$out" >"$dir/report.txt"
  echo "$dir/report.txt"
}

case $what in
setup) setup ;;
smoke)
  out=$dir/smoke.jsonl
  for peer in ${PEERS:-${timed[@]}}; do one "$peer" --tests ident; done
  cat "$out"
  ;;
time)
  for _ in $(seq "${PASSES:-2}"); do
    for peer in ${PEERS:-${timed[@]}}; do one "$peer" --tests thr,lat --reps "${REPS:-2}" --sizes "${SIZES:-64K,1M,2.5M}"; done
  done
  report
  ;;
func)
  for peer in ${PEERS:-${tested[@]}}; do one "$peer" --tests mem,cap,durab,ident,ram,disk,prefix; done
  report
  ;;
report) report ;;
*)
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2
  exit 2
  ;;
esac

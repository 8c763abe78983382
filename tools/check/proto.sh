#!/usr/bin/env bash
# The wire contract: lint, no breaking change, and the committed Go of proto/ and descriptor set of the Python client equal
# what buf makes now. BUF may name the command that runs buf.
set -euo pipefail
cd "$(dirname "$0")/../.."
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT
BUF="${BUF:-go tool -modfile=tools/buf/go.mod buf}"
$BUF lint
$BUF breaking --against proto/baseline.binpb
$BUF generate -o "$scratch"
for made in "$scratch"/proto/quire/v1/*.pb.go; do
  kept="proto/quire/v1/$(basename "$made")"
  if ! cmp -s "$made" "$kept"; then
    echo "$kept is not what buf generates; run: make proto" >&2
    exit 1
  fi
done
for kept in proto/quire/v1/*.pb.go; do
  if [ ! -e "$scratch/$kept" ]; then
    echo "$kept comes from no .proto any more; delete it" >&2
    exit 1
  fi
done
kept=python/quire_kv/quire.binpb
$BUF build --as-file-descriptor-set --exclude-source-info -o "$scratch/quire.binpb"
if ! cmp -s "$scratch/quire.binpb" "$kept"; then
  echo "$kept is not what buf builds; run: make proto" >&2
  exit 1
fi

#!/usr/bin/env bash
# Builds for the machines that this one is not: the whole of it for linux/arm64; client, command line and library
# packages for darwin/arm64; and one static binary for this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
export CGO_ENABLED=0
GO="${GO:-go}"
scratch="$(mktemp -d)"
trap 'rm -rf "$scratch"' EXIT

echo 'linux/arm64: all packages'
GOOS=linux GOARCH=arm64 $GO build ./...
echo 'darwin/arm64: client, command line, libraries'
GOOS=darwin GOARCH=arm64 $GO build ./reason ./namespace ./evict/... ./kernels/... ./store/page ./store/core \
  ./store/client/... ./proto/... ./cmd/quire
echo 'static binary'
$GO build -trimpath -o "$scratch/quire" ./cmd/quire
if command -v file >/dev/null && [[ "$(file "$scratch/quire")" == *'dynamically linked'* ]]; then
  echo 'bin/quire is not static' >&2
  exit 1
fi
"$scratch/quire" version

#!/usr/bin/env bash
# Runs every fuzz target of the module for the time given, one after the other.
set -euo pipefail
cd "$(dirname "$0")/../.."
GO="${GO:-go}"
fuzztime="${1:-30s}"
ran=0
while IFS=: read -r path name; do
  echo "== $name in ./$(dirname "$path") for $fuzztime"
  $GO test -run '^$' -fuzz "^$name\$" -fuzztime "$fuzztime" -fuzzminimizetime=5x "./$(dirname "$path")"
  ran=$((ran + 1))
done < <(grep -rE '^func Fuzz[A-Za-z0-9_]+\(' --include='*_test.go' . |
  sed -E 's|^\./||; s|:func (Fuzz[A-Za-z0-9_]+)\(.*|:\1|' | sort)
echo "$ran fuzz targets, no finding"
[ "$ran" -gt 0 ]

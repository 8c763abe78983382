#!/usr/bin/env bash
# Reads package paths, prints those that are not among the arguments (./dir, relative to the module).
set -euo pipefail
module=github.com/quire-kv/quire
grep -vxF -f <(for dir in "$@"; do echo "$module/${dir#./}"; done)

#!/usr/bin/env bash
# timed.sh NAME COMMAND...: runs one part of the checks, and says at its end how long it took and what CPU time it used.
# Appends the same line to the file that PART_TIMES names, if it does.
set -uo pipefail
name=$1
shift
echo "== $name"
TIMEFORMAT='%R %U %S'
{ used="$( { time "$@" >&3 2>&4; } 2>&1)"; } 3>&1 4>&2
code=$?
read -r wall user system <<<"$used"
line="$(printf '%-24s %5.0f s, CPU %5.0f s' "$name" "$wall" "$(awk "BEGIN {print $user + $system}")")"
echo "== $line"
[ -z "${PART_TIMES:-}" ] || echo "$line" >>"$PART_TIMES"
exit "$code"

#!/usr/bin/env bash
# Makes one environment from its lock file: install.sh NAME DIR PYTHON. NAME.txt lies beside this file; DIR is made anew.
# Engine environments get stand-ins for the CUDA libraries that torch links to, which needs a C compiler and binutils.
# Where packages come from is pip's own configuration.
set -euo pipefail
name=$1 dir=$2 python=$3
here=$(cd "$(dirname "$0")" && pwd)

"$python" -m venv --clear "$dir"
"$dir/bin/python" -m pip install --quiet --disable-pip-version-check --no-input --no-deps --only-binary=:all: \
  --no-compile -r "$here/$name.txt"
if grep -q '^torch==' "$here/$name.txt"; then
  "$dir/bin/python" "$here/cudastubs.py"
  "$dir/bin/python" -c 'import torch; assert not torch.cuda.is_available()'
fi

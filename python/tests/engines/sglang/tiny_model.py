"""Makes a tiny random checkpoint that the engine can run: python tiny_model.py DIR."""

from __future__ import annotations

import pathlib
import sys

import sglang_checkpoints

if __name__ == "__main__":
    sglang_checkpoints.llama(pathlib.Path(sys.argv[1]))

"""python tiny_model.py DIR: the tiny random checkpoint that the page docs/engines/vllm.md is typed with."""

from __future__ import annotations

import pathlib
import shutil
import sys

sys.path[:0] = [str(pathlib.Path(__file__).parents[2]), str(pathlib.Path(__file__).parent)]

import vllm_models  # noqa: E402

if __name__ == "__main__":
    shutil.copytree(vllm_models.tiny(), sys.argv[1])

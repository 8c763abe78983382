"""python tiny_model.py DIR: the checkpoint of a few KB that the page docs/engines/lmcache.md is typed with."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tinymodel import checkpoint

if __name__ == "__main__":
    checkpoint(pathlib.Path(sys.argv[1]))

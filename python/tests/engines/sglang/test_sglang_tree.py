"""The real radix tree of SGLang, with its assembler and controller: stored, forgotten, and brought back to the device."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("sglang", reason="sglang is not installed in this environment")

import os

import sglang_controllers as c

pytestmark = [pytest.mark.sglang, pytest.mark.limit(240)]

HERE = pathlib.Path(__file__).resolve().parent


@pytest.mark.parametrize("layout", ["page_head"])
def test_the_tree_gets_its_pages_back(quire_server, digests, llama, layout):
    """In a process of its own, because the copies between device and host are replaced there (hook/sitecustomize.py)."""
    folder, _ = llama
    settings = json.dumps({**c.BACKEND, "prefetch_threshold": 16, "hicache_storage_pass_prefix_keys": True, **c.settings_of(quire_server, digests(folder))})
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE / "hook"), str(HERE), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, str(HERE / "tree_process.py"), str(folder), layout, settings],
        capture_output=True,
        text=True,
        timeout=200,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said == {"stored": 20, "device": 0, "host": 0, "loaded": 320, "matched": 320, "equal": True}
    assert quire_server.read_counter() == 320 * 2 * 3 * 2 * 8 * 2  # tokens x k, v x layers x heads x width x bytes

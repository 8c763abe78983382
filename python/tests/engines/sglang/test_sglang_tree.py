"""The real radix tree of SGLang, with its assembler and controller: stored, forgotten, and brought back to the device."""

from __future__ import annotations

import json
import os

import pytest

pytest.importorskip("sglang", reason="sglang is not installed in this environment")

import sglang_controllers as c

pytestmark = [pytest.mark.sglang, pytest.mark.limit(240)]


@pytest.mark.parametrize("layout", ["page_head"])
def test_the_tree_gets_its_pages_back(nursery, quire_server, digests, llama, tmp_path, layout):
    """In a process of its own, because the copies between device and host are replaced there (hook/sitecustomize.py)."""
    folder, _ = llama
    settings = json.dumps({**c.BACKEND, "prefetch_threshold": 16, "hicache_storage_pass_prefix_keys": True, **c.settings_of(quire_server, digests(folder))})
    with (tmp_path / "out").open("wb") as out, (tmp_path / "log").open("wb") as log, open(os.devnull) as nothing:
        files = {"stdin": nothing.fileno(), "stdout": out.fileno(), "stderr": log.fileno()}
        code = nursery.run("tree_process", [str(folder), layout, settings], env=os.environ, **files).wait(200)
    assert code == 0, (tmp_path / "log").read_text()[-4000:]
    said = json.loads((tmp_path / "out").read_text().splitlines()[-1])
    assert said == {"stored": 20, "device": 0, "host": 0, "loaded": 320, "matched": 320, "equal": True}
    assert quire_server.read_counter() == 320 * 2 * 3 * 2 * 8 * 2  # tokens x k, v x layers x heads x width x bytes

"""The real SGLang engine on a CPU over a real server: answers with and without Quire, and beside the file backend.

Four engines run one after the other:

    page_first, TP 1    the file backend and Quire are filled; then the weights change
    page_head, TP 1     the file backend hits and answers wrong, Quire hits and answers right
    page_first, TP 2    the file backend has nothing, Quire has the one copy
    page_first, TP 1    with the engine's own fault injector around Quire

float32, so that different tensor parallel sizes differ in the last digits only.
"""

from __future__ import annotations

import json
import os
import time

import pytest

pytest.importorskip("sglang", reason="sglang is not installed in this environment")

import serving
import sglang_checkpoints as checkpoints
import torch
from sglang_engines import EngineProcess
from waiting import PATIENT

pytestmark = [pytest.mark.sglang, pytest.mark.limit(600)]

PROMPT = [(i * 7919) % 1000 + 3 for i in range(400)]
PAGES = 25  # of 16 tokens
BACKEND = {
    "backend_name": "quire",
    "module_path": "quire_kv.sglang",
    "class_name": "QuireHiCache",
    "interface_v1": 1,
    "hicache_storage_pass_prefix_keys": True,
    "prefetch_threshold": 16,
}


def near(a, b) -> bool:
    return a["tokens"] == b["tokens"] and max(abs(x - y) for x, y in zip(a["logprobs"], b["logprobs"], strict=True)) < 1e-3


def from_storage(answer) -> int:
    return (answer["details"] or {}).get("storage", 0)


def until(condition, what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.1)


class Place:
    """One server, one checkpoint, one folder of the file backend, and what a plain engine answers."""

    def __init__(self, nursery, server: serving.Server, folder, digests) -> None:
        self.nursery, self.server, self.folder = nursery, server, folder
        self.model = checkpoints.llama(folder / "tiny", dtype=torch.float32)
        self.other = checkpoints.llama(folder / "other", dtype=torch.float32, seed=1)
        self.files = folder / "files"
        self.files.mkdir()
        self.quire = json.dumps({**BACKEND, "server": server.address, **PATIENT, **digests(self.model)})
        self.file = json.dumps({"prefetch_threshold": 16, "file_storage_path": str(self.files)})
        self.plain: dict = {}

    def engine(self, layout: str, tp: int = 1, *, quire: bool = False, **how) -> EngineProcess:
        start = {"hicache_storage_backend": "dynamic" if quire else "file", "hicache_storage_backend_extra_config": self.quire if quire else self.file}
        log = self.folder / f"engine-{layout}-{tp}-{len(os.listdir(self.folder))}.log"
        env = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(self.files), **how.pop("env", {})}
        return EngineProcess(self.nursery, self.model, log, env=env, tp_size=tp, hicache_mem_layout=layout, **start, **how).up()

    def use_quire(self, engine: EngineProcess) -> None:
        """Exchanges the file backend for Quire at run time, with an empty radix tree."""
        engine.detach()
        engine.flush()
        attached = engine.call("attach", "dynamic", self.quire)
        assert attached[0], attached
        until(lambda: engine.log().count("quire: ready") == engine.ranks, "the sessions of all ranks open")

    def spaces(self) -> list[dict]:
        models = json.loads(self.server.run("ns", "list", "-o", "json").stdout)["models"]
        return [n for m in models for r in m["revisions"] for n in r["namespaces"]]

    def pages(self) -> int:
        return sum(n["pages"] for n in self.spaces())


@pytest.fixture(scope="module")
def place(nursery, quire_bin, tmp_path_factory, digests):
    folder = tmp_path_factory.mktemp("engine")
    server = serving.Server(quire_bin, folder / "server").start()
    yield Place(nursery, server, folder, digests)
    server.close()


def test_an_answer_comes_back_from_quire_until_the_weights_change(place):
    engine = place.engine("page_first")
    try:
        place.plain = plain = engine.ask(PROMPT)
        assert from_storage(plain) == 0
        until(lambda: len(os.listdir(place.files)) == PAGES, "the file backend has all pages")
        place.use_quire(engine)
        cold = engine.ask(PROMPT)
        assert near(cold, plain) and cold["cached"] == 0
        until(lambda: place.pages() == PAGES, "all pages are stored")
        before = place.server.read_counter()
        engine.flush()
        warm = engine.ask(PROMPT)
        assert warm["details"] == {"device": 0, "host": 0, "storage": 384, "storage_backend": "QuireHiCache"}
        assert near(warm, plain)
        assert place.server.read_counter() - before == 384 * 2 * 3 * 2 * 32 * 4  # tokens x k, v x layers x heads x width x bytes

        # C62: the weights are updated in place, then the same prompt
        engine.flush()  # the update empties the tree itself, and fails where it cannot
        updated = engine.call("update_weights", str(place.other))
        assert updated[0], updated
        before, pages = place.server.read_counter(), place.pages()
        engine.flush()
        new = engine.ask(PROMPT)
        assert from_storage(new) == 0 and not near(new, plain)
        engine.flush()
        again = engine.ask(PROMPT)
        assert from_storage(again) == 0 and near(again, new)
        assert (place.server.read_counter(), place.pages()) == (before, pages)
        assert engine.log().count("the weights of this engine change") == 1
    finally:
        engine.close()


def test_another_layout_is_right_in_quire_and_wrong_in_files(place):
    assert place.plain, "the test before it has to run"
    engine = place.engine("page_head")
    try:
        wrong = engine.ask(PROMPT)
        assert from_storage(wrong) == 384 and not near(wrong, place.plain)
        place.use_quire(engine)
        before = place.server.read_counter()
        right = engine.ask(PROMPT)
        assert from_storage(right) == 384 and near(right, place.plain)
        assert place.server.read_counter() > before and place.pages() == PAGES
    finally:
        engine.close()


def test_another_tensor_parallel_size_has_one_copy_in_quire_and_none_in_files(place):
    assert place.plain, "the tests before it have to run"
    engine = place.engine("page_first", tp=2)
    try:
        nothing = engine.ask(PROMPT)
        assert nothing["cached"] == 0 and near(nothing, place.plain)
        until(lambda: len(os.listdir(place.files)) == 3 * PAGES, "both ranks write every page once more")
        place.use_quire(engine)
        before = place.server.read_counter()
        shared = engine.ask(PROMPT)
        assert from_storage(shared) == 384 and near(shared, place.plain)
        assert place.server.read_counter() - before == 384 * 2 * 3 * 2 * 32 * 4  # each rank its head
        assert len(place.spaces()) == 1 and place.pages() == PAGES
    finally:
        engine.close()
    listed = place.server.run("ns", "list").stdout
    assert "test/tiny" in listed
    key = min(os.listdir(place.files))[:64]  # the hash that the file backend's names begin with
    shown = json.loads(place.server.run("page", "explain", place.spaces()[0]["id"], key, "-o", "json").stdout)
    assert shown["served"] and [e["view"] for e in shown["extents"]] == ["0:2,0:3"]
    assert "recorded.writer_tp=1\n" in shown["extents"][0]["provenance"]


def test_answers_stay_right_under_the_engines_fault_injector(place):
    assert place.plain, "the tests before it have to run"
    faults = {"SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY": "0.05", "SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE": "0.3"}
    engine = place.engine("page_head", quire=True, env=faults)
    try:
        hits, expected = 0, {}
        for n in range(8):
            prompt = PROMPT if n % 2 else PROMPT[:200] + [7 + n % 3] * 200
            answer = engine.ask(prompt, 4)
            hits += from_storage(answer) > 0
            first = expected.setdefault(tuple(prompt), answer)
            assert near(answer, first)
            if n % 2:
                assert answer["tokens"] == place.plain["tokens"][:4]
            engine.flush()
        assert hits, "no fault-free hit at all: the injector hides what is tested"
        assert engine.log().count("Traceback") == 0
    finally:
        engine.close()

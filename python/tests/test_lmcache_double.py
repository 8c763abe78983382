"""The LMCache adapter under a double of LMCache's two controller loops (doubles/lmcache_double.py) over a toy cache.

Real LMCache: tests/engines/lmcache.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import sys
import threading
import time

import pytest
import serving
from doubles import lmcache_double as double
from doubles.toy_cache import ToyStore, toy_spec
from waiting import PATIENT, wait_for

from quire_kv.lmcache_models import FORMATS, Row, Shape, parse_rows, scope_of, split_layers
from quire_kv.page import split_heads

CHUNK, WIDTH, HEADS, LAYERS = 4, 2, 4, 3
DIGEST = "sha256:" + "a" * 64


def row(**changes):
    return {
        "digest": DIGEST,
        "format": "KV_2LTD",
        "dtype": "bfloat16",
        "engine": "vllm",
        "version": "0.32.0",
        "backend": "flash",
        "lora": "none",
        "weights": "frozen",
        "tp": 1,
        "pp": 1,
        "chunk_size": CHUNK,
        **changes,
    }


def describe(row, config):
    """The identity without a manifest: another digest is another identity."""
    if row.opaque:
        return toy_spec(row.digest, 1, 1), Shape(row, 1, 1, (row.chunk_bytes // row.chunk_size,))
    heads = 1 if row.format == "KV_MLA_FMT" else HEADS
    return toy_spec(row.digest + row.format, heads, LAYERS), Shape(row, heads, LAYERS, (2 * WIDTH,) if row.format == "KV_LTD" else (WIDTH, WIDTH))


@pytest.fixture
def plugin(monkeypatch):
    """quire_kv.lmcache as it is imported where LMCache is the double."""
    for name, module in double.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "quire_kv.lmcache", raising=False)
    yield importlib.import_module("quire_kv.lmcache")
    sys.modules.pop("quire_kv.lmcache", None)


class Bench:
    """An adapter with its toy store and both loops."""

    def __init__(self, plugin, store, models, **settings):
        self.store = store
        self.adapter = plugin.QuireL2Adapter({"models": models, **PATIENT, **settings}, l1_memory_desc=None, describe=describe, make_cache=store.make_cache)
        self.loops = double.Controllers(self.adapter)

    def close(self):
        self.loops.stop()
        self.adapter.close()

    def save(self, keys, objects):
        done = self.loops.store(keys, objects)
        assert done.wait(30)
        return done.result

    def fetch(self, rows, objects, layout, **more):
        p = self.loops.prefetch(double.Prefetch(rows, objects, layout, **more))
        assert p.done.wait(30), "the request waits for ever"
        return p


@pytest.fixture
def bench(plugin):
    made = []

    def make(models=None, store=None, **settings):
        made.append(Bench(plugin, store or ToyStore(), {"m": row()} if models is None else models, **settings))
        return made[-1]

    yield make
    for b in made:
        b.close()


def hashes(n, salt=b""):
    return [bytes([i]) * 32 if not salt else (salt + bytes([i])) * 16 for i in range(n)]


def objects_of(n, tp=1, pp_layers=LAYERS):
    return [double.MemoryObj((2, pp_layers, CHUNK, HEADS // tp * WIDTH), "bfloat16", 2) for _ in range(n)]


def layout(tp=1):
    return double.MemoryLayoutDesc([(2, LAYERS, CHUNK, HEADS // tp * WIDTH)], ["bfloat16"])


def keys_of(model, n, rank=0, world=1, **more):
    return [double.ObjectKey(h, model, double.kv_rank(world, rank), **more) for h in hashes(n)]


def element(h, layer, part, token, dim):
    """Two bytes that say where in the model they belong."""
    return ((((h * LAYERS + layer) * 2 + part) * CHUNK + token) * WIDTH + dim).to_bytes(2, "little")


def rank_bytes(h0, h1, l0, l1, page):
    """An object in LMCache's KV_2LTD order: [part][layer][token][head][dim]."""
    out = b"".join(
        element(h, layer, part, t, d) for part in range(2) for layer in range(l0, l1) for t in range(CHUNK) for h in range(h0, h1) for d in range(WIDTH)
    )
    return bytes(b ^ page for b in out)


def filled(n, h0=0, h1=HEADS, l0=0, l1=LAYERS, tp=1):
    objects = objects_of(n, tp, l1 - l0)
    for i, o in enumerate(objects):
        o.fill(rank_bytes(h0, h1, l0, l1, i))
    return objects


def test_store_lookup_load_unlock(bench):
    b = bench()
    keys, objects = keys_of("m", 6), filled(6)
    result = b.save(keys, objects)
    assert result.is_successful() and result.bytes_transferred() == 6 * objects[0].size
    assert b.adapter.total_bytes_used == 6 * objects[0].size
    back = objects_of(6)
    p = b.fetch([keys], [back], layout())
    assert p.hit == [True] * 6
    assert [o.bytes for o in back] == [o.bytes for o in objects]
    assert b.adapter.accessed == keys
    wait_for(lambda: b.store.leases == 0 and len(b.adapter._locks) == 0)
    assert b.store.count("lookup") == 1 and b.store.count("load") == 1  # one call a batch
    assert b.loops.alive()


def test_duplicate_stores_are_true_and_counted_once(bench):
    b = bench()
    keys, objects = keys_of("m", 3), filled(3)
    for _ in range(3):
        assert b.save(keys, objects).is_successful()
    assert b.adapter.total_bytes_used == 3 * objects[0].size


def test_a_hole_gives_back_what_is_behind_it(bench):
    b = bench()
    keys, objects = keys_of("m", 5), filled(5)
    b.save(keys[:2] + keys[3:], objects[:2] + objects[3:])
    p = b.fetch([keys], [objects_of(5)], layout())
    assert p.hit == [True, True, False, False, False]
    wait_for(lambda: b.store.leases == 0)


def test_case_c47_a_page_lost_between_lookup_and_load_shortens_the_hit(bench):
    b = bench()
    keys, objects = keys_of("m", 5), filled(5)
    b.save(keys, objects)
    b.store.refused.add(keys[3].chunk_hash)
    back = objects_of(5)
    p = b.fetch([keys], [back], layout())
    assert p.hit == [True, True, True, False, False]
    assert [o.bytes for o in back[:3]] == [o.bytes for o in objects[:3]]
    wait_for(lambda: b.store.leases == 0)


def test_case_c21_a_lookup_that_nobody_loads_holds_its_lease_for_its_time_only(bench):
    b = bench(lease_seconds=0.2)
    keys = keys_of("m", 4)
    b.save(keys, filled(4))
    b.fetch([keys], [objects_of(4)], layout(), given_up=True)
    assert len(b.adapter._locks) == 1
    wait_for(lambda: b.fetch([keys], [objects_of(4)], layout()).hit and b.store.leases == 0 and len(b.adapter._locks) == 0)


def test_case_c74_two_models_of_equal_shapes_share_nothing(bench):
    b = bench({"m": row(), "n": row(digest="sha256:" + "b" * 64)})
    b.save(keys_of("m", 3), filled(3))
    p = b.fetch([keys_of("n", 3)], [objects_of(3)], layout())
    assert p.hit == [False] * 3
    assert b.fetch([keys_of("m", 3)], [objects_of(3)], layout()).hit == [True] * 3


def test_case_c74_a_model_that_is_not_declared_is_not_cached(bench, caplog):
    b = bench()
    for _ in range(3):
        result = b.save(keys_of("other", 2), filled(2))
        assert not result.is_successful() and result.bytes_transferred() == 0
        assert b.fetch([keys_of("other", 2)], [objects_of(2)], layout()).hit == [False, False]
    assert b.store.pages == {} and b.store.count("lookup") == 0
    lines = [r.getMessage() for r in caplog.records if "other" in r.getMessage()]
    assert len(lines) == 1 and "models has no whole row" in lines[0]


@pytest.mark.parametrize("missing", ["digest", "format", "dtype", "engine", "version", "backend", "lora", "weights", "tp", "pp"])
def test_a_row_that_is_not_whole_is_one_line_and_not_cached(bench, caplog, missing):
    b = bench({"m": {k: v for k, v in row().items() if k != missing}, "n": row()})
    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(lines) == 1 and f"models['m'].{missing}" in lines[0] and "\n" not in lines[0]
    assert b.fetch([keys_of("m", 1)], [objects_of(1)], layout()).hit == [False]
    assert b.save(keys_of("n", 1), filled(1)).is_successful()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"lora": "all"}, ".lora"), ({"weights": "live"}, ".weights"), ({"dtype": "auto"}, ".dtype"), ({"dtype": "float8_e4m3fn"}, ".dtype"), ({"digest": "sha256:12"}, ".digest"),
        ({"format": "KV_BLOB"}, ".format"), ({"tp": 0}, ".tp"), ({"tp": True}, ".tp"), ({"typo": 1}, "'typo'"), ({"format": "opaque"}, ".chunk_bytes"),
        ({"format": "opaque", "chunk_bytes": 4097}, ".chunk_bytes"), ({"layer_split": [1]}, None), ({"layer_split": [1, 2]}, ".layer_split"),
        ({"multimodal": "caller_id"}, ".multimodal"), ({"hash_bytes": 8}, ".hash_bytes"), ({"chunk_bytes": 8}, ".chunk_bytes"), ({"tp": 32, "pp": 16}, "tp x pp"),
    ],
)  # fmt: skip
def test_rows_are_judged_with_the_setting_named(changes, named):
    rows, lines = parse_rows({"m": row(**changes)})
    if named is None:
        assert rows and not lines
    else:
        assert not rows and len(lines) == 1 and named in lines[0] and "models['m']" in lines[0]


def test_case_c75_ids_that_callers_choose_need_weak_names():
    assert parse_rows({"m": row(multimodal="caller_id")})[0] == {}
    assert parse_rows({"m": row(multimodal="caller_id", weak_names=True)})[0]["m"].weak_names


@pytest.mark.parametrize(
    "settings",
    [{}, {"models": [1]}, {"models": {"m": row()}, "typo": 1}, {"models": {"m": row()}, "server": "nowhere"}, {"models": {"m": row()}, "lease_seconds": 0}],
)
def test_a_wrong_configuration_is_one_line_and_no_cache(plugin, caplog, settings):
    adapter = plugin.QuireL2Adapter(settings, describe=describe, make_cache=ToyStore().make_cache)
    loops = double.Controllers(adapter)
    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(lines) == 1 and "nothing is cached" in lines[0]
    p = loops.prefetch(double.Prefetch([keys_of("m", 2)], [objects_of(2)], layout()))
    assert p.done.wait(30) and p.hit == [False, False]
    assert adapter.report_status()["is_healthy"] and "off" in adapter.report_status()["state"]
    loops.stop()
    adapter.close()


# -- ranks as views ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tp", "reads"), [(2, 1), (1, 2), (4, 2), (2, 4), (8, 1), (1, 8)])
def test_case_c40_tensor_parallel_ranks_are_views_of_one_page(bench, tp, reads):
    store = ToyStore()
    a = bench({"m": row(tp=tp)}, store=store)
    for rank in range(tp):
        h0, h1 = split_heads(HEADS, tp, rank)
        assert a.save(keys_of("m", 2, rank, tp), filled(2, h0, h1, tp=min(tp, HEADS))).is_successful()
    assert len(store.pages) == 2  # one stored copy
    b = bench({"m": row(tp=reads)}, store=store)
    rows = [keys_of("m", 2, rank, reads) for rank in range(reads)]
    objects = [objects_of(2, min(reads, HEADS)) for _ in range(reads)]
    p = b.fetch(rows, objects, layout(min(reads, HEADS)))
    assert p.hit == [True, True]
    for rank in range(reads):
        h0, h1 = split_heads(HEADS, reads, rank)
        assert [o.bytes for o in objects[rank]] == [rank_bytes(h0, h1, 0, LAYERS, i) for i in range(2)]
    assert store.count("lookup") == 1  # all ranks are answered alike by one question
    wait_for(lambda: store.leases == 0)


@pytest.mark.parametrize(("tp", "reads"), [(2, 1), (1, 4)])
def test_case_c40_objects_with_keys_and_values_side_by_side(bench, tp, reads):
    def packed(h0, h1):
        return b"".join(
            element(h, layer, part, t, d) for layer in range(LAYERS) for t in range(CHUNK) for h in range(h0, h1) for part in range(2) for d in range(WIDTH)
        )

    def object_of(heads):
        return double.MemoryObj((1, LAYERS, CHUNK, heads * 2 * WIDTH), "bfloat16", 2)

    store = ToyStore()
    a = bench({"m": row(format="KV_LTD", tp=tp)}, store=store)
    for rank in range(tp):
        h0, h1 = split_heads(HEADS, tp, rank)
        o = object_of(h1 - h0)
        o.fill(packed(h0, h1))
        assert a.save(keys_of("m", 1, rank, tp), [o]).is_successful()
    b = bench({"m": row(format="KV_LTD", tp=reads)}, store=store)
    each = HEADS // reads
    back = [object_of(each) for _ in range(reads)]
    desc = double.MemoryLayoutDesc([(1, LAYERS, CHUNK, each * 2 * WIDTH)], ["bfloat16"])
    assert b.fetch([keys_of("m", 1, rank, reads) for rank in range(reads)], [[o] for o in back], desc).hit == [True]
    assert [o.bytes for o in back] == [packed(rank * each, (rank + 1) * each) for rank in range(reads)]
    assert len(store.pages) == 1


def test_pipeline_stages_are_views_of_layers(bench):
    store = ToyStore()
    a = bench({"m": row(pp=2)}, store=store)
    first = 0
    for rank, layers in enumerate(split_layers(LAYERS, 2)):
        objects = filled(1, l0=first, l1=first + layers)
        assert a.save(keys_of("m", 1, rank, 2), objects).is_successful()
        first += layers
    b = bench(store=store)
    back = objects_of(1)
    assert b.fetch([keys_of("m", 1)], [back], layout()).hit == [True]
    assert back[0].bytes == rank_bytes(0, HEADS, 0, LAYERS, 0)


def test_case_c41_ranks_that_are_not_all_there_are_one_miss(bench):
    b = bench({"m": row(tp=2)})
    b.save(keys_of("m", 2, 0, 2), filled(2, 0, 2, tp=2))
    rows = [keys_of("m", 2, rank, 2) for rank in range(2)]
    assert b.fetch(rows, [objects_of(2, 2), objects_of(2, 2)], layout(2)).hit == [False, False]
    assert b.fetch(rows[:1], [objects_of(2, 2)], layout(2)).hit == [True, True]  # its own view alone is there


def test_a_rank_of_another_world_is_a_miss_and_says_so(bench, caplog):
    b = bench({"m": row(tp=2)})
    assert not b.save(keys_of("m", 1, 0, 4), filled(1, 0, 1, tp=4)).is_successful()
    assert b.fetch([keys_of("m", 1, 0, 4)], [objects_of(1, 4)], layout(4)).hit == [False]
    assert sum("tp 2 and pp 1" in r.getMessage() for r in caplog.records) == 1
    assert not b.store.pages


def test_objects_of_another_shape_or_dtype_are_refused(bench, caplog):
    b = bench()
    wrong = [double.MemoryObj((2, LAYERS, CHUNK, HEADS * WIDTH), "float16", 2), double.MemoryObj((2, LAYERS + 1, CHUNK, HEADS * WIDTH), "bfloat16", 2)]
    for o in wrong:
        assert not b.save(keys_of("m", 1), [o]).is_successful()
    assert not b.store.pages
    b.save(keys_of("m", 1), filled(1))
    other = double.MemoryLayoutDesc([(2, LAYERS, CHUNK, HEADS * WIDTH)], ["float16"])
    assert b.fetch([keys_of("m", 1)], [[wrong[0]]], other).hit == [False]
    assert sum("correct tp, pp" in r.getMessage() for r in caplog.records) == 1


def test_mla_is_one_head_for_all_tensor_parallel_ranks(bench):
    b = bench({"m": row(format="KV_MLA_FMT", tp=8)})
    shape = (LAYERS, CHUNK, 2 * WIDTH)
    o, back = double.MemoryObj(shape, "bfloat16", 2), double.MemoryObj(shape, "bfloat16", 2)
    o.fill(os.urandom(o.size))
    assert b.save(keys_of("m", 1), [o]).is_successful()
    assert b.fetch([keys_of("m", 1)], [[back]], double.MemoryLayoutDesc([shape], ["bfloat16"])).hit == [True]
    assert back.bytes == o.bytes


def test_opaque_objects_of_two_ranks_never_meet(bench):
    b = bench({"m": row(format="opaque", chunk_bytes=4096, tp=None, pp=None)})
    sent = [double.MemoryObj((4096,), "uint8", 1) for _ in range(2)]
    for rank, o in enumerate(sent):
        o.fill(bytes([rank + 1]) * 4096)
        assert b.save(keys_of("m", 1, rank, 2), [o]).is_successful()
    back = [double.MemoryObj((4096,), "uint8", 1) for _ in range(3)]
    desc = double.MemoryLayoutDesc([], [])
    assert b.fetch([keys_of("m", 1, rank, 2) for rank in range(2)], [[o] for o in back[:2]], desc).hit == [True]
    assert [o.bytes for o in back[:2]] == [o.bytes for o in sent]
    assert b.fetch([keys_of("m", 1, 0, 1)], [back[2:]], desc).hit == [False]  # another world
    small = double.MemoryObj((4095,), "uint8", 1)
    assert not b.save(keys_of("m", 1), [small]).is_successful()


def test_opaque_objects_of_a_stated_world_take_no_other():
    rows, _ = parse_rows({"m": row(format="opaque", chunk_bytes=4096, tp=2, pp=1)})
    shape = Shape(rows["m"], 1, 1, (1024,))
    assert shape.place(double.kv_rank(2, 1)) is not None
    assert shape.place(double.kv_rank(4, 1)) is None and shape.place(double.kv_rank(2, 2)) is None


def test_salts_and_ranks_are_different_scopes():
    scopes = {scope_of("", None), scope_of("a", None), scope_of("a", 0), scope_of("a", 1), scope_of("", 0), scope_of("kv_rank=00000000", None)}
    assert len(scopes) == 6 and not any(scope_of("", None))


def test_case_c4_salts_share_nothing(bench):
    b = bench()
    b.save(keys_of("m", 1, cache_salt="a"), filled(1))
    for salt in ("", "b"):
        assert b.fetch([keys_of("m", 1, cache_salt=salt)], [objects_of(1)], layout()).hit == [False]
    assert b.fetch([keys_of("m", 1, cache_salt="a")], [objects_of(1)], layout()).hit == [True]


def test_case_c50_further_object_groups_are_refused(bench, caplog):
    b = bench()
    assert not b.save(keys_of("m", 1, object_group_id=1), filled(1)).is_successful()
    assert b.fetch([keys_of("m", 1, object_group_id=1)], [objects_of(1)], layout()).hit == [False]
    assert sum("object groups" in r.getMessage() for r in caplog.records) == 1


@pytest.mark.parametrize("length", [1, 4, 8, 15])
def test_short_hashes_are_refused_with_the_setting_named(bench, caplog, length):
    b = bench()
    keys = [double.ObjectKey(bytes([i]) * length, "m", double.kv_rank(1, 0)) for i in range(2)]
    assert not b.save(keys, filled(2)).is_successful()
    assert b.fetch([keys], [objects_of(2)], layout()).hit == [False, False]
    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(lines) == 1 and "--hash-algorithm" in lines[0] and f"{length} bytes" in lines[0]
    assert not b.store.pages


# -- faults ------------------------------------------------------------------------------------------------------


def test_case_c43_no_store_is_a_miss_for_every_task_and_it_comes_back(bench):
    b = bench()
    keys, objects = keys_of("m", 2), filled(2)
    b.store.away = True
    assert not b.save(keys, objects).is_successful()
    assert b.fetch([keys], [objects_of(2)], layout()).hit == [False, False]
    b.store.away = False
    assert b.save(keys, objects).is_successful()
    assert b.fetch([keys], [objects_of(2)], layout()).hit == [True, True]
    assert b.loops.alive()


@pytest.mark.parametrize("where", ["lookup", "load", "save"])
def test_case_c42_a_cache_that_fails_is_a_miss(bench, where):
    b = bench()
    keys, objects = keys_of("m", 2), filled(2)
    assert b.save(keys, objects).is_successful()

    def fail(what):
        if what == where:
            raise RuntimeError("injected")

    b.store.before = fail
    assert b.save(keys, objects).is_successful() is (where != "save")
    assert b.fetch([keys], [objects_of(2)], layout()).hit == [where == "save"] * 2
    b.store.before = lambda _: None
    assert b.fetch([keys], [objects_of(2)], layout()).hit == [True, True]
    assert b.loops.alive() and b.adapter.report_status()["is_healthy"]
    wait_for(lambda: b.store.leases == 0)


def test_a_defect_in_a_task_still_gives_an_answer(bench, monkeypatch):
    b = bench()
    keys = keys_of("m", 2)
    b.save(keys, filled(2))
    served = b.adapter._models["m"]
    for name in ("lookup", "load", "save"):
        with monkeypatch.context() as patch:
            patch.setattr(served.cache, name, lambda *a, **k: 1 / 0)
            assert b.fetch([keys], [objects_of(2)], layout()).hit == [name == "save"] * 2
            assert b.save(keys, filled(2)).is_successful() is (name != "save")
    assert b.loops.alive()


def test_case_c43_a_lookup_that_hangs_is_answered_by_its_deadline_and_its_lease_goes_back(bench):
    b = bench(lookup_timeout_ms=50)
    keys = keys_of("m", 2)
    b.save(keys, filled(2))
    go = threading.Event()
    b.store.before = lambda what: what == "lookup" and go.wait(60)
    assert b.fetch([keys], [objects_of(2)], layout()).hit == [False, False]
    assert b.adapter.report_status()["overdue_tasks"] == 1
    go.set()
    wait_for(lambda: b.adapter.report_status()["queued"]["lookup"] == 0)
    wait_for(lambda: b.store.leases == 0 and len(b.adapter._locks) == 0)


def test_case_c64_a_load_is_not_answered_while_it_may_still_write(bench):
    b = bench()
    keys, objects = keys_of("m", 1), filled(1)
    b.save(keys, objects)
    go, began = threading.Event(), threading.Event()

    def hold(what):
        if what == "load":
            began.set()
            go.wait(60)

    b.store.before = hold
    back = objects_of(1)
    p = b.loops.prefetch(double.Prefetch([keys], [back], layout()))
    assert began.wait(30)
    assert not p.done.wait(0.2)
    go.set()
    assert p.done.wait(30) and p.hit == [True] and back[0].bytes == objects[0].bytes


def test_more_tasks_than_room_are_all_answered(bench, plugin):
    b = bench()
    keys, objects = keys_of("m", 1), filled(1)
    go = threading.Event()
    b.store.before = lambda what: what == "save" and go.wait(60)
    fd_events = [b.loops.store(keys, objects) for _ in range(plugin._STORE_DEPTH + 50)]
    wait_for(lambda: sum(e.is_set() for e in fd_events) >= 48)  # refused at once, for want of room
    go.set()
    for e in fd_events:
        assert e.wait(20)
    assert sum(e.result.is_successful() for e in fd_events) >= plugin._STORE_DEPTH
    assert b.adapter.report_status()["refused_tasks"] >= 48


def test_unlock_never_raises_and_ignores_what_is_not_locked(bench):
    b = bench()
    for nonsense in ([], keys_of("m", 3), keys_of("other", 1), [None], [object()]):
        b.adapter.submit_unlock(nonsense)
    b.adapter.submit_unlock([[]])  # not even hashable
    b.adapter.submit_unlock(None)
    assert b.loops.alive()


def test_locks_of_two_requests_for_the_same_keys(bench):
    b = bench()
    keys = keys_of("m", 3)
    b.save(keys, filled(3))
    for _ in range(2):
        b.fetch([keys], [objects_of(3)], layout(), given_up=True)
    assert b.store.leases == 2
    b.adapter.submit_unlock(keys)
    wait_for(lambda: b.store.leases == 1)
    b.adapter.submit_unlock(keys[:2])
    b.adapter.submit_unlock(keys[2:])
    wait_for(lambda: b.store.leases == 0)


def test_answers_that_nobody_asks_for_are_bounded(bench, plugin, monkeypatch):
    monkeypatch.setattr(plugin, "_KEPT_ANSWERS", 16)
    b = bench()
    keys = keys_of("m", 1)
    for _ in range(100):
        b.adapter.submit_load_task(keys, objects_of(1))
        b.adapter._workers.drain(10)
    assert len(b.adapter._answers["load"]) <= 16


def test_close_is_prompt_answers_what_waits_and_ends_every_thread(plugin):
    store = ToyStore()
    before = set(threading.enumerate())
    adapter = plugin.QuireL2Adapter({"models": {"m": row()}, **PATIENT}, describe=describe, make_cache=store.make_cache)
    loops = double.Controllers(adapter)
    keys = keys_of("m", 2)
    assert loops.store(keys, filled(2)).wait(30)
    p = loops.prefetch(double.Prefetch([keys], [objects_of(2)], layout(), given_up=True))
    assert p.done.wait(30) and store.leases == 1
    loops.stop()
    began = time.monotonic()
    adapter.close()
    adapter.close()
    assert time.monotonic() - began < 5
    assert store.leases == 0 and store.caches[0].closed
    wait_for(lambda: set(threading.enumerate()) <= before)
    assert adapter.submit_lookup_and_lock_task(keys, {}) and adapter.submit_store_task(keys, filled(2)) and adapter.submit_load_task(keys, objects_of(2))
    adapter.submit_unlock(keys)
    assert not adapter.report_status()["is_healthy"]


def test_batches_are_cut_by_bytes(bench, plugin, monkeypatch):
    b = bench()
    keys, objects = keys_of("m", 10), filled(10)
    monkeypatch.setattr(plugin, "_BATCH_BYTES", 3 * objects[0].size)
    assert b.save(keys, objects).is_successful()
    assert [n for what, n in b.store.calls if what == "save"] == [3, 3, 3, 1]
    assert b.fetch([keys], [objects_of(10)], layout()).hit == [True] * 10
    assert [n for what, n in b.store.calls if what == "load"] == [3, 3, 3, 1]


def test_the_double_can_fail():
    """An adapter that raises in submit_unlock ends the double's prefetch thread, as it does the real one."""

    class Raises(double.L2AdapterInterface):
        def __init__(self):
            super().__init__()
            self.fds = [double.EventNotifier() for _ in range(3)]

        get_store_event_fd = lambda self: self.fds[0].fileno()  # noqa: E731
        get_lookup_and_lock_event_fd = lambda self: self.fds[1].fileno()  # noqa: E731
        get_load_event_fd = lambda self: self.fds[2].fileno()  # noqa: E731
        pop_completed_store_tasks = lambda self: {}  # noqa: E731

        def submit_lookup_and_lock_task(self, keys, descs):
            self.bits = double.Bitmap(len(keys))
            self.bits.set(1)
            self.fds[1].notify()
            return 1

        def query_lookup_and_lock_result(self, task):
            bits, self.bits = self.bits, None
            return bits

        def submit_unlock(self, keys):
            raise RuntimeError("injected")

    quiet, threading.excepthook = threading.excepthook, lambda _: None
    try:
        loops = double.Controllers(Raises())
        p = loops.prefetch(double.Prefetch([keys_of("m", 2)], [objects_of(2)], layout()))
        wait_for(lambda: not loops.alive())
        assert not p.done.is_set()
        loops.stop()
    finally:
        threading.excepthook = quiet


def test_the_example_is_a_whole_table():
    example = json.loads((serving.ROOT / "python" / "examples" / "lmcache_l2.json").read_text())
    assert (example["module_path"], example["class_name"]) == ("quire_kv.lmcache", "QuireL2Adapter")
    rows, lines = parse_rows(example["adapter_params"]["models"])
    assert len(rows) == 1 and not lines


def test_every_setting_of_a_row_is_on_the_page():
    page = (serving.ROOT / "docs" / "engines" / "lmcache.md").read_text()
    table = page[page.index("## The table of models") : page.index("## What to expect")]
    named = set(re.findall(r"`([a-z_]+)`", table))
    settings = {f.name for f in dataclasses.fields(Row)} - {"name"} | {"lora", "weights", "chunk_bytes"}
    assert settings <= named, settings - named
    assert all(f"`{f}`" in table for f in FORMATS)


def test_the_category_of_the_configuration_is_that_of_each_model(bench):
    b = bench(models={"m": row(), "n": row()}, category="batch")
    assert [c.category for c in b.store.configs] == ["batch", "batch"]

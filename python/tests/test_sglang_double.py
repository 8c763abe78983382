"""QuireHiCache against the contract of SGLang's storage controller, without SGLang (doubles/sglang_engine.py).

The engine is a driver with four threads, batches of 128 pages and ranks that agree on the least; the store is a toy one.
What the real engine and the real store do together is shown in engines/sglang.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import numpy as np
import pytest
from doubles import sglang_engine as engine
from doubles.sglang_world import SETTINGS, World, chain, same, world_of  # noqa: F401
from doubles.toy_cache import ToyCache
from waiting import wait_for

from quire_kv.hint import Hint, WorkCategory

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
SHAPES = [(layout, False) for layout in LAYOUTS] + [(layout, True) for layout in LAYOUTS[:3]]


@pytest.mark.parametrize("generic", [False, True], ids=["slots", "flat"])
@pytest.mark.parametrize(("layout", "latent"), SHAPES)
def test_every_layout_comes_back_byte_for_byte(world, layout, latent, generic):
    w = world(heads=1 if latent else 2)
    pool = engine.Pool(layout, latent=latent, pages=700)
    controller = w.controller(pool, generic=generic)
    assert w.opened[0].state == "ready"
    keys, slots = chain(300), pool.alloc(300 * 4)
    pool.fill(slots, 7)
    want = pool.read(slots)
    assert controller.backup(keys, slots) == 300
    pool.zero()
    found, loaded, at = controller.prefetch(keys)
    assert (found, loaded) == (300, 300)
    assert at[0] != slots[0] and same(pool.read(at), want)
    assert [n for what, n in w.store.calls if what == "lookup"] == [300]
    assert [n for what, n in w.store.calls if what == "load"] == [128, 128, 44]
    assert [n for what, n in w.store.calls if what == "save"] == [128, 128, 44]


def test_layouts_share_one_copy(world):
    """What one layout wrote, every other one reads, also in flat pages."""
    w = world()
    keys = chain(5)
    writer = engine.Pool("page_first")
    slots = writer.alloc(20)
    writer.fill(slots, 3)
    assert w.controller(writer).backup(keys, slots) == 5
    for layout in LAYOUTS:
        for generic in (False, True):
            pool = engine.Pool(layout)
            found, loaded, at = w.controller(pool, generic=generic).prefetch(keys)
            assert (found, loaded) == (5, 5) and same(pool.read(at), writer.read(slots)), (layout, generic)
    assert len(w.store.pages) == 5


@pytest.mark.parametrize(("writers", "readers"), [(2, 1), (1, 2), (4, 2), (2, 4)])
def test_tensor_parallel_ranks_are_views_of_one_copy(world, writers, readers):
    w = world(heads=4)
    keys = chain(6)
    whole = np.random.default_rng(1).integers(0, 60000, (6, 2, 3, 4, 4, 8), np.uint16)  # page, plane, layer, token, head, dim

    def heads_of(rank: int, ranks: int) -> slice:
        return slice(rank * 4 // ranks, (rank + 1) * 4 // ranks)

    for rank in range(writers):
        pool = engine.Pool("page_first" if rank % 2 else "page_head", heads=4 // writers)
        controller = w.controller(pool, backend=w.backend(tp_rank=rank, tp_size=writers))
        slots = pool.alloc(24)
        for i, slot in enumerate(slots.array[::4]):
            pool.page(int(slot))[...] = whole[i][:, :, :, heads_of(rank, writers)]
        if rank == writers - 1:  # one rank is missing: absent for all, and nobody gets a part
            assert controller.prefetch(keys)[0] == 0
        assert controller.backup(keys, slots) == 6
    for rank in range(readers):
        pool = engine.Pool("layer_first", heads=4 // readers)
        found, loaded, at = w.controller(pool, backend=w.backend(tp_rank=rank, tp_size=readers)).prefetch(keys)
        assert (found, loaded) == (6, 6)
        for i, got in enumerate(pool.read(at)):
            assert np.array_equal(got, whole[i][:, :, :, heads_of(rank, readers)])


def test_pipeline_ranks_hold_layers(world):
    w = world(layers=5)
    keys = chain(3)
    pools = []
    for first, layers in ((0, 2), (2, 3)):
        pool = engine.Pool("page_first_direct", layers=layers, start_layer=first)
        slots = pool.alloc(12)
        pool.fill(slots, first)
        assert w.controller(pool, backend=w.backend(pp_rank=first and 1, pp_size=2)).backup(keys, slots) == 3
        pools.append(pool.read(slots))
    whole = engine.Pool("page_first", layers=5)
    found, loaded, at = w.controller(whole).prefetch(keys)
    assert (found, loaded) == (3, 3)
    assert same(whole.read(at), [np.concatenate([a, b], axis=1) for a, b in zip(*pools, strict=True)])


def test_replicated_heads_have_one_writer(world):
    """Four ranks, two heads: of two ranks with the same head one writes a batch, and both say that it is stored."""
    w = world(heads=2)
    keys = chain(300)
    results: dict[int, int] = {}
    pools = [engine.Pool("page_first", heads=1, pages=300) for _ in range(4)]
    controllers = [w.controller(p, backend=w.backend({**SETTINGS, "save_timeout_ms": 20000}, tp_rank=r, tp_size=4)) for r, p in enumerate(pools)]
    slots = [p.alloc(1200) for p in pools]
    for r, p in enumerate(pools):
        p.fill(slots[r], r // 2)
    threads = [threading.Thread(target=lambda r=r: results.update({r: controllers[r].backup(keys, slots[r])})) for r in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert results == dict.fromkeys(range(4), 300)
    assert sum(n for what, n in w.store.calls if what == "save") == 2 * 300
    reader = engine.Pool("page_head", heads=2, pages=300)
    found, loaded, at = w.controller(reader).prefetch(keys)
    assert (found, loaded) == (300, 300)
    assert same([p[..., :1, :] for p in reader.read(at)], pools[0].read(slots[0]))
    assert same([p[..., 1:, :] for p in reader.read(at)], pools[2].read(slots[2]))


def test_a_replica_writes_when_the_writer_does_not(world):
    w = world(heads=1)
    keys = chain(2)
    settings = {**SETTINGS, "save_timeout_ms": 40}
    for rank in range(2):
        pool = engine.Pool(heads=1)
        slots = pool.alloc(8)
        assert w.controller(pool, backend=w.backend(settings, tp_rank=rank, tp_size=2)).backup(keys, slots) == 2


def test_case_c44_one_call_for_any_number_of_keys(world):
    w = world()
    w.controller(engine.Pool())
    backend, asked = w.opened[0], []
    w.store.caches[0].lookup = lambda keys, **_: asked.append(len(keys)) or ToyCache.lookup(w.store.caches[0], keys)
    thread = threading.Thread(target=lambda: backend.batch_exists(chain(4096)))
    thread.start()
    thread.join(20)
    assert asked == [4096]


def test_case_c45_ranks_agree_after_a_partial_failure(world):
    w = world(heads=2)
    hits, acks = engine.Ranks(2), engine.Ranks(2)
    pools = [engine.Pool(heads=1, pages=700) for _ in range(2)]
    ranks = [w.controller(p, backend=w.backend(tp_rank=r, tp_size=2), hits=hits, acks=acks) for r, p in enumerate(pools)]
    keys = chain(300)
    for r, controller in enumerate(ranks):
        slots = pools[r].alloc(1200)
        pools[r].fill(slots, r)
        assert controller.backup(keys, slots) == 300
        pools[r].free(slots)
    caches = w.store.caches

    def both() -> list[tuple[int, int]]:
        got: dict[int, Any] = {}
        threads = [threading.Thread(target=lambda r=r: got.update({r: ranks[r].prefetch(keys)})) for r in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        for r in range(2):
            if got[r][2] is not None:
                pools[r].free(got[r][2])
        return [got[r][:2] for r in range(2)]

    assert both() == [(300, 300)] * 2
    caches[1].absent = {bytes.fromhex(keys[5])}
    assert both() == [(5, 5)] * 2
    caches[1].absent = set()
    caches[1].bad = {bytes.fromhex(keys[150])}
    assert both() == [(300, 150)] * 2
    caches[1].bad = set()
    caches[1].state = "away"
    assert both() == [(0, 0)] * 2
    caches[1].state = "ready"
    assert both() == [(300, 300)] * 2
    assert all(c.alive for c in ranks)


METHODS: list[tuple[str, tuple[Any, ...], Any]] = [
    ("batch_exists", (chain(3),), 0),
    ("exists", (chain(1)[0],), False),
    ("batch_get_v1", (chain(3), engine.indices(range(12))), [False] * 3),
    ("batch_set_v1", (chain(3), engine.indices(range(12))), [False] * 3),
    ("batch_get", (chain(2), [None, None]), [None] * 2),
    ("batch_get", (chain(2), None), [None] * 2),
    ("batch_set", (chain(2), None), False),
    ("get", (chain(1)[0], None), None),
    ("set", (chain(1)[0], None), False),
    ("batch_get_v2", ([engine.PoolTransfer(engine.PoolName.MAMBA, keys=chain(2))],), {engine.PoolName.MAMBA: [False] * 2}),
    ("batch_set_v2", ([engine.PoolTransfer(engine.PoolName.KV, keys=chain(1), host_indices=engine.indices(range(4)))],), {engine.PoolName.KV: [False]}),
    ("get_stats", (), None),
    ("clear", (), None),
    ("close", (), None),
]


@pytest.mark.parametrize("when", ["misconfigured", "never registered", "broken cache", "closed", "away"])
@pytest.mark.parametrize(("method", "args", "miss"), METHODS)
def test_case_c42_nothing_raises_and_shapes_are_exact(world, method, args, miss, when):
    w = world()
    backend = w.backend({"serve": "typo"} if when == "misconfigured" else None)
    if when not in ("misconfigured", "never registered"):
        w.controller(engine.Pool(), backend=backend)
        cache = w.store.caches[0]
        if when == "broken cache":
            for name in ("lookup", "load", "save", "clear", "close"):
                setattr(cache, name, lambda *_, **__: 1 / 0)
        elif when == "away":
            w.store.away = True
        else:
            backend.close()
    assert getattr(backend, method)(*args) == miss
    result = backend.batch_exists_v2(chain(3), [engine.PoolTransfer(engine.PoolName.MAMBA, keys=chain(1))])
    assert (result.kv_hit_pages, result.extra_pool_hit_pages) == (0, {})


@pytest.mark.parametrize("keys", [["zz" * 32], ["ab"], ["ab" * 32 + "_k"], ["  " + "ab" * 31]])
def test_keys_that_are_no_digest_are_misses(world, keys):
    w = world()
    w.controller(engine.Pool())
    backend = w.opened[0]
    assert backend.batch_exists(keys) == 0 and backend.exists(keys[0]) is False
    assert backend.batch_set_v1(keys, engine.indices(range(4))) == [False]
    assert backend.batch_get_v1(keys, engine.indices(range(4))) == [False]
    assert not w.store.calls


@pytest.mark.parametrize(
    "slots", [range(1, 5), [0, 1, 2, 4], range(-4, 0), range(400 * 4, 401 * 4), range(8), [], [[0, 1, 2, 3]], [0.0, 1, 2, 3]],
    ids=["unaligned", "torn", "before", "behind", "two pages", "none", "nested", "floats"],
)  # fmt: skip
def test_slots_that_are_no_page_touch_nothing(world, slots):
    w = world()
    pool = engine.Pool()
    w.controller(pool)
    key, backend = chain(1), w.opened[0]
    good = pool.alloc(4)
    pool.fill(good, 1)
    assert backend.batch_set_v1(key, good) == [True]
    before = pool._array.copy()
    given = engine.Tensor(np.asarray(slots), engine.INT64)
    assert backend.batch_set_v1(chain(1, first=99), given) == [False]
    assert backend.batch_get_v1(key, given) == [False]
    assert np.array_equal(pool._array, before) and len(w.store.pages) == 1


def test_flat_pages_of_another_size_are_misses(world):
    w = world()
    pool = engine.Pool()
    w.controller(pool)
    backend, key = w.opened[0], chain(1)
    flat = pool.get_dummy_flat_data_page()
    assert backend.batch_set(key, [flat]) is True
    short = engine.Tensor(flat.array[:-1].copy(), flat.dtype)
    torn = engine.Tensor(np.zeros(2 * flat.numel(), np.uint16)[::2], flat.dtype)
    for wrong in (short, torn, None):
        assert backend.batch_get(key, [wrong]) == [None]
        assert backend.batch_set(chain(1, first=50), [wrong]) is False
    assert backend.get(key[0], flat) is flat and backend.set(key[0], flat) is True


def test_get_without_exists_and_exists_again_and_again(world):
    w = world()
    pool = engine.Pool()
    controller = w.controller(pool)
    keys, slots = chain(3), pool.alloc(12)
    controller.backup(keys, slots)
    backend = w.opened[0]
    assert backend.batch_get_v1(keys, slots) == [True] * 3
    for _ in range(8):
        assert controller.prefetch(keys)[0] == 3
    assert w.store.leases == 0


def test_good_pages_before_a_bad_one_are_delivered(world):
    w = world()
    pool = engine.Pool(pages=700)
    controller = w.controller(pool)
    keys, slots = chain(300), pool.alloc(1200)
    pool.fill(slots, 5)
    controller.backup(keys, slots)
    w.store.caches[0].bad = {bytes.fromhex(keys[200])}
    found, loaded, at = controller.prefetch(keys)
    assert (found, loaded) == (300, 200)
    assert same(pool.read(at)[:200], pool.read(slots)[:200])


def test_case_c48_the_answer_of_a_save_is_what_is_stored(world):
    w = world()
    pool = engine.Pool(pages=700)
    controller = w.controller(pool)
    keys, slots = chain(300), pool.alloc(1200)
    w.store.caches[0].unwritten = {bytes.fromhex(keys[130])}
    assert controller.backup(keys, slots) == 128
    backend = w.opened[0]
    assert backend.batch_set_v1(keys[128:256], slots[512:1024]) == [True, True, False] + [True] * 125
    w.store.caches[0].unwritten = set()
    assert controller.backup(keys, slots) == 300


def test_case_c49_clear_is_this_instances_own(world):
    w = world()
    w.controller(engine.Pool())
    backend = w.opened[0]
    threads = [threading.Thread(target=backend.clear) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(10)
    assert w.store.count("clear") == 4 and w.store.count("save") == 0


def test_prefix_keys_are_the_parents(world):
    from quire_kv import client

    w = world()
    pool = engine.Pool(pages=700)
    controller = w.controller(pool)
    keys, slots = chain(301), pool.alloc(1204)
    controller.backup(keys[1:], slots[4:], prefix=keys[:1])
    raw = [bytes.fromhex(k) for k in keys]
    assert [w.store.parents[k] for k in raw[1:]] == raw[:-1]
    controller.backup(keys[:1], slots[:4], prefix=[])
    assert w.store.parents[raw[0]] == client.ROOT_PARENT
    other = chain(2, first=9000)
    controller.backup(other, slots[:8])
    assert w.store.parents[bytes.fromhex(other[0])] == client.UNKNOWN_PARENT


def test_large_calls_are_cut_by_bytes(world, monkeypatch):
    """Deadlines are those of a part, the chain goes on over the cuts, and nothing is asked behind a page that is missing."""
    w = world()
    pool = engine.Pool(pages=700)
    controller = w.controller(pool)
    monkeypatch.setattr(w.module, "_BATCH_BYTES", 10 * 2 * 3 * 2 * 4 * 8 * 2)  # ten pages of k, v x layers x heads x tokens x width x bytes
    keys, slots = chain(64), pool.alloc(256)
    pool.fill(slots, 4)
    raw = [bytes.fromhex(k) for k in keys]
    w.store.caches[0].unwritten = {raw[33]}
    assert w.opened[0].batch_set_v1(keys, slots) == [True] * 33 + [False] + [True] * 6 + [False] * 24
    assert [n for what, n in w.store.calls if what == "save"] == [10] * 4
    assert [w.store.parents[k] for k in raw[1:40]] == raw[:39]
    w.store.caches[0].unwritten = set()
    assert controller.backup(keys, slots) == 64
    w.store.caches[0].bad = {raw[33]}
    to = pool.alloc(256)
    assert w.opened[0].batch_get_v1(keys, to) == [True] * 33 + [False] + [True] * 6 + [False] * 24
    assert same(pool.read(to)[:33], pool.read(slots)[:33]) and [n for what, n in w.store.calls if what == "load"] == [10] * 4


@pytest.mark.parametrize("method", ["batch_exists", "batch_get_v1", "batch_set_v1"])
def test_an_older_engine_survives_a_broken_store(world, method):
    """It dies of an exception: there must be none, whatever happens below."""
    w = world(older=True)
    pool = engine.Pool()
    controller = w.controller(pool, fatal=True, whole=False)
    keys, slots = chain(10), pool.alloc(40)
    assert controller.backup(keys, slots) == 10
    what = {"batch_exists": "lookup", "batch_get_v1": "load", "batch_set_v1": "save"}[method]
    cache = w.store.caches[0]
    sound = getattr(cache, what)
    setattr(cache, what, lambda *_, **__: 1 / 0)
    controller.backup(keys, slots)
    assert controller.prefetch(keys)[1] == (10 if method == "batch_set_v1" else 0)
    setattr(cache, what, sound)
    assert controller.alive and not controller.died
    assert controller.backup(keys, slots) == 10 and controller.prefetch(keys)[:2] == (10, 10)


def test_releases_without_the_hook_start_with_their_first_call(world):
    w = world()
    backend = w.backend()
    backend.register_mem_pool_host(engine.Pool())
    assert backend.state == "waiting for the host pools" and not w.store.caches
    assert backend.batch_exists(chain(1)) == 0
    assert backend.state == "ready"


def test_the_scheduler_is_not_kept_waiting(world):
    """A decode instance asks on the scheduler's thread: the answer comes within milliseconds, or at the next ask."""
    w = world()
    pool = engine.Pool()
    controller = w.controller(pool)
    keys, slots = chain(4), pool.alloc(16)
    controller.backup(keys, slots)
    backend, gate = w.opened[0], threading.Event()
    assert wait_for(lambda: backend.batch_exists(keys)) == 4
    w.store.before = lambda what: what == "lookup" and gate.wait(10)
    began = time.monotonic()
    assert backend.batch_exists(keys) == 0
    assert time.monotonic() - began < 5  # not the ten seconds of the gate
    gate.set()
    asked = w.store.count("lookup")
    assert wait_for(lambda: backend.batch_exists(keys)) == 4
    assert w.store.count("lookup") <= asked + 1
    backend.clear()


def test_close_ends_within_a_second_while_a_call_hangs(world):
    w = world()
    pool = engine.Pool()
    controller = w.controller(pool)
    gate = threading.Event()
    w.store.before = lambda what: gate.wait(30)
    caller = threading.Thread(target=lambda: w.opened[0].batch_get_v1(chain(1), engine.indices(range(4))), daemon=True)
    caller.start()
    wait_for(lambda: w.store.count("load") == 1)
    began = time.monotonic()
    w.opened[0].close()
    assert time.monotonic() - began < 5
    gate.set()
    caller.join(10)
    assert not caller.is_alive() and controller.alive


def test_metrics_are_drained(world):
    w = world()
    pool = engine.Pool(pages=700)
    controller = w.controller(pool, backend=w.backend(enable_storage_metrics=True))
    keys, slots = chain(300), pool.alloc(1200)
    controller.backup(keys, slots)
    controller.prefetch(keys)
    stats = w.opened[0].get_stats()
    assert stats.backup_pgs == [128, 128, 44] == stats.prefetch_pgs
    assert len(stats.prefetch_bandwidth) == 3 and min(stats.prefetch_bandwidth + stats.backup_bandwidth) > 0
    assert w.opened[0].get_stats().prefetch_pgs == []


# -- side pools --------------------------------------------------------------------------------------------------


def hybrid(w: World, pools: dict[str, engine.Pool], backend: Any = None) -> Any:
    backend = backend or w.backend()
    backend.register_mem_pool_host(pools["kv"])
    for name, pool in pools.items():
        backend.register_mem_host_pool_v2(pool, engine.PoolName(name))
    backend.on_host_pools_registered()
    return backend


def off_scheduler(call: Any) -> Any:
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(call()))
    thread.start()
    thread.join(20)
    return out[0]


def test_case_c50_the_usable_prefix_is_what_all_groups_allow(world):
    w = world(layers=4, is_hybrid_swa=True, swa_attention_layer_ids=[0, 2], full_attention_layer_ids=[1, 3], sliding_window_size=8)
    w.layers = 2
    kv, swa = engine.Pool(layers=2, start_layer=0), engine.Pool("page_head", layers=2)
    kv.end_layer = swa.end_layer = 4
    backend = hybrid(w, {"kv": kv, "swa": swa})
    assert backend.state == "ready"
    keys, at = chain(8), kv.alloc(32)
    windows = swa.alloc(32)
    swa.fill(windows, 2)
    assert backend.batch_set_v1(keys, at) == [True] * 8
    held = [3, 4, 6, 7]
    for i in held:
        moved = [engine.PoolTransfer(engine.PoolName.SWA, host_indices=windows[4 * i : 4 * i + 4], keys=[keys[i]])]
        assert backend.batch_set_v2(moved) == {engine.PoolName.SWA: [True]}

    def ask(policy: engine.PoolHitPolicy, n: int) -> Any:
        transfer = engine.PoolTransfer(engine.PoolName.SWA, keys=keys[-n:], hit_policy=policy)
        return off_scheduler(lambda: backend.batch_exists_v2(keys, [transfer]))

    got = ask(engine.PoolHitPolicy.TRAILING_PAGES, 2)
    assert got.restorable_prefix_pages == [5, 8] and got.kv_hit_pages == 8
    assert got.extra_pool_hit_pages == {"kv": 8, "swa": 8}
    got = ask(engine.PoolHitPolicy.TRAILING_PAGES, 1)
    assert got.restorable_prefix_pages == [4, 5, 7, 8]
    got = ask(engine.PoolHitPolicy.ALL_PAGES, 8)
    assert (got.kv_hit_pages, got.restorable_prefix_pages) == (0, [])
    got = ask(engine.PoolHitPolicy.BLOCK_GROUPS, 8)
    assert got.kv_hit_pages == 8, "blocks never gate the KV hit"
    w.store.caches[0].absent = {bytes.fromhex(keys[6])}
    assert ask(engine.PoolHitPolicy.TRAILING_PAGES, 2).restorable_prefix_pages == [5]
    w.store.caches[0].absent = set()

    swa.zero()
    elsewhere = swa.alloc(8)
    moved = [engine.PoolTransfer(engine.PoolName.SWA, host_indices=elsewhere, keys=[keys[3], keys[4]])]
    assert backend.batch_get_v2(moved) == {engine.PoolName.SWA: [True, True]}
    before = engine.Pool("page_head", layers=2)
    before.fill(indices := before.alloc(32), 2)
    assert same(swa.read(elsewhere), before.read(indices)[3:5])


def test_case_c50_older_engines_get_contiguous_lengths_only(world):
    w = world(older=True, layers=4, is_hybrid_swa=True, swa_attention_layer_ids=[0, 2], full_attention_layer_ids=[1, 3])
    w.layers = 2
    kv, swa = engine.Pool(layers=2), engine.Pool(layers=2)
    kv.end_layer = swa.end_layer = 4
    backend = hybrid(w, {"kv": kv, "swa": swa})
    keys, at = chain(4), kv.alloc(16)
    backend.batch_set_v1(keys, at)
    for i in (0, 1, 3):
        backend.batch_set_v2([engine.PoolTransfer(engine.PoolName.SWA, host_indices=at[4 * i : 4 * i + 4], keys=[keys[i]])])
    transfer = engine.PoolTransfer(engine.PoolName.SWA, keys=keys[-1:], hit_policy=engine.PoolHitPolicy.TRAILING_PAGES)
    assert off_scheduler(lambda: backend.batch_exists_v2(keys, [transfer])).kv_hit_pages == 2


@pytest.mark.parametrize("name", ["mamba", "indexer"])
def test_case_c50_pools_that_are_not_stored_turn_the_cache_off(world, name, caplog):
    w = world()
    with caplog.at_level(logging.ERROR):
        backend = hybrid(w, {"kv": engine.Pool(), name: engine.Pool()})
    assert backend.state.startswith("off: the side pool")
    assert [r.getMessage() for r in caplog.records if name in r.getMessage()] and not w.store.caches
    assert backend.batch_exists_v2(chain(2), [engine.PoolTransfer(engine.PoolName(name), keys=chain(1))]).kv_hit_pages == 0


def test_case_c50_a_pool_that_comes_later_is_never_a_hit(world):
    w = world()
    pool = engine.Pool()
    backend = hybrid(w, {"kv": pool})
    backend.register_mem_host_pool_v2(engine.Pool(), engine.PoolName.INDEXER)
    keys, slots = chain(2), pool.alloc(8)
    assert backend.batch_set_v1(keys, slots) == [True, True]
    transfer = engine.PoolTransfer(engine.PoolName.INDEXER, keys=keys, host_indices=slots)
    got = off_scheduler(lambda: backend.batch_exists_v2(keys, [transfer]))
    assert got.kv_hit_pages == 0 and got.restorable_prefix_pages == []
    assert backend.batch_get_v2([transfer]) == {engine.PoolName.INDEXER: [False, False]} == backend.batch_set_v2([transfer])


def test_a_hint_in_what_the_engine_says_more_goes_with_the_save(world):
    w = world()
    pool = engine.Pool("page_first")
    backend = w.controller(pool) and w.opened[0]
    keys, slots = chain(3), pool.alloc(12)
    for n, more in enumerate((None, {}, {"session_id": "x"}, {"quire": {"category": "system"}}, {"quire": {"category": 7}}, "text")):
        assert backend.batch_set_v1(keys, slots, engine.ExtraInfo(None, more)) == [True] * 3
        assert backend.cache.stats()["bad_hints"] == (n >= 4)
    system = Hint(WorkCategory.SYSTEM)
    assert [h for _, h in w.store.hints] == [None, None, None, system, None, None]

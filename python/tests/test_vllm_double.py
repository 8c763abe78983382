"""QuireConnector under a double of vLLM's scheduler and ranks (doubles/vllm_double.py): hits, lookups, leases, failures.

Identity and refusals are in test_vllm_start.py, real vLLM in tests/engines/vllm.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import threading
import types

import numpy as np
import pytest
from doubles import vllm_double as double
from doubles import vllm_double_env as double_env
from doubles.toy_cache import ToyStore
from doubles.vllm_double import TOKENS, WIDTH, Status
from doubles.vllm_double_env import CELL, PROMPT, SETTINGS, answer, cells_are_right, released
from waiting import wait_for

from quire_kv.hint import Hint, NextStep, WorkCategory


@pytest.fixture
def vllm(monkeypatch):
    yield from double_env.installed(monkeypatch)


@pytest.fixture
def make(vllm):
    yield from double_env.factory(vllm)


# -- hits -------------------------------------------------------------------------------------------------------------


def test_another_engine_hits(make):
    store = ToyStore()
    one = make(store)
    first = one.add("a", PROMPT, 6)
    one.run()
    one.flush()
    assert len(store.pages) == (len(PROMPT) + 6 - 1) // TOKENS
    cells_are_right(store, [first])
    two = make(store)
    second = two.add("b", PROMPT, 6)
    two.run()
    assert second.answer == first.answer == answer(make)
    assert second.external == len(PROMPT) // TOKENS * TOKENS and store.count("load") == 1
    assert store.leases == 0


@pytest.mark.parametrize("length", [3, 4, 5, 8, 9, 20])
def test_a_full_prompt_hit_leaves_a_token_to_compute(make, length):
    store = ToyStore()
    prompt = list(range(1, length + 1))
    for name in ("a", "b"):
        engine = make(store)
        request = engine.add(name, prompt, 3)
        engine.run()
        engine.flush()
        assert request.external == (0 if name == "a" else (length - 1) // TOKENS * TOKENS)


def test_only_what_the_engine_lacks_is_loaded(make):
    store = ToyStore()
    one = make(store)
    one.add("a", PROMPT)
    one.run()
    one.flush()
    two = make(store)
    two.add("short", PROMPT[:9], 1)
    two.run()
    loads = sum(n for what, n in store.calls if what == "load")
    request = two.add("long", PROMPT)
    two.run()
    assert (request.cached, request.external) == (20, 12)
    assert sum(n for what, n in store.calls if what == "load") - loads == 3


def test_generated_tokens_are_saved_and_hit_by_the_next_turn(make):
    store = ToyStore()
    one = make(store)
    first = one.add("a", PROMPT, 10)
    one.run()
    one.flush()
    turn = first.tokens + [5, 6, 7]
    two = make(store)
    second = two.add("b", turn, 3)
    two.run()
    assert second.external == (len(first.tokens) - 1) // TOKENS * TOKENS
    assert second.answer == answer(make, turn, 3)


def test_what_the_engine_found_in_its_own_cache_is_saved_too(make):
    """Pages of a chain that the store lost come back, since a page without its parent is worth nothing."""
    store = ToyStore()
    engine = make(store)
    first = engine.add("a", PROMPT, 1)
    engine.run()
    engine.flush()
    gone = {k: store.pages.pop(k) for k in list(store.pages) if k[2] in first.block_hashes[:2]}
    engine.connector._scheduling._known.clear()
    engine.add("b", PROMPT + [9] * 6, 1)
    engine.run()
    engine.flush()
    assert gone.keys() <= store.pages.keys()


SHAPES = [{"tp": 1}, {"tp": 2}, {"tp": 4}, {"tp": 8}, {"pp": 2}, {"tp": 2, "pp": 2}, {"pp": 4}]


@pytest.mark.parametrize("writer", SHAPES, ids=str)
def test_case_c40_every_shape_reads_what_every_shape_wrote(make, writer):
    store = ToyStore()
    want = None
    for number, shape in enumerate([writer, *SHAPES]):
        engine = make(store, heads=4, layers=4, **shape)
        request = engine.add(f"r{number}", PROMPT, 5)
        engine.run()
        engine.flush()
        assert request.external == (20 if number else 0)
        want = want or request.answer
        assert request.answer == want
    assert len(store.pages) == 6 and all(len(cells) == 16 for cells in store.pages.values())  # one copy, whole
    cells_are_right(store, [request])


def test_ranks_with_equal_heads_write_a_page_once(make):
    store = ToyStore()
    engine = make(store, heads=2, tp=8)
    for n in range(8):
        engine.add(f"r{n}", [100 * n + i for i in range(17)], 1)
    engine.run()
    engine.flush()
    saves = sum(n for what, n in store.calls if what == "save")
    assert saves == 2 * len(store.pages) == 2 * 8 * 4  # one of four for each head
    assert sum(bool(r.connector._transfer._slots) for r in engine.ranks) > 2  # and not always the same


# -- lookups ----------------------------------------------------------------------------------------------------------


def test_case_c44_one_lookup_for_a_request(make):
    store = ToyStore()
    engine = make(store, blocks=12)
    requests = [engine.add(f"r{n}", [50 * n + i for i in range(18)], 4) for n in range(8)]
    engine.run()
    assert max(engine.asked.values()) > 3  # they waited for blocks and were asked about in each step
    assert store.count("lookup") == len(requests) + sum(r.preemptions for r in requests)


def test_case_c73_a_slow_store_never_holds_up_a_step(make):
    """Lookups hang. Were a step to wait for one, this would never end; 64 requests wait until they are 20 ms old."""
    store = ToyStore()
    hang = threading.Event()
    store.before = lambda what: hang.wait(60) if what == "lookup" else None
    engine = make(store, {"lookup_wait_ms": 20}, blocks=512, budget=256)
    scheduling, now = engine.connector._scheduling, [5.0]
    scheduling._clock = lambda: now[0]
    requests = [engine.add(f"r{n}", [70 * n + i for i in range(20)], 3) for n in range(64)]
    for _ in range(5):
        assert engine.step() is False  # None: ask again
    assert all(r.status is Status.WAITING for r in requests)
    now[0] += 0.021
    assert engine.step() is True
    engine.run()
    assert scheduling.late == 64 and all(r.external == 0 for r in requests)
    hang.set()
    wait_for(lambda: store.count("lookup") == 64)
    released(store, engine)


def test_more_lookups_than_there_is_room_for_are_no_hits(make, vllm, monkeypatch):
    monkeypatch.setattr(importlib.import_module("quire_kv.vllm.scheduling"), "_THREADS", 1)
    monkeypatch.setattr(importlib.import_module("quire_kv.vllm.scheduling"), "_WAITING", 1)
    store = ToyStore()
    hang = threading.Event()
    store.before = lambda what: hang.wait(60) if what == "lookup" else None
    engine = make(store, {"lookup_wait_ms": 20})
    for n in range(6):
        engine.add(f"r{n}", [70 * n + i for i in range(9)], 1)
    assert engine.connector._scheduling.refused == 4
    engine.run()
    hang.set()


def test_a_late_answer_says_what_need_not_be_saved(make):
    store = ToyStore()
    one = make(store)
    one.add("a", PROMPT, 1)
    one.run()
    one.flush()
    two = make(store, {"lookup_wait_ms": 20}, budget=4)
    hang = threading.Event()
    store.before = lambda what: hang.wait(60) if what == "lookup" else None
    request = two.add("b", PROMPT, 6)
    while not two.running:
        two.step()
    hang.set()
    wait_for(lambda: two.connector._scheduling._entries["b"].answer is not None)
    saves = store.count("save")
    two.run()
    two.flush()
    assert request.external == 0 and store.leases == 0
    assert store.count("save") - saves <= 3  # the first chunk before the answer, the generated block after it


def test_a_request_that_waits_for_long_asks_again(make):
    store = ToyStore()
    one = make(store)
    one.add("a", PROMPT, 1)
    one.run()
    one.flush()
    two = make(store)
    scheduling = two.connector._scheduling
    now = [0.0]
    scheduling._clock = lambda: now[0]
    request = two.add("b", PROMPT, 1)
    wait_for(lambda: scheduling._entries["b"].answer is not None)
    assert scheduling.matched(request, 0) == (20, True)
    now[0] += 9.0  # the lease may have run out
    assert scheduling.matched(request, 0) == (None, False)
    wait_for(lambda: scheduling._entries["b"].answer is not None)
    assert scheduling.matched(request, 0) == (20, True) and store.count("lookup") == 3
    scheduling._clock = double.time.monotonic
    two.abort("b")
    two.step()
    wait_for(lambda: store.leases == 0)


def test_requests_that_do_not_read_the_prefix_cache_take_no_lease(make):
    store = ToyStore()
    one = make(store)
    one.add("a", PROMPT, 1)
    one.run()
    one.flush()
    request = one.add("b", PROMPT, 1, skip=True)
    one.run()
    assert request.cached == 0 and store.count("lookup") == 1


# -- leases -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(make):
    return double_env.filled(make)


def test_case_c21_abort_before_the_load_releases(make, filled):
    engine = make(filled)
    engine.add("b", PROMPT, 1)
    wait_for(lambda: filled.leases == 1)
    engine.abort("b")
    released(filled, engine)


def test_abort_during_the_lookup_releases(make, filled):
    hang = threading.Event()
    filled.before = lambda what: hang.wait(60) if what == "lookup" else None
    engine = make(filled)
    engine.add("b", PROMPT, 1)
    engine.abort("b")
    hang.set()
    wait_for(lambda: filled.count("lookup") == 2)
    released(filled, engine)


def test_abort_during_the_load_keeps_the_blocks_until_it_ends(make, filled):
    hang = threading.Event()
    filled.before = lambda what: hang.wait(60) if what == "load" else None
    engine = make(filled)
    engine.add("b", PROMPT, 1)
    while filled.count("load") == 0:
        engine.step()
    engine.abort("b")
    for _ in range(5):
        engine.step()
    assert "b" in engine.requests and filled.leases == 1  # still being written
    hang.set()
    wait_for(lambda: engine.step() or "b" not in engine.requests)
    released(filled, engine)
    assert len(engine.pool.free) == len(engine.pool.blocks) - 1


def test_a_connector_that_is_not_chosen_releases(make, filled):
    """Under MultiConnector another one loads, and this one is told 0 tokens of a full table."""
    engine = make(filled)
    scheduling = engine.connector._scheduling
    request = double.Request("b", PROMPT, 1, engine.function)
    engine.connector.on_new_request(request)
    wait_for(lambda: engine.connector.get_num_new_matched_tokens(request, 0) == (20, True))
    engine.connector.update_state_after_alloc(request, types.SimpleNamespace(get_block_ids=lambda: ([1, 2, 3, 4, 5, 6],)), 0)
    released(filled, engine)
    assert scheduling._loads == []
    engine.connector.request_finished_all_groups(request, ([],))


def test_case_c46_preemption_between_snapshot_and_save(make):
    """Blocks are overwritten by other requests while their copies wait to be saved."""
    store = ToyStore()
    hang = threading.Event()
    store.before = lambda what: hang.wait(60) if what == "save" else None
    engine = make(store, blocks=10, budget=32)
    requests = [engine.add(f"r{n}", [300 * n + i for i in range(13)], 9) for n in range(4)]
    engine.run()
    assert sum(r.preemptions for r in requests) > 0
    hang.set()
    engine.flush()
    assert len(store.pages) > 8
    cells_are_right(store, requests)
    assert store.leases == 0


def test_preempted_requests_find_what_they_saved(make):
    store = ToyStore()
    engine = make(store, blocks=10, budget=32)
    requests = [engine.add(f"r{n}", [300 * n + i for i in range(13)], 9) for n in range(3)]
    while not any(r.preemptions for r in requests):
        engine.step()
    engine.flush()
    engine.run()
    for n, r in enumerate(requests):
        assert r.answer == answer(make, [300 * n + i for i in range(13)], 9)
    assert store.leases == 0


# -- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [[0], [2], [1, 3], [4], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("tp", [1, 2])
def test_case_c47_pages_that_cannot_be_loaded_are_recomputed(make, filled, bad, tp):
    engine = make(filled, tp=tp)
    hashes = double.Request("x", PROMPT, 1, engine.function).block_hashes
    filled.refused = {hashes[i] for i in bad}
    reported = []
    for rank in engine.ranks:
        errors = rank.connector.get_block_ids_with_load_errors
        rank.connector.get_block_ids_with_load_errors = lambda errors=errors: reported.append(errors()) or reported[-1]
    request = engine.add("b", PROMPT, 6)
    while request.status is not Status.REMOTE:
        engine.step()
    table = list(request.table)
    engine.run()
    assert request.answer == answer(make)
    assert set().union(*reported) == {table[i] for i in bad}  # exactly those
    assert engine.asked["b"] < 200 and filled.count("load") == tp  # the request is not offered its hit again
    assert filled.leases == 0
    engine.flush()
    assert all(len(c) == 4 for c in filled.pages.values())
    filled.refused = set()
    engine.forget()
    again = engine.add("c", PROMPT, 1)
    engine.run()
    assert again.external == 20  # only that request was barred


def test_case_c45_one_rank_fails_and_all_agree(make, filled):
    engine = make(filled, tp=2)
    real = engine.ranks[1].connector._cache.load
    engine.ranks[1].connector._cache.load = lambda keys, *a, **kw: [ok and i < 2 for i, ok in enumerate(real(keys, *a, **kw))]
    request = engine.add("b", PROMPT, 6)
    engine.run()
    assert request.answer == answer(make, tp=2)


def test_a_raising_cache_is_a_failed_load(make, filled):
    engine = make(filled)

    def boom(*_, **__):
        raise MemoryError("as asked")

    engine.ranks[0].connector._cache.load = boom
    request = engine.add("b", PROMPT, 6)
    engine.run()
    assert request.answer == answer(make)
    engine.ranks[0].connector._cache.save = boom
    engine.add("c", [7] * 12, 1)
    engine.run()
    engine.flush()
    third = engine.add("d", [7] * 12, 1)
    engine.run()
    assert third.answer == answer(make, [7] * 12, 1)


def test_case_c43_a_store_that_dies_and_comes_back(make, filled):
    engine = make(filled)
    filled.away = True
    for n in range(5):
        engine.add(f"r{n}", PROMPT[: 8 + n], 2)
        engine.run()
    calls = len(filled.calls)
    filled.away = False
    engine.forget()
    request = engine.add("back", PROMPT, 2)
    engine.run()
    assert request.external == 20 and len(filled.calls) > calls


def test_case_c42_nothing_is_raised_into_the_engine(make, filled, caplog):
    engine = make(filled)

    class Broken:
        def __getattr__(self, name):
            raise ZeroDivisionError(name)

    engine.connector._scheduling = Broken()
    engine.ranks[0].connector._transfer = Broken()
    request = engine.add("b", PROMPT, 6)
    engine.run()
    engine.abort(engine.add("c", PROMPT, 6).request_id)
    assert request.answer == answer(make)
    assert "goes on as without the cache" in caplog.text
    engine.connector._scheduling = engine.ranks[0].connector._transfer = None


def test_a_defect_in_a_plan_leaves_no_request_waiting(make, filled, caplog):
    """Blocks of a request that waits for a load are freed only by a report, so every load is reported."""
    engine = make(filled)
    scheduling = engine.connector._scheduling
    scheduling._saves = None
    request = engine.add("b", PROMPT, 6)
    engine.run()
    assert request.external == 20
    engine.forget()
    scheduling.allocated = None
    second = engine.add("c", PROMPT, 6)
    engine.run()
    assert second.answer == request.answer == answer(make) and "an allocation failed" in caplog.text
    released(filled, engine)


def test_case_c48_saves_that_are_lost_are_offered_again(make):
    store = ToyStore()
    engine = make(store)
    engine.ranks[0].connector._cache.save = lambda keys, *_, **__: [False] * len(keys)
    engine.add("a", PROMPT, 1)
    engine.run()
    engine.flush()
    assert not store.pages
    del engine.ranks[0].connector._cache.save
    engine.add("b", PROMPT, 1)
    engine.run()
    engine.flush()
    assert len(store.pages) == 5


def test_a_full_buffer_drops_and_counts(make):
    store = ToyStore()
    hang = threading.Event()
    store.before = lambda what: hang.wait(60) if what == "save" else None
    engine = make(store, blocks=256)
    transfer = engine.ranks[0].connector._transfer
    transfer._save_bytes = 6 * 4 * CELL  # six pages
    for n in range(5):
        engine.add(f"r{n}", [500 * n + i for i in range(17)], 1)
    engine.run()
    assert transfer.dropped > 0
    hang.set()
    engine.flush()
    assert engine.stats["dropped_saves"] == transfer.dropped
    assert transfer._slots.free == 6
    before = len(store.pages)
    for n in range(5):
        engine.add(f"s{n}", [500 * n + i for i in range(17)], 1)
        engine.run()
        engine.flush()
    assert len(store.pages) > before


def test_block_0_is_never_read_or_written(vllm):
    tensors = {f"model.layers.{n}.self_attn.attn": double.Tensor(np.zeros((4, 2, TOKENS, 2 * WIDTH), dtype=np.float32)) for n in range(2)}
    blocks = vllm.memory.HostBlocks(tensors, list(tensors), blocks=4, cell_bytes=CELL)
    assert len(blocks.pages([1, 3])) == 2
    for bad in ([0], [1, 0], [4], [-1]):
        with pytest.raises(ValueError, match="block"):
            blocks.pages(bad)


def test_blocks_that_carry_another_hash_are_not_saved(make):
    store = ToyStore()
    engine = make(store, budget=4)
    request = engine.add("a", PROMPT, 1)
    real = engine.connector._scheduling.blocks.carries
    engine.connector._scheduling.blocks.carries = lambda block, key: key != request.block_hashes[2] and real(block, key)
    engine.run()
    engine.flush()
    assert len(store.pages) == 2
    assert real(engine.pool.cached[double.make_block_hash_with_group_id(request.block_hashes[1], 0)], request.block_hashes[1])
    assert not real(0, request.block_hashes[1]) and not real(5, bytes(32))


def test_case_c62_weights_that_change_end_it(make, filled):
    engine = make(filled)
    running = engine.add("a", [9] * 6, 12)
    while not running.answer:
        engine.step()
    engine.ranks[0].connector.weights_change("Worker.reload_weights")
    saves = len(filled.pages)
    request = engine.add("b", PROMPT, 6)
    engine.run()
    engine.flush()
    assert request.answer == answer(make) and len(filled.pages) == saves
    lookups = filled.count("lookup")
    engine.add("c", [3] * 12, 2)
    engine.run()
    assert filled.count("lookup") == lookups and "weights" in engine.connector._cache.state


def test_case_c62_reset_cache_ends_it(make, filled):
    engine = make(filled, tp=2)
    assert engine.connector.reset_cache() is True and engine.connector.reset_cache() is True
    calls = len(filled.calls)
    request = engine.add("b", PROMPT, 6)
    engine.run()
    engine.flush()
    assert request.answer == answer(make) and len(filled.calls) == calls
    assert all("off" in r.connector._cache.state for r in engine.ranks)


def test_the_engines_methods_that_change_weights_are_watched(vllm, monkeypatch):
    class Worker:
        def reload_weights(self, x):
            return ("done", x)

    for module, name in vllm.weights._CLASSES:
        made = types.ModuleType(module)
        setattr(made, name, Worker if name == "Worker" else type(name, (), {}))
        monkeypatch.setitem(sys.modules, module, made)

    class Watcher:
        told = []

        def weights_change(self, what):
            self.told.append(what)
            raise OSError("as asked")

    watcher = Watcher()
    assert vllm.weights.watch(watcher) == vllm.weights.watch(watcher) == ["Worker.reload_weights"]
    assert Worker().reload_weights(3) == ("done", 3) and watcher.told == ["Worker.reload_weights"]


# -- ends and everything -------------------------------------------------------------------------------------------------


def test_shutdown_saves_what_is_under_way_and_leaves_no_thread(make):
    store = ToyStore()
    before = set(threading.enumerate())
    engine = make(store)
    engine.add("a", PROMPT, 1)
    engine.run()
    engine.close()
    assert len(store.pages) == 5
    wait_for(lambda: not [t for t in set(threading.enumerate()) - before if t.name.startswith("quire")])
    engine.close()


def test_shutdown_does_not_wait_for_a_dead_store(make, filled):
    hang = threading.Event()
    filled.before = lambda what: hang.wait(60)
    engine = make(filled, {"lookup_wait_ms": 20})
    engine.add("b", [5] * 12, 1)
    engine.run()
    began = double.time.monotonic()
    engine.close()
    assert double.time.monotonic() - began < 20  # of the 60 that the store takes
    hang.set()


@pytest.mark.parametrize("seed", range(12))
def test_anything_in_any_order(make, seed):
    """Requests of shared prefixes come, end, are aborted and preempted while pages are refused and the store goes away."""
    rng = random.Random(seed)
    store = ToyStore()
    shape = rng.choice(SHAPES[:5])
    engine = make(store, heads=4, layers=2, blocks=rng.choice((12, 24, 64)), budget=rng.choice((8, 40)), **shape)
    stems = [[rng.randrange(1000) for _ in range(20)] for _ in range(3)]
    every, live = [], []
    for n in range(60):
        action = rng.random()
        if action < 0.35:
            stem = rng.choice(stems)
            request = engine.add(f"r{n}", stem[: rng.randrange(1, 20)] + [rng.randrange(1000) for _ in range(rng.randrange(1, 6))], rng.randrange(1, 7))
            every.append(request)
            live.append(request)
        elif action < 0.42 and live:
            request = live.pop(rng.randrange(len(live)))
            if not request.finished:
                engine.abort(request.request_id)
        elif action < 0.47:
            store.refused = {k for _, _, k in list(store.pages) if rng.random() < 0.3}
        elif action < 0.5:
            store.away = not store.away
        elif action < 0.55 and not engine.requests:
            engine.forget()
        for _ in range(rng.randrange(4)):
            engine.step()
    store.away = False
    engine.run()
    engine.flush()
    cells_are_right(store, every)
    released(store, engine)
    assert len(engine.pool.free) == len(engine.pool.blocks) - 1
    assert not engine.connector._scheduling._entries and not engine.connector._scheduling._ending


def test_a_real_store(vllm, server_factory, spec_text):
    """The same over the wire: the store's own counter says that the bytes came from it."""
    from quire_kv.cache import Cache

    server = server_factory()
    spec = spec_text(2, 2, WIDTH, TOKENS, 32, "cell", packing="vllm-double")

    class Connector(vllm.connector.QuireConnector):
        def _make_cache(self, config, given, adapter):
            cache = Cache(config, spec, self._log, adapter=adapter)
            assert cache.wait_ready(30), cache.state
            return cache

    answers = []
    for tp in (2, 1):
        engine = double.Engine(Connector, {**SETTINGS, "server": server.address, "lookup_wait_ms": 10_000}, tp=tp)
        request = engine.add("r", PROMPT, 6)
        engine.run()
        engine.flush()
        answers.append((request.answer, request.external))
        engine.close()
    assert answers == [(answers[0][0], 0), (answers[0][0], 20)]
    assert server.read_counter() == 5 * 4 * CELL
    assert os.path.exists(server.socket)


# -- hints ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [{}, {"tp": 2}], ids=str)
def test_the_hint_of_a_request_goes_with_its_saves_and_its_lookup(make, shape):
    store = ToyStore()
    one = make(store, **shape)
    one.add("a", PROMPT, 6, params={"quire": {"category": "agent", "tool_call_pending": True, "reuse_in_s": 30}, "do_remote_prefill": False})
    one.run()
    one.flush()
    assert set(store.hints) == {("save", Hint(WorkCategory.AGENT, 30.0, NextStep.TOOL_CALL))}
    store.hints.clear()
    two = make(store, **shape)
    second = two.add("b", PROMPT, 6, params={"quire": {"end_of_session": True}})
    two.run()
    two.flush()
    ends = Hint(next=NextStep.SESSION_END)
    assert second.external == 20 and set(store.hints) == {("lookup", ends), ("save", ends)}  # found, and generated


@pytest.mark.parametrize(
    "params",
    [None, {}, "quire", {"quire": None}, {"quire": "agent"}, {"quire": {"category": "urgent"}}, {"quire": {"sever": 1}}, {"quire": {"reuse_in_s": -1}}],
    ids=str,
)
def test_a_request_without_a_right_hint_runs_as_ever(make, params):
    store = ToyStore()
    engine = make(store)
    request = engine.add("a", PROMPT, 6, params=params)
    engine.run()
    engine.flush()
    assert request.answer == answer(make) and {h for _, h in store.hints} == {None}
    wrong = isinstance(params, dict) and params.get("quire") is not None
    assert sum(c.stats()["bad_hints"] for c in store.caches) == wrong


@pytest.mark.parametrize(("said", "threads"), [({}, 2), ({"copy_threads": 1}, 1)], ids=str)
def test_two_threads_copy_a_load_unless_the_settings_say_otherwise(make, said, threads):
    store = ToyStore()
    make(store, said)
    assert [c.copy_threads for c in store.configs] == [threads, threads]  # of both sides


def test_the_store_is_told_how_long_an_answer_was(make):
    store = ToyStore()
    engine = make(store)
    request = engine.add("a", PROMPT, 6)
    engine.run()
    wait_for(lambda: store.ends)
    assert [(keys, tokens) for keys, tokens, _ in store.ends] == [(tuple(request.block_hashes), 6)]
    engine.add("b", PROMPT, 6)
    engine.step()
    engine.abort("b")  # cut off: that is no answer
    engine.flush()
    assert len(store.ends) == 1

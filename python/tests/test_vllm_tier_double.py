"""The tier under a double of vLLM's tiering manager (doubles/vllm_tier_double.py) over a toy cache. Real vLLM: tests/engines/vllm_tier."""

from __future__ import annotations

import collections
import importlib
import json
import os
import re
import sys
import threading
import time

import pytest
import serving
from doubles import vllm_tier_double as double
from doubles.toy_cache import ToyStore, toy_spec
from doubles.vllm_tier_double import key
from waiting import wait_for

from quire_kv.config import Config
from quire_kv.errors import ConfigError, Reason
from quire_kv.hint import Hint, NextStep, WorkCategory

Identity = collections.namedtuple("Identity", "spec differs")

SETTINGS = {"model_digest": "sha256:" + "a" * 64, "weights": "frozen", "lora": "none", "lookup_wait_ms": 10_000}  # longer than a busy machine takes


@pytest.fixture
def load(monkeypatch):
    """Imports quire_kv.vllm_tier where vLLM is the double."""

    def load(old=False):
        for name in [n for n in sys.modules if n == "vllm" or n.startswith("vllm.")]:
            monkeypatch.delitem(sys.modules, name)
        for name, module in double.modules(old).items():
            monkeypatch.setitem(sys.modules, name, module)
        sys.modules.pop("quire_kv.vllm_tier", None)
        return importlib.import_module("quire_kv.vllm_tier")

    yield load
    sys.modules.pop("quire_kv.vllm_tier", None)


@pytest.fixture
def make(load):
    made = []
    module = load()

    def make(store=None, describe=None, differs="", **settings):
        store = store or ToyStore()
        given = {**SETTINGS, **settings}
        describe = describe or (lambda config, spec, size: Identity(lambda: toy_spec(f"{config.model_digest}/{size}", 1, 1), lambda: differs))
        m = double.Manager(lambda view: module.QuireTier(None, view, "QuireTier", describe=describe, make_cache=store.make_cache, **given))
        m.store_of_test = store
        made.append(m)
        return m

    yield make
    for m in made:
        if not m._map.closed:
            m.tier.shutdown()


def run(m, *names):
    """Steps until the requests have an answer and no job is left."""
    wait_for(lambda: m.step() or (all(m.requests[n].hits is not None for n in names) and not m._jobs), what="an answer to each request")


def saved(m, n):
    contents = {key(i): os.urandom(m.chunk_bytes) for i in range(1, n + 1)}
    m.store(contents)
    wait_for(lambda: m._reap() or not m._jobs)
    m.drop_primary()
    return contents


def test_store_and_promote(make):
    m = make()
    contents = saved(m, 4)
    assert m.results[-1].success and m.results[-1].transfer_bytes == 4 * m.chunk_bytes
    m.new_request("r", [*contents])
    run(m, "r")
    assert m.requests["r"].hits == 4
    assert {k: m.bytes_of(k) for k in contents} == contents
    assert m.results[-1].success and set(m.results[-1].successful_keys) == {*contents}
    wait_for(lambda: m.store_of_test.leases == 0)
    m.finish("r")
    assert m.tier._verdicts == {} and m.tier._requests == {} and m.tier._load_keys == {}


def test_case_c44_one_lookup_a_request(make):
    m = make()
    contents = saved(m, 8)
    for name in ("a", "b"):
        m.new_request(name, [*contents])
    m.new_request("c", [key(100), key(101)])
    run(m, "a", "b", "c")
    assert [m.requests[n].hits for n in "abc"] == [8, 8, 0]
    assert [n for what, n in m.store_of_test.calls if what == "lookup"] in ([8, 2], [8, 1])
    assert m.store_of_test.count("load") == 1  # b finds a's promotions on their way


def test_a_load_that_fails_becomes_a_miss_and_ends(make):
    m = make()
    contents = saved(m, 4)
    third = [*contents][2]
    m.store_of_test.refused.add(third[:-4])
    m.new_request("r", [*contents])
    run(m, "r")
    assert m.requests["r"].hits == 2
    result = m.results[-1]
    assert not result.success and set(result.successful_keys) == {*contents} - {third}
    assert {k: m.bytes_of(k) for k in contents if k != third} == {k: v for k, v in contents.items() if k != third}
    wait_for(lambda: m.store_of_test.leases == 0)


def test_duplicate_stores_are_true(make):
    m = make()
    for _ in range(3):
        m.store({key(1): b"x" * m.chunk_bytes})
        wait_for(lambda: m._reap() or not m._jobs)
        assert m.results[-1].success
        m.drop_primary()


def test_case_c43_a_store_that_is_away_costs_nothing_and_comes_back(make):
    m = make()
    contents = saved(m, 2)
    m.store_of_test.away = True
    m.new_request("r", [*contents])
    m.step()
    assert m.requests["r"].hits == 0 and m.requests["r"].retries == 0  # answered at once
    m.store({key(50): b"y" * m.chunk_bytes})
    wait_for(lambda: m._reap() or not m._jobs)
    assert not m.results[-1].success
    m.store_of_test.away = False
    m.new_request("s", [*contents])
    run(m, "s")
    assert m.requests["s"].hits == 2


def test_case_c73_a_lookup_that_hangs_is_a_miss_by_our_own_deadline(make):
    m = make(lookup_wait_ms=20)
    contents = saved(m, 2)
    go = threading.Event()
    m.store_of_test.before = lambda what: what == "lookup" and go.wait(30)
    m.new_request("r", [*contents])
    run(m, "r")
    assert m.requests["r"].hits == 0
    go.set()
    wait_for(lambda: m.tier._workers.queued()["lookup"] == 0)
    m.step()
    wait_for(lambda: m.step() or m.store_of_test.leases == 0)
    m.finish("r")
    m.tier._wait = 10.0
    m.new_request("s", [*contents])
    run(m, "s")
    assert m.requests["s"].hits == 2


@pytest.mark.parametrize("where", ["lookup", "load", "save"])
def test_case_c42_a_cache_that_fails_is_a_miss(make, where):
    m = make()
    contents = saved(m, 2)

    def fail(what):
        if what == where:
            raise RuntimeError("injected")

    m.store_of_test.before = fail
    m.new_request("r", [*contents])
    run(m, "r")
    assert m.requests["r"].hits == (2 if where == "save" else 0)
    m.store({key(9): b"z" * m.chunk_bytes})
    wait_for(lambda: m._reap() or not m._jobs)
    assert m.results[-1].success is (where != "save")
    assert m.tier._workers.alive
    wait_for(lambda: m.store_of_test.leases == 0)


def test_case_c21_a_request_that_ends_before_its_load_gives_its_lease_back(make):
    m = make()
    contents = saved(m, 3)
    r = m.new_request("r", [*contents])
    for k in contents:
        assert m.tier.lookup(k, r.context) is double.LookupResult.RETRY
    m.tier.on_schedule_end(None)
    wait_for(lambda: m.store_of_test.leases == 1)
    m.finish("r")
    wait_for(lambda: m.step() or m.store_of_test.leases == 0)
    assert m.tier._verdicts == {} and len(m.tier._locks) == 0


def test_a_request_that_ends_before_its_lookup_came_back(make):
    m = make()
    contents = saved(m, 3)
    go = threading.Event()
    m.store_of_test.before = lambda what: what == "lookup" and go.wait(30)
    r = m.new_request("r", [*contents])
    for k in contents:
        m.tier.lookup(k, r.context)
    m.tier.on_schedule_end(None)
    m.finish("r")
    go.set()
    wait_for(lambda: m.step() or (m.store_of_test.count("lookup") == 1 and m.store_of_test.leases == 0))


def test_case_c62_a_reset_turns_the_cache_off(make):
    m = make()
    contents = saved(m, 2)
    m.store({key(7): b"q" * m.chunk_bytes})
    m.reset()
    m.new_request("r", [*contents])
    m.step()
    assert m.requests["r"].hits == 0
    m.store({key(8): b"q" * m.chunk_bytes})
    wait_for(lambda: m._reap() or not m._jobs)
    assert not m.results[-1].success


def test_case_c50_further_groups_are_refused(make):
    m = make()
    m.store({key(1, group=1): b"g" * m.chunk_bytes})
    wait_for(lambda: m._reap() or not m._jobs)
    assert not m.results[-1].success and not m.store_of_test.pages
    m.drop_primary()
    m.new_request("r", [key(1, group=1)])
    m.step()
    assert m.requests["r"].hits == 0 and m.store_of_test.count("lookup") == 0


def test_short_hashes_are_refused_with_the_setting_named(make, caplog):
    m = make()
    for i in range(3):
        m.store({key(i, length=8): b"s" * m.chunk_bytes})
        wait_for(lambda: m._reap() or not m._jobs)
    assert not m.store_of_test.pages
    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(lines) == 1 and "--prefix-caching-hash-algo" in lines[0]


@pytest.mark.parametrize("settings", [{"typo": 1}, {"server": "nowhere"}, {"lookup_wait_ms": 0}, {"locality": "NEAR"}])
def test_a_wrong_configuration_is_one_line_and_the_engine_runs_on(make, caplog, settings):
    m = make(**settings)
    lines = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len(lines) == 1 and next(iter(settings)) in lines[0] and "runs on without" in lines[0]
    m.store({key(1): b"w" * m.chunk_bytes})
    wait_for(lambda: m._reap() or not m._jobs)
    m.new_request("r", [key(2)])
    m.step()
    assert m.requests["r"].hits == 0 and m.tier.get_stats() is None
    m.shutdown()


def test_an_identity_that_is_refused_is_one_line(make, caplog):
    def refuse(config, spec, size):
        raise ConfigError("quire: lora is missing")

    m = make(describe=refuse)
    m.new_request("r", [key(2)])
    m.step()
    assert m.requests["r"].hits == 0
    assert sum("lora is missing" in r.getMessage() for r in caplog.records) == 1


def test_case_c72_an_engine_that_hashes_otherwise_than_it_says_is_not_cached(make):
    m = make(differs="the engine hashes from another seed")
    m.new_request("r", [key(1)])
    m.store({key(1): b"d" * m.chunk_bytes})
    wait_for(lambda: m._reap() or not m._jobs)
    assert not m.results[-1].success and "another seed" in m.store_of_test.caches[0].state


def test_locality_is_vllms_own(make):
    assert make(locality="REMOTE").tier.locality is double.Locality.REMOTE


def test_shutdown_is_prompt_and_lets_the_memory_go(make):
    before = set(threading.enumerate())
    m = make()
    contents = saved(m, 3)
    m.new_request("r", [*contents])
    run(m, "r")
    began = time.monotonic()
    m.shutdown()
    assert time.monotonic() - began < 5
    assert m.store_of_test.caches[0].closed and m.store_of_test.leases == 0
    wait_for(lambda: set(threading.enumerate()) <= before)


def test_shutdown_while_a_copy_runs_keeps_the_memory(make):
    m = make()
    contents = saved(m, 1)
    go, began = threading.Event(), threading.Event()

    def hold(what):
        if what == "load":
            began.set()
            go.wait(30)

    m.store_of_test.before = hold
    m.new_request("r", [*contents])
    wait_for(lambda: m.step() or began.is_set())
    with pytest.raises(RuntimeError, match="still runs"):
        m.tier.shutdown()
    go.set()
    wait_for(lambda: m.tier._workers.close(1))


def test_metrics_are_what_was_counted_since_the_last_call(make):
    m = make()
    cache = m.store_of_test.caches[0]
    definitions = type(m.tier).build_metric_definitions({})
    cache.counters.add(lookups=3, hits=2)
    cache.counters.fail(Reason.CORRUPT, 2)
    first = m.tier.get_stats().values
    assert first[("vllm:kv_offload_quire_lookups", ())] == 3 and first[("vllm:kv_offload_quire_failures", ("corrupt",))] == 2
    assert first[("vllm:kv_offload_quire_away", ())] == 0
    for name, labels in first:
        assert len(definitions[name].labelnames) == len(labels)
    cache.counters.add(lookups=1)
    second = m.tier.get_stats().values
    assert second[("vllm:kv_offload_quire_lookups", ())] == 1 and ("vllm:kv_offload_quire_failures", ("corrupt",)) not in second


def test_the_names_of_earlier_releases(load):
    module = load(old=True)
    store = ToyStore()
    memory = memoryview(bytearray(4 * 4096)).cast("B", (4, 4096))
    tier = module.QuireTier(
        None, memory, "QuireTier", describe=lambda *_: Identity(lambda: toy_spec("old", 1, 1), lambda: ""), make_cache=store.make_cache, **SETTINGS
    )
    tier.submit_store(double.OldJob(1, [key(1)], [0]))
    done = wait_for(lambda: list(tier.get_finished()))
    assert [(r.job_id, r.success) for r in done] == [(1, True)]
    context = double.ReqContext("r")
    assert tier.lookup(key(1), context) is None  # earlier: not known yet
    tier.on_schedule_end()
    assert wait_for(lambda: tier.lookup(key(1), context)) is True
    assert tier.lookup(key(2), double.ReqContext("s")) is None
    tier.request_finished(context)
    tier.shutdown()


def test_the_page_shows_the_example():
    shown = re.search(r"```json\n(.*?)```", (serving.ROOT / "docs" / "engines" / "vllm-tier.md").read_text(), re.S)[1]
    example = json.loads((serving.ROOT / "python" / "examples" / "vllm_tier.json").read_text())
    assert json.loads(shown) == example
    (tier,) = example["kv_connector_extra_config"]["secondary_tiers"]
    assert Config.parse({k: v for k, v in tier.items() if k not in ("type", "module_path")}, allowed=frozenset({"lora"})).require_model()


def test_the_hint_of_a_request_goes_with_its_stores_and_its_lookups(make):
    m = make()
    writer = double.ReqContext("writer", {"quire": {"category": "batch"}})
    m.tier.on_new_request(writer)
    contents = {key(i): os.urandom(m.chunk_bytes) for i in range(1, 5)}
    m.store(contents, writer)
    wait_for(lambda: m._reap() or not m._jobs)
    m.tier.on_request_finished(writer)
    m.drop_primary()
    m.new_request("r", [*contents], {"quire": {"end_of_session": True}})
    run(m, "r")
    m.new_request("s", [key(9)], {"quire": {"end_of_session": "yes"}})
    run(m, "s")
    assert m.store_of_test.hints == [("save", Hint(WorkCategory.BATCH)), ("lookup", Hint(next=NextStep.SESSION_END))]
    assert m.tier._cache.stats()["bad_hints"] == 1 and m.requests["s"].hits == 0
    for name in ("r", "s"):
        m.finish(name)
    assert m.tier._hints == {}

"""A store that answers each lookup 19 ms late, just under what engines wait for: steps go on as without it.

The delay is on the wire: a proxy before the data connections of a real server holds each answer back. The engines are the
doubles of vLLM's and SGLang's schedulers, whose steps take well under a millisecond here, so that one wait for one lookup shows.
Times are medians over many steps: one that the machine held up says nothing.
"""

from __future__ import annotations

import statistics
import threading
import time

import pytest
from doubles import sglang_engine, vllm_double_env
from doubles import vllm_double as vllm_engine
from doubles.sglang_world import SETTINGS, World, chain
from doubles.slow_store import LATE_SECONDS, SlowStore
from doubles.vllm_double import Status
from serving import spec_text
from waiting import wait_for

from quire_kv.cache import Cache

pytestmark = [pytest.mark.once, pytest.mark.limit(300)]

GAP_SECONDS = 0.005  # of a step, beyond that of the same step without a store
WAITING = 64  # requests at once
SECONDS = 20.0


@pytest.fixture
def store(quire_server):
    with SlowStore(quire_server) as slow:
        yield slow


# -- vLLM -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def vllm_of(monkeypatch):
    """make(store, waiting=False): an engine over a slow store, or over none; `waiting` has its steps wait for lookups, as a
    connector must not."""
    installed = vllm_double_env.installed(monkeypatch)
    vllm = next(installed)
    engines = []
    spec = spec_text(2, 2, vllm_engine.WIDTH, vllm_engine.TOKENS, 32, "cell", packing="vllm-double")

    def make(store, waiting=False):
        class Connector(vllm.connector.QuireConnector):
            def _make_cache(self, config, given, adapter):
                return Cache(config, spec, self._log, adapter=adapter, **({"make_client": store.client} if store else {}))

        settings = {**vllm_double_env.SETTINGS, "server": store.server.address if store else "127.0.0.1:1", "lookup_wait_ms": 20}
        engine = vllm_engine.Engine(Connector, settings, blocks=2048, budget=4096, check=False)
        engines.append(engine)
        if store:
            for side in (engine.connector, *(r.connector for r in engine.ranks)):
                assert side._cache.wait_ready(SECONDS), side._cache.state
        if waiting:
            scheduling = engine.connector._scheduling
            matched = scheduling.matched

            def ask(request, computed):
                answer = matched(request, computed)
                while answer[0] is None:
                    time.sleep(0.0005)
                    answer = matched(request, computed)
                return answer

            scheduling.matched = ask
        return engine

    yield make
    for engine in engines:
        engine.close()
    next(installed, None)


def gaps(engine) -> tuple[list[float], int]:
    """Seconds of each step of one request that runs, while others come in one at a time for as long as it runs; and how
    many of the steps had one of them waiting for its lookup."""
    running = engine.add("running", [7] * 9, 400)
    while not running.answer:
        engine.step()
    steps, waited, others = [], 0, 0
    while not running.finished:
        if others < WAITING:
            engine.add(f"r{others}", [1000 * others + i for i in range(10)], 1)
            others += 1
        began = time.perf_counter()
        engine.step()
        steps.append(time.perf_counter() - began)
        waited += any(r.status is Status.WAITING for r in engine.waiting)
    engine.run()
    return steps, waited


def test_case_c73_steps_of_vllm_go_on_while_lookups_are_under_way(store, vllm_of):
    without, _ = gaps(vllm_of(None))
    asked = vllm_of(store)
    steps, waited = gaps(asked)
    cache = asked.connector._cache
    wait_for(lambda: store.held > 8, SECONDS, "answers that were held back")
    assert waited > 8
    assert cache.stats()["breaker_opened"] == 0, "requests that wait for each other say nothing of the store"
    extra = statistics.median(steps) - statistics.median(without)
    assert extra < GAP_SECONDS, f"{extra * 1e3:.2f} ms of a step"
    wait_for(lambda: store.server.metric("quire_read_leases") == 0, SECONDS, "the release of every lease")


def test_a_step_that_waits_for_its_lookup_shows(store, vllm_of):
    """The control: these clocks are not blind."""
    without, _ = gaps(vllm_of(None))
    steps, _ = gaps(vllm_of(store, waiting=True))
    held_up = [s for s in steps if s > statistics.median(without) + GAP_SECONDS]
    assert len(held_up) >= WAITING / 2


def test_a_request_that_is_asked_about_late_is_a_hit_in_time(store, vllm_of):
    """The answers do arrive: under the age at which a request goes on without them, where nobody else asks."""
    one = vllm_of(store)
    first = one.add("a", vllm_double_env.PROMPT, 1)
    one.run()
    one.flush()
    two = vllm_of(store)
    two.connector._scheduling._late = SECONDS
    second = two.add("b", vllm_double_env.PROMPT, 1)
    two.run()
    assert second.external == 20 and second.answer == first.answer


# -- SGLang -----------------------------------------------------------------------------------------------------------


def test_case_c73_a_lookup_on_sglangs_scheduler_is_given_5_ms(store, monkeypatch):
    """What comes later is the answer of the next ask. On the prefetch thread the same lookup waits for its answer."""
    world = World(monkeypatch)
    spec = spec_text(2, 3, 8, 4)
    cls = type("QuireHiCache", (world.module.QuireHiCache,), {
        "make_cache": staticmethod(lambda config, _, log, **how: Cache(config, spec, log, make_client=store.client, **how))
    })  # fmt: skip
    backend = cls(sglang_engine.StorageConfig(extra_config={**SETTINGS, "server": store.server.address}), {})
    pool = sglang_engine.Pool("page_first")
    controller = world.controller(pool, backend=backend)
    try:
        assert backend.cache.wait_ready(SECONDS), backend.cache.state
        keys = chain(6)
        slots = pool.alloc(24)
        pool.fill(slots, 1)
        assert controller.backup(keys, slots) == 6
        took, answers = [], []
        for n in range(1, 21):
            part = keys[: 1 + n % 6]
            began = time.perf_counter()
            answers.append(backend.batch_exists(part))
            took.append(time.perf_counter() - began)
            wait_for(lambda p=part: backend.batch_exists(p) == len(p), SECONDS, "the answer of a later ask")
        early = [a for a, t in zip(answers, took, strict=True) if t < LATE_SECONDS]  # a thread that is kept waiting itself may find the answer there
        quick = statistics.quantiles(took, n=4)[0]  # the machine holds up some of them; a backend that waits is held up each time
        assert not any(early) and quick < LATE_SECONDS - GAP_SECONDS
        aside: list[float] = []

        def prefetch():
            for _ in range(5):
                began = time.perf_counter()
                assert backend.batch_exists(keys) == 6
                aside.append(time.perf_counter() - began)

        thread = threading.Thread(target=prefetch)
        thread.start()
        thread.join(SECONDS)
        assert len(aside) == 5 and min(aside) >= LATE_SECONDS, "the store is as slow as it is meant to be"
    finally:
        world.close()

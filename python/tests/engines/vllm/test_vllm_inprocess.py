"""The real vLLM on the CPU, in this process, one engine at a time. Its scheduler and its worker are both within reach.

Tokens have to be equal and log probabilities within 1e-3 in float32, where batches may differ in their rounding; in bfloat16
the run to compare with is the one that hits the engine's own prefix cache.
"""

from __future__ import annotations

import gc
import glob
import json
import logging
import os
import statistics
import threading
import time

import numpy as np
import pytest
import serving
import vllm_models
from doubles.chaos import Chaos
from doubles.faults import Fault
from doubles.slow_store import SlowStore
from vllm_engine import BLOCK, ENVIRONMENT, Engine, prompts
from waiting import PATIENT, wait_for

from quire_kv.hint import Hint

pytestmark = [pytest.mark.vllm, pytest.mark.limit(300)]

PROMPTS = prompts()
FULL = sum((len(p) - 1) // BLOCK for p in PROMPTS)  # blocks that a second run can load
PAGE = 2 * 4 * BLOCK * 2 * 32 * 4  # heads, layers, tokens, key and value, width, float32


@pytest.fixture(scope="module", autouse=True)
def environment():
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module", autouse=True)
def collections(environment):
    """What vLLM imports is never garbage, and looking through it takes half a second of CPU. vLLM does so five times for each engine
    that starts and ends in a process: it freezes all there is, and thaws it again. Here the imports alone are frozen, and once."""
    import vllm.v1.engine.core
    import vllm.v1.worker.gpu_worker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: None)
        for module in (vllm.v1.engine.core, vllm.v1.worker.gpu_worker):
            patch.setattr(module, "freeze_gc_heap", lambda: None)
        gc.collect()
        gc.freeze()
        yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def model():
    return vllm_models.tiny()


@pytest.fixture(scope="module")
def settings(quire_bin, model):
    """settings(server): the connector's, for the tiny model."""
    digest = vllm_models.digest(quire_bin, model)
    return lambda server, **more: {"server": server.address, "model_digest": digest, "weights": "frozen", "lookup_wait_ms": 10_000, **PATIENT, **more}


class Maker:
    """The one engine of this process."""

    def __init__(self, folder):
        self.folder = folder
        self.live = None

    def __call__(self, extra, folder=None, *, wait=True, **kw):
        """Ends the engine there is and starts another, which has opened its namespace unless wait is False."""
        self.end()
        self.live = Engine(folder or self.folder, extra, **kw)
        if wait:
            self.live.ready()
        return self.live

    def end(self):
        live, self.live = self.live, None
        if live is not None:
            live.close()


@pytest.fixture
def engine(model):
    maker = Maker(model)
    yield maker
    maker.end()


@pytest.fixture(scope="module")
def baseline(model):
    """What the engine says without a cache."""
    plain = Engine(model, None)
    try:
        return plain.generate(PROMPTS)
    finally:
        plain.close()


def filled(engine, extra):
    """An engine that has written the pages of PROMPTS, and has forgotten them itself."""
    made = engine(extra)
    made.generate(PROMPTS)
    assert made.worker._transfer.flush(20)
    made.reset()
    return made


def same(answers, wanted):
    assert [a.tokens for a in answers] == [b.tokens for b in wanted]
    assert max(abs(u - v) for a, b in zip(answers, wanted, strict=True) for u, v in zip(a.logprobs, b.logprobs, strict=True)) < 1e-3


def differs(answers, wanted):
    pairs = [(u, v) for a, b in zip(answers, wanted, strict=True) for u, v in zip(a.logprobs, b.logprobs, strict=True)]
    return [a.tokens for a in answers] != [b.tokens for b in wanted] or max(abs(u - v) for u, v in pairs) > 1e-3


def stats(made):
    return made.worker._cache.stats()


# -- hits -------------------------------------------------------------------------------------------------------------


def test_another_engine_is_served_from_the_store(engine, settings, quire_server, baseline):
    first = engine(settings(quire_server))
    same(first.generate(PROMPTS), baseline)
    assert quire_server.read_counter() == 0  # nothing was there
    second = engine(settings(quire_server))
    answers = second.generate(PROMPTS)
    same(answers, baseline)
    assert quire_server.read_counter() == FULL * PAGE == stats(second)["load_bytes"]
    assert [a.cached for a in answers] == [(len(p) - 1) // BLOCK * BLOCK for p in PROMPTS]


def test_the_example_is_a_configuration(engine, settings, quire_server, baseline):
    example = json.loads((serving.ROOT / "python" / "examples" / "vllm.json").read_text())
    mine = settings(quire_server)
    example["kv_connector_extra_config"].update(server=mine["server"], model_digest=mine["model_digest"])
    made = engine(mine, kv_transfer_config=example)
    same(made.generate(PROMPTS), baseline)
    assert made.worker._transfer.flush(20) and stats(made)["saved_pages"] > FULL


def test_the_hint_of_a_request_reaches_the_store(engine, settings, quire_server, baseline, monkeypatch):
    said = []

    def heard(self, message):
        write(self, message)
        said.append((message.category, message.next, message.expected_reuse.seconds, message.answer_tokens))

    write = Hint.write
    monkeypatch.setattr(Hint, "write", heard)
    made = engine(settings(quire_server, category="batch"))

    def ask(hint):
        """What the store is told while one prompt is served from it, or else computed; and of its answer, when that has ended."""
        said.clear()
        same(made.generate(PROMPTS[:1], params={"quire": hint}), baseline[:1])
        assert made.worker._transfer.flush(20)
        wait_for(lambda: ended in said, what="the length of the answer")
        made.reset()
        return set(said) - {ended}

    ended = (0, 0, 0, len(baseline[0].tokens))  # and nothing that takes back what was said before
    assert ask({"category": "agent", "tool_call_pending": True, "reuse_in_s": 30}) == {(2, 1, 30, 0)}  # saved
    assert ask({"end_of_session": True}) == {(3, 2, 0, 0)}  # found
    assert made.scheduler._cache.stats()["bad_hints"] == 0
    assert ask({"category": "urgent"}) == {(3, 0, 0, 0)}
    assert made.scheduler._cache.stats()["bad_hints"] == 1


@pytest.mark.parametrize("transport", ["data", "grpc"])
def test_other_transports(engine, settings, quire_server, baseline, transport):
    made = filled(engine, settings(quire_server, transport=transport))
    same(made.generate(PROMPTS), baseline)
    assert stats(made)["load_bytes"] == FULL * PAGE and made.worker._cache.transport == transport


def test_a_small_pool_with_preemption(engine, settings, quire_server, baseline):
    made = engine(settings(quire_server), num_gpu_blocks_override=12, max_model_len=256)
    same(made.generate(PROMPTS + PROMPTS), baseline + baseline)
    made.reset()
    same(made.generate(PROMPTS + PROMPTS), baseline + baseline)
    assert stats(made)["load_bytes"] > 0


def test_generated_text_is_found_by_the_next_turn(engine, settings, quire_server, baseline):
    made = engine(settings(quire_server))
    answers = made.generate(PROMPTS, 64)
    made.worker._transfer.flush(20)
    made.reset()
    turn = [p + a.tokens + [5, 6, 7] for p, a in zip(PROMPTS, answers, strict=True)]
    wanted = made.generate(turn)
    assert max(a.cached for a in wanted) > max(len(p) for p in PROMPTS)


def test_bfloat16_is_as_with_the_engines_own_cache(engine, quire_bin, quire_server):
    try:
        folder = vllm_models.smollm()
    except LookupError as why:
        pytest.skip(str(why))
    extra = {"server": quire_server.address, "model_digest": vllm_models.digest(quire_bin, folder), "weights": "frozen", "lookup_wait_ms": 10_000, **PATIENT}
    given = prompts((260,), vocabulary=40000)
    made = engine(extra, folder, dtype="bfloat16")
    made.generate(given)
    wanted = made.generate(given)  # hits the engine's own cache
    assert wanted[0].cached == 256 and quire_server.read_counter() == 0
    made.worker._transfer.flush(20)
    made.reset()
    same(made.generate(given), wanted)
    assert quire_server.read_counter() == 8 * BLOCK * 23040


# -- what goes wrong --------------------------------------------------------------------------------------------------


def test_case_c19_a_byte_flipped_in_the_store(engine, settings, server_factory, baseline):
    server = server_factory(disk="256MiB")
    made = filled(engine, settings(server, durability="disk"))
    assert stats(made)["saved_pages"] > FULL
    engine.end()
    server.stop()
    flipped = 0
    for path in glob.glob(str(server.directory / "data" / "**" / "*.seg"), recursive=True):
        with open(path, "r+b") as f:
            raw = f.read()
            for at in range(PAGE // 2, len(raw), 2 * PAGE):
                if any(raw[at - 512 : at + 512]):
                    f.seek(at)
                    f.write(bytes([raw[at] ^ 0x20]))
                    flipped += 1
    assert flipped
    server.start()
    made = engine(settings(server))
    same(made.generate(PROMPTS), baseline)
    found = made.scheduler._cache.stats()["hits"]
    assert stats(made)["loaded_pages"] < FULL and (found < FULL or stats(made)["recompute_fallbacks"] > 0)
    made.reset()
    same(made.generate(PROMPTS), baseline)


def test_case_c19_a_byte_flipped_on_the_wire(engine, settings, quire_server, baseline):
    with Chaos(quire_server) as chaos:
        made = filled(engine, settings(chaos, transport="data"))
        chaos.fault = Fault("flip", frozenset({"Fetch"}))
        same(made.generate(PROMPTS), baseline)
        assert chaos.struck and stats(made)["failures_corrupt"] > 0 and stats(made)["recompute_fallbacks"] > 0


@pytest.mark.parametrize("what", ["cut", "close", "hang", "garbage"])
def test_case_c47_a_read_that_does_not_come_through(engine, settings, quire_server, baseline, what):
    with Chaos(quire_server) as chaos:
        made = filled(engine, settings(chaos, transport="data", load_timeout_ms=400))
        chaos.fault = Fault(what, frozenset({"Fetch"}))
        same(made.generate(PROMPTS), baseline)
        assert chaos.struck and stats(made)["recompute_fallbacks"] > 0
        assert made.scheduler._scheduling._entries == {}


def test_case_c43_the_server_is_killed_in_mid_load(engine, settings, quire_server, baseline):
    made = filled(engine, settings(quire_server))
    real = made.worker._cache.load

    def load(*args, **kw):
        if quire_server.running:
            quire_server.pause()
            threading.Timer(0.1, quire_server.kill).start()
        return real(*args, **kw)

    made.worker._cache.load = load
    same(made.generate(PROMPTS), baseline)
    assert stats(made)["recompute_fallbacks"] > 0
    made.reset()
    same(made.generate(PROMPTS), baseline)  # and without a store


def test_case_c43_a_store_that_is_absent_at_start_and_comes(engine, settings, quire_server, baseline):
    quire_server.stop()
    made = engine(settings(quire_server), wait=False)
    same(made.generate(PROMPTS), baseline)
    quire_server.start()
    made.ready()
    made.reset()
    made.generate(PROMPTS)
    made.worker._transfer.flush(20)
    made.reset()
    same(made.generate(PROMPTS), baseline)
    assert quire_server.read_counter() == FULL * PAGE


def test_a_byte_flipped_behind_the_checks_shows(engine, settings, quire_server, baseline):
    """The control: these tests are not blind."""
    made = filled(engine, settings(quire_server))
    memory = made.worker._transfer._memory
    real = memory.load

    def load(cache, keys, blocks, *args):
        good = real(cache, keys, blocks, *args)
        for b in blocks:
            memory.blocks.tensors[0][b].view(-1)[777] += 1.5
        return good

    memory.load = load
    assert differs(made.generate(PROMPTS), baseline)


def test_block_0_is_refused(engine, settings, quire_server):
    from quire_kv.vllm.meta import Load

    made = filled(engine, settings(quire_server))
    transfer, memory = made.worker._transfer, made.worker._transfer._memory
    before = [t[0].clone() for t in memory.blocks.tensors]
    transfer.start([Load("nobody", bytes(32), [bytes(32)], [0])])
    until = time.monotonic() + 10
    while not (ended := transfer.results(())):
        assert time.monotonic() < until
        time.sleep(0.001)
    assert ended == {"nobody": {0}}
    assert all((a == t[0]).all() for a, t in zip(before, memory.blocks.tensors, strict=True))


def test_case_c81_a_wrong_order_does_not_pass(engine, settings, quire_server, baseline, monkeypatch, caplog):
    """Layers in reverse on the way out and in: a write and a read back would undo it; the proof does not."""
    from quire_kv.layout import PageMemory
    from quire_kv.vllm.memory import HostBlocks

    real = HostBlocks.pages

    def pages(self, blocks):
        made = real(self, blocks)
        return PageMemory(made.layout, made.addresses[:, :, ::-1], made.owner)

    monkeypatch.setattr(HostBlocks, "pages", pages)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    made = engine(settings(quire_server), wait=False)
    assert "layout of KV blocks" in made.worker._cache.state
    same(made.generate(PROMPTS), baseline)
    assert quire_server.read_counter() == 0 and stats(made)["saves"] == 0


# -- the scheduler is never held up -----------------------------------------------------------------------------------


def test_case_c73_step_gap_against_a_store_that_takes_19_ms(engine, settings, quire_server, monkeypatch):
    """64 requests wait, each lookup's answer is 19 ms late on the wire: the connector's part of a step stays small, where one
    wait for one lookup would show."""
    from quire_kv.vllm import connector as connector_module

    with SlowStore(quire_server) as slow:
        monkeypatch.setattr(connector_module, "client_of", slow.client)
        made = engine({**settings(quire_server), "lookup_wait_ms": 20}, num_gpu_blocks_override=256, max_num_seqs=64)
        _step_gap(made)
        assert slow.held > 16
        engine.end()


def _step_gap(made):
    spent: list[float] = []
    core = made.llm.llm_engine.engine_core.engine_core.scheduler
    connector = made.scheduler
    for name in (
        "on_new_request",
        "get_num_new_matched_tokens",
        "update_state_after_alloc",
        "build_connector_meta",
        "update_connector_output",
        "request_finished_all_groups",
    ):
        inner = getattr(connector, name)

        def timed(*args, inner=inner):
            at = time.perf_counter()
            try:
                return inner(*args)
            finally:
                if spent:
                    spent[-1] += time.perf_counter() - at

        setattr(connector, name, timed)
    schedule = core.schedule

    def step(*args, **kw):
        spent.append(0.0)
        return schedule(*args, **kw)

    core.schedule = step
    for attempt in range(5):  # a busy machine holds up a thread now and then; what waits for lookups is held up each time
        spent.clear()
        made.generate([p for n in range(16) for p in prompts((33, 40, 48, 64), seed=16 * attempt + n)], 8)
        assert len(spent) > 8
        if statistics.quantiles(spent, n=10)[-1] < 0.005 and max(spent) < 64 * 0.019 / 4:
            return
    raise AssertionError(f"seconds of steps: {sorted(spent)[-5:]}")


# -- identity ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"])
def test_case_c06_every_hash_kind(engine, settings, quire_server, monkeypatch, algorithm):
    weak = algorithm.startswith("xxhash")
    if weak:
        monkeypatch.setenv("PYTHONHASHSEED", "0")
    extra = settings(quire_server, weak_names=True) if weak else settings(quire_server)
    made = engine(extra, prefix_caching_hash_algo=algorithm)
    given = prompts((100,), seed=3)
    wanted = made.generate(given, 4)
    made.worker._transfer.flush(20)
    made.reset()
    same(made.generate(given, 4), wanted)
    assert quire_server.read_counter() == 3 * PAGE
    assert made.scheduler._cache.geometry().hash_bytes == (16 if weak else 32)


def test_case_c06_a_random_seed_is_one_loud_line(engine, settings, quire_server, monkeypatch, caplog, baseline):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    made = engine(settings(quire_server, weak_names=True), wait=False, prefix_caching_hash_algo="xxhash")
    lines = [r.getMessage() for r in caplog.records if "quire" in r.getMessage() and r.levelno >= logging.ERROR]
    assert lines and all("PYTHONHASHSEED=0" in line and "\n" not in line for line in lines)
    same(made.generate(PROMPTS), baseline)


def test_case_c72_another_seed_is_refused_by_name(engine, settings, quire_server, monkeypatch):
    """The namespace of seed 0 is in use: an engine with another seed is told at once, and not by a hit rate of 0."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    filled(engine, settings(quire_server))
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    made = engine(settings(quire_server), wait=False)
    until = time.monotonic() + 20
    while not made.scheduler._cache.state.startswith("off"):
        assert time.monotonic() < until, made.scheduler._cache.state
        time.sleep(0.01)
    assert "hash_contract_fork" in made.scheduler._cache.state and "hash.seed" in made.scheduler._cache.state


def test_case_c62_reload_weights(engine, settings, quire_server, baseline):
    made = filled(engine, settings(quire_server))
    made.llm.collective_rpc("reload_weights")
    before = quire_server.metrics()
    same(made.generate(PROMPTS), baseline)
    assert quire_server.read_counter() == 0
    assert "weights" in made.worker._cache.state and "weights" in made.scheduler._cache.state
    made.generate(prompts(seed=11))
    after = quire_server.metrics()
    assert {k: v for k, v in after.items() if k.startswith("quire_pages")} == {k: v for k, v in before.items() if k.startswith("quire_pages")}


def test_case_c62_reset_with_the_connector(engine, settings, quire_server, baseline):
    made = filled(engine, settings(quire_server))
    assert made.llm.reset_prefix_cache(reset_connector=True)
    same(made.generate(PROMPTS), baseline)
    assert quire_server.read_counter() == 0 and made.scheduler._cache.state.startswith("off")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"enable_prefix_caching": False}, "--no-enable-prefix-caching"),
        ({"load_format": "dummy"}, "load_format"),
        (
            {"kv_transfer_config": {"kv_connector": "QuireConnector", "kv_connector_module_path": "quire_kv.vllm", "kv_role": "kv_both"}},
            '"kv_load_failure_policy": "recompute"',
        ),
        ({"hf_overrides": {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}}}, ""),
    ],
)
def test_what_is_refused_or_is_another_identity(engine, settings, quire_server, monkeypatch, caplog, arguments, line):
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    if not line:
        filled(engine, settings(quire_server))
    caplog.clear()
    if "kv_transfer_config" in arguments:
        arguments = {"kv_transfer_config": {**arguments["kv_transfer_config"], "kv_connector_extra_config": settings(quire_server)}}
    made = engine(settings(quire_server), wait=not line, **arguments)
    if line:
        assert any(line in r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR)
    made.generate(PROMPTS, 4)
    assert quire_server.read_counter() == 0


def test_metrics_of_the_engine(engine, settings, quire_server):
    """The counters reach vLLM's own registry."""
    import prometheus_client

    from quire_kv.vllm import QuireConnector

    made = filled(engine, settings(quire_server))
    made.generate(PROMPTS)
    given = made.worker._cache.stats()
    kinds = {
        prometheus_client.Gauge: prometheus_client.Gauge,
        prometheus_client.Counter: prometheus_client.Counter,
        prometheus_client.Histogram: prometheus_client.Histogram,
    }
    prom = QuireConnector.build_prom_metrics(made.llm.llm_engine.vllm_config, kinds, ["engine"], {0: ["0"]})
    prom.observe(QuireConnector.build_kv_connector_stats(given).data, 0)
    text = prometheus_client.generate_latest().decode()
    assert f'vllm:quire_load_bytes_total{{engine="0"}} {float(FULL * PAGE)}' in text
    assert np.isfinite(given["loads"])

"""vLLM's own TieringOffloadingSpec, manager and primary tier over the tier and a real server.

The device's side is played: vLLM's CPU backend has no worker that copies chunks. Everything from the JSON to the bytes in the
shared region is vLLM's own.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import time
import uuid

import pytest

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

import serving  # noqa: E402
from tinymodel import HEADS, LAYERS, WIDTH, checkpoint, digest  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.utils.hashing import get_hash_fn_by_name  # noqa: E402
from vllm.v1.core import kv_cache_utils  # noqa: E402
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key  # noqa: E402
from vllm.v1.kv_offload.config import OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig, OffloadingModelConfig, OffloadingParallelConfig  # noqa: E402
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec  # noqa: E402
from waiting import PATIENT, wait_for  # noqa: E402

BLOCK = 16
BLOCK_BYTES = LAYERS * 2 * BLOCK * HEADS * WIDTH * 2
EXAMPLE = serving.ROOT / "python" / "examples" / "vllm_tier.json"


@pytest.fixture(scope="module")
def model(quire_bin, tmp_path_factory):
    """Folder, digest and manifest of a tiny model."""
    tmp = tmp_path_factory.mktemp("model")
    folder = checkpoint(tmp / "m")
    return folder, digest(quire_bin, folder, tmp / "m.json", "org/m"), tmp / "m.json"


@pytest.fixture(scope="module")
def engine_config(model):
    """The configuration that vLLM makes of its arguments for this model."""
    return EngineArgs(
        model=str(model[0]), skip_tokenizer_init=True, dtype="bfloat16", block_size=BLOCK, max_model_len=512, enforce_eager=True, prefix_caching_hash_algo="sha256_cbor",
    ).create_engine_config()  # fmt: skip


class Engine:
    """The scheduler's side of an engine with the example's secondary tier."""

    def __init__(self, engine_config, model, server, *, groups=1, tp=1, dcp=1, dtype="bfloat16", chunks=32, **settings):
        shipped = json.loads(EXAMPLE.read_text())["kv_connector_extra_config"]
        (tier,) = shipped["secondary_tiers"]
        tier |= {"server": server, "model_digest": model[1], "model_manifest": str(model[2]), "lookup_wait_ms": 10_000, **PATIENT, **settings}
        self.tier_settings = {k: v for k, v in tier.items() if v is not None}
        extra = {**shipped, "cpu_bytes_to_use": chunks * BLOCK_BYTES * tp, "secondary_tiers": [self.tier_settings]}
        offload = OffloadingConfig(
            groups=tuple(OffloadingGroupConfig(BLOCK, tuple(f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)), g) for g in range(groups)),
            worker_kv_bytes_per_block=BLOCK_BYTES, enable_kv_cache_events=False, extra_config=extra, engine_id=uuid.uuid4().hex,
            model=OffloadingModelConfig(str(model[0]), dtype), cache=OffloadingCacheConfig(BLOCK, 1),
            parallel=OffloadingParallelConfig(0, tp, tp, 1, 1, dcp, 0, 1, None, False),
        )  # fmt: skip
        self.manager = self._make(engine_config, TieringOffloadingSpec(offload))
        self.tier = self.manager.secondary_tiers[0]
        self.view = self.manager.primary_tier.get_kv_memoryview()
        self.size = self.view.strides[0]

    def _make(self, vllm_config, spec):
        """As OffloadingConnectorScheduler does it: the configuration is an argument of the caller of get_manager."""
        kv_cache_utils.init_none_hash(get_hash_fn_by_name(vllm_config.cache_config.prefix_caching_hash_algo))  # the engine, behind its scheduler
        return spec.get_manager()

    @property
    def state(self) -> str:
        return self.tier._cache.state if self.tier._cache is not None else "no cache"

    def ready(self):
        wait_for(lambda: self.tier._cache.ready, 20)
        return self

    def step(self, new=()):
        self.manager.on_schedule_end(ScheduleEndContext(new, ()))

    def store(self, contents):
        """The device writes chunks, and vLLM cascades them."""
        context = ReqContext(uuid.uuid4().hex)
        self.manager.on_new_request(context)
        out = self.manager.prepare_store([*contents], context)
        slots = dict(zip(out.keys_to_store, (int(c) for c in out.store_spec.chunk_ids), strict=True))
        for key, slot in slots.items():
            flat = self.view.cast("B")
            flat[slot * self.size : (slot + 1) * self.size] = contents[key]
            flat.release()
        self.manager.complete_store(out.keys_to_store, context, True)
        self.manager.on_request_finished(context)
        self.settle()

    def settle(self):
        wait_for(lambda: self.step() or not self.manager.has_pending_work(), 20)

    def hits(self, keys, seconds=20.0) -> int:
        """The request's longest prefix, asked for step by step as the scheduler does; and its bytes in self.got."""
        context = ReqContext(uuid.uuid4().hex)
        self.manager.on_new_request(context)
        until = time.monotonic() + seconds
        while True:
            answers = []
            for key in keys:
                answers.append(self.manager.lookup(key, context))
                if answers[-1] is LookupResult.MISS:
                    break
            self.step((context.req_id,))
            if not any(a in (LookupResult.RETRY, LookupResult.HIT_PENDING) for a in answers):
                break
            assert time.monotonic() < until, "the request is never answered"
            time.sleep(0.002)
        n = sum(a is LookupResult.HIT for a in answers)
        self.got = {}
        if n:
            spec = self.manager.prepare_load(keys[:n], context)
            flat = self.view.cast("B")
            for key, slot in zip(keys[:n], (int(c) for c in spec.chunk_ids), strict=True):
                self.got[key] = bytes(flat[slot * self.size : (slot + 1) * self.size])
            flat.release()
            self.manager.complete_load(keys[:n], context)
        self.manager.on_request_finished(context)
        return n

    def close(self):
        self.manager.shutdown()


@pytest.fixture
def engine(engine_config, model):
    made = []

    def make(server, **changes):
        made.append(Engine(engine_config, model, server, **changes))
        return made[-1]

    yield make
    for e in made:
        e.close()


@pytest.fixture
def lines():
    """The lines that the tier logs as errors. vLLM's loggers do not propagate to pytest's."""
    said = []

    class Keep(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())

    logger, handler = logging.getLogger("vllm.quire_kv.tier"), Keep(logging.ERROR)
    logger.addHandler(handler)
    yield said
    logger.removeHandler(handler)


def keys_of(n):
    return [make_offload_key(bytes([i]) * 32, 0) for i in range(n)]


def noise(keys, size):
    return {k: os.urandom(size) for k in keys}


def leases(server):
    return int(server.metric("quire_read_leases"))


def test_what_one_engine_stores_a_fresh_one_loads(engine, quire_server):
    a = engine(quire_server.address).ready()
    contents = noise(keys_of(8), a.size)
    a.store(contents)
    b = engine(quire_server.address).ready()
    before = quire_server.read_counter()
    assert b.hits([*contents]) == 8 and b.got == contents
    assert quire_server.read_counter() - before == 8 * b.size  # the bytes came from the store
    before = quire_server.read_counter()
    assert b.hits([*contents]) == 8 and quire_server.read_counter() == before  # now the primary tier has them
    assert b.hits(keys_of(12)[8:]) == 0
    wait_for(lambda: b.step() or leases(quire_server) == 0, 20)
    stats = b.manager.get_stats().reduce()
    assert stats["vllm:kv_offload_quire_loaded_pages"] == 8 and stats["vllm:kv_offload_quire_away"] == 0
    assert not [k for k in stats if "promotion_job_failures" in k]
    definitions = TieringOffloadingSpec.build_metric_definitions({"secondary_tiers": [b.tier_settings]})
    assert set(k.partition(":(")[0] for k in stats if "quire" in k) <= set(definitions)


def test_what_is_stored_already_is_not_written_again(engine, quire_server):
    a, b = engine(quire_server.address).ready(), engine(quire_server.address).ready()
    contents = noise(keys_of(2), a.size)
    a.store(contents)
    b.store(noise(keys_of(2), a.size))  # other bytes under the same names
    c = engine(quire_server.address).ready()
    assert c.hits([*contents]) == 2 and c.got == contents
    assert quire_server.metric("quire_pages") == 2


@pytest.mark.parametrize("changes", [{"tp": 2}, {"dtype": "float16"}])
def test_another_shape_or_dtype_shares_nothing(engine, quire_server, changes):
    a = engine(quire_server.address).ready()
    contents = noise(keys_of(2), a.size)
    a.store(contents)
    assert engine(quire_server.address, **changes).ready().hits([*contents]) == 0


def test_case_c43_the_store_dies_and_comes_back(engine, quire_server):
    a = engine(quire_server.address).ready()
    contents = noise(keys_of(4), a.size)
    a.store(contents)
    b = engine(quire_server.address).ready()
    quire_server.kill()
    for _ in range(3):
        assert b.hits([*contents]) == 0
    b.store(noise(keys_of(6)[4:], b.size))  # not stored, and vLLM gets its slots back
    quire_server.start()
    b.ready()
    b.store(contents)
    c = engine(quire_server.address).ready()
    assert c.hits([*contents]) == 4 and c.got == contents


def test_a_store_that_dies_between_lookup_and_load_ends_in_a_miss(engine, quire_server):
    a = engine(quire_server.address).ready()
    contents = noise(keys_of(3), a.size)
    a.store(contents)
    b = engine(quire_server.address, load_timeout_ms=300).ready()
    context = ReqContext("r")
    b.manager.on_new_request(context)

    def found():
        b.step()
        return b.tier.lookup([*contents][0], context) is LookupResult.HIT

    for key in contents:
        b.manager.lookup(key, context)
    wait_for(found, 10)
    quire_server.pause()
    try:
        until = time.monotonic() + 20
        while (answer := b.manager.lookup([*contents][0], context)) is not LookupResult.MISS:
            assert time.monotonic() < until and answer is not LookupResult.HIT, answer
            b.step()
            time.sleep(0.005)
        b.settle()
    finally:
        quire_server.resume()
    b.manager.on_request_finished(context)
    stats = b.manager.get_stats().reduce()
    assert any(k.startswith("vllm:kv_offload_tiering_promotion_job_failures") for k in stats), stats


def test_case_c62_a_reset_of_the_caches_turns_the_tier_off(engine, quire_server):
    a = engine(quire_server.address).ready()
    contents = noise(keys_of(2), a.size)
    a.store(contents)
    a.manager.reset_cache()
    assert a.hits([*contents]) == 0 and a.state.startswith("off")
    a.store(noise(keys_of(4)[2:], a.size))
    assert quire_server.metric("quire_pages") == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"groups": 2}, "KV groups"), ({"dcp": 2}, "context-parallel"), ({"lora": None}, "lora"), ({"weights": None}, "weights"), ({"model_digest": None}, "model_digest"),
        ({"typo": 1}, "typo"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_apart_is_refused_in_one_line(engine, quire_server, lines, changes, named):
    e = engine(quire_server.address, **changes)
    assert e.state == "no cache"
    assert len(lines) == 1 and named in lines[0] and "\n" not in lines[0] and "runs on without Quire" in lines[0]
    assert e.hits(keys_of(2)) == 0
    e.store(noise(keys_of(2), e.size))
    assert quire_server.metric("quire_pages") == 0


def test_lora_is_refused(engine_config, model, quire_server):
    with_lora = copy.copy(engine_config)
    with_lora.lora_config = object()
    e = Engine(with_lora, model, quire_server.address)
    assert e.state == "no cache"
    e.close()


def test_case_c72_another_seed_than_the_settings_say(engine, quire_server, monkeypatch):
    a = engine(quire_server.address).ready()
    a.store(noise(keys_of(2), a.size))
    b = engine(quire_server.address).ready()
    monkeypatch.setattr(kv_cache_utils, "NONE_HASH", b"x" * 32)
    assert b.hits(keys_of(2)) == 0 and "seed" in b.state

"""QuireConnector under the double of vLLM: scopes, what is refused at start, the hash contract, metrics."""

from __future__ import annotations

import json
import logging
import sys
import types

import numpy as np
import pytest
import serving
from doubles import vllm_double as double
from doubles import vllm_double_env as double_env
from doubles.toy_cache import ToyStore
from doubles.vllm_double import TOKENS, WIDTH
from doubles.vllm_double_env import CELL, PROMPT, answer

from quire_kv.errors import ConfigError


@pytest.fixture
def vllm(monkeypatch):
    yield from double_env.installed(monkeypatch)


@pytest.fixture
def make(vllm):
    yield from double_env.factory(vllm)


@pytest.fixture
def filled(make):
    return double_env.filled(make)


# -- scopes -----------------------------------------------------------------------------------------------------------


def adapter(folder, name="sql", number=1, content=b"one", inplace=False):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}" + content)
    (folder / "adapter_config.json").write_text("{}")
    return types.SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=str(folder), load_inplace=inplace)


def run_one(engine, name, prompt=PROMPT, **kw):
    request = engine.add(name, prompt, 1, **kw)
    engine.run()
    engine.flush()
    return request


def test_case_c04_same_adapter_name_other_content(make, tmp_path):
    store = ToyStore()
    lora = adapter(tmp_path / "sql")
    one = make(store)
    wait_scope(one, run_one(one, "a", lora=lora))
    two = make(store)
    assert run_one(two, "b", lora=lora).external == 20
    other = adapter(tmp_path / "sql", content=b"two")  # same name and path, so the engine's hashes are equal
    three = make(store)
    assert run_one(three, "c", lora=other).external == 0
    assert len({scope for _, scope, _ in store.pages}) == 2


def wait_scope(engine, request):
    assert {s for _, s, _ in engine.connector._cache._store.pages} != {bytes(32)}, request


def test_an_adapter_that_changes_under_the_engine_is_left_alone(make, tmp_path, caplog):
    store = ToyStore()
    engine = make(store)
    run_one(engine, "a", lora=adapter(tmp_path / "sql"))
    saved = set(store.pages)
    changed = adapter(tmp_path / "sql", content=b"other")
    engine.forget()
    assert run_one(engine, "b", lora=changed).external == 0
    assert set(store.pages) == saved and "changed while it is loaded" in caplog.text
    engine.forget()
    run_one(engine, "c", lora=adapter(tmp_path / "sql", content=b"other", inplace=True))
    assert set(store.pages) > saved  # loaded in place: known again


def test_case_c04_adapter_x_and_salt_x(make, tmp_path):
    store = ToyStore()
    engine = make(store)
    run_one(engine, "a", lora=adapter(tmp_path / "x", name="x"))
    engine.forget()
    assert run_one(engine, "b", salt="x").external == 0
    engine.forget()
    assert run_one(engine, "c").external == 0
    engine.forget()
    assert run_one(engine, "d", salt="x").external == 20
    assert len({scope for _, scope, _ in store.pages}) == 3


def test_case_c75_requests_with_images_take_no_part(make):
    store = ToyStore()
    engine = make(store)
    run_one(engine, "a", media=[object()])
    assert not store.pages and store.count("lookup") == 0
    assert run_one(engine, "b").external == 0 and store.pages


def test_case_c75_weak_names_let_images_take_part(make):
    store = ToyStore()
    engine = make(store, {"weak_names": True}, model_config__is_multimodal_model=True)
    run_one(engine, "a", media=[object()])
    assert store.pages


# -- start ------------------------------------------------------------------------------------------------------------

REFUSED = {
    "policy": ({"kv_transfer_config__kv_load_failure_policy": "fail"}, '"kv_load_failure_policy": "recompute"'),
    "prefix caching off": ({"cache_config__enable_prefix_caching": False}, "--no-enable-prefix-caching"),
    "case c70, DCP": ({"parallel_config__decode_context_parallel_size": 2}, "--decode-context-parallel-size"),
    "case c70, PCP": ({"parallel_config__prefill_context_parallel_size": 2}, "--prefill-context-parallel-size"),
    "case c71, draft model": ({"speculative_config": types.SimpleNamespace(method="eagle3")}, "draft model of 'eagle3'"),
    "pooling": ({"model_config__runner_type": "pooling"}, "only generation"),
    "encoder-decoder": ({"model_config__is_encoder_decoder": True}, "no function of the prefix"),
    "dummy weights": ({"load_config__load_format": "dummy"}, "load_format"),
    "fp8": ({"cache_config__cache_dtype": "fp8_e4m3"}, "--kv-cache-dtype"),
    "random seed": ({"cache_config__prefix_caching_hash_algo": "xxhash"}, "PYTHONHASHSEED=0"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_cached_is_one_line_and_the_engine_runs(make, caplog, what):
    changes, line = REFUSED[what]
    store = ToyStore()
    with caplog.at_level(logging.ERROR):
        engine = make(store, **changes)
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 2 and lines[0] == lines[1] and line in lines[0] and "\n" not in lines[0]
    request = engine.add("a", PROMPT, 6)
    engine.run()
    assert request.answer == answer(make) and not store.calls


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"model_digest": None}, "model_digest is not set"),
        ({"weights": None}, '"weights": "frozen"'),
        ({"serverr": "x"}, "unknown setting 'serverr'"),
        ({"lookup_wait_ms": 0}, "lookup_wait_ms"),
        ({"save_buffer_mib": "1"}, "save_buffer_mib"),
    ],
)
def test_a_wrong_setting_is_one_line(make, caplog, settings, line):
    with caplog.at_level(logging.ERROR):
        engine = make(ToyStore(), {k: v for k, v in settings.items()})
    assert all(line in r.getMessage() for r in caplog.records) and caplog.records
    engine.add("a", PROMPT, 1)
    engine.run()


def test_the_example_names_every_setting_that_is_needed(make):
    example = json.loads((serving.ROOT / "python" / "examples" / "vllm.json").read_text())
    assert (
        example["kv_connector"] == "QuireConnector"
        and example["kv_connector_module_path"] == "quire_kv.vllm"
        and example["kv_load_failure_policy"] == "recompute"
    )
    store = ToyStore()
    engine = make(store, example["kv_connector_extra_config"])
    run_one(engine, "a")
    assert store.pages


def test_case_c50_several_groups_are_refused(vllm, caplog):
    made = double.kv_cache_config(["model.layers.0.attn"], 2, 8)
    made.kv_cache_groups.append(types.SimpleNamespace(layer_names=["model.layers.1.attn"], kv_cache_spec=double.FullAttentionSpec(2), is_eagle_group=False))
    with pytest.raises(ConfigError, match="2 KV groups"):
        vllm.facts._the_group(made)
    sliding = type("SlidingWindowSpec", (double.FullAttentionSpec,), {})
    one = double.kv_cache_config(["model.layers.0.attn"], 2, 8)
    one.kv_cache_groups[0].kv_cache_spec = sliding(2)
    with pytest.raises(ConfigError, match="SlidingWindowSpec"):
        vllm.facts._the_group(one)
    drafted = double.kv_cache_config(["model.layers.0.attn"], 2, 8)
    drafted.kv_cache_groups[0].is_eagle_group = True
    with pytest.raises(ConfigError):
        vllm.facts._the_group(drafted)


def test_case_c81_a_layout_that_is_not_proved_ends_it(make, filled, vllm, monkeypatch, caplog):
    def wrong(*_, **__):
        raise ConfigError("quire: the layout of KV blocks is not what this adapter takes it for: head 1")

    monkeypatch.setattr(vllm.proof, "prove", wrong)
    engine = make(filled, tp=2)
    assert "layout" in caplog.text
    loads, saves = filled.count("load"), filled.count("save")
    request = engine.add("b", PROMPT, 6)
    engine.run()
    assert request.answer == answer(make) and filled.count("load") == loads and filled.count("save") == saves
    assert "layout" in engine.connector._cache.state  # the scheduler's side was told
    lookups = filled.count("lookup")
    engine.add("c", PROMPT, 1)
    engine.run()
    assert filled.count("lookup") == lookups


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"])
def test_case_c06_the_hash_contract_of_every_kind(vllm, monkeypatch, algorithm):
    weak = algorithm.startswith("xxhash")
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    if weak:
        with pytest.raises(ConfigError, match="weak_names"):
            vllm.hashes.hash_rule(algorithm, TOKENS, weak_names=False)
    zero = vllm.hashes.hash_rule(algorithm, TOKENS, weak_names=True)
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    one = vllm.hashes.hash_rule(algorithm, TOKENS, weak_names=True)
    assert zero.bytes == (16 if weak else 32) and zero.extra_keys == 2
    assert zero.seed != one.seed and zero.probe != one.probe
    monkeypatch.delenv("PYTHONHASHSEED")
    if weak:
        with pytest.raises(ConfigError, match="another seed in each process"):
            vllm.hashes.hash_rule(algorithm, TOKENS, weak_names=True)
    else:
        assert vllm.hashes.hash_rule(algorithm, TOKENS, weak_names=False).seed != zero.seed


def test_case_c72_a_seed_that_is_not_the_contracts_is_loud(make, filled, caplog):
    engine = make(filled)
    sys.modules["vllm.v1.core.kv_cache_utils"].NONE_HASH = bytes(32)
    request = engine.add("b", PROMPT, 6)
    engine.run()
    assert request.external == 0 and "PYTHONHASHSEED" in caplog.text and "PYTHONHASHSEED" in engine.connector._cache.state


def test_the_extra_keys_rule_is_told_from_the_function(vllm, monkeypatch):
    utils = sys.modules["vllm.v1.core.kv_cache_utils"]
    monkeypatch.setattr(utils, "generate_block_hash_extra_keys", lambda *_: (("s",), 0))
    assert vllm.hashes.hash_rule("sha256", TOKENS, weak_names=False).extra_keys == 1
    monkeypatch.setattr(utils, "generate_block_hash_extra_keys", lambda *_: (None, 0))
    with pytest.raises(ConfigError, match="not known"):
        vllm.hashes.hash_rule("sha256", TOKENS, weak_names=False)


def test_layers_are_ordered_by_number_and_named_by_one(vllm):
    names = [f"model.layers.{n}.self_attn.attn" for n in (10, 2, 0)]
    assert vllm.memory.own_layers(names) == names[::-1]
    for bad in (["model.norm"], ["model.layers.1.experts.2.attn"], ["a.1.x", "b.1.x"]):
        with pytest.raises(ConfigError, match="run this model without the cache"):
            vllm.memory.own_layers(bad)


def test_tensors_that_are_not_as_configured_are_refused(vllm):
    def tensors(**changes):
        made = {f"l.{n}.a": np.zeros((4, 2, TOKENS, 2 * WIDTH), dtype=np.float32) for n in range(2)}
        made.update(changes)
        return {k: double.Tensor(a) for k, a in made.items()}

    names, good = ["l.0.a", "l.1.a"], {"blocks": 4, "cell_bytes": CELL}
    vllm.memory.HostBlocks(tensors(), names, **good)
    other = np.zeros((4, 2, TOKENS, 2 * WIDTH), dtype=np.float32)
    swapped = np.zeros((4, TOKENS, 2, 2 * WIDTH), dtype=np.float32).transpose(0, 2, 1, 3)
    for bad, kw in (
        (tensors(**{"l.1.a": other[:3]}), good), (tensors(**{"l.1.a": swapped}), good), (tensors(), {**good, "cell_bytes": CELL + 4}),
        ({"l.0.a": double.Tensor(other), "l.1.a": double.Tensor(other)}, good), ({}, good), ({k: double.Tensor(swapped) for k in names}, good),
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            vllm.memory.HostBlocks(bad, names, **kw)


def test_heads_of_ranks(vllm):
    assert [vllm.facts._heads(8, 4, r) for r in (0, 3)] == [(0, 2, 0, 1), (6, 8, 0, 1)]
    assert [vllm.facts._heads(2, 8, r)[:2] for r in range(8)] == [(0, 1)] * 4 + [(1, 2)] * 4
    assert [vllm.facts._heads(2, 8, r)[2:] for r in range(4)] == [(n, 4) for n in range(4)]
    with pytest.raises(ConfigError, match="evenly"):
        vllm.facts._heads(6, 4, 0)


# -- metrics ---------------------------------------------------------------------------------------------------------


def test_statistics_add_up(make, filled, vllm):
    engine = make(filled)
    cache = engine.ranks[0].connector._cache
    cache.counters.add(loads=5, loaded_pages=5)
    run_one(engine, "b")
    assert engine.stats["loads"] == 5
    assert engine.ranks[0].connector.get_kv_connector_stats() is None  # nothing new
    a, b = vllm.stats.QuireStats(data={"loads": 2, "breaker_open": 0}), vllm.stats.QuireStats(data={"loads": 3, "breaker_open": 1, "failures_corrupt": 4})
    total = a.aggregate(b)
    assert total.reduce() == {"quire_breaker_open": 1, "quire_failures_corrupt": 4, "quire_loads": 5}
    seen = {}

    class Metric:
        def __init__(self, name, documentation, labelnames):
            self.name, self.labelnames = name, labelnames

        def labels(self, *values):
            assert len(values) == len(self.labelnames)
            self.at = (self.name, *values)
            return self

        def inc(self, value):
            seen[self.at] = seen.get(self.at, 0) + value

        set = inc

    prom = vllm.connector.QuireConnector.build_prom_metrics(None, {"counter": Metric, "gauge": Metric}, ["engine"], {0: ["0"]})
    prom.observe(total.data, 0)
    prom.observe({"loads": 1, "of a later version": 3}, 0)
    assert seen == {("vllm:quire_loads", "0"): 6, ("vllm:quire_breaker_open", "0"): 1, ("vllm:quire_failures", "0", "corrupt"): 4}


def test_every_counter_of_the_cache_has_a_metric(vllm):
    from quire_kv.metrics import Counters

    assert set(Counters().snapshot()) <= set(vllm.stats._TEXT)

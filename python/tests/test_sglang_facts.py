"""The identity that the SGLang adapter makes of its engine's objects, and the side pools of a hybrid model in a real store."""

from __future__ import annotations

import importlib
import json
import threading
import types
from typing import Any

import pytest
import tinymodel
from doubles import sglang_engine as engine
from doubles.sglang_world import World, chain, same

from quire_kv import chains, identity
from quire_kv.config import Config
from quire_kv.errors import ConfigError

HEADS, LAYERS = tinymodel.HEADS, tinymodel.LAYERS


class HfConfig(types.SimpleNamespace):
    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


class Tiny:
    """A tiny checkpoint, what the engine says of it, and its spec."""

    def __init__(self, monkeypatch, quire_bin, tmp_path, **how: Any) -> None:
        self.folder = tinymodel.checkpoint(tmp_path / "tiny")
        manifest = tmp_path / "tiny.json"
        digest = tinymodel.digest(quire_bin, self.folder, manifest, "test/tiny")
        self.settings = {"model_digest": digest, "model_manifest": str(manifest), "weights": "frozen"}
        hf = HfConfig(**json.loads((self.folder / "config.json").read_text()), context_len=4096, swa_head_dim=16)
        self.model = {"hf_config": hf, "dtype": "torch.bfloat16", "model_path": str(self.folder), "context_len": 4096, "quantization": None}
        self.world = World(monkeypatch, heads=HEADS, layers=LAYERS, **{**self.model, **how})
        self.facts = importlib.import_module("quire_kv.sglang.facts")

    def spec(self, pool: engine.Pool | None = None, **config: Any) -> dict[str, Any]:
        running = self.facts.Engine.running()
        rank = self.facts.Rank.of(engine.StorageConfig(**config))
        parts = self.facts.parts_of(running, rank, {"kv": pool or engine.Pool(heads=HEADS, layers=LAYERS, width=16)})
        return json.loads(self.facts.spec_of(running, Config.parse(self.settings), rank, list(parts.values())))


@pytest.fixture
def tiny(monkeypatch, quire_bin, tmp_path):
    return Tiny(monkeypatch, quire_bin, tmp_path)


def test_ranks_and_layouts_have_one_identity(tiny):
    whole = tiny.spec()
    for layout in ("layer_first", "page_first_direct", "page_head"):
        assert tiny.spec(engine.Pool(layout, heads=HEADS, layers=LAYERS, width=16)) == whole
    half = tiny.spec(engine.Pool(heads=HEADS // 2, layers=LAYERS, width=16), tp_rank=1, tp_size=2)
    stage = tiny.spec(engine.Pool(heads=HEADS, layers=1, width=16, start_layer=2), pp_rank=1, pp_size=2)
    assert half.pop("recorded") == {"writer_tp": 2, "writer_pp": 1} and stage.pop("recorded") == {"writer_tp": 1, "writer_pp": 2}
    del whole["recorded"]
    assert half == whole == stage


def test_what_the_spec_says(tiny):
    spec = tiny.spec()
    group = spec["groups"][0]
    assert (group["kind"], group["layers"], group["kv_heads"], group["page_tokens"]) == ("full", f"0-{LAYERS - 1}", HEADS, 4)
    assert [c["name"] for c in group["components"]] == ["k", "v"]
    probe, size = identity.probe(lambda before, tokens: chains.sglang_chain(list(tokens), len(tokens), prior=before or b"")[0], 4)
    assert (spec["hash"]["probe"], spec["hash"]["bytes"]) == (probe, size) and spec["hash"]["extra_keys"] == 1
    assert not any("context_len" in k or "swa_head_dim" in k for k in spec["provenance"].get("options", {}))


@pytest.mark.parametrize(
    ("where", "name", "value", "factor"),
    [
        ("model", "quantization", "fp8", ("model", "weights")),
        ("args", "torchao_config", "int8wo", ("model", "weights")),
        ("model", "dtype", "torch.float16", ("model", "config")),
        ("args", "attention_backend", "triton", ("provenance", "attention_backend")),
        ("args", "decode_attention_backend", "fa3", ("provenance", "attention_backend")),
        ("args", "enable_deterministic_inference", True, ("provenance", "batch_invariant")),
        ("args", "enable_tf32_matmul", True, ("provenance", "options")),
    ],
)
def test_settings_that_change_values_change_the_identity(tiny, where, name, value, factor):
    before = tiny.spec()
    setattr(getattr(tiny.world, where), name, value)
    after = tiny.spec()
    assert before[factor[0]].get(factor[1]) != after[factor[0]].get(factor[1])
    before[factor[0]].pop(factor[1], None)
    after[factor[0]].pop(factor[1], None)
    assert before == after


def test_overrides_of_the_configuration_are_in_it(tiny):
    before = tiny.spec()
    tiny.world.model.hf_config.rope_theta = 500000.0
    after = tiny.spec()
    assert before["rope"] != after["rope"]


def test_a_checkpoint_that_is_quantized_is_run_as_it_is(tiny):
    before = tiny.spec()["model"]["weights"]
    tiny.world.model.quantization = "fp8"
    tiny.world.model.hf_config.quantization_config = {"quant_method": "fp8"}
    assert tiny.spec()["model"]["weights"] == before


def test_adapters_enter_by_their_content(tiny, tmp_path):
    """Their ids in page keys are of name and path; other weights under the same ones are another identity."""

    def adapter(seed: int) -> str:
        folder = tmp_path / "adapter"
        if folder.exists():
            for f in folder.iterdir():
                f.unlink()
            folder.rmdir()
        tinymodel.checkpoint(folder, seed)
        (folder / "adapter_config.json").write_text("{}")
        (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
        return str(folder)

    tiny.world.args.enable_lora = True
    tiny.world.args.lora_paths = [types.SimpleNamespace(lora_name="a", lora_path=adapter(1))]
    one = tiny.spec()["model"]["weights"]
    tiny.world.args.lora_paths[0].lora_path = adapter(2)
    assert tiny.spec()["model"]["weights"] != one
    tiny.world.args.lora_paths[0].lora_path = adapter(1)
    assert tiny.spec()["model"]["weights"] == one


def refused(tiny: Tiny, pool: engine.Pool | None = None) -> str:
    with pytest.raises(ConfigError) as e:
        tiny.spec(pool)
    assert "\n" not in str(e.value) and str(e.value).startswith("quire: ")
    return str(e.value)


def test_eight_bits_need_a_name(tiny):
    pool = engine.Pool(heads=HEADS, layers=LAYERS, width=16, dtype=engine.UINT8)
    assert "--kv-cache-dtype" in refused(tiny, pool)
    tiny.world.args.kv_cache_dtype = "fp8_e4m3"
    parts = tiny.spec(pool)["groups"][0]["components"]
    assert {(c["bits"], c["dtype"]) for c in parts} == {(8, "float8_e4m3fn")}
    tiny.world.args.quantization_param_path = "/scales.json"
    assert "--quantization-param-path" in refused(tiny, pool)


def test_a_model_that_is_not_on_this_machine_is_refused(tiny):
    tiny.world.model.model_path = "nobody/nothing"
    assert "--model-path" in refused(tiny)


def test_another_checkpoint_than_the_digested_is_refused(tiny, tmp_path):
    tiny.world.model.model_path = str(tinymodel.checkpoint(tmp_path / "other", seed=2))
    assert "quire model digest" in refused(tiny)


def test_longrope_is_refused(tiny):
    tiny.world.model.hf_config.rope_scaling = {
        "rope_type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
        "original_max_position_embeddings": 1024,
    }
    assert "longrope" in refused(tiny)


def test_adapters_need_an_engine_that_names_them(monkeypatch, quire_bin, tmp_path):
    tiny = Tiny(monkeypatch, quire_bin, tmp_path)
    older = types.ModuleType("utils")
    older.get_hash_str = engine.get_hash_str
    monkeypatch.setitem(importlib.sys.modules, "sglang.srt.mem_cache.utils", older)
    tiny.world.args.enable_lora = True
    assert "--enable-lora" in refused(tiny)


def test_side_pools_are_groups_of_the_real_store(monkeypatch, quire_bin, quire_server, tmp_path):
    """Full and windowed layers in pools of their own: two groups of one namespace, each with pages under the same keys."""
    layers = {"is_hybrid_swa": True, "swa_attention_layer_ids": [0, 2], "full_attention_layer_ids": [1, 3], "sliding_window_size": 8}
    tiny = Tiny(monkeypatch, quire_bin, tmp_path, **layers)
    module = tiny.world.module
    monkeypatch.setattr(module, "spec_of", tiny.facts.spec_of)
    settings = {**tiny.settings, "server": quire_server.address}

    def start(layout: str) -> tuple[Any, engine.Pool, engine.Pool]:
        kv, swa = engine.Pool(layout, heads=HEADS, layers=2, width=16), engine.Pool(layout, heads=HEADS, layers=2, width=16)
        kv.end_layer = swa.end_layer = 4
        backend = module.QuireHiCache(engine.StorageConfig(extra_config=settings), {})
        for name, pool in (("kv", kv), ("swa", swa)):
            if name == "kv":
                backend.register_mem_pool_host(pool)
            backend.register_mem_host_pool_v2(pool, engine.PoolName(name))
        backend.on_host_pools_registered()
        assert backend.cache is not None and backend.cache.wait_ready(30), backend.state
        return backend, kv, swa

    writer, kv, swa = start("page_first")
    keys, at, windows = chain(6), kv.alloc(24), swa.alloc(24)
    kv.fill(at, 1)
    swa.fill(windows, 2)
    assert writer.batch_set_v1(keys, at) == [True] * 6
    last = engine.PoolTransfer(engine.PoolName.SWA, host_indices=windows[16:24], keys=keys[4:], hit_policy=engine.PoolHitPolicy.TRAILING_PAGES)
    assert writer.batch_set_v2([last]) == {engine.PoolName.SWA: [True, True]}

    reader, kv2, swa2 = start("page_head")
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(reader.batch_exists_v2(keys, [last])))
    thread.start()
    thread.join(20)
    assert (found[0].kv_hit_pages, found[0].restorable_prefix_pages) == (6, [6])
    to, window = kv2.alloc(24), swa2.alloc(8)
    assert reader.batch_get_v1(keys, to) == [True] * 6
    assert reader.batch_get_v2([engine.PoolTransfer(engine.PoolName.SWA, host_indices=window, keys=keys[4:])]) == {engine.PoolName.SWA: [True, True]}
    assert same(kv2.read(to), kv.read(at)) and same(swa2.read(window), swa.read(windows)[4:])
    for backend in (writer, reader):
        backend.close()

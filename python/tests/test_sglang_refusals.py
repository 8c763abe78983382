"""What QuireHiCache does not mount on: each refusal is one line in the log, and the engine runs on (doubles/sglang_engine.py)."""

from __future__ import annotations

import importlib
import json
import logging
import re
import types
from typing import Any

import pytest
import serving
from doubles import sglang_engine as engine
from doubles.sglang_world import SETTINGS, World, chain, world_of  # noqa: F401
from waiting import PATIENT


def refused(w: World, pool: engine.Pool, caplog: Any, settings: dict[str, Any] | None = None, **config: Any) -> str:
    """The one line with which the cache stays off; the engine's calls go on as misses."""
    caplog.clear()
    with caplog.at_level(logging.WARNING, "quire_kv.sglang"):
        controller = w.controller(pool, backend=w.backend(settings, **config))
        assert controller.prefetch(chain(2))[0] == 0 and controller.backup(chain(2), pool.alloc(8)) == 0
    lines = [r.getMessage() for r in caplog.records]
    assert len(lines) == 1 and "\n" not in lines[0] and lines[0].startswith("quire: ")
    assert not w.store.caches and w.opened[-2].state == "off: " + lines[0].removeprefix("quire: ")
    return lines[0]


@pytest.mark.parametrize(("config", "says"), [({"dcp_size": 2}, "--dcp-size"), ({"attn_cp_size": 2}, "--attn-cp-size 1")], ids=["decode", "attention"])
def test_case_c70_ranks_that_hold_some_tokens_are_refused(world, caplog, config, says):
    assert says in refused(world(), engine.Pool(), caplog, **config)


def test_case_c70_pools_that_hold_some_tokens_are_refused(world, caplog):
    pool = engine.Pool()
    pool.dcp_size = 2
    assert "--dcp-size" in refused(world(), pool, caplog)


def test_case_c71_layers_of_a_draft_model_are_refused(world, caplog):
    pool = engine.Pool()
    pool.target_layer_num = 2
    assert "token after the page" in refused(world(), pool, caplog)


def test_case_c71_speculative_decoding_is_refused(world, caplog):
    w = world()
    w.args.speculative_algorithm = "EAGLE"
    assert "--speculative-algorithm" in refused(w, engine.Pool(), caplog)


@pytest.mark.parametrize(("without", "says"), [("model_digest", "quire model digest DIR"), ("weights", '"weights": "frozen"')])
def test_settings_that_must_be_there(world, caplog, without, says):
    line = refused(world(), engine.Pool(), caplog, {k: v for k, v in SETTINGS.items() if k != without})
    assert without in line and says in line


def test_a_misspelt_setting_is_named(world, caplog):
    assert "'sever'" in refused(world(), engine.Pool(), caplog, {**SETTINGS, "sever": "x:1"})


def test_settings_of_the_engine_are_its_own(world):
    w = world()
    w.controller(engine.Pool(), backend=w.backend({**SETTINGS, "prefetch_threshold": 64, "hicache_storage_pass_prefix_keys": True, "allocator": "shm"}))
    assert w.opened[0].state == "ready"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"layout": "page_unified"}, "--hicache-mem-layout"),
        ({"layout": "page_first_kv_split"}, "--hicache-mem-layout"),
        ({"kv_buffer": None}, "logical anchor"),
        ({"storage_format_tag": "mxfp8"}, "format of its own"),
        ({"size_per_token": 100}, "more than plain values"),
        ({"_layer_shard_enabled": True}, "layers over ranks"),
        ({"layer_num": 2, "target_layer_num": 2, "size_per_token": 128}, "shape"),
        ({"head_dim": 4, "v_head_dim": 4, "size_per_token": 96}, "not one head wide"),
        ({"end_layer": 2}, "layers"),
        ({"dtype": engine.UINT8}, "more than plain values"),
    ],
)
def test_pools_that_cannot_be_stored_are_refused(world, caplog, change, says):
    pool = engine.Pool()
    for name, value in change.items():
        setattr(pool, name, value)
    assert says in refused(world(), pool, caplog)


def test_packed_rows_of_mla_are_refused(world, caplog):
    pool = engine.Pool(latent=True)
    pool.dsa_kv_cache_store_fp8 = True
    assert "--kv-cache-dtype" in refused(world(heads=1), pool, caplog)


def test_an_uneven_split_of_heads_is_refused(world, caplog):
    assert "--tp-size" in refused(world(heads=3), engine.Pool(heads=1), caplog, tp_rank=0, tp_size=2)


@pytest.mark.parametrize(
    ("where", "name", "value", "says"),
    [
        ("args", "load_format", "dummy", "--load-format"),
        ("args", "enable_hisparse", True, "--enable-hisparse"),
        ("model", "is_multimodal", True, "images"),
    ],
)
def test_engines_whose_pages_are_not_what_they_seem_are_refused(world, caplog, where, name, value, says):
    w = world()
    setattr(getattr(w, where), name, value)
    assert says in refused(w, engine.Pool(), caplog)


def test_case_c81_a_wrong_permutation_is_found_at_start(world, caplog):
    """Heads and layers changed places, with equal sizes: nothing but the proof can see it, and it cannot undo itself."""
    w = world(heads=3)
    sound = engine.Pool(heads=3)
    w.controller(sound)
    assert w.opened[0].state == "ready"
    wrong = World(w.monkeypatch, heads=3)
    assert "head 1, layer 0, k of token 0 lies there" in refused(wrong, engine.Pool(heads=3, swapped=True), caplog)


def test_the_proof_gives_its_page_back(world, caplog):
    w = world()
    pool = engine.Pool(pages=2)
    w.controller(pool)
    assert w.opened[0].state == "ready" and pool.alloc(8) is not None
    assert "no free page" in refused(World(w.monkeypatch), _Full(pages=2), caplog)


class _Full(engine.Pool):
    """Full until the start is over."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.asked = 0

    def alloc(self, tokens: int) -> Any:
        self.asked += 1
        return super().alloc(tokens) if self.asked > 1 else None


def test_case_c62_weights_that_change_end_the_cache(world):
    w = world()
    updater = type("WeightUpdater", (), {"update_weights_from_disk": lambda self, path: ("updated", path), "begin_weight_update": lambda self: "begun"})
    w.monkeypatch.setitem(importlib.sys.modules, "sglang.srt.model_executor.model_runner", types.ModuleType("model_runner"))
    holder = types.ModuleType("weight_updater")
    holder.WeightUpdater = updater
    w.monkeypatch.setitem(importlib.sys.modules, "sglang.srt.model_executor.model_runner_components.weight_updater", holder)
    early = updater().update_weights_from_disk  # bound before the cache was there: the class is what is wrapped
    pool = engine.Pool()
    controller = w.controller(pool)
    keys, slots = chain(3), pool.alloc(12)
    assert controller.backup(keys, slots) == 3
    assert early("/old") == ("updated", "/old")
    assert controller.prefetch(keys)[0] == 3, "a method taken before the start runs as it was"
    assert updater().update_weights_from_disk("/new") == ("updated", "/new")
    assert controller.prefetch(keys)[0] == 0 and controller.backup(keys, slots) == 0
    backend = w.opened[0]
    assert backend.batch_get_v1(keys, slots) == [False] * 3 and "weights" in backend.state
    again = w.controller(engine.Pool())
    assert again.prefetch(keys)[0] == 0, "attaching again does not bring the old identity back"


def test_case_c62_an_engine_whose_updates_cannot_be_seen_is_refused(world, caplog):
    w = world()
    w.monkeypatch.setitem(importlib.sys.modules, "sglang.srt.model_executor.model_runner", types.ModuleType("model_runner"))
    assert "weights are updated" in refused(w, engine.Pool(), caplog)


def test_the_example_is_taken(world):
    example = json.loads((serving.ROOT / "python" / "examples" / "sglang.json").read_text())
    assert set(example) == {*SETTINGS, "hicache_storage_pass_prefix_keys", "server"} - {*PATIENT}
    w = world()
    w.controller(engine.Pool(), backend=w.backend(example))
    assert w.opened[0].state == "ready"


def test_settings_of_the_page_are_taken(world):
    page = (serving.ROOT / "docs" / "engines" / "sglang.md").read_text()
    shown = json.loads(page.split("```json\n")[1].split("```")[0])
    table = page.split("| setting |")[1].split("\n\n")[0]
    assert {name for name in re.findall(r"`([a-z0-9_]+)`", "".join(row.split("|")[1] for row in table.splitlines()[2:]))} == {
        *shown, *SETTINGS, "hicache_storage_pass_prefix_keys", "category", "tls_ca", "tls_cert", "tls_key",
    }  # fmt: skip
    w = world()
    w.controller(engine.Pool(), backend=w.backend({**SETTINGS, **shown}))
    assert w.opened[0].state == "ready"

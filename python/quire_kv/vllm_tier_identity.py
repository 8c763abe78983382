"""The identity of the chunks that vLLM's offloading keeps: vLLM's own configuration, the operator's digest, and vLLM's hash function.

A tier is handed the offloading configuration alone, which says nothing of LoRA, of the hash algorithm or of overrides. So the
engine's configuration is taken from vLLM's own call: OffloadingConnectorScheduler(spec, vllm_config, ...) makes the tiers. Where
it is not found, the cache stays off: what cannot be checked is not served.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from .config import Config
from .errors import ConfigError
from .identity import Component, Group, Provenance, build_spec
from .vllm import facts, hashes

__all__ = ["Identity", "describe", "engine_config", "packing"]

MAX_FRAMES = 64


class Identity(NamedTuple):
    """What a tier stands for. Both functions may be slow: they are not for the scheduler's thread, but for `differs`."""

    spec: Callable[[], str]  # ConfigError in one line
    differs: Callable[[], str]  # at the first request: why the engine hashes otherwise than its settings say, or nothing


def engine_config() -> Any:
    """The VllmConfig of the call that this one is made in, or None."""
    kind = getattr(sys.modules.get("vllm.config"), "VllmConfig", None)
    if kind is None:
        return None
    frame: Any = sys._getframe(1)
    for _ in range(MAX_FRAMES):
        if frame is None:
            return None
        found = frame.f_locals.get("vllm_config")
        if isinstance(found, kind):
            return found
        frame = frame.f_back
    return None


def describe(config: Config, offloading_spec: Any, chunk_bytes: int) -> Identity:
    """Judges the configuration at once, by ConfigError, and leaves what needs files to the identity."""
    config.require_model()
    engine, offload = engine_config(), getattr(offloading_spec, "config", None)
    if engine is None or offload is None:
        raise ConfigError(
            "quire: this release of vLLM does not show the engine's configuration to a tier, so that nothing can be checked; use one that docs/engines/vllm-tier.md lists"
        )
    weak_names = bool(config.extra.get("weak_names", False))
    _check(config, engine, offload, weak_names)
    tokens = offload.groups[0].tokens_per_block * offload.cache.blocks_per_chunk
    if chunk_bytes % tokens:
        raise ConfigError(f"quire: chunks have {chunk_bytes} bytes for {tokens} tokens, which does not divide; make block_size a power of two")
    algorithm, unit = str(engine.cache_config.prefix_caching_hash_algo), int(offload.cache.tokens_per_hash)
    model = engine.model_config
    provenance = facts.provenance_of(engine, facts.attention_backend(engine, model.get_head_size(), model.dtype), facts.device_kind())

    def spec() -> str:
        running = facts.running_model(engine, config, media=bool(model.is_multimodal_model), weak_names=weak_names)
        group = Group("full", (0,), tokens, 1, (Component("bytes", chunk_bytes // tokens, "uint8"),), "whole", packing(offload, chunk_bytes, provenance))
        recorded = {"writer_tp": offload.parallel.tp_size, "writer_pp": offload.parallel.pp_size}
        return build_spec(running, [group], hashes.hash_rule(algorithm, unit, weak_names=weak_names), provenance, recorded=recorded)

    return Identity(spec, lambda: hashes.differs(algorithm))


def packing(offload: Any, chunk_bytes: int, provenance: Provenance) -> str:
    """The id of the order inside a chunk: all that vLLM's layout of it depends on, by digest."""
    parallel = offload.parallel
    depends = {
        "version": provenance.engine_version,
        "backend": provenance.attention_backend,
        "arch": provenance.device_arch,
        "dtype": offload.model.dtype,
        "tp": parallel.tp_size,
        "pp": parallel.pp_size,
        "world": parallel.world_size,
        "replicated": bool(offload.replicated_layout),
        "canonical": bool(offload.canonical_layout),
        "layout": offload.kv_cache_layout,
        "layers": [list(g.layer_names) for g in offload.groups],
        "blocks": offload.cache.blocks_per_chunk,
        "tokens": [g.tokens_per_block for g in offload.groups],
        "bytes": chunk_bytes,
    }
    digest = hashlib.sha256(json.dumps(depends, sort_keys=True).encode()).hexdigest()[:24]
    return f"vllm_offload-{re.sub(r'[^A-Za-z0-9_.-]', '_', provenance.engine_version)[:24]}-{digest}"


def _check(config: Config, engine: Any, offload: Any, weak_names: bool) -> None:
    model, parallel = engine.model_config, offload.parallel
    if config.extra.get("lora") != "none":
        raise ConfigError(
            'quire: lora is not set to "none"; write "lora": "none" if the engine serves no adapters, which a tier cannot tell apart by their content; else use QuireConnector'
        )
    if engine.lora_config is not None:
        raise ConfigError(
            "quire: LoRA is enabled, and block hashes carry an adapter's name and path but not its content; run vLLM without --enable-lora, or use QuireConnector"
        )
    if len(offload.groups) != 1:
        raise ConfigError(
            f"quire: the engine has {len(offload.groups)} KV groups, and a tier is told of them by their indices alone; run this model without the tier"
        )
    if parallel.dcp_size != 1 or parallel.pcp_size != 1:
        raise ConfigError(
            "quire: ranks hold interleaved tokens under context parallelism; set --decode-context-parallel-size and --prefill-context-parallel-size to 1, or run without the tier"
        )
    facts.refuse_engine(engine, "tier")
    if model.is_multimodal_model and (not weak_names or getattr(model, "is_mm_prefix_lm", False)):
        raise ConfigError(
            'quire: the model takes images or sound, whose ids callers may choose, and a tier cannot see who did; set "weak_names": true and share with nobody, or use QuireConnector'
        )

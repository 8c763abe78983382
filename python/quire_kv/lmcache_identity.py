"""The identity of a model that an LMCache server caches: its row, its manifest, and the hash function of the server's own code.

Runs on the keeper's thread of the model's cache: it reads files, and imports LMCache's token hasher.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from . import manifest
from .config import Config
from .errors import ConfigError
from .hfconfig import takes_media, text_config
from .identity import Component, Group, HashRule, Provenance, build_spec, model_facts, plain_groups
from .lmcache_models import Row, Shape
from .lmcache_proof import prove

__all__ = ["describe", "hash_rule"]


def describe(row: Row, config: Config, rule: Callable[[Row], HashRule] | None = None) -> tuple[str, Shape]:
    """The spec of a row, and the shape of its objects. ConfigError with one line for what the cache cannot stand for."""
    m = manifest.load(config.require_model(), config.model_manifest)
    if row.checkpoint is not None:
        m.check(row.checkpoint)
    if row.multimodal is None and takes_media(text_config(m.config)):
        raise ConfigError(
            f"quire: models[{row.name!r}].multimodal is missing, and the model takes images or sound: write content_digest if the engine names them by their content, or none if it never gets any"
        )
    model = model_facts(m, dtype=row.dtype, multimodal=row.multimodal or "none", weak_names=row.weak_names)
    if row.opaque:
        groups, shape = _opaque(row)
    else:
        groups, shape = _elements(row, plain_groups(model, page_tokens=row.chunk_size, dtype=row.dtype))
        prove(shape)
    provenance = Provenance(
        engine=row.engine,
        engine_version=row.version,
        runner=row.runner,
        attention_backend=row.backend,
        kernel_build=row.kernel_build or f"{row.engine}-{row.version}",
        device_arch=row.device_arch or _device_arch(),
    )
    recorded = {"writer_tp": row.tp, "writer_pp": row.pp} if row.tp else {}
    return build_spec(model, groups, (rule or hash_rule)(row), provenance, recorded=recorded), shape


def _opaque(row: Row) -> tuple[list[Group], Shape]:
    version = importlib.metadata.version("lmcache") if "lmcache" in sys.modules else row.version
    packing = "lmcache-" + "".join(c if c.isalnum() or c in "._-" else "_" for c in f"{version}-{row.dtype}")[:48]
    width = row.chunk_bytes // row.chunk_size
    group = Group("full", (0,), row.chunk_size, 1, (Component("bytes", width, "uint8"),), "whole", packing)
    return [group], Shape(row, 1, 1, (width,))


def _elements(row: Row, groups: Sequence[Group]) -> tuple[list[Group], Shape]:
    at = f"quire: models[{row.name!r}]"
    if len(groups) != 1:
        raise ConfigError(
            f"{at}.format is {row.format}, and the model has layers of {len(groups)} kinds, which LMCache keeps in objects of their own: run this model without Quire"
        )
    group = groups[0]
    if row.format == "KV_LTD" and group.kind != "mla":
        group = replace(group, components=(Component("kv", sum(c.width for c in group.components), row.dtype),))
    if (group.kind == "mla") != (row.format == "KV_MLA_FMT"):
        raise ConfigError(
            f"{at}.format is {row.format}, and the model's layers are of kind {group.kind}: write {'KV_MLA_FMT' if group.kind == 'mla' else 'KV_2LTD or KV_LTD'}"
        )
    shape = Shape(row, group.kv_heads, len(group.layers), tuple(c.width for c in group.components))
    if group.kind != "mla" and shape.heads % row.tp and row.tp % shape.heads:
        raise ConfigError(f"{at}.tp is {row.tp}, which neither divides the model's {shape.heads} kv heads nor is divided by them")
    if sum(shape.stages) != shape.layers or row.pp > shape.layers:
        raise ConfigError(
            f"{at}: pp {row.pp} and layer_split {list(row.layer_split)} give {sum(shape.stages)} layers, and the model has {shape.layers}: write the layers of each stage"
        )
    return [group], shape


def hash_rule(row: Row) -> HashRule:
    """The contract of the server's own hasher for this algorithm. ConfigError for one that falls back to Python's hash()."""
    from lmcache.v1.multiprocess.token_hasher import TokenHasher

    hasher = TokenHasher(row.chunk_size, row.hash_algorithm)
    at = f"quire: models[{row.name!r}].hash_algorithm is {row.hash_algorithm}"
    if hasher.hash_func is hash:
        raise ConfigError(
            f"{at}, which LMCache does not find in this process and replaces by Python's hash() of 8 bytes: run the server with --hash-algorithm blake3"
        )
    root = hasher.none_hash

    def link(parent: bytes | None, tokens: Sequence[int]) -> bytes:
        h: Any = hasher.hash_func((root if parent is None else parent, tuple(tokens), None))
        if not isinstance(h, bytes):
            raise ConfigError(f"{at}, which gives {type(h).__name__} and not bytes: run the server with --hash-algorithm blake3")
        return h

    rule = HashRule.probed(row.hash_algorithm, link, unit=row.chunk_size, seed=root if isinstance(root, bytes) else str(root).encode())
    if row.hash_bytes < rule.bytes:
        return HashRule(rule.algorithm, rule.seed, rule.extra_keys, rule.unit, row.hash_bytes, rule.probe)
    if row.hash_bytes > rule.bytes:
        raise ConfigError(f"{at}, whose hashes have {rule.bytes} bytes, and hash_bytes is {row.hash_bytes}: make them equal, or leave it out")
    return rule


def _device_arch() -> str:
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.cuda.is_available():
            major, minor = torch.cuda.get_device_capability(0)
            return f"sm_{major}{minor}"
    except Exception as e:
        raise ConfigError(
            f"quire: device_arch is missing and CUDA does not tell it: {type(e).__name__}: {e}; write it into the model's row, for example sm_90a"
        ) from e
    return "cpu"

"""Builds the spec: which model this engine runs, what its pages' bytes mean, how it hashes, and who computes.

An adapter brings the engine's own objects, this module turns them into the text that `Client.open` takes (see
docs/formats/spec.md). Nothing here imports torch or transformers: configurations come as mappings, dtypes as names.

    m = manifest.load(config.require_model(), config.model_manifest)
    m.check(folder)
    model = model_facts(m, hf_config, dtype="torch.bfloat16", max_tokens=max_model_len)
    group = Group.attention(range(32), page_tokens=16, kv_heads=8, head_dim=128, dtype="bfloat16")
    rule = HashRule.probed("sha256_cbor", link, unit=16, seed=none_hash, extra_keys=2)
    text = build_spec(model, [group], rule, Provenance(engine="vllm", engine_version="0.32.0", ...))

Whatever cannot be part of an identity is refused by ConfigError: one line that says why and what to change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from . import hfconfig
from .canonical import digest_of, sha256_text
from .config import is_digest
from .errors import ConfigError
from .manifest import Manifest, content_digest
from .rope import Rope, rope_facts

__all__ = [
    "Component", "Group", "HashRule", "ModelFacts", "PROBE_LINKS", "Provenance", "build_spec", "layers_text",
    "lora_digest", "model_facts", "plain_groups", "probe", "probe_tokens", "resolved_dtype", "rope_facts",
]  # fmt: skip

PROBE_LINKS = 3  # a root, a link on a root and a link on a link
_MAX_PROVENANCE = 1024  # canonical bytes that fit in a page's header
_MAX_TEXT = 256
_AUTO = frozenset({"auto", "default", "automatic", "unresolved"})
_WORD = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")

_BITS = {
    "bfloat16": 16, "float16": 16, "float32": 32, "float64": 64, "int8": 8, "uint8": 8, "int4": 4, "uint4": 4,
    "int16": 16, "uint16": 16, "int32": 32, "uint32": 32, "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8,
    "float8_e5m2fnuz": 8, "float8_e8m0fnu": 8, "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6,
}  # fmt: skip
_ALIASES = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32", "double": "float64",
            "fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "fp8_e4m3fn": "float8_e4m3fn"}  # fmt: skip


def resolved_dtype(dtype: Any, setting: str = "dtype") -> str:
    """The spec's name of a dtype: of a name, or of a torch or numpy dtype by its text. ConfigError for "auto"."""
    name = str(dtype).removeprefix("torch.").lower()
    name = _ALIASES.get(name, name)
    if name not in _BITS:
        raise ConfigError(f"quire: {setting} is {str(dtype)!r}, which says not what is stored; set it to one that does, such as bfloat16 or fp8_e4m3")
    return name


@dataclass(frozen=True)
class Component:
    """One part of a cell, in the order of its bytes. width: elements of one token; scale: none, static:sha256:..., inline, side."""

    name: str
    width: int
    dtype: str
    scale: str = "none"

    @property
    def bits(self) -> int:
        return _BITS[resolved_dtype(self.dtype)]

    def factors(self) -> dict[str, Any]:
        return {"name": self.name, "width": self.width, "bits": self.bits, "dtype": resolved_dtype(self.dtype), "scale": self.scale}


@dataclass(frozen=True)
class Group:
    """Layers whose KV has one shape and rule. layers: indices in the whole model, of those that own KV. kv_heads: of
    the whole model, not of a rank. packing: the id of the order inside what cannot be cut; empty for grade elements.
    """

    kind: str  # full, window, mla, recurrent, draft, indexer
    layers: Sequence[int]
    page_tokens: int
    kv_heads: int
    components: tuple[Component, ...]
    grade: str = "elements"
    packing: str = ""
    window: int = 0
    depends_on: str = ""

    @classmethod
    def attention(cls, layers: Sequence[int], *, page_tokens: int, kv_heads: int, head_dim: int, dtype: str, v_dim: int = 0, kind: str = "full",
                  window: int = 0, grade: str = "elements", packing: str = "", scale: str = "none", depends_on: str = "") -> Group:  # fmt: skip
        """Keys and values of one width (or v_dim), full or with a window."""
        parts = (Component("k", head_dim, dtype, scale), Component("v", v_dim or head_dim, dtype, scale))
        return cls(kind, tuple(layers), page_tokens, kv_heads, parts, grade, packing, window, depends_on)

    @classmethod
    def mla(cls, layers: Sequence[int], *, page_tokens: int, latent: int, rope_dim: int, dtype: str, grade: str = "elements",
            packing: str = "", scale: str = "none") -> Group:  # fmt: skip
        """The latent and the rotated part of multi-head latent attention: one head."""
        parts = (Component("latent", latent, dtype, scale), Component("rope", rope_dim, dtype, scale))
        return cls("mla", tuple(layers), page_tokens, 1, parts, grade, packing)

    @property
    def cell_bytes(self) -> int:
        """Bytes of one (kv head, layer): all tokens of a page, or one state of a recurrent group."""
        bits = sum(c.width * c.bits for c in self.components)
        return (bits if self.kind == "recurrent" else bits * self.page_tokens) // 8

    def factors(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": self.kind, "layers": layers_text(self.layers), "page_tokens": self.page_tokens, "kv_heads": self.kv_heads,
                               "grade": self.grade, "components": [c.factors() for c in self.components]}  # fmt: skip
        for name in ("window", "packing", "depends_on"):
            if getattr(self, name):
                out[name] = getattr(self, name)
        return out


def layers_text(layers: Iterable[int]) -> str:
    """`0-4,6`, of ascending indices. ConfigError if they are not."""
    indices = [int(i) for i in layers]
    if not indices or indices[0] < 0 or indices != sorted(set(indices)):
        raise ConfigError(f"quire: the layers {indices[:8]} of a group are not ascending indices; run this model without the cache")
    runs: list[list[int]] = []
    for i in indices:
        if runs and i == runs[-1][1] + 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


Link = Callable[["bytes | None", Sequence[int]], bytes]
"""The engine's own hash of one unit of tokens: link(hash of the unit before, or None; tokens) -> hash. For the first
unit the function puts in the engine's root itself."""


Seed = bytes  # HashRule has a field of that name


def probe_tokens(unit: int) -> list[int]:
    """The tokens of the probe chain: three links of unit tokens."""
    return [(i * 7919 + 13) % 32000 for i in range(PROBE_LINKS * unit)]


def probe(link: Link, unit: int) -> tuple[str, int]:
    """hash.probe and hash.bytes of an engine's hash function. ConfigError if it fails or gives hashes of several lengths."""
    tokens = probe_tokens(unit)
    hashes: list[bytes] = []
    for i in range(PROBE_LINKS):
        try:
            h = bytes(link(hashes[-1] if hashes else None, tokens[i * unit : (i + 1) * unit]))
        except Exception as e:
            raise ConfigError(
                f"quire: the engine's hash function could not be called: {type(e).__name__}: {e}; check the engine's version against the supported ones"
            ) from e
        hashes.append(h)
    if len({len(h) for h in hashes}) != 1 or not hashes[0]:
        raise ConfigError("quire: the engine's hash function gives hashes of several lengths; check the engine's version against the supported ones")
    return sha256_text(b"".join(hashes)), len(hashes[0])


@dataclass(frozen=True)
class HashRule:
    """The hash contract. seed and probe: sha256 text; extra_keys: version of the rule for adapters, salt and media."""

    algorithm: str
    seed: str
    extra_keys: int
    unit: int
    bytes: int
    probe: str
    eagle: bool = False

    @classmethod
    def probed(cls, algorithm: str, link: Link, *, unit: int, seed: Seed = b"", extra_keys: int = 0, eagle: bool = False) -> HashRule:
        """The contract as the engine's own function shows it. seed: the root seed's bytes, empty where there is none."""
        digest, length = probe(link, unit)
        return cls(algorithm, sha256_text(seed), extra_keys, unit, length, digest, eagle)

    def factors(self) -> dict[str, Any]:
        out: dict[str, Any] = {"algorithm": self.algorithm, "seed": self.seed, "unit": self.unit, "bytes": self.bytes, "probe": self.probe}
        if self.extra_keys:
            out["extra_keys"] = self.extra_keys
        if self.eagle:
            out["eagle"] = True
        return out


@dataclass(frozen=True)
class Provenance:
    """Who computes the pages. Another value is another namespace unless an operator waives it. options: settings of the
    engine that may change values and that nobody has classed; names are made of a-z, A-Z, 0-9, _, - and .
    """

    engine: str
    engine_version: str
    runner: str
    attention_backend: str
    kernel_build: str
    device_arch: str
    batch_invariant: bool = False
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ModelFacts:
    """The part of a spec that is the model's. Digests are sha256 text. options are unclassed settings of its configuration."""

    id: str
    weights: str
    config: str
    rope: Rope
    attention: hfconfig.Attention
    shape: hfconfig.Shape
    params: int = 0
    multimodal: str = "none"  # none, content_digest, caller_id
    weak_names: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    text: Mapping[str, Any] = field(default_factory=dict)  # the language model's configuration

    def with_(self, **changes: Any) -> ModelFacts:
        """A changed copy."""
        return replace(self, **changes)


def model_facts(manifest: Manifest, hf_config: Any = None, *, dtype: Any, applied: Mapping[str, Any] | None = None, max_tokens: int = 0,
                rope_pinned: str | None = None, multimodal: str | None = None, weak_names: bool = False) -> ModelFacts:  # fmt: skip
    """Facts of the model that runs.

    hf_config: the running engine's configuration (a mapping, or an object with to_dict()), so that its overrides are in
    it; None takes that of the manifest. dtype: of the computation, resolved. applied: what the engine did to the weights
    of the folder (online quantisation, merged adapters by digest, load-time overrides): plain values, empty when it runs
    them as they are. max_tokens, rope_pinned: see rope_facts. multimodal: how images and sound enter the page hash:
    content_digest, caller_id, or none where none can come in; it has to be said for a model that takes them.

    ConfigError for models whose pages are no function of the prefix, and for image ids that callers choose.
    """
    text = hfconfig.text_config(manifest.config if hf_config is None else hf_config)
    if multimodal is None and hfconfig.takes_media(text):
        raise ConfigError(
            "quire: this model takes images or sound, and it is not known how they enter the engine's page hashes, so one page could stand for two images; run it without the cache"
        )
    multimodal = multimodal or "none"
    if multimodal == "caller_id" and not weak_names:
        raise ConfigError(
            "quire: callers choose the ids of images, so two images can have one name; make the engine hash their content, or set weak_names to true and share with nobody"
        )
    weights = manifest.weights
    if applied and (changes := {k: v for k, v in applied.items() if v not in (None, False, "", {})}):
        try:
            weights = digest_of({"weights": weights, "applied": changes}, "quire-weights-applied-v1")
        except ValueError as e:
            raise ConfigError(f"quire: what the engine does to the weights cannot be digested: {e}; run it without the cache") from None
    compute = resolved_dtype(dtype)
    attention = hfconfig.attention_facts(text)
    return ModelFacts(
        id=manifest.model, weights=weights, config=hfconfig.config_digest(text, compute), attention=attention, shape=hfconfig.shape_of(text),
        rope=rope_facts(text, max_tokens=max_tokens, pinned=rope_pinned), params=manifest.params, multimodal=multimodal,
        weak_names=weak_names, options=hfconfig.unclassed(text), text=text,
    )  # fmt: skip


def plain_groups(model: ModelFacts, *, page_tokens: int, dtype: Any, grade: str = "elements", packing: str = "") -> list[Group]:
    """The groups that a model's configuration alone implies, for callers that do not see the engine's own.

    Layers with a window are a group of their own. ConfigError where the configuration does not tell (recurrent layers).
    """
    kv, size = resolved_dtype(dtype, "kv_dtype"), model.shape
    if size.latent:
        return [Group.mla(range(size.layers), page_tokens=page_tokens, latent=size.latent, rope_dim=size.rope_dim, dtype=kv, grade=grade, packing=packing)]
    kinds: dict[tuple[str, int], list[int]] = {}
    for i, layer in enumerate(hfconfig.layer_kinds(model.text)):
        if layer.kind == "recurrent":
            raise ConfigError("quire: the model has recurrent layers, whose state its configuration does not describe; run this model without the cache")
        kinds.setdefault(("window", layer.tokens) if layer.kind == "window" else ("full", 0), []).append(i)
    return [
        Group.attention(
            layers, page_tokens=page_tokens, kv_heads=size.kv_heads, head_dim=size.head_dim, dtype=kv, kind=kind, window=window, grade=grade, packing=packing
        )
        for (kind, window), layers in kinds.items()
    ]


def lora_digest(folder: str) -> bytes:
    """The 32-byte digest of an adapter by its content, whatever its name and path. Reads it whole: never on a hot path.

    ConfigError if the folder has no weights or cannot be read.
    """
    return content_digest(folder, "quire-adapter-v1", "adapter")


def build_spec(model: ModelFacts, groups: Sequence[Group], rule: HashRule, provenance: Provenance, *, depends_on: str = "prefix",
               backends: Mapping[str, str] | None = None, recorded: Mapping[str, Any] | None = None, strict: bool = False) -> str:  # fmt: skip
    """The spec as JSON, the same text for the same facts. ConfigError names what is unresolved.

    backends: attention backends that change the mathematics (sparse, dual chunk), by where. recorded: tokenizer_revision,
    host, writer_tp, writer_pp, reduction.
    """
    if not groups:
        raise ConfigError("quire: the engine has no layers that own KV; run this model without the cache")
    a = model.attention
    attention: dict[str, Any] = {"mask": a.mask, "multimodal": model.multimodal}
    for name, value in (("chunk", a.chunk), ("sinks", a.sinks), ("backends", dict(backends or {}))):
        if value:
            attention[name] = value
    spec: dict[str, Any] = {
        "model": {"id": _resolved("model id", model.id), "weights": _digest("weights", model.weights), "config": _digest("config", model.config)},
        "rope": model.rope.factors(),
        "attention": attention,
        "hash": rule.factors(),
        "depends_on": depends_on,
        "groups": [g.factors() for g in groups],
        "provenance": _provenance(provenance, model.options, recorded or {}),
        "shape": {"params": model.params, "layers": model.shape.layers, "heads": model.shape.heads, "width": model.shape.width},
    }
    if recorded:
        spec["recorded"] = {k: v for k, v in recorded.items() if v not in (None, "")}
    if strict:
        spec["strict"] = True
    if model.weak_names:
        spec["weak_names"] = True
    return json.dumps(spec, sort_keys=True, separators=(",", ":"))


def _provenance(p: Provenance, unclassed: Mapping[str, str], recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Its factors. Options that do not fit in a page's header become one digest."""
    out: dict[str, Any] = {n: _resolved(n, getattr(p, n)) for n in ("engine", "engine_version", "runner", "attention_backend", "kernel_build", "device_arch")}
    out["batch_invariant"] = bool(p.batch_invariant)
    options = {**unclassed, **{k: str(v) for k, v in p.options.items() if v not in (None, "")}}
    for name, value in options.items():
        if not _WORD.match(name) or not value.isprintable() or len(value.encode()) > _MAX_TEXT:
            raise ConfigError(f"quire: the option {name!r} is no name and one line of at most {_MAX_TEXT} bytes; give its digest")
    size = sum(len(f"{k}={v}\n".encode()) for k, v in out.items()) + sum(len(f"recorded.{k}={v}\n".encode()) for k, v in recorded.items() if k != "host")
    if size + sum(len(f"options.{k}={v}\n".encode()) for k, v in options.items()) > _MAX_PROVENANCE or len(options) > 64:
        options = {"all": digest_of(options, "quire-options-v1")}
    if options:
        out["options"] = options
    return out


def _resolved(what: str, value: Any) -> str:
    text = str(value or "").strip()
    if not text or text.lower() in _AUTO:
        raise ConfigError(f"quire: {what} is {text or 'not known'}, which says not what runs; run the engine with it set")
    return "".join(c if c.isprintable() else "_" for c in text).encode()[:_MAX_TEXT].decode(errors="ignore")


def _digest(what: str, text: str) -> str:
    if not is_digest(text):
        raise ConfigError(f"quire: the {what} digest of the model is {text!r}; run `quire model digest DIR` again")
    return text

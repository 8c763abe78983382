"""Position encoding as identity: the rule that makes the table, and the regime where the rule depends on length.

The digest is of the rule with every parameter, not of the computed table: it is the same on every machine, and which
code turns the rule into numbers is provenance. Rules whose numbers depend on the batch or on the current length have no
place in a namespace; they are refused unless the engine is pinned to one regime.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .canonical import digest_of
from .errors import ConfigError

__all__ = ["Rope", "ROPE_KEYS", "rope_facts"]

# Keys of a configuration that say how positions are encoded. They enter the identity here and nowhere else, so that
# another maximum length is another namespace only where a rule depends on it.
ROPE_KEYS = frozenset(
    """rope_theta rope_scaling rope_parameters rope_local_base_freq partial_rotary_factor rotary_pct rotary_dim rotary_emb_base
    max_position_embeddings original_max_position_embeddings n_positions""".split()
)

_FIXED = frozenset({"default", "linear", "llama3", "yarn", "deepseek_yarn", "mrope", "proportional", "ntk", "deepseek_llama_scaling"})
_NEEDS_ORIGINAL = frozenset({"llama3", "yarn", "deepseek_yarn", "longrope"})
_SYNONYMS = {"su": "longrope", "mrope": "default"}  # mrope is the default table with positions of several axes
_NO_ROPE_MODELS = frozenset({"gpt2", "gpt_bigcode", "gpt_neo", "opt", "bloom", "mpt", "xglm", "mamba", "mamba2", "falcon_mamba"})


@dataclass(frozen=True)
class Rope:
    """`rope` of a spec. table: sha256 text, empty for regime none; max_tokens: 0 unless the regime depends on it."""

    table: str
    regime: str  # none, fixed, longrope_short, longrope_long, dynamic_fixed
    max_tokens: int = 0
    rule: Mapping[str, Any] | None = None  # what the table is the digest of, for people

    def factors(self) -> dict[str, Any]:
        """The `rope` part of a spec."""
        out: dict[str, Any] = {"regime": self.regime}
        if self.table:
            out["table"] = self.table
        if self.max_tokens:
            out["max_tokens"] = self.max_tokens
        return out


def rope_facts(config: Mapping[str, Any], *, max_tokens: int = 0, pinned: str | None = None) -> Rope:
    """The position encoding of a text configuration (see hfconfig.text_config), as the engine runs it.

    max_tokens: the longest sequence that this engine accepts; 0 if unknown. pinned: what the adapter knows to be fixed
    in its engine: longrope_short, longrope_long or dynamic_fixed. Without it longrope is taken only where no sequence
    can leave the short regime, and dynamic is refused. ConfigError is one line with the cure.
    """
    if _has_none(config):
        return Rope("", "none")
    rule = _rule(config)
    kinds = {part["type"] for part in ([rule] if "type" in rule else rule.values())}
    unfixed = sorted(kinds - _FIXED)
    if not unfixed:
        return Rope(digest_of(rule, "quire-rope-v1"), "fixed", 0, rule)
    if len(unfixed) > 1 or unfixed[0] not in ("longrope", "dynamic"):
        raise ConfigError(
            f"quire: rope type {', '.join(unfixed)!r} is not known, so it cannot be said what its positions depend on; run this model without the cache"
        )
    regime = _regime(unfixed[0], rule, max_tokens, pinned)
    return Rope(digest_of(rule, "quire-rope-v1"), regime, max_tokens, rule)


def _regime(kind: str, rule: Mapping[str, Any], max_tokens: int, pinned: str | None) -> str:
    wanted = ("longrope_short", "longrope_long") if kind == "longrope" else ("dynamic_fixed",)
    if max_tokens <= 0:
        raise ConfigError(f"quire: rope type {kind} depends on the maximum length, which is not known; set the engine's maximum length")
    if pinned is not None:
        if pinned not in wanted:
            raise ConfigError(f"quire: rope type {kind} cannot be pinned to {pinned!r}; it has {' and '.join(wanted)}")
        return pinned
    parts = [rule] if "type" in rule else list(rule.values())
    shortest = min((int(p.get("original_max_position_embeddings") or 0) for p in parts if p["type"] == kind), default=0)
    if kind == "longrope" and 0 < max_tokens <= shortest:
        return "longrope_short"
    if kind == "longrope":
        raise ConfigError(
            f"quire: longrope is chosen by the length of a batch in this engine, so one prefix has two values; set the engine's maximum length to at most {shortest}"
        )
    raise ConfigError("quire: dynamic rope depends on the current length in this engine, so one prefix has many values; run this model without the cache")


def _has_none(config: Mapping[str, Any]) -> bool:
    if any(config.get(k) for k in ("rope_theta", "rope_scaling", "rope_parameters", "rotary_pct", "rotary_dim", "rotary_emb_base")):
        return False
    if config.get("alibi") or config.get("position_embedding_type") in ("absolute", "learned_absolute", "alibi", "nope", "none"):
        return True
    return config.get("model_type") in _NO_ROPE_MODELS


def _rule(config: Mapping[str, Any]) -> dict[str, Any]:
    """The rule with all its parameters: one, or one for each type of layer."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"quire: rope_scaling of the model is a {type(given).__name__}, which is not understood; run this model without the cache")
    by_layers = {str(k): v for k, v in given.items() if isinstance(v, Mapping)}
    if by_layers:
        common = {k: v for k, v in given.items() if not isinstance(v, Mapping)}
        return {layers: _one(config, {**common, **part}, config.get("rope_theta")) for layers, part in by_layers.items()}
    local = config.get("rope_local_base_freq")
    if local:  # the older form of two tables: scaling is for the global one
        return {"full_attention": _one(config, given, config.get("rope_theta")), "sliding_attention": _one(config, {}, local)}
    return _one(config, given, config.get("rope_theta"))


def _one(config: Mapping[str, Any], given: Mapping[str, Any], theta: Any) -> dict[str, Any]:
    rule = {str(k): v for k, v in given.items() if k not in ("type", "rope_type", "rope_theta", "partial_rotary_factor", "rope_dim")}
    kind = str(given.get("rope_type") or given.get("type") or "default")
    rule["type"] = kind = _SYNONYMS.get(kind, kind)
    stated = (given.get("partial_rotary_factor"), config.get("partial_rotary_factor"), config.get("rotary_pct"))
    share = next((s for s in stated if s), None)
    for name, value in (("theta", given.get("rope_theta") or theta or config.get("rotary_emb_base")), ("share", share)):
        if value:  # what is not stated is the code's own default, which only the engine knows
            rule[name] = value
    rule["dim"] = _dim(config, given, float(share or 1.0))
    longest = config.get("max_position_embeddings") or 0
    if kind in _NEEDS_ORIGINAL:
        rule.setdefault("original_max_position_embeddings", config.get("original_max_position_embeddings") or longest)
    if kind in ("longrope", "dynamic") or (kind == "yarn" and "factor" not in rule):
        rule["max_position_embeddings"] = longest  # these scale by it
    return rule


def _dim(config: Mapping[str, Any], given: Mapping[str, Any], share: float) -> int:
    """Elements of a head that are rotated."""
    for source, key in ((given, "rope_dim"), (config, "rotary_dim"), (config, "qk_rope_head_dim")):
        if source.get(key):
            return int(source[key])
    heads = int(config.get("num_attention_heads") or config.get("n_head") or 1)
    width = int(config.get("head_dim") or 0) or int(config.get("hidden_size") or config.get("n_embd") or 0) // max(heads, 1)
    return int(width * share)

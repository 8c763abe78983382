"""What a vLLM engine says of itself, as identity: read from its configuration objects, or refused in one line.

Both sides of the connector build the same spec, each from its own copy of the configuration: heads and layers are those
of the whole model, whatever a rank holds. Everything that needs a file or a hash is left to `spec`, which runs on a
thread of the cache.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import manifest
from ..config import Config
from ..errors import ConfigError
from ..identity import Group, ModelFacts, Provenance, build_spec, model_facts, resolved_dtype
from ..page import View, split_heads
from .hashes import hash_rule
from .memory import layer_index, own_layers

__all__ = ["Facts", "attention_backend", "device_kind", "provenance_of", "read", "refuse_engine", "running_model"]

_OFF = "run this model without the cache"


@dataclass(frozen=True)
class Facts:
    """One KV group of one engine, and who this process is in it. Built by read."""

    names: tuple[str, ...]  # of the layers of this rank, by their numbers
    layers: tuple[int, ...]  # of the whole model
    view: View  # of this rank
    replica: int  # which of several ranks with these heads this is
    replicas: int
    group_id: int  # the engine's index of the group
    heads: int
    head_dim: int
    v_dim: int
    dtype: str
    block_tokens: int
    blocks: int
    device: str  # cpu, cuda
    grade: str
    packing: str
    backend: str
    isa: str
    tp: int
    pp: int
    algorithm: str
    media: bool
    weak_names: bool

    @property
    def cell_bytes(self) -> int:
        return self.group.cell_bytes

    @property
    def group(self) -> Group:
        """The group as the spec has it."""
        return Group.attention(self.layers, page_tokens=self.block_tokens, kv_heads=self.heads, head_dim=self.head_dim, v_dim=self.v_dim,
                               dtype=self.dtype, grade=self.grade, packing=self.packing)  # fmt: skip

    def spec(self, vllm_config: Any, config: Config) -> str:
        """The text of the identity. Reads the model's folder; ConfigError in one line."""
        model = running_model(vllm_config, config, media=self.media, weak_names=self.weak_names)
        rule = hash_rule(self.algorithm, self.block_tokens, weak_names=self.weak_names)
        recorded = {"writer_tp": self.tp, "writer_pp": self.pp, "host": platform.node()}
        return build_spec(model, [self.group], rule, provenance_of(vllm_config, self.backend, self.device), recorded=recorded)


def running_model(vllm_config: Any, config: Config, *, media: bool, weak_names: bool) -> ModelFacts:
    """The model that runs: the operator's manifest, compared with the folder, under the engine's own configuration.
    media: it takes images or sound, by ids that callers may choose. Reads files; ConfigError in one line."""
    model = vllm_config.model_config
    known = manifest.load(config.require_model(), config.model_manifest)
    known.check(manifest.local_folder(str(model.model), getattr(model, "revision", None), "--model"))
    return model_facts(
        known, model.hf_config, dtype=model.dtype, applied=_applied(vllm_config), max_tokens=model.max_model_len,
        rope_pinned=_pinned(model), multimodal="caller_id" if media else "none", weak_names=weak_names,
    )  # fmt: skip


def provenance_of(vllm_config: Any, backend: str, device: str) -> Provenance:
    """Who computes: this release of vLLM, on this device, with this attention backend."""
    version = _version()
    return Provenance(
        engine="vllm", engine_version=version, runner="v2" if getattr(vllm_config, "use_v2_model_runner", False) else "v1", attention_backend=backend,
        kernel_build=f"vllm-{version}", device_arch=_arch(device), batch_invariant=_batch_invariant(), options=_options(vllm_config),
    )  # fmt: skip


def read(vllm_config: Any, kv_cache_config: Any, settings: Mapping[str, Any], *, worker: bool) -> Facts:
    """The facts of an engine. ConfigError for what cannot be cached rightly; its text says what to change."""
    _refuse(vllm_config, settings)
    spec, names, group_id = _the_group(kv_cache_config)
    model_config, parallel = vllm_config.model_config, vllm_config.parallel_config
    tp, pp, rank = int(parallel.tensor_parallel_size), int(parallel.pipeline_parallel_size), int(parallel.rank) if worker else 0
    heads = int(model_config.get_total_num_kv_heads())
    h0, h1, replica, replicas = _heads(heads, tp, rank % tp)
    if int(spec.num_kv_heads) != h1 - h0:
        raise ConfigError(f"quire: a rank holds {spec.num_kv_heads} of {heads} kv heads at tensor parallel size {tp}, which is no slice of them; {_OFF}")
    ordered = own_layers(names)
    here = [layer_index(n) for n in ordered]
    layers = here if pp == 1 else list(range(int(model_config.get_total_num_hidden_layers())))
    l0 = layers.index(here[0]) if here[0] in layers else -1
    if worker and (l0 < 0 or layers[l0 : l0 + len(here)] != here):
        raise ConfigError(f"quire: this rank's layers {here[:8]} are no run of the model's; {_OFF}")
    device = device_kind()
    backend = attention_backend(vllm_config, spec.head_size, spec.dtype)
    dtype = resolved_dtype(spec.dtype, "kv_cache_dtype")
    grade, packing, isa = _packing(device, backend, spec, vllm_config)
    block = int(spec.block_size)
    unit = int(kv_cache_config.hash_block_size or vllm_config.cache_config.block_size)
    if unit != block:
        raise ConfigError(f"quire: blocks have {block} tokens and are hashed every {unit}; leave --prefix-match-unit out, or {_OFF}")
    return Facts(
        names=tuple(ordered), layers=tuple(layers), view=View(h0, h1, max(l0, 0), max(l0, 0) + len(here)), replica=replica, replicas=replicas, group_id=group_id,
        heads=heads, head_dim=int(spec.head_size), v_dim=int(spec.head_size_v or spec.head_size), dtype=dtype, block_tokens=block, blocks=int(kv_cache_config.num_blocks),
        device=device, grade=grade, packing=packing, backend=backend, isa=isa, tp=tp, pp=pp, algorithm=str(vllm_config.cache_config.prefix_caching_hash_algo),
        media=bool(settings.get("weak_names")) and bool(model_config.is_multimodal_model), weak_names=bool(settings.get("weak_names")),
    )  # fmt: skip


def _refuse(vllm_config: Any, settings: Mapping[str, Any]) -> None:
    """Whatever the hash of a block does not cover, and what this adapter does not know how to cut."""
    model, cache, parallel = vllm_config.model_config, vllm_config.cache_config, vllm_config.parallel_config
    transfer = vllm_config.kv_transfer_config
    if transfer.kv_load_failure_policy != "recompute":
        raise ConfigError(
            f"quire: kv_load_failure_policy is {transfer.kv_load_failure_policy!r}, so that a page that cannot be loaded would fail its request; "
            'add "kv_load_failure_policy": "recompute" to --kv-transfer-config'
        )
    refuse_engine(vllm_config, "cache")
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ConfigError(
            "quire: ranks hold interleaved tokens under context parallelism; set --decode-context-parallel-size and --prefill-context-parallel-size to 1, or run without the cache"
        )
    if str(cache.cache_dtype) not in ("auto", "bfloat16", "float16", "float32"):
        raise ConfigError(
            f"quire: --kv-cache-dtype {cache.cache_dtype} has scales that are no part of the identity yet; set it to auto, or run without the cache"
        )
    if settings.get("weak_names") and getattr(model, "is_mm_prefix_lm", False):
        raise ConfigError(
            f"quire: the model attends to an image as a whole, so that its pages are no function of the prefix; set weak_names to false, or {_OFF}"
        )


def refuse_engine(vllm_config: Any, without: str) -> None:
    """What neither a connector nor a tier can cache, by the engine's configuration alone. without: what the operator is
    told to run without."""
    model = vllm_config.model_config
    off = f"run this model without the {without}"
    if not vllm_config.cache_config.enable_prefix_caching:
        raise ConfigError(f"quire: prefix caching is off in the engine; leave out --no-enable-prefix-caching, or {off}")
    if model.runner_type != "generate":
        raise ConfigError(f"quire: the runner is {model.runner_type!r}; only generation is cached")
    if model.is_encoder_decoder or getattr(model, "is_attention_free", False):
        raise ConfigError(f"quire: the model's pages are no function of the prefix alone; {off}")
    speculative = vllm_config.speculative_config
    if speculative is not None and str(speculative.method) not in ("ngram", "ngram_gpu", "suffix"):
        raise ConfigError(
            f"quire: the draft model of {speculative.method!r} keeps KV that may depend on the token after a page; use --speculative-config with ngram, or {off}"
        )
    if getattr(vllm_config.load_config, "load_format", "auto") == "dummy":
        raise ConfigError(f"quire: load_format is 'dummy', so that the weights are not those of the folder; load them, or {off}")


def _the_group(kv_cache_config: Any) -> tuple[Any, list[str], int]:
    """The one group of plain full attention. ConfigError for anything else."""
    groups = list(kv_cache_config.kv_cache_groups)
    if len(groups) != 1:
        kinds = ", ".join(sorted({type(g.kv_cache_spec).__name__ for g in groups}))
        raise ConfigError(
            f"quire: the engine has {len(groups)} KV groups ({kinds}), of which this adapter caches only one; {_OFF}, or with --disable-hybrid-kv-cache-manager if its layers then share one group"
        )
    group = groups[0]
    spec = group.kv_cache_spec
    if type(spec).__name__ != "FullAttentionSpec" or group.is_eagle_group or not spec.prefix_cacheable:
        raise ConfigError(f"quire: the KV group is a {type(spec).__name__}, and this adapter caches FullAttentionSpec; {_OFF}")
    if int(spec.head_size_v or spec.head_size) != int(spec.head_size):
        raise ConfigError(f"quire: keys of {spec.head_size} and values of {spec.head_size_v} are not cut by this adapter; {_OFF}")
    if spec.num_head_slots is not None or spec.state_content_bytes is not None or spec.page_size_padded is not None or spec.tokens_per_state != 1:
        raise ConfigError(f"quire: the KV blocks are packed or padded in a way of their own; {_OFF}")
    return spec, list(group.layer_names), 0


def _heads(heads: int, tp: int, rank: int) -> tuple[int, int, int, int]:
    """Heads [h0, h1) of a rank, and which of how many ranks with the same heads it is."""
    if heads % tp and tp % heads:
        raise ConfigError(f"quire: tensor parallel size {tp} does not cut {heads} kv heads evenly; {_OFF}")
    replicas = max(1, tp // heads)
    return *split_heads(heads, tp, rank), rank % replicas, replicas


def device_kind() -> str:
    """cpu or cuda. ConfigError for any other."""
    from vllm.platforms import current_platform

    kind = str(current_platform.device_type)
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"quire: the device is {kind}, and this adapter knows cpu and cuda; {_OFF}")
    return kind


def attention_backend(vllm_config: Any, head_size: int, dtype: Any) -> str:
    """The attention backend as the engine chooses it for heads of this width."""
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.selector import get_attn_backend

    try:
        with set_current_vllm_config(vllm_config):
            return str(get_attn_backend(int(head_size), dtype, vllm_config.cache_config.cache_dtype).get_name())
    except Exception as e:
        raise ConfigError(f"quire: the attention backend is not known: {type(e).__name__}: {e}; name one by --attention-backend") from e


def _packing(device: str, backend: str, spec: Any, vllm_config: Any) -> tuple[str, str, str]:
    """Grade, packing id and ISA."""
    if device == "cuda":
        return "elements", "", ""
    from .proof import cpu_packing

    isa, fingerprint = cpu_packing(spec, vllm_config)
    return "cell", f"vllm-{backend.lower()}-{isa}-{int(spec.block_size)}-{fingerprint}", isa


def _applied(vllm_config: Any) -> dict[str, Any]:
    """What the engine does to the weights of the folder, beyond what the folder's own configuration says."""
    model = vllm_config.model_config
    applied: dict[str, Any] = {}
    if model.quantization and not getattr(model.hf_config, "quantization_config", None):
        applied["quantization"] = str(model.quantization)
    if getattr(model, "quantization_config", None) is not None:
        applied["quantization_config"] = str(model.quantization_config)
    if any(" at 0x" in v for v in applied.values()):  # an object's address: another one in each process
        raise ConfigError(f"quire: what the engine does to the weights cannot be named ({', '.join(applied)}); {_OFF}")
    return applied


def _pinned(model_config: Any) -> str | None:
    """The regime of rules that depend on length: vLLM fixes it at start from its maximum length."""
    text = model_config.hf_text_config
    rule = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kind = rule.get("rope_type", rule.get("type")) if isinstance(rule, Mapping) else None
    if kind == "longrope":
        original = rule.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None) or 0
        return "longrope_long" if int(model_config.max_model_len) > int(original) else "longrope_short"
    return "dynamic_fixed" if kind == "dynamic" else None


def _options(vllm_config: Any) -> dict[str, str]:
    """Settings that may change values and that no factor covers."""
    options: dict[str, str] = {}
    if vllm_config.cache_config.kv_sharing_fast_prefill:
        options["kv_sharing_fast_prefill"] = "true"
    if getattr(vllm_config.model_config, "disable_cascade_attn", True) is False:
        options["cascade_attn"] = "true"
    return options


def _version() -> str:
    import vllm

    return str(vllm.__version__).split("+", 1)[0]


def _batch_invariant() -> bool:
    from vllm import envs

    return bool(getattr(envs, "VLLM_BATCH_INVARIANT", False))


def _arch(device: str) -> str:
    if device == "cuda":
        from vllm.platforms import current_platform

        capability = current_platform.get_device_capability()
        return f"sm_{capability.major}{capability.minor}" if capability is not None else "cuda"
    import torch

    return f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability().lower()}"

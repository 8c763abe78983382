"""What SGLang runs, read from the engine itself: the spec of the namespace, and this rank's part of its pages.

The host pools say what bytes there are; the published configuration of the process says which model makes them. Fields
are read by name, because their order and number change with every release. What is not known is a refusal, never a
guess: a ConfigError of one line, after which the engine runs on without the cache.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..config import Config
from ..errors import ConfigError
from ..identity import Group, HashRule, Provenance, build_spec, lora_digest, model_facts
from ..manifest import load as load_manifest
from ..manifest import local_folder
from ..page import View, split_heads
from .pools import HostPool

__all__ = ["Engine", "Part", "Rank", "parts_of", "spec_of", "link"]

_HASHES = "sglang.srt.mem_cache.utils"
# What the engine adds to the model's configuration for itself: of its own settings, or of other keys of it.
_ADDED = frozenset({"context_len", "encoder_only", "language_only", "language_model_only", "swa_head_dim", "swa_v_head_dim"})
_EIGHT_BITS = {"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "uint8", "int8"}


@dataclass(frozen=True)
class Rank:
    """Where this process stands among those that share the model."""

    tp_rank: int
    tp_size: int
    pp_size: int

    @classmethod
    def of(cls, storage_config: Any) -> Rank:
        """From the engine's HiCacheStorageConfig. ConfigError for ranks that hold only some tokens of a page."""
        if int(getattr(storage_config, "dcp_size", 1) or 1) > 1:
            raise ConfigError(
                "quire: decode context parallelism gives each rank some tokens of a page, which is not supported; start the engine without --dcp-size"
            )
        if int(getattr(storage_config, "attn_cp_size", 1) or 1) > 1:
            raise ConfigError(
                "quire: attention context parallelism gives each rank some tokens of a page, which is not supported; start the engine with --attn-cp-size 1"
            )
        return cls(int(getattr(storage_config, "tp_rank", 0)), int(getattr(storage_config, "tp_size", 1) or 1), int(getattr(storage_config, "pp_size", 1) or 1))


@dataclass(frozen=True)
class Engine:
    """The configuration that this process published: its server arguments, its model and its version."""

    args: Any
    model: Any
    version: str

    @classmethod
    def running(cls) -> Engine:
        """Of this process. ConfigError where the engine does not say."""
        try:
            args, model = _published()
            version = str(importlib.import_module("sglang").__version__)
        except Exception as e:
            raise ConfigError(
                f"quire: the engine's configuration cannot be read in this process ({type(e).__name__}: {e}); check its version against the supported ones".replace(
                    "\n", " "
                )
            ) from e
        if getattr(args, "load_format", None) == "dummy":
            raise ConfigError("quire: --load-format dummy does not run the weights of model_digest; start the engine with real weights")
        if getattr(args, "speculative_algorithm", None) not in (None, "NGRAM"):
            raise ConfigError(
                "quire: the KV of a draft model depends on the token after the page, which its hash does not cover; start the engine without --speculative-algorithm"
            )
        if getattr(args, "enable_hisparse", False):
            raise ConfigError("quire: sparse host pools are not supported; start the engine without --enable-hisparse")
        if getattr(model, "is_multimodal", False):
            raise ConfigError(
                "quire: images enter page keys by 64 bits that a caller may choose, so two could have one name; start the engine with --language-model-only"
            )
        return cls(args, model, version)

    @property
    def kv_heads(self) -> int:
        """Of the whole model."""
        return int(self.model.get_total_num_kv_heads())

    def layers(self, kind: str) -> list[int]:
        """Ascending indices of the layers whose KV a pool of this kind holds: full or window."""
        if getattr(self.model, "is_hybrid_swa", False):
            owned = self.model.swa_attention_layer_ids if kind == "window" else self.model.full_attention_layer_ids
            return sorted(int(i) for i in owned or ())
        if kind == "window":
            return []
        text = getattr(self.model, "hf_text_config", None)
        owned = getattr(text, "full_attention_layer_ids", None)  # hybrids with recurrent layers name those that own KV
        return sorted(int(i) for i in owned) if owned else list(range(int(self.model.num_hidden_layers)))


@dataclass(frozen=True)
class Part:
    """One group of the namespace and the view of it that this rank's pool holds."""

    pool: HostPool
    group: Group
    view: View


def parts_of(engine: Engine, rank: Rank, pools: Mapping[str, Any]) -> dict[str, Part]:
    """The groups by the engine's pool names: kv, and swa where the model has windowed layers in a pool of their own."""
    parts: dict[str, Part] = {}
    for name, pool in pools.items():
        if name not in ("kv", "swa"):
            raise ConfigError(f"quire: the side pool {name!r} of this model is not supported, and pages without it are of no use, so the cache stays off")
        host = HostPool.of(pool)
        kind = "window" if name == "swa" else "full"
        dtype = _kv_dtype(engine, host)
        scale = _scale(engine, dtype)
        layers = engine.layers(kind)
        first, last = int(getattr(pool, "start_layer", 0) or 0), int(getattr(pool, "end_layer", 0) or 0)
        held = [i for i, layer in enumerate(layers) if first <= layer < last]
        if len(held) != host.layers or held != list(range(held[0], held[0] + len(held))):
            raise ConfigError(
                f"quire: the {name} pool holds {host.layers} layers of [{first}, {last}), the model has {len(layers)} such layers there; this model is not supported"
            )
        if host.latent:
            latent, rope = host.components
            group = Group.mla(layers, page_tokens=host.page_tokens, latent=latent.width, rope_dim=rope.width, dtype=dtype, scale=scale)
            h0 = 0
        else:
            k, v = host.components
            h0 = first_head(engine.kv_heads, rank, host.heads)
            window = int(getattr(engine.model, "sliding_window_size", 0) or 0) if kind == "window" else 0
            group = Group.attention(
                layers,
                page_tokens=host.page_tokens,
                kv_heads=engine.kv_heads,
                head_dim=k.width,
                v_dim=v.width,
                dtype=dtype,
                kind=kind,
                window=window,
                scale=scale,
            )
        parts[name] = Part(host, group, View(h0, h0 + host.heads, held[0], held[0] + host.layers))
    if "kv" not in parts:
        raise ConfigError("quire: the engine gave no pool for keys and values, so the cache stays off")
    return parts


def first_head(heads: int, rank: Rank, held: int) -> int:
    """The first kv head of the model that this rank holds. With more ranks than heads several hold the same one."""
    h0, h1 = split_heads(heads, rank.tp_size, rank.tp_rank)
    if held == h1 - h0 and (heads % rank.tp_size == 0 or rank.tp_size % heads == 0):
        return h0
    raise ConfigError(
        f"quire: rank {rank.tp_rank} of {rank.tp_size} holds {held} of {heads} kv heads, which is no even split; this model is not supported at this --tp-size"
    )


def spec_of(engine: Engine, config: Config, rank: Rank, parts: Sequence[Part]) -> str:
    """The spec of the namespace. Reads file headers and, for adapters, whole files: not for a thread of the engine."""
    args, model = engine.args, engine.model
    manifest = load_manifest(config.require_model(), config.model_manifest)
    manifest.check(local_folder(str(model.model_path), getattr(model, "revision", None), "--model-path"))
    facts = model_facts(
        manifest, _configuration(model.hf_config), dtype=model.dtype, applied=_applied(engine), max_tokens=int(getattr(model, "context_len", 0) or 0),
    )  # fmt: skip
    hashes = importlib.import_module(_HASHES)
    rule = HashRule.probed("sglang_sha256", link, unit=parts[0].pool.page_tokens, extra_keys=1 if hasattr(hashes, "storage_namespace_seed") else 0)
    if getattr(args, "enable_lora", False) and not rule.extra_keys:
        raise ConfigError("quire: this version of the engine leaves adapters out of its page keys; use 0.5.23 or later, or start it without --enable-lora")
    backends = {"prefill": _backend(engine, "prefill"), "decode": _backend(engine, "decode")}
    provenance = Provenance(
        engine="sglang", engine_version=engine.version, runner="srt",
        attention_backend=backends["prefill"] if backends["prefill"] == backends["decode"] else f"{backends['prefill']}+{backends['decode']}",
        kernel_build=_kernel_build(), device_arch=_device_arch(args), batch_invariant=bool(getattr(args, "enable_deterministic_inference", False)),
        options=_options(args),
    )  # fmt: skip
    return build_spec(
        facts, [p.group for p in parts], rule, provenance,
        recorded={"writer_tp": rank.tp_size, "writer_pp": rank.pp_size, "tokenizer_revision": getattr(args, "revision", None)},
    )  # fmt: skip


def link(parent: bytes | None, tokens: Sequence[int]) -> bytes:
    """The engine's own hash of one page of tokens."""
    hashes = importlib.import_module(_HASHES)
    out = hashes.get_hash_str(list(tokens), parent.hex() if parent else None, page_size=len(tokens))
    return bytes.fromhex(out if isinstance(out, str) else out[0])


def _published() -> tuple[Any, Any]:
    """Server arguments and model configuration of this process."""
    context = importlib.import_module("sglang.srt.runtime_context")
    return context.get_server_args(), context.process_model_config()


def _configuration(hf_config: Any) -> dict[str, Any]:
    """The model's configuration as it runs, with the operator's overrides and without the engine's own additions."""
    given = hf_config.to_dict()
    out = {k: v for k, v in given.items() if k not in _ADDED}
    for name, part in out.items():
        if isinstance(part, Mapping) and name.endswith("_config"):
            out[name] = {k: v for k, v in part.items() if k not in _ADDED}
    return out


def _kv_dtype(engine: Engine, host: HostPool) -> str:
    """What the elements of the pool are: pools of eight bits name a storage type, the engine's setting says which."""
    dtype = host.components[0].dtype
    if dtype not in _EIGHT_BITS:
        return dtype
    asked = str(getattr(engine.args, "kv_cache_dtype", "auto"))
    if asked not in ("fp8_e4m3", "fp8_e5m2"):
        raise ConfigError(
            f"quire: the pool holds {dtype} and --kv-cache-dtype is {asked!r}, which does not say what that is; set it to fp8_e4m3, fp8_e5m2 or bfloat16"
        )
    return asked


def _scale(engine: Engine, dtype: str) -> str:
    """Scales of eight-bit values: those of the checkpoint, which its digest covers, or of a file, digested here."""
    if dtype not in ("fp8_e4m3", "fp8_e5m2"):
        return "none"
    path = getattr(engine.args, "quantization_param_path", None)
    if not path:
        return "none"
    raise ConfigError(
        "quire: --quantization-param-path gives scales from outside of the checkpoint; put them into it, or start the engine with --kv-cache-dtype bfloat16"
    )


def _applied(engine: Engine) -> dict[str, Any]:
    """What the engine does to the weights of the folder when it loads them."""
    args, model = engine.args, engine.model
    out: dict[str, Any] = {}
    quantized = getattr(model.hf_config, "quantization_config", None) or getattr(model.hf_config, "compression_config", None)
    if getattr(model, "quantization", None) and not quantized:
        out["quantization"] = str(model.quantization)
    for name in ("torchao_config", "modelopt_quant", "quantize_and_serve", "rl_quant_profile", "custom_weight_loader"):
        value = getattr(args, name, None)
        if value:
            out[name] = str(value)
    if getattr(args, "enable_lora", False):
        out["adapters"] = _adapters(getattr(args, "lora_paths", None))
    return out


def _adapters(refs: Any) -> dict[str, str]:
    """Adapters by what requests call them. Their ids in page keys are made of name and path, so content is added here."""
    out: dict[str, str] = {}
    for ref in list(refs.values()) if isinstance(refs, Mapping) else list(refs or ()):
        name, path = getattr(ref, "lora_name", None), getattr(ref, "lora_path", None)
        if not name or not path:
            raise ConfigError("quire: an entry of --lora-paths has no name and path; give it as NAME=PATH")
        out[f"{name}={path}"] = lora_digest(local_folder(str(path), None, "--lora-paths")).hex()
    return out


def _backend(engine: Engine, phase: str) -> str:
    args = engine.args
    name = getattr(args, f"{phase}_attention_backend", None) or getattr(args, "attention_backend", None)
    if name:
        return str(name)
    try:
        prefill, decode = importlib.import_module("sglang.srt.runtime_context").attention_backends()
    except Exception as e:
        raise ConfigError(f"quire: the attention backend in use is not known ({type(e).__name__}); set --attention-backend") from e
    return str((prefill if phase == "prefill" else decode) or "")


def _kernel_build() -> str:
    """Versions of what computes: torch, and the engine's kernels where they are installed."""
    parts = [f"torch-{importlib.import_module('torch').__version__}"]
    for name in ("sglang-kernel", "sgl-kernel"):
        try:
            parts.append(f"{name}-{importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return " ".join(parts)


def _device_arch(args: Any) -> str:
    device = str(getattr(args, "device", "") or "")
    if device == "cuda":
        major, minor = importlib.import_module("torch").cuda.get_device_capability()
        return f"sm_{major}{minor}"
    return device


def _options(args: Any) -> dict[str, str]:
    """Settings that may change values in their last bits, and that a spec has no factor for."""
    names = (
        "enable_tf32_matmul", "enable_torch_compile", "triton_attention_reduce_in_fp32", "fp8_gemm_runner_backend", "moe_runner_backend",
        "prefill_kv_cache_dequant_dtype", "dsa_prefill_backend", "dsa_decode_backend", "mamba_ssm_dtype",
    )  # fmt: skip
    values = {name: getattr(args, name, None) for name in names}
    return {name: str(value) for name, value in values.items() if value not in (None, False, "", "auto")}

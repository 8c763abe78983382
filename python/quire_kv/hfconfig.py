"""What a model's configuration says about identity: values, masks, layers and sizes.

Takes plain mappings: config.json as it is, or `hf_config.to_dict()` of a running engine, whose overrides it then holds.
Every key is classed. Those that change the values of a page make the config digest. Those that cannot (token ids,
labels, sampling, training) are left out. A key that is absent is not the same as one that is null or false: the default
may be another. Position encoding is `quire_kv.rope`'s. What nobody has classed is not dropped: it becomes provenance, which is compared too but
can be waived value by value.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .canonical import digest_of, says_nothing
from .errors import ConfigError
from .rope import ROPE_KEYS

__all__ = ["Attention", "LayerKind", "Shape", "attention_facts", "config_digest", "layer_kinds", "plain", "shape_of", "takes_media", "text_config", "unclassed"]

# Keys that never change a key or value of the cache.
_IGNORED = frozenset(
    """_name_or_path _commit_hash _attn_implementation _attn_implementation_internal _attn_implementation_autoset
    transformers_version torch_dtype dtype unsloth_version unsloth_fixed
    bos_token_id eos_token_id pad_token_id sep_token_id cls_token_id mask_token_id unk_token_id decoder_start_token_id
    forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens bad_words_ids
    use_cache output_attentions output_hidden_states output_scores output_router_logits return_dict
    return_dict_in_generate torchscript id2label label2id num_labels problem_type finetuning_task task_specific_params
    tokenizer_class tf_legacy_loss use_bfloat16 chunk_size_feed_forward gradient_checkpointing
    initializer_range initializer_factor init_std attention_dropout hidden_dropout hidden_dropout_prob
    attention_probs_dropout_prob resid_pdrop embd_pdrop attn_pdrop resid_dropout embedding_dropout
    classifier_dropout router_aux_loss_coef aux_loss_alpha seq_aux
    repetition_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_beams num_beam_groups diversity_penalty
    do_sample num_return_sequences remove_invalid_values exponential_decay_length_penalty max_new_tokens
    generation_config""".split()
)

# Keys that are known to change them, or the shapes that they come in.
_SEMANTIC = frozenset(
    """model_type architectures vocab_size hidden_size n_embd intermediate_size n_inner ffn_dim num_hidden_layers n_layer
    num_attention_heads n_head num_key_value_heads head_dim v_head_dim global_head_dim num_global_key_value_heads
    hidden_act hidden_activation activation_function mlp_activation rms_norm_eps layer_norm_eps layer_norm_epsilon
    norm_eps norm_epsilon layernorm_epsilon rms_norm norm_type normalization attention_bias mlp_bias qkv_bias use_bias
    bias attention_out_bias use_qk_norm qk_norm qk_layernorm use_qkv_bias clip_qkv attention_multiplier
    embedding_multiplier residual_multiplier logits_scaling query_pre_attn_scalar attn_logit_softcapping
    final_logit_softcapping scale_attn_weights scale_embedding embedding_scale tie_word_embeddings parallel_attn
    use_parallel_residual new_decoder_architecture multi_query multi_query_group_num alibi position_embedding_type
    learned_positions layer_types layers_block_type attn_type_list hybrid_override_pattern full_attention_interval
    attn_layer_indices attn_layer_period attn_layer_offset sliding_window use_sliding_window max_window_layers
    sliding_window_pattern attention_chunk_size no_rope_layers no_rope_layer_interval attn_temperature_tuning
    floor_scale attn_scale use_bidirectional_attention is_causal cross_attention_layers num_kv_shared_layers
    kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim qk_head_dim rope_interleave index_head_dim index_n_heads
    index_topk num_nextn_predict_layers num_experts num_local_experts n_routed_experts n_shared_experts
    num_experts_per_tok num_experts_per_token moe_intermediate_size shared_expert_intermediate_size
    moe_layer_freq decoder_sparse_step first_k_dense_replace mlp_only_layers norm_topk_prob routed_scaling_factor
    scoring_func topk_method n_group topk_group moe_layers interleave_moe_layer_step mlp_layer_types
    linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim
    conv_kernel state_size ssm_state_size mamba_d_state mamba_d_conv mamba_expand mamba_n_heads mamba_head_dim
    mamba_n_groups mamba_d_head mamba_num_heads num_heads n_groups time_step_rank expand mamba_chunk_size
    altup_num_inputs altup_active_idx altup_coef_scale laurel_rank hidden_size_per_layer_input vocab_size_per_layer_input
    activation_sparsity_pattern dual_chunk_attention_config quantization_config compression_config swiglu_limit
    is_encoder_decoder is_decoder add_cross_attention pretraining_tp image_token_id image_token_index video_token_id
    vision_start_token_id vision_end_token_id mm_tokens_per_image vision_feature_layer vision_feature_select_strategy
    projector_hidden_act multimodal_projector_bias vision_config audio_config attn_implementation pruned_heads
    _sliding_window_pattern rope_type rope_dim n_ctx max_sequence_length seq_length model_max_length max_seq_len quire.around""".split()
)

_AROUND = "quire.around"  # where text_config keeps what a nested configuration covers up
_NESTED_IGNORED = _IGNORED - {"torch_dtype", "dtype"}  # a part's own dtype counts, the whole model's is the engine's
_NESTED_TEXT = ("text_config", "llm_config", "language_config", "thinker_config")
_MEDIA = ("vision_config", "audio_config", "image_token_id", "image_token_index", "video_token_id", "audio_token_id", "audio_token_index")
_MAX_LAYERS = 2048
_OPTION_KEY = re.compile(r"[^A-Za-z0-9_.-]")
_OPTION_BYTES = 48  # of a value that is written out; a longer one is its digest
_OPTIONS = 6  # written one by one; more are one digest

_LAYER_TYPES = {
    "full_attention": "full", "attention": "full", "global": "full", "global_attention": "full",
    "sliding_attention": "window", "sliding_window": "window", "local": "window", "local_attention": "window",
    "chunked_attention": "chunked",
    "linear_attention": "recurrent", "mamba": "recurrent", "mamba2": "recurrent", "conv": "recurrent", "recurrent": "recurrent", "linear": "recurrent",
}  # fmt: skip
_WINDOW_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}  # every n-th layer is full


@dataclass(frozen=True)
class LayerKind:
    """One layer: full, window, chunked or recurrent. tokens: of the window or chunk, 0 elsewhere."""

    kind: str
    tokens: int = 0


@dataclass(frozen=True)
class Attention:
    """`attention` of a spec, without backends and multimodal rule."""

    mask: str  # causal, sliding, chunked
    chunk: int = 0
    sinks: int = 0


@dataclass(frozen=True)
class Shape:
    """Sizes. heads, width: of queries, for the cost model. kv_heads, head_dim: of the whole model, before any TP."""

    layers: int
    heads: int
    width: int
    kv_heads: int
    head_dim: int
    latent: int = 0  # kv_lora_rank of multi-head latent attention; 0: none
    rope_dim: int = 0  # qk_rope_head_dim, with latent


def plain(config: Any) -> dict[str, Any]:
    """A mapping of a mapping, or of an object with to_dict()."""
    if not isinstance(config, Mapping) and callable(getattr(config, "to_dict", None)):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise ConfigError(f"quire: the model's configuration is a {type(config).__name__}; a mapping or an object with to_dict() is needed")
    return {str(k): v for k, v in config.items()}


def text_config(config: Any) -> dict[str, Any]:
    """The configuration of the language model: that of a nested one laid over what stands around it.

    What is covered up by that stays under the key `quire.around`, since an engine may read it there.
    """
    outer = plain(config)
    for name in _NESTED_TEXT:
        inner = outer.get(name)
        if isinstance(inner, Mapping) and inner:
            rest = {k: v for k, v in outer.items() if k != name}
            merged: dict[str, Any] = {**rest, **{str(k): v for k, v in inner.items()}}
            if covered := {k: v for k, v in rest.items() if k in inner and inner[k] != v}:
                merged[_AROUND] = covered
            for key in ("architectures", "quantization_config"):  # those of the whole model
                if outer.get(key):
                    merged[key] = outer[key]
            return text_config(merged)
    return outer


def takes_media(text: Mapping[str, Any]) -> bool:
    """Whether a model takes images, video or sound beside tokens."""
    return any(not says_nothing(text.get(k)) for k in _MEDIA)


def config_digest(text: Mapping[str, Any], dtype: str) -> str:
    """The digest of all that changes values, with the compute dtype as resolved. text: of text_config."""
    kept = {k: _strip(v) for k, v in text.items() if k in _SEMANTIC}
    size = shape_of(text)
    kept.update(num_key_value_heads=size.kv_heads, head_dim=size.head_dim, compute_dtype=dtype)
    if size.latent:  # neither is used then, and libraries fill in different ones
        del kept["num_key_value_heads"], kept["head_dim"]
    try:
        return digest_of(kept, "quire-config-v1")
    except ValueError as e:
        raise ConfigError(f"quire: the model's configuration cannot be digested: {e}; run this model without the cache") from None


def unclassed(text: Mapping[str, Any]) -> dict[str, str]:
    """What nobody has classed, as options of a provenance: `config.<key>`, or one digest where they are many."""
    rest = {k: _strip(v) for k, v in text.items() if k not in _SEMANTIC | _IGNORED | ROPE_KEYS}
    try:
        if len(rest) > _OPTIONS:
            return {"config": digest_of(rest, "quire-options-v1")}
        return {"config." + _OPTION_KEY.sub("_", k)[:50]: _option(v) for k, v in sorted(rest.items())}
    except ValueError as e:
        raise ConfigError(f"quire: the model's configuration cannot be digested: {e}; run this model without the cache") from None


def _option(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (str, int, float)) and str(value).isprintable() and str(value).strip() and len(str(value).encode()) <= _OPTION_BYTES:
        return str(value)
    return digest_of(value, "quire-options-v1")


def _strip(value: Any) -> Any:
    """A nested value without keys that never count, made of plain values."""
    if isinstance(value, Mapping):
        return {str(k): _strip(v) for k, v in value.items() if str(k) not in _NESTED_IGNORED}
    if isinstance(value, (list, tuple)):
        return [_strip(v) for v in value]
    if isinstance(value, enum.Enum):
        return _strip(value.value)
    if type(value).__name__.lower().endswith("dtype"):  # torch's and numpy's
        return str(value)
    return value


def attention_facts(text: Mapping[str, Any]) -> Attention:
    """The mask of a model. ConfigError for models whose values do not depend on the prefix alone."""
    _refuse_non_causal(text)
    kinds = layer_kinds(text)
    sinks = 1 if text.get("model_type") == "gpt_oss" else 0  # a learned logit in each head
    chunks = {k.tokens for k in kinds if k.kind == "chunked"}
    if len(chunks) > 1 or 0 in chunks:
        raise ConfigError("quire: attention_chunk_size of the model is missing or has several values; run this model without the cache")
    if chunks:
        return Attention("chunked", chunks.pop(), sinks)
    if kinds and all(k.kind == "window" for k in kinds):
        return Attention("sliding", 0, sinks)
    return Attention("causal", 0, sinks)


def _refuse_non_causal(text: Mapping[str, Any]) -> None:
    cure = "run this model without the cache"
    if text.get("is_encoder_decoder") or text.get("add_cross_attention") or text.get("cross_attention_layers"):
        raise ConfigError(f"quire: this is an encoder-decoder model: its pages depend on an encoder's state, which no page hash covers; {cure}")
    if text.get("is_causal") is False:
        raise ConfigError(f"quire: is_causal of the model is false: its pages depend on later tokens; {cure}")
    both = text.get("use_bidirectional_attention")
    if both and both != "vision":  # inside an image only: the image's own digest covers it
        raise ConfigError(f"quire: use_bidirectional_attention of the model is {both!r}: its pages depend on later tokens; {cure}")
    names = text.get("architectures")
    names = [names] if isinstance(names, str) else list(names or ())
    for name in names:
        if re.search(r"MaskedLM|^Bert|^Roberta|^XLMRoberta|^ModernBert|EncoderModel|^T5|^Bart|^Whisper", str(name)):
            raise ConfigError(f"quire: {name} is not a causal language model: its pages depend on later tokens; {cure}")


def layer_kinds(text: Mapping[str, Any]) -> list[LayerKind]:
    """The kind of each layer, as the configuration states it. The engine's own groups have the last word."""
    layers = shape_of(text).layers
    window = _whole(text, "sliding_window") if text.get("use_sliding_window") is not False else 0
    chunk = _whole(text, "attention_chunk_size")
    stated = text.get("layer_types") or text.get("layers_block_type")
    if isinstance(stated, Sequence) and not isinstance(stated, str) and stated:
        return [_kind(str(name), window, chunk) for name in stated[:layers]]
    if text.get("linear_key_head_dim"):
        every = _whole(text, "full_attention_interval") or 4
        return [LayerKind("full" if (i + 1) % every == 0 else "recurrent") for i in range(layers)]
    if chunk:
        without = text.get("no_rope_layers")
        flags = without if isinstance(without, Sequence) and len(without) == layers else [(i + 1) % 4 for i in range(layers)]
        return [LayerKind("chunked", chunk) if flag else LayerKind("full") for flag in flags]
    if not window:
        return [LayerKind("full")] * layers
    every = _whole(text, "sliding_window_pattern") or _WINDOW_EVERY.get(str(text.get("model_type")), 0)
    if every:
        return [LayerKind("full") if (i + 1) % every == 0 else LayerKind("window", window) for i in range(layers)]
    if str(text.get("model_type", "")).startswith("qwen"):
        first = _whole(text, "max_window_layers")
        return [LayerKind("window", window) if i >= first else LayerKind("full") for i in range(layers)]
    return [LayerKind("window", window)] * layers


def _kind(name: str, window: int, chunk: int) -> LayerKind:
    kind = _LAYER_TYPES.get(name)
    if kind is None:
        raise ConfigError(f"quire: layer type {name!r} of the model is not known; run this model without the cache")
    if kind == "window" and not window:
        return LayerKind("full")
    return LayerKind(kind, {"window": window, "chunked": chunk}.get(kind, 0))


def shape_of(text: Mapping[str, Any]) -> Shape:
    """Sizes of the whole model. ConfigError names what is missing."""
    layers, heads = _layers(text), _whole(text, "num_attention_heads") or _whole(text, "n_head")
    hidden = _whole(text, "hidden_size") or _whole(text, "n_embd")
    if not layers or not heads or not (hidden or _whole(text, "head_dim")):
        raise ConfigError("quire: the model's configuration lacks num_hidden_layers, num_attention_heads or hidden_size; run this model without the cache")
    head_dim = _whole(text, "head_dim") or hidden // heads
    kv_heads = _whole(text, "num_key_value_heads") or (1 if text.get("multi_query") else heads)
    latent, rope = _whole(text, "kv_lora_rank"), _whole(text, "qk_rope_head_dim")
    width = (_whole(text, "qk_nope_head_dim") + rope if latent else 0) or head_dim
    width = (width + (_whole(text, "v_head_dim") or width)) // 2
    return Shape(layers, heads, width, kv_heads, head_dim, latent, rope if latent else 0)


def _layers(text: Mapping[str, Any]) -> int:
    n = _whole(text, "num_hidden_layers") or _whole(text, "n_layer")
    if n > _MAX_LAYERS:
        raise ConfigError(f"quire: the model's configuration has {n} layers, at most {_MAX_LAYERS} are taken; run this model without the cache")
    return n


def _whole(text: Mapping[str, Any], key: str) -> int:
    value = text.get(key)
    if value is None or isinstance(value, bool):
        return 0
    if isinstance(value, int) and value >= 0:
        return value
    raise ConfigError(f"quire: {key} of the model's configuration is {value!r}, which is no whole number; run this model without the cache")

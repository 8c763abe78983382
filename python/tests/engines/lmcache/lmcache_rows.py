"""Rows of an LMCache server's table of models."""

from __future__ import annotations

import pathlib

from tinymodel import checkpoint, digest

CHUNK = 256  # tokens


def row(quire: pathlib.Path, tmp: pathlib.Path, name: str, seed: int = 1, **changes) -> dict:
    """A whole row for a checkpoint that is made for it."""
    stem = name.replace("/", "_")
    folder = checkpoint(tmp / stem, seed)
    manifest = tmp / f"{stem}.json"
    return {
        "digest": digest(quire, folder, manifest, name), "manifest": str(manifest), "checkpoint": str(folder), "format": "KV_2LTD", "dtype": "bfloat16", "tp": 1, "pp": 1,
        "chunk_size": CHUNK, "engine": "vllm", "version": "0.32.0", "backend": "FLASH_ATTN", "lora": "none", "weights": "frozen", **changes,
    }  # fmt: skip

"""Proves at start that a pool's bytes are where `pools` says, with the engine's own writes.

Two pages are filled by the engine with values that say where they belong, and exported by ours: see layoutproof. The
engine writes in the best of two ways that works on its device:

    transfer   rows into the device pool's padding page, which the engine writes junk to itself, and the engine's copy
               of that page from device to host: what every page goes through
    page       the pool's own set_from_flat_data_page, for devices that have no transfer kernels

The host pages used are taken from the pool's allocator and given back.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..errors import ConfigError
from ..layoutproof import Component, LayoutError, Proof
from ..page import Geometry, View
from .pools import HostPool

__all__ = ["prove"]

_log = logging.getLogger("quire_kv.sglang")
_PAGES = 2  # one would not prove the step between pages
_FLAT_ORDER = {"layer_first": "lth", "page_first": "tlh", "page_first_direct": "lth", "page_head": "htl"}  # behind the component


def prove(host: HostPool) -> None:
    """ConfigError in one line if the pool's order is not the one that is declared, or cannot be shown to be."""
    import torch  # the engine's own

    pool = host.pool
    item = host.components[0].bits // 8
    proof = Proof(tuple(Component(c.name, c.width, item) for c in host.components), host.page_tokens)
    slots = pool.alloc(_PAGES * host.page_tokens)
    if slots is None:
        raise ConfigError("quire: the host pool has no free pages to prove its layout with; attach the cache when the engine is idle, after a flush")
    try:
        for write in (_transfer, _page):
            try:
                for page in range(_PAGES):
                    at = slots[page * host.page_tokens : (page + 1) * host.page_tokens]
                    write(torch, host, at, _values(proof, host, page))
            except Exception as e:  # this way does not work on this device or version: the next one
                _log.info("quire: layout proof by %s: %s: %s", write.__name__.strip("_"), type(e).__name__, e)
                continue
            _compare(proof, host, slots)
            return
    finally:
        pool.free(slots)
    raise ConfigError(f"quire: the layout {pool.layout} of host pool {type(pool).__name__} cannot be proven on this device, so the cache stays off")


def _values(proof: Proof, host: HostPool, page: int) -> list[np.ndarray]:
    """What is to be written: one array a component, uint8 [layer, token, head, row bytes]."""
    heads = range(host.heads)
    return [np.stack([proof.fill(page, layer, c, heads) for layer in range(host.layers)]) for c in range(len(proof.components))]


def _compare(proof: Proof, host: HostPool, slots: Any) -> None:
    memory = host.pages(slots, _PAGES)
    if memory is None:
        raise ConfigError("quire: the host pool's allocator gave slots that are no pages, so the cache stays off")
    geometry = Geometry(bytes(32), "full", host.page_tokens, host.heads, host.layers, proof.cell_bytes, "elements", 32)
    try:
        proof.prove(memory, geometry, View(0, host.heads, 0, host.layers))
    except LayoutError as e:
        raise ConfigError(
            f"quire: the layout proof of {host.pool.layout} failed, so the cache stays off; this version of the engine is not supported: {e}"
        ) from e


def _transfer(torch: Any, host: HostPool, slots: Any, values: Sequence[np.ndarray]) -> None:
    """The engine's copy of one page from the device. Raises where it has none."""
    pool = host.pool
    if host.latent:
        planes = [(pool.device_kv_buffers, np.concatenate(values, axis=3))]
    else:
        planes = [(pool.device_k_buffers, values[0]), (pool.device_v_buffers, values[1])]
    padding = torch.arange(host.page_tokens)
    kept: list[tuple[Any, Any]] = []
    try:
        for buffers, plane in planes:
            for layer in range(host.layers):
                rows = buffers[layer][: host.page_tokens]
                kept.append((rows, rows.clone()))
                rows.copy_(torch.from_numpy(np.ascontiguousarray(plane[layer])).view(rows.dtype).reshape(rows.shape))
        device = planes[0][0][0].device
        direct = pool.layout == "page_first_direct"
        there = padding if direct else padding.to(device)
        view = SimpleNamespace(
            k_buffer=planes[0][0], v_buffer=planes[-1][0], kv_buffer=planes[0][0], start_layer=0, end_layer=host.layers, layer_num=host.layers
        )
        pool.backup_from_device_all_layer(view, slots if direct else slots.to(device), there, "direct" if direct else "kernel")
        if device.type != "cpu":
            torch.get_device_module(device).synchronize()
    finally:
        for rows, old in kept:
            rows.copy_(old)


def _page(torch: Any, host: HostPool, slots: Any, values: Sequence[np.ndarray]) -> None:
    """The engine's own write of one flat page. Raises where the pool has none."""
    pool = host.pool
    order = ["lth".index(a) for a in _FLAT_ORDER[pool.layout]] + [3]
    parts = [np.concatenate(values, axis=3)] if host.latent else list(values)
    flat = np.concatenate([p.transpose(order).reshape(-1) for p in parts])
    pool.set_from_flat_data_page(int(slots[0]), torch.from_numpy(flat).view(pool.dtype))

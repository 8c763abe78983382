"""Lets SGLang's copies between device pool and host pool run on a CPU, where its kernels do not.

Python imports this file at the start of each process that has its folder on the path, so the engine's schedulers get it
too. It pins no memory and copies by index; layouts, pools and everything else are the engine's own.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any

_CLASSES = {"sglang.srt.mem_cache.pool_host.mha": "MHATokenToKVPoolHost", "sglang.srt.mem_cache.pool_host.mla": "MLATokenToKVPoolHost"}


def _rows(pool: Any, buffer: Any, layer: int, slots: Any) -> tuple[Any, Any]:
    """The tensor and the index of the rows of one layer in a host buffer."""
    page = pool.page_size
    if pool.layout == "layer_first":
        return buffer, (layer, slots)
    if pool.layout == "page_first":
        return buffer, (slots, layer)
    if pool.layout == "page_first_direct":
        return buffer, (slots // page, layer, slots % page)
    if pool.layout == "page_head":
        return buffer, (slots // page, slice(None), slots % page, layer)
    raise NotImplementedError(pool.layout)


def _pairs(pool: Any) -> list[tuple[Any, Any]]:
    if hasattr(pool, "device_kv_buffers"):
        return [(pool.kv_buffer, pool.device_kv_buffers)]
    return [(pool.k_buffer, pool.device_k_buffers), (pool.v_buffer, pool.device_v_buffers)]


def _backup(self: Any, device_pool: Any, host_indices: Any, device_indices: Any, io_backend: str) -> None:
    there, here = host_indices.cpu(), device_indices.cpu()
    for host, device in _pairs(self):
        for layer in range(self.layer_num):
            buffer, index = _rows(self, host, layer, there)
            buffer[index] = device[layer][here]


def _load(self: Any, device_pool: Any, host_indices: Any, device_indices: Any, layer_id: int, io_backend: str, *, is_draft: bool = False) -> None:
    there, here = host_indices.cpu(), device_indices.cpu()
    for host, device in _pairs(self):
        buffer, index = _rows(self, host, layer_id, there)
        device[layer_id][here] = buffer[index]


def _patch(module: Any, name: str) -> None:
    pool = getattr(module, name)
    begin = pool.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **{**kwargs, "pin_memory": False})

    pool.__init__, pool.backup_from_device_all_layer, pool.load_to_device_per_layer = __init__, _backup, _load


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in _CLASSES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            _patch(module, _CLASSES[name])

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())

"""The real controllers and host pools of SGLang on a CPU, without a model and without a GPU.

Device pools, host pools, controllers, hashing and the loading of backends are the engine's; only the ranks' numbers are
set from here, and what the scheduler does between the steps of a prefetch.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Mapping
from typing import Any

import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.utils import get_hash_str
from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish, reset_context
from sglang.srt.server_args import ServerArgs
from waiting import PATIENT

PAGE = 4
TOKENS = 1024  # of the device pool; the host pool has eight times as many
WAIT = 60.0
BACKEND = {"backend_name": "quire", "module_path": "quire_kv.sglang", "class_name": "QuireHiCache", "interface_v1": 1}


def run_as(folder: pathlib.Path, *, tp_rank: int = 0, tp_size: int = 1, pp_rank: int = 0, pp_size: int = 1, **args: Any) -> None:
    """Makes this process one rank of an engine that runs the checkpoint in `folder`."""
    reset_context()
    get_parallel()._overrides.clear()
    publish(
        ServerArgs(model_path=str(folder), device="cpu", page_size=PAGE, skip_tokenizer_init=True, attention_backend="torch_native", **args),
        role="scheduler", ranks=SpawnRanks(world_rank=0),
    )  # fmt: skip
    get_parallel()._overrides.update(
        tp_rank=tp_rank, tp_size=tp_size, pp_rank=pp_rank, pp_size=pp_size, attn_tp_rank=tp_rank, attn_tp_size=tp_size, attn_dcp_size=1,
        attn_dcp_rank=0, attn_dp_rank=0,
    )  # fmt: skip


class Rank:
    """One rank: pools of the checkpoint's shape, a controller, and a backend loaded by configuration."""

    def __init__(
        self, config: Mapping[str, Any], layout: str, settings: Mapping[str, Any], *, heads: int | None = None, layers: tuple[int, int] | None = None,
        dtype: torch.dtype = torch.bfloat16, hybrid: bool = True, generic: bool = False, tp_group: Any = None, backend: str = "dynamic",
        threshold: int = PAGE,
    ) -> None:  # fmt: skip
        first, last = layers or (0, config["num_hidden_layers"])
        count = last - first
        common = {"pin_memory": False, "device_capacity_tokens": TOKENS, "start_layer": first, "end_layer": last}
        if "kv_lora_rank" in config:
            self.device = MLATokenToKVPool(TOKENS, PAGE, dtype, config["kv_lora_rank"], config["qk_rope_head_dim"], count, "cpu", False)
            self.host = MLATokenToKVPoolHost(self.device._mla_buffer_info(), 8.0, 0, PAGE, layout, target_layer_num=count, **common)
        else:
            heads = heads or config["num_key_value_heads"]
            self.device = MHATokenToKVPool(TOKENS, PAGE, dtype, heads, config["head_dim"], count, "cpu", False)
            self.host = MHATokenToKVPoolHost(self.device._mha_buffer_info(), 8.0, 0, PAGE, layout, **common)
        how = {"page_size": PAGE, "tp_group": tp_group, "load_cache_event": threading.Event(), "write_policy": "write_through", "io_backend": "direct"}
        extra = {**BACKEND, **settings} if backend == "dynamic" else dict(settings)
        if generic:
            del extra["interface_v1"]
        pool = self.device

        class Allocator:
            def get_kvcache(self) -> Any:
                return pool

        if hybrid:
            group = HostPoolGroup([PoolEntry(PoolName.KV, self.host, self.device, lambda i: i, is_primary_index_anchor=True)])
            self.controller = HybridCacheController(Allocator(), group, transfer_layer_id_max=count, **how)
            self.controller.attach_storage_backend(backend, threshold, "served/name", extra, host_pools=group.entries)
        else:
            self.controller = HiCacheController(Allocator(), self.host, **how)
            self.controller.attach_storage_backend(backend, threshold, "served/name", extra)
        self.hybrid = hybrid

    @property
    def backend(self) -> Any:
        return self.controller.storage_backend

    def ready(self, seconds: float = WAIT) -> None:
        """Waits until the backend's session is open; AssertionError with its state if it does not get there."""
        backend = self.backend
        assert backend.cache is not None and backend.cache.wait_ready(seconds), backend.state

    def close(self) -> None:
        self.controller.detach_storage_backend()

    def backup(self, slots: torch.Tensor, tokens: list[int], prefix: list[str] | None = None) -> int:
        """Pages written."""
        self.controller.write_storage(slots, tokens, hash_value=get_hash_str(tokens, page_size=PAGE), prefix_keys=prefix)
        return self.controller.ack_backup_queue.get(timeout=WAIT).completed_tokens // PAGE

    def look_up(self, tokens: list[int], name: str = "request", prefix: list[str] | None = None) -> Any:
        """The engine's operation, once all ranks have agreed on what is there."""
        self.controller.prefetch(CacheRequestHandle(name, 0) if self.hybrid else name, tokens, None, prefix_keys=prefix)
        return self.controller.prefetch_hit_queue.get(timeout=WAIT)

    def load(self, op: Any) -> None:
        """Hands an operation on to the thread that loads."""
        op.host_indices = self.controller.mem_pool_host.alloc(op.storage_hit_count)
        self.controller.prefetch_buffer.put(op)

    def prefetch(self, tokens: list[int], name: str = "request", prefix: list[str] | None = None) -> tuple[int, int, torch.Tensor | None]:
        """Pages found and loaded, by all ranks, and their slots: what the scheduler does, without its policies."""
        op = self.look_up(tokens, name, prefix)
        if op.storage_hit_count < self.controller.prefetch_threshold:
            return op.storage_hit_count // PAGE, 0, None
        self.load(op)
        done = 0
        while True:
            ack = self.controller.ack_prefetch_queue.get(timeout=WAIT)
            if ack.completed_tokens is not None:
                done = ack.completed_tokens
            if ack.completed_req:
                return op.storage_hit_count // PAGE, done // PAGE, op.host_indices

    def alive(self) -> bool:
        """Whether the four threads run."""
        names = ("prefetch_thread", "prefetch_io_aux_thread", "prefetch_sync_thread", "backup_thread")
        return all(getattr(self.controller, n).is_alive() for n in names)

    def page(self, slot: int) -> torch.Tensor:
        """A writable view of one page as [plane, layer, token, head, dim]: this test's own knowledge of the layouts."""
        buffer, layout = self.host.kv_buffer, self.host.layout
        if isinstance(self.host, MLATokenToKVPoolHost):
            buffer = buffer.unsqueeze(0)
        if layout == "layer_first":
            return buffer[:, :, slot : slot + PAGE]
        if layout == "page_first":
            return buffer[:, slot : slot + PAGE].transpose(1, 2)
        page = buffer[:, slot // PAGE]
        return page if layout == "page_first_direct" else page.permute(0, 3, 2, 1, 4)

    def fill(self, slots: torch.Tensor, seed: int, heads: slice = slice(None), layers: slice = slice(None), shape: tuple[int, ...] | None = None) -> None:
        """Random bits into whole pages: those that one seed gives for a page of `shape`, cut to this rank's part."""
        g = torch.Generator().manual_seed(seed)
        for i in range(0, len(slots), PAGE):
            page = self.page(int(slots[i]))
            size = shape or tuple(page.shape)
            bits = torch.randint(0, 1 << 14, size, generator=g, dtype=torch.int32).to(torch.int16)
            page.copy_(bits.view(torch.bfloat16)[:, layers, :, heads] if page.dtype == torch.bfloat16 else bits.float()[:, layers, :, heads])

    def read(self, slots: torch.Tensor) -> list[torch.Tensor]:
        """Copies of pages in one order for all layouts, as bits."""
        return [self.page(int(slots[i])).contiguous().view(torch.uint8).clone() for i in range(0, len(slots), PAGE)]


def settings_of(server: Any, checkpoint: Mapping[str, str], **changes: Any) -> dict[str, Any]:
    """What an operator puts into the engine's JSON, with time for machines on which much else runs."""
    return {"server": server.address, **checkpoint, **PATIENT, **changes}


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) > 0 and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def tokens(pages: int, first: int = 1) -> list[int]:
    return list(range(first, first + pages * PAGE))

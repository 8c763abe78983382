"""Drives the real radix tree: main(CHECKPOINT, LAYOUT, SETTINGS) prints one line of JSON."""

from __future__ import annotations

import json
import time
import types
from array import array
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, InitLoadBackParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import SpawnRanks, publish, reset_context
from sglang.srt.server_args import ServerArgs

PAGE, LAYERS, HEADS, DIM, TOKENS, PAGES = 16, 3, 2, 8, 2048, 20


def settle(tree: Any, condition: Callable[[], Any], seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        tree.check_hicache_events()
        if condition():
            return True
        time.sleep(0.01)
    return False


def main(folder: str, layout: str, settings: str) -> None:
    reset_context()
    args = ServerArgs(
        model_path=folder, device="cpu", page_size=PAGE, enable_hierarchical_cache=True, hicache_ratio=2.0, hicache_mem_layout=layout, skip_tokenizer_init=True,
        hicache_io_backend="kernel", hicache_write_policy="write_through", hicache_storage_backend="dynamic", attention_backend="torch_native",
        hicache_storage_prefetch_policy="wait_complete", hicache_storage_backend_extra_config=settings, served_model_name="served/name",
    )  # fmt: skip
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=0))
    device = MHATokenToKVPool(TOKENS, PAGE, torch.bfloat16, HEADS, DIM, LAYERS, "cpu", False, start_layer=0, end_layer=LAYERS)
    allocator = PagedTokenToKVPoolAllocator(TOKENS, PAGE, torch.bfloat16, "cpu", device, False)
    requests = ReqToTokenPool(size=4, max_context_len=1024, device="cpu", enable_memory_saver=False)
    params = CacheInitParams(
        disable=False, req_to_token_pool=requests, token_to_kv_pool_allocator=allocator, page_size=PAGE, tree_components=(ComponentType.FULL,)
    )
    tree = UnifiedRadixCache(params)
    tree.init_hicache(args, params)
    backend = tree.cache_controller.storage_backend
    assert backend.cache.wait_ready(30), backend.state

    ids = array("q", range(1, PAGES * PAGE + 1))
    key = RadixKey(ids, extra_key=None)
    slots = allocator.alloc(PAGES * PAGE)
    buffers = [*device.k_buffer, *device.v_buffer]
    for buffer in buffers:
        buffer[slots] = torch.randn(PAGES * PAGE, HEADS, DIM).bfloat16()
    want = [buffer[slots].clone() for buffer in buffers]
    tree.insert(InsertParams(key=key, value=slots))
    settle(tree, lambda: backend.cache.stats()["saved_pages"] == PAGES and not tree.ongoing_backup)
    stored = int(backend.cache.stats()["saved_pages"])

    tree.reset()  # forgets device and host, keeps the store
    allocator.clear()
    for buffer in buffers:
        buffer.zero_()
    match = tree.match_prefix(MatchPrefixParams(key=key))
    forgotten = {"device": match.device_prefix_len, "host": match.host_hit_length}
    request = CacheRequestHandle("request", 0)
    tree.prefetch_from_storage(request, match.last_host_node, ids, None, None, [], None, None)
    assert settle(tree, lambda: tree.check_prefetch_progress(request)), "the prefetch does not end"
    loaded = tree.pop_prefetch_loaded_tokens(request)
    match = tree.match_prefix(MatchPrefixParams(key=key))
    root = match.last_device_node
    waiting = types.SimpleNamespace(
        rid="request", last_node=root, swa_host_hit_length=0, mamba_host_hit_length=0, kv=types.SimpleNamespace(mamba_pool_idx=None)
    )
    tree.init_load_back(InitLoadBackParams(best_match_node=match.best_match_node, host_hit_length=match.host_hit_length, mem_quota=None, req=waiting))
    tree.ready_to_load_host_cache()
    settle(tree, lambda: not tree.cache_controller.ack_load_queue)
    match = tree.match_prefix(MatchPrefixParams(key=key))
    back = tree.tree_core.collect_full_device_indices(match.last_device_node, root)
    equal = all(torch.equal(buffer[back], w) for buffer, w in zip(buffers, want, strict=True))
    tree.detach_storage_backend()
    print(json.dumps({"stored": stored, **forgotten, "loaded": loaded, "matched": len(back), "equal": equal}))

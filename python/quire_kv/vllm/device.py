"""The engine's blocks on a CUDA device: gathered and scattered there, through pinned host memory of a fixed size.

    save   side stream waits for the engine's, gathers blocks into Quire's order, copies them to pinned slots; the engine's
           stream waits for the gather, so that no later step overwrites a block before it was read. Nobody on the host waits.
    load   a loader's thread fetches into pinned memory, the side stream waits for what the engine had queued when the load
           began (a reallocated block may still be about to be zeroed), scatters, and the thread waits for its event.

Order of a page there: [kv head][layer][component][token][dim] of elements; the engine's is [block, kv head, token, k dims then v dims].
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..cache import Cache
from ..layout import PageMemory
from ..page import Geometry, View
from .ring import Slots

__all__ = ["DeviceMemory"]

_STAGE_PAGES = 64  # of one scatter


class DeviceMemory:
    """Blocks of one rank on its device, as `transfer.BlockMemory` wants them. tensors: one a layer, [blocks, heads, tokens, 2 * width]."""

    def __init__(self, tensors: Sequence[Any], *, tokens: int, width: int) -> None:
        import torch

        self._torch = torch
        self._tensors = list(tensors)
        self._tokens, self._width = tokens, width
        first = self._tensors[0]
        self._heads, self._dtype, self._device = int(first.shape[1]), first.dtype, first.device
        self._page_elements = self._heads * len(self._tensors) * 2 * tokens * width
        self._page_bytes = self._page_elements * int(first.element_size())
        self._saving = torch.cuda.Stream(device=self._device)
        self._slots: Slots | None = None
        self._local = threading.local()  # each loader has a stream and a pinned stage

    def adopt(self, slots: Slots) -> None:
        """Pins the slots."""
        error = self._torch.cuda.cudart().cudaHostRegister(slots.address, slots.count * slots.slot_bytes, 0)
        if int(error):
            raise RuntimeError(f"cudaHostRegister of {slots.count * slots.slot_bytes} bytes: error {int(error)}")
        self._slots = slots

    def fence(self) -> Any:
        """An event behind everything the engine has queued."""
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def gather(self, blocks: Sequence[int]) -> Any:
        """Blocks in Quire's order, on the device: [blocks, elements of a page]."""
        torch = self._torch
        index = torch.tensor(list(blocks), dtype=torch.int64, device=self._device)
        out = torch.empty((len(blocks), self._heads, len(self._tensors), 2, self._tokens, self._width), dtype=self._dtype, device=self._device)
        for i, tensor in enumerate(self._tensors):
            cells = tensor.index_select(0, index).view(len(blocks), self._heads, self._tokens, 2, self._width)
            out[:, :, i].copy_(cells.permute(0, 1, 3, 2, 4))
        return out.view(len(blocks), -1)

    def host_bytes(self, blocks: Sequence[int]) -> np.ndarray:
        """gather, as uint8 in host memory."""
        return np.asarray(self.gather(blocks).view(self._torch.uint8).cpu().numpy())

    def scatter(self, pages: Any, blocks: Sequence[int]) -> None:
        """The reverse of gather."""
        torch = self._torch
        index = torch.tensor(list(blocks), dtype=torch.int64, device=self._device)
        cells = pages.view(len(blocks), self._heads, len(self._tensors), 2, self._tokens, self._width)
        for i, tensor in enumerate(self._tensors):
            tensor.index_copy_(0, index, cells[:, :, i].permute(0, 1, 3, 2, 4).reshape(len(blocks), self._heads, self._tokens, 2 * self._width))

    def snapshot(self, blocks: Sequence[int], addresses: np.ndarray, geometry: Geometry, view: View) -> Callable[[], None] | None:
        torch = self._torch
        assert self._slots is not None
        host = torch.from_numpy(np.frombuffer(self._slots.memory, dtype=np.uint8))
        engine = torch.cuda.current_stream(self._device)
        self._saving.wait_stream(engine)
        gathered, copied = torch.cuda.Event(), torch.cuda.Event()
        with torch.cuda.stream(self._saving):
            pages = self.gather(blocks).view(torch.uint8)
            gathered.record(self._saving)
            for row, address in zip(pages, addresses.tolist(), strict=True):
                at = address - self._slots.address
                host[at : at + self._page_bytes].copy_(row, non_blocking=True)
            copied.record(self._saving)
        engine.wait_event(gathered)

        def wait() -> None:
            copied.synchronize()
            del pages_alive[:]

        pages_alive = [pages]
        return wait

    def load(self, cache: Cache, keys: Sequence[bytes], blocks: Sequence[int], geometry: Geometry, view: View, scope: bytes, fence: Any) -> list[bool]:
        torch = self._torch
        good: list[bool] = []
        stream, stage = self._stage()
        for at in range(0, len(keys), _STAGE_PAGES):
            part, ids = keys[at : at + _STAGE_PAGES], blocks[at : at + _STAGE_PAGES]
            addresses = np.arange(len(part), dtype=np.uint64) * np.uint64(self._page_bytes) + np.uint64(stage.data_ptr())
            ok = cache.load(part, PageMemory.flat_at(addresses, geometry, view, stage), scope=scope, view=view)
            here = [i for i, good_one in enumerate(ok) if good_one]
            if here:
                with torch.cuda.stream(stream):
                    stream.wait_event(fence)
                    pages = stage[: len(part)].to(self._device, non_blocking=True)[here]
                    self.scatter(pages.view(self._dtype), [ids[i] for i in here])
                    done = torch.cuda.Event()
                    done.record(stream)
                done.synchronize()
            good += ok
            if not all(ok):
                break
        return good + [False] * (len(keys) - len(good))

    def _stage(self) -> tuple[Any, Any]:
        local = self._local
        if not hasattr(local, "stream"):
            local.stream = self._torch.cuda.Stream(device=self._device)
            local.stage = self._torch.empty((_STAGE_PAGES, self._page_bytes), dtype=self._torch.uint8, pin_memory=True)
        return local.stream, local.stage

    def close(self) -> None:
        """Unpins the slots, when nothing copies into them any more."""
        if self._slots is not None:
            self._saving.synchronize()
            self._torch.cuda.cudart().cudaHostUnregister(self._slots.address)
            self._slots = None

"""CUDA: the paged KV cache on a device, through save and load, byte for byte; and the engine on it.

The tests marked cuda run where torch has a CUDA device, and the engine's where the installed vLLM is built for one; else they
skip and say which is missing. Blocks and their order are checked without a device as well: with torch's own CPU tensors and
streams that run at once, which shows where every element goes, and nothing about the order of what a device has queued.
"""

from __future__ import annotations

import contextlib
import logging
import types

import numpy as np
import pytest
import vllm_models
from test_client import keys_of
from vllm_engine import BLOCK, Engine, prompts
from waiting import wait_for

from quire_kv.cache import Cache
from quire_kv.config import Config

pytestmark = [pytest.mark.vllm, pytest.mark.limit(300)]

HEADS, LAYERS, TOKENS, WIDTH, BLOCKS = 2, 3, 16, 8, 80
VIEW_LAYERS = 4  # of the model: a rank of a pipeline holds the last three
SECONDS = 20.0
log = logging.getLogger("quire_kv.test")


def no_device() -> str:
    """Why there is no CUDA here; empty where there is."""
    import torch

    if torch.cuda.is_available():
        return ""
    built = torch.version.cuda
    return f"torch {torch.__version__} " + ("finds no CUDA device (or no driver)" if built else "is built without CUDA")


def no_engine() -> str:
    """Why the engine cannot run on CUDA here; empty where it can."""
    why = no_device()
    if why:
        return why
    from vllm.platforms import current_platform

    kind = current_platform.device_type
    return "" if kind == "cuda" else f"the installed vLLM is built for {kind}"


class Now:
    """A stream whose work is done when it is queued, and an event on it."""

    def __init__(self, device=None):
        self.waited: list = []

    def wait_stream(self, stream):
        pass

    def wait_event(self, event):
        self.waited.append(event)

    def record(self, stream):
        pass

    def synchronize(self):
        pass


@pytest.fixture(params=["cuda", "cpu"])
def device(request, monkeypatch):
    """Where the blocks lie: on a CUDA device, or in host memory with a device's calls that do nothing."""
    import torch

    if request.param == "cuda":
        if why := no_device():
            pytest.skip(why)
        return torch.device("cuda")
    empty = torch.empty
    current = Now()
    monkeypatch.setattr(torch, "empty", lambda *a, pin_memory=False, **kw: empty(*a, **kw))
    monkeypatch.setattr(torch.cuda, "Stream", Now)
    monkeypatch.setattr(torch.cuda, "Event", Now)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "cudart", lambda: types.SimpleNamespace(cudaHostRegister=lambda *_: 0, cudaHostUnregister=lambda *_: 0))
    return torch.device("cpu")


ORDERS = {  # of a backend's cache in memory, of the logical [block, head, token, content]
    "heads first": (0, 1, 2, 3),
    "tokens first": (0, 2, 1, 3),
}


def blocks_of(device, order: str, dtype: str = "bfloat16") -> list:
    """One tensor a layer, zeros, of the logical shape that the engine registers, lying in memory as `order` says."""
    import torch

    shape, axes = (BLOCKS, HEADS, TOKENS, 2 * WIDTH), ORDERS[order]
    back = [axes.index(i) for i in range(4)]
    return [torch.zeros([shape[a] for a in axes], dtype=getattr(torch, dtype), device=device).permute(back) for _ in range(LAYERS)]


def fill(tensors, blocks, seed: int) -> np.ndarray:
    """Random elements into blocks: what they are in Quire's order, uint8 [block][head][layer][component][token][bytes of a row]."""
    import torch

    rng = np.random.default_rng(seed)
    size = tensors[0].element_size()
    want = np.zeros((len(blocks), HEADS, LAYERS, 2, TOKENS, WIDTH * size), np.uint8)
    for layer, tensor in enumerate(tensors):
        for i, block in enumerate(blocks):
            for head in range(HEADS):
                for token in range(TOKENS):
                    row = rng.integers(0, 256, 2 * WIDTH * size, np.uint8)
                    tensor[block, head, token] = torch.from_numpy(row).view(tensor.dtype).to(tensor.device)
                    want[i, head, layer, 0, token], want[i, head, layer, 1, token] = row[: WIDTH * size], row[WIDTH * size :]
    return want


def read(tensors, blocks) -> list[np.ndarray]:
    """The bytes of blocks as the engine would read them, of each layer."""
    import torch

    return [t[list(blocks)].contiguous().view(torch.uint8).cpu().numpy() for t in tensors]


def memory_of(tensors):
    from quire_kv.vllm.device import DeviceMemory

    return DeviceMemory(tensors, tokens=TOKENS, width=WIDTH)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "uint8"])
@pytest.mark.parametrize("order", ORDERS)
def test_blocks_leave_in_the_order_of_pages(device, order, dtype):
    tensors = blocks_of(device, order, dtype)
    blocks = [7, 1, BLOCKS - 1]
    want = fill(tensors, blocks, 1)
    assert np.array_equal(memory_of(tensors).host_bytes(blocks), want.reshape(len(blocks), -1))


@pytest.fixture
def rig(device, quire_server, spec_text):
    """rig(order): a worker's transfer between blocks of a device and a store, of the last layers of a model."""
    from quire_kv.page import View
    from quire_kv.vllm.transfer import Transfer

    made = []

    def make(order: str):
        spec = spec_text(HEADS, VIEW_LAYERS, WIDTH, TOKENS)
        cache = Cache(Config.parse({"server": quire_server.address, "load_timeout_ms": 10_000, "save_timeout_ms": 10_000}), spec, log, adapter="test")
        view = View(0, HEADS, VIEW_LAYERS - LAYERS, VIEW_LAYERS)
        transfer = Transfer(cache, log, view=view, save_bytes=8 << 20)
        made.append((cache, transfer))
        tensors = blocks_of(device, order)
        transfer.attach(memory_of(tensors))
        assert cache.wait_ready(SECONDS), cache.state
        return transfer, tensors

    yield make
    for cache, transfer in made:
        transfer.close()
        cache.close()


def saved(transfer, keys, blocks) -> None:
    from quire_kv.vllm.meta import Save

    transfer.save([Save(b"", None, keys, blocks)])
    assert transfer.flush(SECONDS)
    report = transfer.report()
    assert report is None or not report.lost


def loaded(transfer, keys, blocks) -> set[int]:
    """The blocks that were not brought. The engine asks once a step: nobody waits in `start`."""
    from quire_kv.vllm.meta import Load

    transfer.start([Load("r", b"", keys, blocks)])
    ended: dict = {}
    wait_for(lambda: ended.update(transfer.results(())) or "r" in ended, SECONDS, "the end of a load")
    return ended["r"]


@pytest.mark.parametrize("reader", ORDERS)
@pytest.mark.parametrize("writer", ORDERS)
def test_blocks_come_back_byte_for_byte_in_other_places_and_orders(rig, writer, reader):
    """70 pages: more than one scatter takes."""
    transfer, tensors = rig(writer)
    n = 70
    keys, blocks = keys_of(n), list(range(1, n + 1))
    fill(tensors, blocks, 2)
    want = read(tensors, blocks)
    saved(transfer, keys, blocks)
    other, target = rig(reader)
    places = list(range(BLOCKS - 1, BLOCKS - 1 - n, -1))
    before = read(target, range(BLOCKS - n))
    assert loaded(other, keys, places) == set()
    assert all(np.array_equal(a, b) for a, b in zip(read(target, places), want, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(read(target, range(BLOCKS - n)), before, strict=True)), "other blocks are as they were"


def test_a_page_that_is_not_there_ends_the_load_and_nothing_else_is_written(rig):
    transfer, tensors = rig("tokens first")
    keys, blocks = keys_of(4), [1, 2, 3, 4]
    fill(tensors, blocks, 3)
    want = read(tensors, blocks[:2])
    saved(transfer, keys[:2], blocks[:2])
    places = [11, 12, 13, 14]
    assert loaded(transfer, keys, places) == {13, 14}
    assert all(np.array_equal(a, b) for a, b in zip(read(tensors, places[:2]), want, strict=True))
    assert all(not a.any() for a in read(tensors, places[2:]))


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_what_the_engine_had_queued_comes_before_a_load(rig, device):
    """A reallocated block may still be about to be zeroed, a block that is saved still be about to be written."""
    import torch

    transfer, tensors = rig("tokens first")
    keys, blocks = keys_of(8), list(range(1, 9))
    fill(tensors, blocks, 4)
    want = read(tensors, blocks)
    kept = [t.clone() for t in tensors]
    torch.cuda.synchronize()
    for t in tensors:
        t.zero_()
    slow = torch.ones((2048, 2048), device=device)
    for _ in range(200):
        slow = slow @ slow * 1e-4
    for t, k in zip(tensors, kept, strict=True):
        t.copy_(k)  # behind the products
    saved(transfer, keys, blocks)
    for _ in range(200):
        slow = slow @ slow * 1e-4
    places = list(range(21, 29))
    for t in tensors:
        t[places] = 0
    assert loaded(transfer, keys, places) == set()
    torch.cuda.synchronize()
    assert all(np.array_equal(a, b) for a, b in zip(read(tensors, places), want, strict=True))


@pytest.mark.parametrize("device", ["cuda"], indirect=True)
def test_a_save_is_of_what_the_blocks_were_then(rig, device):
    """The engine writes its next step into them at once."""
    import torch

    transfer, tensors = rig("heads first")
    keys, blocks = keys_of(32), list(range(1, 33))
    fill(tensors, blocks, 5)
    want = read(tensors, blocks)
    from quire_kv.vllm.meta import Save

    transfer.save([Save(b"", None, keys, blocks)])
    for t in tensors:
        t.fill_(7)
    assert transfer.flush(SECONDS)
    assert loaded(transfer, keys, blocks) == set()
    torch.cuda.synchronize()
    assert all(np.array_equal(a, b) for a, b in zip(read(tensors, blocks), want, strict=True))


# -- the engine -------------------------------------------------------------------------------------------------------


def test_the_engine_on_a_device_says_what_it_says_without_a_cache(quire_bin, quire_server, monkeypatch):
    """Tokens and log probabilities are those of the run that hits the engine's own prefix cache: batches of a device differ
    in their rounding, and a hit computes another batch than a miss. The cold answer is that of the engine alone."""
    if why := no_engine():
        pytest.skip(why)
    for name, value in (("VLLM_ENABLE_V1_MULTIPROCESSING", "0"), ("HF_HUB_OFFLINE", "1"), ("VLLM_NO_USAGE_STATS", "1"), ("DO_NOT_TRACK", "1")):
        monkeypatch.setenv(name, value)
    folder = vllm_models.tiny("bfloat16")
    given = prompts()
    how = {"dtype": "bfloat16", "gpu_memory_utilization": 0.3}
    plain = Engine(folder, None, **how)
    cold, own = plain.generate(given), plain.generate(given)
    plain.close()
    extra = {"server": quire_server.address, "model_digest": vllm_models.digest(quire_bin, folder), "weights": "frozen", "lookup_wait_ms": 5000}
    first = Engine(folder, extra, **how)
    try:
        first.ready()
        assert same(first.generate(given), cold) and quire_server.read_counter() == 0
        assert first.worker._transfer.flush(SECONDS)
    finally:
        first.close()
    second = Engine(folder, extra, **how)
    try:
        second.ready()
        answers = second.generate(given)
        pages = sum((len(p) - 1) // BLOCK for p in given)
        assert quire_server.read_counter() == pages * 2 * 4 * BLOCK * 2 * 32 * 2  # heads, layers, tokens, components, width, bytes
        assert [a.cached for a in answers] == [a.cached for a in own] and same(answers, own)
    finally:
        second.close()


def same(answers, wanted) -> bool:
    pairs = [(u, v) for a, b in zip(answers, wanted, strict=True) for u, v in zip(a.logprobs, b.logprobs, strict=True)]
    return [a.tokens for a in answers] == [b.tokens for b in wanted] and max(abs(u - v) for u, v in pairs) < 1e-3

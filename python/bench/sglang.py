"""How fast SGLang's controller gets and sets pages in Quire, beside a plain copy and its file backend in the same run.

    python python/bench/sglang.py                                starts a server of this checkout
    python python/bench/sglang.py --shape 2x128 --layout page_head --rounds 7

Needs an environment with SGLang (tools/check/python.sh env sglang prints one); runs on a CPU. Calls are those that the
controller makes for one batch: 128 pages of about 1 MiB in its own host pool. Each round sets keys that are new and gets
them back to another place, where they are compared; a ratio is the time of a plain copy of the same bytes by that of the
call, medians of the rounds. `spin` is how much of its rate a Python loop keeps in this process while gets and sets run.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path = [p for p in sys.path if pathlib.Path(p or ".").resolve() != ROOT / "bench"]  # this file has the engine's name
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "engines" / "sglang")]
try:
    import quire_kv  # noqa: F401
except ImportError:
    sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import serving  # noqa: E402
import sglang_checkpoints as checkpoints  # noqa: E402
import sglang_controllers as c  # noqa: E402
import torch  # noqa: E402

from quire_kv import kernels  # noqa: E402

PAGES, PAGE_BYTES, TOKENS = 128, 1 << 20, 16
MEMORY = "640MiB"  # of the server: some batches, so that rounds are measured in memory that has been used before
WARM_ROUNDS = 6  # until it has
SPIN_SECONDS = 2.0


def config_of(shape: str) -> dict[str, Any]:
    """A model with pages of about PAGE_BYTES."""
    heads, dim = (int(n) for n in shape.split("x"))
    layers = max(1, PAGE_BYTES // (TOKENS * heads * dim * 2 * 2))
    sizes = {"hidden_size": heads * dim, "num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": dim, "num_hidden_layers": layers}
    return {**checkpoints.LLAMA, **sizes}


class Bench:
    """One engine rank of a shape, over one backend."""

    def __init__(self, shape: str, layout: str, folder: pathlib.Path, settings: dict[str, Any], backend: str) -> None:
        c.PAGE, c.TOKENS = TOKENS, PAGES * TOKENS
        config = config_of(shape)
        c.run_as(checkpoints.shape_only(folder / shape, config))
        self.rank = c.Rank(config, layout, settings, backend=backend, threshold=TOKENS)
        self.page_bytes = self.rank.host.size_per_token * TOKENS
        self.source, self.target = (self.rank.host.alloc(PAGES * TOKENS) for _ in range(2))
        bits = torch.randint(0, 256, (PAGES * self.page_bytes,), dtype=torch.uint8)
        for i, slot in enumerate(self.source[::TOKENS]):
            page = self.rank.page(int(slot))
            page.copy_(bits[i * self.page_bytes : (i + 1) * self.page_bytes].view(page.dtype).view(page.shape))
        self.plain = (bits.numpy(), np.empty_like(bits.numpy()))

    def keys(self, number: int) -> list[str]:
        return c.get_hash_str(c.tokens(PAGES, first=1 + number * PAGES * TOKENS), page_size=TOKENS)

    def set(self, keys: list[str]) -> None:
        if not self.rank.controller.page_set_func(keys, self.source, None):
            raise SystemExit("a page was not set")

    def get(self, keys: list[str]) -> None:
        request = SimpleNamespace(request_id="bench", is_terminated=lambda: False)
        if self.rank.controller.page_get_func(request, keys, self.target, None) != len(keys):
            raise SystemExit("a page did not come back")

    def copy(self) -> None:
        np.copyto(self.plain[1], self.plain[0])  # one thread, as our copies

    def check(self) -> None:
        """Every byte that was got."""
        if not c.same(self.rank.read(self.target), self.rank.read(self.source)):
            raise SystemExit("wrong bytes")

    def forget(self) -> None:
        for slot in self.target[::TOKENS]:
            self.rank.page(int(slot)).zero_()


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def rates(bench: Bench, rounds: int) -> dict[str, float]:
    """Median seconds of copy, set and get."""
    times: dict[str, list[float]] = {"copy": [], "set": [], "get": []}
    for n in range(WARM_ROUNDS + rounds):
        keys = bench.keys(n)
        bench.forget()
        took = {"copy": timed(bench.copy), "set": timed(lambda k=keys: bench.set(k)), "get": timed(lambda k=keys: bench.get(k))}
        bench.check()
        for name, seconds in took.items() if n >= WARM_ROUNDS else ():
            times[name].append(seconds)
    return {name: statistics.median(values) for name, values in times.items()}


def spin(seconds: float) -> float:
    """Turns a second of a loop in Python."""
    turns, end = 0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        turns += 1
    return turns / seconds


def kept(bench: Bench, first: int) -> float:
    """The share of its rate that a loop on this thread keeps while another sets and gets without a pause."""
    idle = spin(SPIN_SECONDS)
    over = threading.Event()

    def load() -> None:
        number = first
        while not over.is_set():
            keys = bench.keys(number)
            bench.set(keys)
            bench.get(keys)
            number += 1

    thread = threading.Thread(target=load)
    thread.start()
    busy = spin(SPIN_SECONDS)
    over.set()
    thread.join()
    return busy / idle


def line(name: str, shape: str, seconds: dict[str, float], size: int, rest: str = "") -> str:
    part = "  ".join(f"{what} {PAGES * size / seconds[what] / 2**30:5.2f} GiB/s ({seconds['copy'] / seconds[what]:4.2f})" for what in ("get", "set"))
    return f"{name:16} {shape:6} {part}  copy {PAGES * size / seconds['copy'] / 2**30:5.2f} GiB/s  {rest}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", help="kv heads x head dim; default 8x128, 2x128 and 3x64")
    parser.add_argument("--layout", default="page_first")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--transport", default="shm")
    options = parser.parse_args()
    print(f"native helper: {kernels.NATIVE} {kernels.why_not}; layout {options.layout}; {PAGES} pages a call; in brackets the share of a plain copy")
    quire = serving.build_quire()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for shape in options.shape or ["8x128", "2x128", "3x64"]:
            server = serving.Server(quire, folder / f"server-{shape}", memory=MEMORY).start()
            try:
                checkpoint = checkpoints.shape_only(folder / shape, config_of(shape))
                settings = c.settings_of(
                    server, checkpoints.digest(quire, checkpoint, folder), transport=options.transport, load_timeout_ms=5000, save_timeout_ms=5000
                )
                bench = Bench(shape, options.layout, folder, settings, "dynamic")
                bench.rank.ready()
                seconds = rates(bench, options.rounds)
                rest = f"spin {kept(bench, WARM_ROUNDS + options.rounds):4.2f}  over {bench.rank.backend.cache.transport}"
                print(line("quire", shape, seconds, bench.page_bytes, rest), flush=True)
                bench.rank.close()
            finally:
                server.close()
            files = tempfile.mkdtemp(dir="/dev/shm")
            try:
                bench = Bench(shape, options.layout, folder, {"file_storage_path": files}, "file")
                print(line("files on tmpfs", shape, rates(bench, options.rounds), bench.page_bytes), flush=True)
                bench.rank.close()
            finally:
                shutil.rmtree(files)


if __name__ == "__main__":
    main()

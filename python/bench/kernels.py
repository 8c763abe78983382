"""Measures pack and unpack, sums included, against a plain numpy copy of the same bytes in the same run.

    python python/bench/kernels.py [--mib 128] [--rounds 7] [--threads 1] [--isa avx2] [--shape 8x128x32x16]

Each line is one shape (kv heads x head dim, bfloat16, layers, tokens a page) in one engine order. A ratio is the bytes a
second of the kernel over those of the plain copy, medians of interleaved rounds. `direct` sums the source where it lies
(a private receive buffer); `shared` copies it through the call's own buffer first (shared memory).
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from quire_kv import kernels
from quire_kv.layout import Layout, PageMemory, Rows, address_of, regions_of
from quire_kv.page import Geometry


class Shape(NamedTuple):
    heads: int
    dim: int
    layers: int
    tokens: int

    @property
    def row(self) -> int:
        return 2 * self.dim

    @property
    def page_bytes(self) -> int:
        return 2 * self.heads * self.layers * self.tokens * self.row


SHAPES = (Shape(8, 128, 32, 16), Shape(2, 128, 32, 16), Shape(3, 64, 30, 16), Shape(8, 128, 16, 64))


def memory(order: str, s: Shape, pages: int, buffer: np.ndarray) -> PageMemory:
    """Pages of k and v in one of the orders of an engine."""
    base, row, tokens = address_of(buffer)[0], s.row, pages * s.tokens
    component = tokens * s.layers * s.heads * row
    if order == "page_first":  # [k,v][token][layer][head][dim]
        head, token, layer, page = row, s.layers * s.heads * row, s.heads * row, s.tokens * s.layers * s.heads * row
    elif order == "layer_first":  # [k,v][layer][token][head][dim]
        head, token, layer, page = row, s.heads * row, tokens * s.heads * row, s.tokens * s.heads * row
    elif order == "page_first_direct":  # [k,v][page][layer][token][head][dim]
        head, token, layer, page = row, s.heads * row, s.tokens * s.heads * row, s.tokens * s.layers * s.heads * row
    elif order == "page_head":  # [k,v][page][head][token][layer][dim]
        head, token, layer, page = s.tokens * s.layers * row, s.layers * row, row, s.tokens * s.layers * s.heads * row
    else:  # cell: [layer][page][head][k,v][token][dim], each cell one run
        cell = 2 * s.tokens * row
        layout = Layout(s.heads, s.layers, (Rows(cell, cell, 0, 1),))
        offsets = np.arange(pages) * s.heads * cell
        layers = np.arange(s.layers) * pages * s.heads * cell
        return PageMemory.strided(layout, base, offsets, [0], layers, buffer, regions_of([buffer]))
    layout = Layout(s.heads, s.layers, (Rows(row, head, token, s.tokens),) * 2)
    return PageMemory.strided(layout, base, np.arange(pages) * page, [0, component], np.arange(s.layers) * layer, buffer, regions_of([buffer]))


def aligned(size: int, huge: bool) -> np.ndarray:
    """Bytes that begin at a memory page, as host pools and shared memory do; numpy's own begin at 16 past one."""
    m = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge:
        m.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(m, dtype=np.uint8)


def median_seconds(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):  # the first round touches the memory
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn:
                taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in taken.items()}


def measure(order: str, s: Shape, mib: int, rounds: int, threads: int, huge: bool) -> str:
    pages = max(1, (mib << 20) // s.page_bytes)
    total = pages * s.page_bytes
    engine, flat, spare = (aligned(total, huge) for _ in range(3))
    engine[:] = np.random.default_rng(1).integers(0, 256, total, dtype=np.uint8)
    mem = memory(order, s, pages, engine)
    geo = Geometry(bytes(32), "full", s.tokens, s.heads, s.layers, 2 * s.tokens * s.row, "elements", 32)
    out = np.uint64(address_of(flat)[0]) + np.arange(pages, dtype=np.uint64) * np.uint64(s.page_bytes)
    sums = kernels.pack(mem, range(pages), geo, geo.whole, out).reshape(-1)
    jobs = np.zeros(pages, dtype=kernels.UNPACK)
    jobs["src"], jobs["bytes"], jobs["page"] = out, s.page_bytes, np.arange(pages)
    jobs["first_sum"] = np.arange(pages) * (len(sums) // pages)
    jobs["eh1"], jobs["el1"] = s.heads, s.layers
    private = jobs.copy()
    private["flags"] = kernels.PRIVATE
    calls: dict[str, Callable[[], object]] = {
        "copy": lambda: np.copyto(spare, flat),
        "pack": lambda: kernels.pack(mem, range(pages), geo, geo.whole, out, threads=threads),
        "shared": lambda: kernels.unpack(jobs, mem, geo, geo.whole, sums, threads=threads),
        "direct": lambda: kernels.unpack(private, mem, geo, geo.whole, sums, threads=threads),
        "verify": lambda: kernels.verify(jobs, geo, sums, threads=threads),
    }
    t = median_seconds(calls, rounds)
    if jobs["status"].any() or private["status"].any():
        raise SystemExit("a sum differs")
    name = f"{s.heads}x{s.dim} L{s.layers} T{s.tokens}"
    ratios = "  ".join(f"{k} {t['copy'] / t[k]:5.2f}" for k in ("pack", "shared", "direct", "verify"))
    return f"{name:16} {order:18} copy {total / t['copy'] / 1e9:5.1f} GB/s  {ratios}"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--mib", type=int, default=128, help="bytes of a batch")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--huge", action="store_true", help="memory of huge pages")
    p.add_argument("--isa", default="", help="avx512, avx2 or plain; the best by default")
    p.add_argument("--shape", help="heads x dim x layers x tokens")
    p.add_argument("--order", help="one engine order only")
    a = p.parse_args()
    isa = kernels.instruction_set(a.isa)
    print(f"kernels: {isa}, {a.threads} thread(s), batches of {a.mib} MiB")
    shapes = SHAPES if a.shape is None else (Shape(*(int(n) for n in a.shape.split("x"))),)
    orders = (a.order,) if a.order else ("page_first", "page_first_direct", "page_head", "layer_first", "cell")
    for s in shapes:
        for order in orders:
            print(measure(order, s, a.mib, a.rounds, a.threads, a.huge), flush=True)


if __name__ == "__main__":
    main()

"""How fast the client gets, puts and asks, beside a plain copy of the same bytes in the same process.

    python python/bench/client.py                         starts a server of this checkout
    python python/bench/client.py --server 127.0.0.1:7420 --pages 128 --rounds 7

Each figure is the best of the rounds; a ratio is the plain copy's time by the call's. Pages are of 8 heads of 128
bfloat16, 16 tokens, keys and values, so a layer is 64 KiB. `engine` has the order of an engine's pool (page, layer,
component, token, head), `flat` is Quire's own. Every byte that was got is compared.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]
try:
    import quire_kv  # noqa: F401
except ImportError:
    sys.path.insert(0, str(ROOT))

import serving  # noqa: E402

from quire_kv import kernels  # noqa: E402
from quire_kv.client import ROOT_PARENT, Client, Options, Session  # noqa: E402
from quire_kv.layout import Layout, PageMemory, Rows  # noqa: E402

HEADS, WIDTH, TOKENS = 8, 128, 16
ROW = WIDTH * 2
LAYER_BYTES = 2 * TOKENS * HEADS * ROW
SIZES = {"64 KiB": 1, "1 MiB": 16, "2.5 MiB": 40}  # layers


def best(rounds: int, call: Callable[[], object]) -> float:
    """Seconds of the fastest of the rounds, after one that does not count."""
    call()
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return min(times)


def engine_memory(pool: np.ndarray, layers: int) -> PageMemory:
    """The pages of a pool uint8 [pages, layers, 2, tokens, heads, row]."""
    layout = Layout(HEADS, layers, tuple(Rows(ROW, ROW, HEADS * ROW, TOKENS) for _ in range(2)))
    half = LAYER_BYTES // 2
    base = int(pool.__array_interface__["data"][0])
    return PageMemory.strided(layout, base, np.arange(len(pool)) * layers * LAYER_BYTES, [0, half], np.arange(layers) * LAYER_BYTES, pool)


def memory_of(order: str, pool: np.ndarray, layers: int, session: Session) -> PageMemory:
    if order == "engine":
        return engine_memory(pool, layers)
    return PageMemory.flat([memoryview(p).cast("B") for p in pool.reshape(len(pool), -1)], session.only, session.only.whole)


def run(address: str, transport: str, order: str, name: str, pages: int, rounds: int) -> None:
    """Measures one transport with pages of one size and prints a line."""
    layers = SIZES[name]
    with Client(Options(address, transport=transport, call_timeout=30.0)) as client:
        spec = serving.spec_text(HEADS, layers, WIDTH, TOKENS, model=f"bench/{transport}/{order}/{layers}/{os.getpid()}")
        session = client.open(spec)
        source = np.random.default_rng(7).integers(0, 256, (pages, layers, 2, TOKENS, HEADS, ROW), dtype=np.uint8)
        target = np.empty_like(source)
        plain = best(rounds, lambda: np.copyto(target, source))
        from_memory, to_memory = (memory_of(order, p, layers, session) for p in (source, target))
        stored: list[bytes] = []

        def put() -> float:
            keys = [os.urandom(32) for _ in range(pages)]
            began = time.perf_counter()
            answers = session.publish(keys, from_memory, parent=ROOT_PARENT)
            seconds = time.perf_counter() - began
            assert all(a.ok for a in answers), answers
            if stored:
                session.delete(stored)
            stored[:] = keys
            return seconds

        def get() -> None:
            answers = session.fetch(stored, to_memory)
            assert all(a.ok for a in answers), answers

        put_seconds = min([put() for _ in range(rounds + 1)][1:])
        target.fill(0)
        get_seconds = best(rounds, get)
        assert np.array_equal(source, target), "bytes differ"
        exists_seconds = best(10 * rounds, lambda: session.exists(stored))
        gib = source.nbytes / (1 << 30)
        print(
            f"{transport:5} {order:7} {name:>8} x{pages}: copy {gib / plain:5.2f} GiB/s; "
            f"get {gib / get_seconds:5.2f} GiB/s, ratio {plain / get_seconds:5.3f}; "
            f"put {gib / put_seconds:5.2f} GiB/s, ratio {plain / put_seconds:5.3f}; exists {exists_seconds * 1e6:5.0f} us",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--server", help="host:port of a running server; without one, one is started")
    parser.add_argument("--transports", default="shm,data,grpc")
    parser.add_argument("--orders", default="engine,flat")
    parser.add_argument("--pages", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    print(f"kernels: {'native' if kernels.NATIVE else 'numpy, ' + kernels.why_not}; {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        server = None if args.server else serving.Server(serving.build_quire(), pathlib.Path(folder), memory="3GiB")
        try:
            address = args.server or server.start().address  # type: ignore[union-attr]
            for transport in args.transports.split(","):
                for order in args.orders.split(","):
                    for name in SIZES:
                        run(address, transport, order, name, args.pages, args.rounds)
        finally:
            if server is not None:
                server.close()


if __name__ == "__main__":
    main()

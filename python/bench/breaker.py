"""What a store that is away costs an engine: calls while it is, how soon that is known, and how soon hits are back.

    python python/bench/breaker.py                        starts a server of this checkout, kills it, stops it, starts it again
    python python/bench/breaker.py --rounds 9 --ways shm

Away is `Cache.ready` false: the engine's calls end without a message. A call failed that went out and did not come back
well. The store is back when it says that it serves, or is continued; from then on the time runs to the first lookup that
hits. A busy engine has a thread that calls all the time, an idle one calls nobody until its cache says that it is ready.
The last two lines of each way say whether the promises were kept in every round.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from typing import NamedTuple

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests")]
try:
    import quire_kv  # noqa: F401
except ImportError:
    sys.path.insert(0, str(ROOT))

import logging  # noqa: E402

import serving  # noqa: E402
from waiting import wait_for  # noqa: E402

from quire_kv.breaker import FAILURES  # noqa: E402
from quire_kv.cache import Cache  # noqa: E402
from quire_kv.client import ROOT_PARENT  # noqa: E402
from quire_kv.config import Config  # noqa: E402
from quire_kv.errors import Reason  # noqa: E402
from quire_kv.layout import PageMemory  # noqa: E402

PAGES = 94  # of 16 tokens: a prefix of 1,500
CALLS = 20_000
WAIT = 60.0  # seconds for anything at all
CALL_SECONDS, BACK_SECONDS = 0.2e-3, 5.0  # the promises, with FAILURES


class Away(NamedTuple):
    """How the store's going was noticed. Seconds from then to the breaker; calls that failed; the longest of them."""

    seconds: float
    failures: int
    longest: float


class Engine:
    """A cache with stored pages, and callers."""

    def __init__(self, server: serving.Server, way: str):
        self.server = server
        settings = {"server": server.address, "transport": way, "durability": "disk"}
        self.cache = Cache(Config.parse(settings), serving.spec_text(model=f"bench/{way}"), logging.getLogger("bench"), adapter="bench")
        assert self.cache.wait_ready(WAIT), self.cache.state
        geometry = self.cache.geometry()
        assert geometry is not None
        self.keys = [os.urandom(32) for _ in range(PAGES)]
        self.room = np.zeros((PAGES, geometry.page_bytes), np.uint8)
        self.memory = PageMemory.flat(list(self.room), geometry, geometry.whole)
        assert all(self.cache.save(self.keys, self.memory, parent=ROOT_PARENT))

    def hit(self) -> bool:
        return self.cache.lookup(self.keys).leading == PAGES

    def call_until_away(self, since: float) -> Away:
        """Calls as an engine would, until the cache lets no call through."""
        failures, longest = 0, 0.0
        while self.cache.ready:
            began = time.perf_counter()
            found = self.cache.lookup(self.keys)
            took = time.perf_counter() - began
            if found.reason is not Reason.NONE and took > CALL_SECONDS / 10:  # else it was refused at once: the cache knew
                failures, longest = failures + 1, max(longest, took)
        return Away(time.perf_counter() - since, failures, longest)

    def time_to_hit(self, idle: bool) -> float:
        """Seconds until a lookup hits."""
        began = time.perf_counter()
        if idle:
            wait_for(lambda: self.cache.ready, WAIT, "the cache")
        wait_for(self.hit, WAIT, "a hit")
        return time.perf_counter() - began

    def cost(self) -> dict[str, np.ndarray]:
        """Seconds of each call while the store is away."""
        calls = {
            "lookup": lambda: self.cache.lookup(self.keys, lease=5.0),
            "load": lambda: self.cache.load(self.keys, self.memory),
            "save": lambda: self.cache.save(self.keys, self.memory),
        }
        out = {}
        for name, call in calls.items():
            took = np.empty(CALLS)
            for i in range(CALLS):
                began = time.perf_counter()
                call()
                took[i] = time.perf_counter() - began
            out[name] = took
        return out


def show(what: str, values: list[float], unit: str = "s") -> None:
    print(f"  {what:58} {statistics.median(values):8.3f} {unit} median, {max(values):8.3f} most", flush=True)


def run(server: serving.Server, way: str, rounds: int) -> None:
    """Measures one transport and prints its lines."""
    engine = Engine(server, way)
    print(f"{way}: {PAGES} keys a call, {rounds} rounds", flush=True)
    killed: list[Away] = []
    stopped: list[Away] = []
    back: dict[str, list[float]] = {"started again, idle": [], "started again, busy": [], "continued, idle": [], "continued, busy": []}
    costs: dict[str, list[np.ndarray]] = {}
    for number in range(rounds):
        idle = number % 2 == 0
        since: list[float] = []
        killer = threading.Timer(0.05, lambda since=since: (since.append(time.perf_counter()), server.kill()))
        killer.start()
        while not since:
            engine.hit()
        killed.append(engine.call_until_away(since[0]))
        killer.join()
        for name, took in engine.cost().items():
            costs.setdefault(name, []).append(took)
        server.start()
        back["started again, idle" if idle else "started again, busy"].append(engine.time_to_hit(idle))
        server.pause()
        stopped.append(engine.call_until_away(time.perf_counter()))
        time.sleep(2.0)  # probes have spaced themselves
        server.resume()
        back["continued, idle" if idle else "continued, busy"].append(engine.time_to_hit(idle))
    for name, every in costs.items():
        all_of = np.concatenate(every) * 1e6
        p50, p99 = np.percentile(all_of, [50, 99])
        print(f"  {name + ' while away':58} {p50:8.1f} us p50, {p99:.1f} us p99, {all_of.max():.1f} us most of {len(all_of)}")
    for what, aways in (("killed", killed), ("stopped (SIGSTOP)", stopped)):
        show(f"{what}: until calls end at once", [a.seconds for a in aways])
        show(f"{what}: calls that failed until then", [float(a.failures) for a in aways], " ")
        show(f"{what}: the longest call", [a.longest for a in aways])
    for what, seconds in back.items():
        if seconds:
            show(f"{what}: to the first hit", seconds)
    p99 = max(float(np.percentile(np.concatenate(every), 99)) for every in costs.values())
    worst = max(max(seconds) for seconds in back.values() if seconds)
    few = all(a.failures <= FAILURES for a in killed) and all(a.failures <= 1 for a in stopped)
    print(f"  p99 while away <= {CALL_SECONDS * 1e3} ms: {p99 <= CALL_SECONDS}; at most {FAILURES} failures or one deadline: {few}", flush=True)
    print(f"  back within {BACK_SECONDS} s: {worst <= BACK_SECONDS}", flush=True)
    engine.cache.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ways", default="shm,data,grpc")
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    print(f"{os.cpu_count()} cores, load {', '.join(f'{x:.2f}' for x in os.getloadavg())}")
    with tempfile.TemporaryDirectory() as folder:
        server = serving.Server(serving.build_quire(), pathlib.Path(folder), disk="256MiB").start()
        try:
            for way in args.ways.split(","):
                run(server, way, args.rounds)
        finally:
            server.close()


if __name__ == "__main__":
    main()

"""Quire beside other stores: adds our peers to a side-by-side driver and runs it.

    python quire_peer.py HARNESS PEER [the driver's arguments]

HARNESS is the folder of the driver, bench.py, whose own peers (Redis, Mooncake, kvblockd, files) it runs too; PEER is one of
quire-shm, quire-data, quire-grpc, or quire-disk (shared memory, and every page acknowledged on disk). The binary is
DIR/bin/quire, as run.sh builds it. The driver gives a client keys and numpy arrays:

    put(keys, arrays) -> 0 or a reason, one a key     get(keys, arrays) -> bytes read or -1, one a key     exists(keys)

A page of Quire has one size, so there is a namespace for each size: 8 heads of 128 bfloat16, 16 tokens, keys and values,
which is 64 KiB a layer. `exists` asks that of the size which was last put or got.
"""

from __future__ import annotations

import ast
import os
import pathlib
import re
import sys
import urllib.request

import xxhash

from quire_kv.client import Client, Options, Session
from quire_kv.errors import QuireError
from quire_kv.layout import PageMemory

HERE = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[2] / "tests"))

from serving import spec_text  # noqa: E402

LAYER_BYTES = 16 * 8 * 2 * 128 * 2  # tokens x heads x (key, value) x width x bytes
HARNESS = "QUIRE_PEERS_HARNESS"  # environment, for the driver's worker processes
INDEX_BYTES = 64 << 20
CALL_SECONDS = 30.0  # a benchmark measures, and does not give up


def definitions(harness: pathlib.Path) -> tuple[dict, ast.Module]:
    """The driver's names, and its main block, not run yet."""
    file = harness / "bench.py"
    tree = ast.parse(file.read_text(), str(file))
    *body, main = tree.body
    names = {"__name__": "bench", "__file__": str(HERE)}  # workers are started as this file
    exec(compile(ast.Module(body, []), str(file), "exec"), names)
    assert isinstance(main, ast.If), "the driver ends with its main block"
    return names, ast.Module(main.body, [])


class QuireClient:
    """One client process, over one transport. Thread-safe."""

    def __init__(self, o: dict):
        self._client = Client(Options(f"127.0.0.1:{o['port']}", transport=o["transport"], call_timeout=CALL_SECONDS))
        self._durability = "disk" if o.get("disk") else None
        self._sessions: dict[int, Session] = {}
        self._last = 1 << 20

    def _session(self, size: int) -> Session:
        if size not in self._sessions:
            assert size % LAYER_BYTES == 0, size
            self._sessions[size] = self._client.open(spec_text(8, size // LAYER_BYTES, 128, 16, 16, model="bench/peers"))
        self._last = size
        return self._sessions[size]

    @staticmethod
    def _keys(keys: list[str]) -> list[bytes]:
        """Engines have hashes of their tokens; the driver has text."""
        return [xxhash.xxh3_128_digest(k.encode()) * 2 for k in keys]

    def alloc(self, size: int):
        """Memory that the server reads where it lies, for the driver's buffers."""
        return self._client.staging(size).memory

    def put(self, keys, arrays):
        session = self._session(arrays[0].nbytes)
        memory = PageMemory.flat(arrays, session.only, session.only.whole)
        try:
            pages = session.publish(self._keys(keys), memory, durability=self._durability)
        except QuireError as e:
            return [str(e)] * len(keys)
        return [0 if p.ok else p.reason.label for p in pages]

    def get(self, keys, arrays):
        session = self._session(arrays[0].nbytes)
        memory = PageMemory.flat(arrays, session.only, session.only.whole)
        try:
            pages = session.fetch(self._keys(keys), memory)
        except QuireError:
            return [-1] * len(keys)
        return [arrays[i].nbytes if p.ok else -1 for i, p in enumerate(pages)]

    def exists(self, keys):
        return list(map(bool, self._session(self._last).exists(self._keys(keys)).present))

    def clone(self):
        return self

    def delete(self, keys) -> None:
        self._session(self._last).delete(self._keys(keys))

    def close(self) -> None:
        self._client.close()


def peers(driver: dict) -> dict:
    """Our rows of the driver's table of peers."""

    class Quire(driver["Peer"]):
        """`quire serve`. The driver's capacity is that of the tier that holds pages, headers included; the index comes on top,
        as it does with the other stores."""

        def start(self):
            port = self.o["port"]
            argv = [f"{self.o['bin']}/quire", "serve", "--data", f"{self.wd}/data", "--shm-socket", f"{self.wd}/s"]
            argv += ["--memory", str(self.cap + INDEX_BYTES), "--metadata", str(INDEX_BYTES)]
            argv += ["--grpc-listen", f"127.0.0.1:{port}", "--data-listen", f"127.0.0.1:{port + 1}", "--admin-listen", f"127.0.0.1:{port + 2}"]
            argv += ["--disk", self.o["disk"]] if self.o.get("disk") else []
            self.spawn(argv)
            driver["wait_port"](port)

        def client(self, bufs=None):
            return QuireClient(self.o)

        def reset(self, client):
            client.delete(self.written)

        def used(self, client):
            with urllib.request.urlopen(f"http://127.0.0.1:{self.o['port'] + 2}/metrics", timeout=10) as answer:
                text = answer.read().decode()
            return sum(int(float(n)) for n in re.findall(r'^quire_tier_(?:live|slack)_bytes\{tier="host"\} (\S+)', text, re.M))

    def bufs(run, peer, **sizes):
        """The driver's buffers are the client's own where its peers over shared memory have theirs."""
        if not isinstance(peer, Quire) or peer.o["transport"] != "shm":
            return of_driver(run, peer, **sizes)
        client = peer.client()
        return driver["Bufs"](alloc=client.alloc, **sizes), client

    of_driver = driver["Run"].bufs
    driver["Run"].bufs = bufs
    table = {f"quire-{way}": (Quire, {"bin": "1", "transport": way}) for way in ("shm", "data", "grpc")}
    table["quire-disk"] = (Quire, {"bin": "1", "transport": "shm", "disk": "16GiB"})
    return table


def run() -> None:
    harness = os.environ.get(HARNESS)
    if harness is None:
        if len(sys.argv) < 3:
            sys.exit(__doc__)
        harness = os.environ[HARNESS] = os.path.abspath(sys.argv.pop(1))
    driver, main = definitions(pathlib.Path(harness))
    driver["PEERS"].update(peers(driver))
    exec(compile(main, str(HERE), "exec"), driver)


if __name__ == "__main__":
    run()

"""A cache in this process with the interface of quire_kv.cache.Cache, for tests of adapters without a server.

Pages are kept cell by cell, (kv head, layer), copied byte by byte through the addresses of a PageMemory: the dumb twin of what
the store and the kernels do. Identities never meet: a page is kept under the text of the spec that saved it.
"""

from __future__ import annotations

import ctypes
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

from quire_kv.cache import Lookup
from quire_kv.errors import ConfigError, Reason
from quire_kv.hint import Hint
from quire_kv.layout import PageMemory
from quire_kv.metrics import Counters
from quire_kv.page import View


def toy_spec(identity: str, heads: int, layers: int) -> str:
    """What a ToyCache takes as a spec."""
    return json.dumps({"identity": identity, "heads": heads, "layers": layers})


class ToyLease:
    def __init__(self, store: ToyStore) -> None:
        self._store = store
        self.released = False

    def release(self) -> None:
        with self._store.lock:
            if not self.released:
                self.released = True
                self._store.leases -= 1


class ToyStore:
    """What all ToyCaches of a test share. `before` is called with the name of each call, and may sleep or raise."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pages: dict[tuple[str, bytes, bytes], dict[tuple[int, int], bytes]] = {}
        self.leases = 0
        self.calls: list[tuple[str, int]] = []
        self.ends: list[tuple[tuple[bytes, ...], int, bytes]] = []  # keys, tokens of the answer, scope
        self.hints: list[tuple[str, Hint | None]] = []  # of saves, and of lookups that pin
        self.caches: list[ToyCache] = []
        self.configs: list[Any] = []  # of them, in this order
        self.refused: set[bytes] = set()  # keys that no load brings
        self.away = False
        self.before: Callable[[str], None] = lambda _: None

    def make_cache(self, config: Any, spec: Callable[[], str] | str, log: Any, **_: Any) -> ToyCache:
        cache = ToyCache(self, spec, log)
        self.caches.append(cache)
        self.configs.append(config)
        return cache

    def count(self, what: str) -> int:
        return sum(1 for name, _ in self.calls if name == what)


class ToyCache:
    """Ready at once, or off where its spec is refused."""

    def __init__(self, store: ToyStore, spec: Callable[[], str] | str, log: Any) -> None:
        self._store = store
        self.counters = Counters()
        self.state = "ready"
        self.transport = "toy"
        self.closed = False
        try:
            self.spec = spec if isinstance(spec, str) else spec()
            shape = json.loads(self.spec)
            self._whole = View(0, shape["heads"], 0, shape["layers"])
        except ConfigError as e:
            self.state = f"off: {e}"
            log.error("%s", e)

    @property
    def ready(self) -> bool:
        return self.state == "ready" and not self._store.away and not self.closed

    def wait_ready(self, timeout: float) -> bool:
        return self.ready

    def lookup(
        self,
        keys: Sequence[bytes],
        *,
        group: Any = None,
        scope: bytes = b"",
        view: View | None = None,
        lease: float | None = None,
        hint: Hint | None = None,
        timeout: float | None = None,
    ) -> Lookup:
        self._enter("lookup", keys)
        nothing = Lookup(0, [False] * len(keys), None, Reason.UNKNOWN)
        if not self._may("lookup"):
            return nothing
        cells = set(_cells(view or self._whole))
        with self._store.lock:
            present = [cells <= self._store.pages.get((self.spec, scope, k), {}).keys() for k in keys]
            leading = (present + [False]).index(False)
            granted = None
            if lease is not None and leading:
                granted = ToyLease(self._store)
                self._store.leases += 1
                self._store.hints.append(("lookup", hint))
        return Lookup(leading, present, granted, Reason.NONE)

    def load(
        self,
        keys: Sequence[bytes],
        memory: PageMemory,
        *,
        group: Any = None,
        scope: bytes = b"",
        view: View | None = None,
        lease: Any = None,
        timeout: float | None = None,
    ) -> list[bool]:
        self._enter("load", keys)
        if not self._may("load"):
            return [False] * len(keys)
        out = []
        for n, k in enumerate(keys):
            with self._store.lock:
                page = dict(self._store.pages.get((self.spec, scope, k), {}))
            good = k not in self._store.refused and set(_cells(view or self._whole)) <= page.keys()
            if good:
                for cell, at, size, offset in _walk(memory, n, view or self._whole):
                    ctypes.memmove(at, page[cell][offset : offset + size], size)
            out.append(good)
        return out

    def save(
        self,
        keys: Sequence[bytes],
        memory: PageMemory,
        *,
        parent: Any = None,
        linked: bool = True,
        group: Any = None,
        scope: bytes = b"",
        view: View | None = None,
        hint: Hint | None = None,
        timeout: float | None = None,
    ) -> list[bool]:
        self._enter("save", keys)
        if not self._may("save"):
            return [False] * len(keys)
        self._store.hints.append(("save", hint))
        for n, k in enumerate(keys):
            cells: dict[tuple[int, int], bytes] = {}
            for cell, at, size, _ in _walk(memory, n, view or self._whole):
                cells[cell] = cells.get(cell, b"") + ctypes.string_at(at, size)
            with self._store.lock:
                page = self._store.pages.setdefault((self.spec, scope, k), {})
                for cell, data in cells.items():
                    page.setdefault(cell, data)  # the first stays
        return [True] * len(keys)

    def ended(self, keys: Sequence[bytes], answer_tokens: int, *, group: Any = None, scope: bytes = b"") -> None:
        self._enter("ended", keys)
        self._store.ends.append((tuple(keys), answer_tokens, scope))

    def hint_of(self, given: object) -> Hint | None:
        try:
            return Hint.parse(given) if given is not None else None
        except ValueError:
            self.counters.add(bad_hints=1)
            return None

    def clear(self) -> None:
        self._enter("clear", ())

    def invalidate(self, why: str) -> None:
        self.state = f"off: {why}"

    def stats(self) -> dict[str, float]:
        return dict(self.counters.snapshot())

    def close(self, timeout: float = 1.0) -> None:
        self.closed = True

    def _enter(self, what: str, keys: Sequence[bytes]) -> None:
        with self._store.lock:
            self._store.calls.append((what, len(keys)))

    def _may(self, what: str) -> bool:
        """Nothing of a cache raises: a fault is a miss."""
        if not self.ready:
            return False
        try:
            self._store.before(what)
        except Exception:
            return False
        return self.ready


def _cells(view: View) -> list[tuple[int, int]]:
    return [(h, layer) for h in range(view.h0, view.h1) for layer in range(view.l0, view.l1)]


def _walk(memory: PageMemory, page: int, view: View):
    """(cell, address, bytes, offset in the cell) of each row of a page, cell by cell in head-major order."""
    layout = memory.layout
    assert (layout.heads, layout.layers) == (view.heads, view.layers)
    for h in range(layout.heads):
        for layer in range(layout.layers):
            offset = 0
            for c, rows in enumerate(layout.rows):
                base = int(memory.addresses[page, c, layer]) + h * rows.head_stride
                for t in range(rows.tokens):
                    yield (view.h0 + h, view.l0 + layer), base + t * rows.token_stride, rows.row_bytes, offset
                    offset += rows.row_bytes

"""One engine's process over a toy store: QuireHiCache between doubles, for tests that need neither SGLang nor a server."""

from __future__ import annotations

import importlib
import types
from typing import Any

import numpy as np
import pytest
from waiting import PATIENT

from doubles import sglang_engine as engine
from doubles.toy_cache import ToyCache, ToyStore, toy_spec

DIGEST = "sha256:" + "5" * 64
SETTINGS = {
    "backend_name": "quire", "module_path": "quire_kv.sglang", "class_name": "QuireHiCache", "interface_v1": 1,
    "model_digest": DIGEST, "weights": "frozen", **PATIENT,
}  # fmt: skip


def chain(pages: int, first: int = 1, page: int = 4) -> list[str]:
    """Keys of consecutive pages of consecutive tokens."""
    return engine.get_hash_str(range(first, first + pages * page), page_size=page)


class Store(ToyStore):
    """Groups are kept apart, single pages can be lost, and parents are remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.parents: dict[bytes, Any] = {}

    def make_cache(self, config: Any, spec: Any, log: Any, **_: Any) -> ToyCache:
        cache = StoreCache(self, spec, log)
        self.caches.append(cache)
        return cache


class StoreCache(ToyCache):
    def __init__(self, store: Store, spec: Any, log: Any) -> None:
        super().__init__(store, spec, log)
        self.store = store
        self.absent: set[bytes] = set()
        self.unwritten: set[bytes] = set()
        self.bad: set[bytes] = set()
        groups = {b"f" * 32: types.SimpleNamespace(kind="full"), b"w" * 32: types.SimpleNamespace(kind="window")}
        self.session = types.SimpleNamespace(geometries=groups, exists=self.lookup)

    def lookup(self, keys, *, group=None, scope=b"", **rest):
        found = super().lookup(keys, scope=scope + (group or b""), **rest)
        present = [p and k not in self.absent for p, k in zip(found.present, keys, strict=True)]
        return found._replace(present=present, leading=([*present, False]).index(False))

    def load(self, keys, memory, *, group=None, scope=b"", **rest):
        good = super().load(keys, memory, scope=scope + (group or b""), **rest)
        return [ok and k not in self.bad for ok, k in zip(good, keys, strict=True)]

    def save(self, keys, memory, *, group=None, scope=b"", parent=None, **rest):
        good = super().save(keys, memory, scope=scope + (group or b""), parent=parent, **rest)
        self.store.parents.update({k: keys[i - 1] if i else parent for i, k in enumerate(keys)})
        return [ok and k not in self.unwritten for ok, k in zip(good, keys, strict=True)]


class World:
    """One engine's process: stand-ins for its modules, and backends of them over one store."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, older: bool = False, heads: int = 2, layers: int = 3, **model: Any) -> None:
        self.monkeypatch, self.heads, self.layers = monkeypatch, heads, layers
        self.args, self.model = engine.Args(), engine.Model(kv_heads=heads, layers=layers, **model)
        engine.install(monkeypatch, self.args, self.model, older=older)
        self.module = importlib.import_module("quire_kv.sglang.backend")
        self.store = Store()
        monkeypatch.setattr(self.module, "spec_of", lambda *_: toy_spec("model", self.heads, self.layers))
        self.opened: list[Any] = []

    def backend(self, settings: dict[str, Any] | None = None, **config: Any) -> Any:
        cls = type("QuireHiCache", (self.module.QuireHiCache,), {"make_cache": staticmethod(self.store.make_cache)})
        backend = cls(engine.StorageConfig(extra_config=SETTINGS if settings is None else settings, **config), {})
        self.opened.append(backend)
        return backend

    def controller(self, pool: engine.Pool, *, backend: Any = None, **how: Any) -> engine.Controller:
        controller = engine.Controller(backend or self.backend(), pool, **how)
        self.opened.append(controller)
        return controller

    def close(self) -> None:
        for thing in reversed(self.opened):
            thing.close()


@pytest.fixture(name="world")
def world_of(monkeypatch):
    """world(heads=2, layers=3, ...) -> a World; all of them end with the test."""
    made: list[World] = []

    def make(**how: Any) -> World:
        made.append(World(monkeypatch, **how))
        return made[-1]

    yield make
    for w in made:
        w.close()


def same(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))

"""What the tests of the connector under doubles/vllm_double.py share: vLLM in sys.modules, engines over a toy store, and what is right."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from waiting import PATIENT, wait_for

from quire_kv.page import Geometry

from . import vllm_double as double
from .toy_cache import ToyCache, ToyStore, toy_spec
from .vllm_double import TOKENS, WIDTH, Engine, row

SETTINGS = {"model_digest": "sha256:" + "a" * 64, "weights": "frozen", **PATIENT}
CELL = TOKENS * 2 * WIDTH * 4
PROMPT = list(range(1, 23))  # 22 tokens: 5 full blocks and 2 tokens

_MODULES = ("connector", "facts", "proof", "hashes", "adapters", "weights", "stats", "memory", "scheduling")


class Toy(ToyCache):
    """A toy cache that knows its geometry."""

    def geometry(self, group: Any = None) -> Geometry:
        return Geometry(bytes(32), "full", TOKENS, self._whole.h1, self._whole.l1, CELL, "cell", 32)


def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    """quire_kv.vllm, as a namespace of its modules, where vLLM is the double and the proof, which needs torch, is not made."""

    def forget() -> None:
        for name in [n for n in sys.modules if n == "quire_kv.vllm" or n.startswith("quire_kv.vllm.")]:
            del sys.modules[name]

    for name in [n for n in sys.modules if n == "vllm" or n.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    for name, module in double.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    forget()
    package = types.SimpleNamespace(**{n: importlib.import_module(f"quire_kv.vllm.{n}") for n in _MODULES})
    monkeypatch.setattr(package.facts, "_packing", lambda *_: ("cell", "vllm-double", "vec"))
    monkeypatch.setattr(package.proof, "prove", lambda *_, **__: None)
    yield package
    forget()


def factory(vllm: types.SimpleNamespace) -> Iterator[Callable[..., Engine]]:
    """make(store, settings, heads=2, layers=2, tp=1, pp=1, ...): an engine whose connectors share a toy store. It waits for
    lookups for longer than a loaded machine takes, unless the settings say otherwise."""
    engines = []

    def make(store: ToyStore, extra: Any = (), *, heads: int = 2, layers: int = 2, **kw: Any) -> Engine:
        class Connector(vllm.connector.QuireConnector):
            def _make_cache(self, config: Any, spec: Any, adapter: str) -> Toy:
                cache = Toy(store, toy_spec(f"{config.model_digest}", heads, layers), self._log)
                store.caches.append(cache)
                store.configs.append(config)
                return cache

        engine = Engine(Connector, {**SETTINGS, "lookup_wait_ms": 10_000, **dict(extra)}, heads=heads, layers=layers, **kw)
        engines.append(engine)
        return engine

    yield make
    for engine in engines:
        engine.close()


def filled(make: Callable[..., Engine]) -> ToyStore:
    """A store with the pages of PROMPT."""
    store = ToyStore()
    engine = make(store)
    engine.add("a", PROMPT, 1)
    engine.run()
    engine.flush()
    return store


def answer(make: Callable[..., Engine], prompt: list[int] = PROMPT, output: int = 6, **kw: Any) -> list[int]:
    """What an engine without a store says."""
    store = ToyStore()
    store.away = True
    engine = make(store, **kw)
    request = engine.add("r", prompt, output)
    engine.run()
    return request.answer


def released(store: ToyStore, engine: Engine) -> None:
    """No lease is left."""
    engine.step()
    wait_for(lambda: store.leases == 0)


def cells_are_right(store: ToyStore, requests: list[double.Request]) -> None:
    """Every stored page is exactly what its tokens make it."""
    chains = {h: r.tokens[: (i + 1) * TOKENS] for r in requests for i, h in enumerate(r.block_hashes)}
    for (_, _, key), cells in store.pages.items():
        tokens = chains[key]
        for (head, layer), data in cells.items():
            rows = np.frombuffer(data, dtype=np.float32).reshape(TOKENS, 2 * WIDTH)
            for t in range(TOKENS):
                assert np.array_equal(rows[t], row(tokens[: len(tokens) - TOKENS + t + 1], layer, head)), (key.hex(), head, layer, t)

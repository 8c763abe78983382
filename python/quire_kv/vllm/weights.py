"""Notices that a worker's weights are replaced while it runs: vLLM tells no connector.

The engine's worker class gets a thin layer around the methods that change weights. What it does is told to every live
connector of this process before the weights change, and the method runs as always.
"""

from __future__ import annotations

import functools
import importlib
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["watch"]

_METHODS = ("reload_weights", "start_weight_update", "start_draft_weight_update", "update_weights")
_CLASSES = (("vllm.v1.worker.gpu_worker", "Worker"), ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner"))
_log = logging.getLogger(__name__)
_lock = threading.Lock()
_watchers: weakref.WeakSet[Any] = weakref.WeakSet()


def watch(watcher: Any) -> list[str]:
    """Has watcher.weights_change(what) called when weights are about to change. The methods found, as Class.method."""
    with _lock:
        _watchers.add(watcher)
        found = []
        for module, name in _CLASSES:
            try:
                cls = getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError):
                continue
            for method in _METHODS:
                own = cls.__dict__.get(method)
                if callable(own):
                    if not hasattr(own, "_quire_watched"):
                        setattr(cls, method, _wrapped(own, f"{name}.{method}"))
                    found.append(f"{name}.{method}")
        return found


def _wrapped(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        for watcher in list(_watchers):
            try:
                watcher.weights_change(what)
            except Exception:  # the engine's method runs, whatever we think of it
                _log.exception("quire: a change of weights could not be told")
        return method(*args, **kwargs)

    call._quire_watched = True  # type: ignore[attr-defined]
    return call

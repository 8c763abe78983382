"""Learns when the weights of this process change, before they do.

SGLang updates weights in place, on the scheduler's thread of each rank, and tells a storage backend nothing: the radix
tree is flushed and the store keeps its pages on purpose. So the functions that every path of an update runs through are
wrapped once per process, on their classes, where a bound method that somebody took earlier still finds them:

    weight_updater.WeightUpdater     update from disk, from tensors, over IPC, distributed; begin and end of a session
    model_runner.ModelRunner         the same in releases before 0.5.22, and adapters loaded or unloaded at run time
    torch_memory_saver_adapter       weights released to make room
    scheduler.Scheduler              another weight version stated by the operator

Each calls `changed` of every live backend first and the engine's function then.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from ..errors import ConfigError

__all__ = ["watch"]

_log = logging.getLogger("quire_kv.sglang")
_MODEL_RUNNER = "sglang.srt.model_executor.model_runner"

_UPDATES = (
    "update_weights_from_disk", "load_weights_from_distributed", "update_weights_from_distributed", "update_weights_from_tensor",
    "update_weights_from_ipc", "begin_weight_update", "end_weight_update",
)  # fmt: skip
_ADAPTERS = ("load_lora_adapter", "load_lora_adapter_from_tensors", "unload_lora_adapter")
# module, class, methods, whether one of them must be there
_TARGETS = (
    ("sglang.srt.model_executor.model_runner_components.weight_updater", "WeightUpdater", _UPDATES),
    (_MODEL_RUNNER, "ModelRunner", _UPDATES + _ADAPTERS),
    ("sglang.srt.utils.torch_memory_saver_adapter", "_TorchMemorySaverAdapterReal", ("pause",)),
    ("sglang.srt.managers.scheduler", "Scheduler", ("record_weight_version_change",)),
)


class Watcher(Protocol):
    """What is told. `changed` must not block."""

    def changed(self, why: str) -> None: ...


_lock = threading.Lock()
_watchers: weakref.WeakSet[Any] = weakref.WeakSet()  # one process has one model: whoever caches its KV is told
_changes: list[str] = []  # what changed since the first backend of this process; a later one must not take it for the old model


def watch(watcher: Watcher) -> None:
    """Tells `watcher` of every change of weights from now on, as long as it lives.

    ConfigError if this process runs a model and its weight updates cannot be seen, or if they have been changed before.
    """
    with _lock:
        if _changes:
            raise ConfigError(f"quire: the weights of this engine were changed before ({_changes[0]}); restart it with the digest of what it runs")
        _watchers.add(watcher)
        updates = 0
        for module, cls, methods in _TARGETS:
            owner = _class(module, cls)
            if owner is None:
                continue
            for method in methods:
                updates += _wrap(owner, method) and method in _UPDATES
    if not updates and _MODEL_RUNNER in sys.modules:
        raise ConfigError(
            "quire: this version of the engine gives no way to see that weights are updated, so the cache stays off; check it against the supported versions"
        )


def _class(module: str, name: str) -> Any:
    """A class of the engine, if the process runs models at all."""
    if _MODEL_RUNNER not in sys.modules:
        return None
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def _wrap(owner: Any, name: str) -> bool:
    original: Callable[..., Any] | None = owner.__dict__.get(name)
    if original is None:
        return False
    if hasattr(original, "_quire_watched"):
        return True

    @functools.wraps(original)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _matters(name, args, kwargs):
            _tell(f"{name} was called")
        return original(self, *args, **kwargs)

    wrapper._quire_watched = True  # type: ignore[attr-defined]
    setattr(owner, name, wrapper)
    return True


def _matters(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name == "pause":  # of the memory saver: by the kind of memory
        return "weights" in (*args, *kwargs.values())
    if name == "record_weight_version_change":  # also called without a version after each update
        return any(v is not None for v in (*args, *kwargs.values()))
    return True


def _tell(why: str) -> None:
    with _lock:
        if not _changes:
            _changes.append(why)
        watchers = list(_watchers)
    for watcher in watchers:
        try:
            watcher.changed(why)
        except Exception:  # the engine's function runs, whatever we think of it
            _log.exception("quire: a change of weights could not be told")

"""Counters of the connector in vLLM's own statistics: its periodic log line, and /metrics of its server.

Each process counts from its start; what travels is the increase since the last step, so that sums over ranks and over the
scheduler's side are right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

__all__ = ["Increase", "QuirePromMetrics", "QuireStats"]

_GAUGES = {"breaker_open": "1 while the store is taken for away by a process of the engine"}
_TEXT = {
    "lookups": "Lookups of requests", "lookup_keys": "Blocks looked up", "hits": "Blocks found in the leading run of a lookup",
    "loads": "Blocks that were to be loaded", "loaded_pages": "Blocks loaded and verified", "load_bytes": "Bytes loaded",
    "saves": "Blocks offered to the store", "saved_pages": "Blocks that the store holds after it was offered them", "save_bytes": "Bytes saved",
    "recompute_fallbacks": "Blocks promised by a lookup and recomputed", "refused_open": "Calls that ended at once because the store was away",
    "bad_hints": "Hints of requests that were ignored, since they are wrong",
    "late_lookups": "Requests that went on without the cache because their lookup took too long", "refused_lookups": "Lookups that found no thread",
    "dropped_saves": "Blocks not saved because too many waited", "failed_blocks": "Blocks that a load did not bring",
}  # fmt: skip


class Increase:
    """What grew since it was asked last."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def of(self, now: Mapping[str, float]) -> dict[str, float]:
        """Counters that grew, and gauges that changed."""
        out = {}
        for name, value in now.items():
            before = self._last.get(name, 0)
            if name in _GAUGES:
                if value != before:
                    out[name] = value
            elif value > before:
                out[name] = value - before
            self._last[name] = value
        return out


class QuireStats(KVConnectorStats):
    """A mapping of counter to increase, as vLLM carries it between processes."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def is_empty(self) -> bool:
        return not self.data

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, value in other.data.items():
            self.data[name] = max(self.data.get(name, 0), value) if name in _GAUGES else self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        return {f"quire_{name}": value for name, value in sorted(self.data.items())}


class QuirePromMetrics(KVConnectorPromMetrics):
    """vllm:quire_<counter>_total, and failures with their reason as a label."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {n: self._counter_cls(f"vllm:quire_{n}", text, labelnames=labelnames) for n, text in _TEXT.items()}
        self._gauges = {n: self._gauge_cls(f"vllm:quire_{n}", text, labelnames=labelnames) for n, text in _GAUGES.items()}
        self._failures = self._counter_cls("vllm:quire_failures", "Blocks not served or not taken, by reason", labelnames=[*labelnames, "reason"])

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        labels = self.per_engine_labelvalues[engine_idx]
        for name, value in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name].labels(*labels).inc(value)
            elif name in self._gauges:
                self._gauges[name].labels(*labels).set(value)
            elif name.startswith("failures_"):
                self._failures.labels(*labels, name.removeprefix("failures_")).inc(value)

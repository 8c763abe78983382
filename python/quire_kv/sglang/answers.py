"""The engine's arguments and answers: page keys, pool names, hit policies, results of the exact type and shape."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

__all__ = ["hashes", "metrics", "nothing", "policy", "pool_name", "result", "usable_prefix"]

_HEX = 64  # a SHA-256
_BASE = "sglang.srt.mem_cache.hicache_storage"
_METRICS = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")


def hashes(keys: Sequence[str]) -> list[bytes]:
    """The digests of hex keys; empty if one is no SHA-256."""
    if any(len(k) != _HEX for k in keys):
        return []
    try:
        raw = bytes.fromhex("".join(keys))
    except ValueError:
        return []
    if len(raw) != 32 * len(keys):  # fromhex skips blanks
        return []
    return [raw[i : i + 32] for i in range(0, len(raw), 32)]


def pool_name(name: Any) -> str:
    """kv, swa, mamba, ...: of a PoolName or a string."""
    return str(getattr(name, "value", name))


def policy(transfer: Any) -> str:
    """all_pages, trailing_pages or block_groups."""
    return str(getattr(transfer.hit_policy, "value", transfer.hit_policy))


def nothing(transfers: Any) -> dict[Any, list[bool]]:
    """No page of any pool."""
    return {t.name: [False] * len(t.keys or ()) for t in transfers}


def usable_prefix(leading: int, sides: Sequence[tuple[Any, Sequence[bool]]]) -> Any:
    """The engine's result for `leading` pages of keys and values, and the present pages of each side pool.

    A pool of trailing pages allows a prefix if the last pages of it are there, as many as the transfer has keys, so the
    lengths that are allowed may have holes.
    """
    allowed = set(range(1, leading + 1))
    found = {_kv(): leading} if leading else {}
    for transfer, present in sides:
        runs = _runs(present[:leading])
        if policy(transfer) == "trailing_pages":
            trailing = max(1, len(transfer.keys or ()))
            mine = {n for n in range(1, leading + 1) if runs[n - 1] >= min(trailing, n)}
        elif policy(transfer) == "all_pages":
            mine = {n for n in range(1, leading + 1) if runs[n - 1] == n}
        else:
            mine = set()
        if mine:
            found[transfer.name] = max(mine)
        allowed &= mine
    restorable = sorted(allowed)
    return result(restorable[-1] if restorable else 0, found, restorable)


def _runs(present: Sequence[bool]) -> list[int]:
    """For each page: how many pages that end with it are present without a hole."""
    out, run = [], 0
    for p in present:
        run = run + 1 if p else 0
        out.append(run)
    return out


def _kv() -> Any:
    names = getattr(importlib.import_module(_BASE), "PoolName", None)
    return getattr(names, "KV", "kv")


def result(pages: int, found: dict[Any, int], restorable: list[int]) -> Any:
    """A PoolTransferResult of the installed version: the list of restorable lengths where it has one."""
    kind = importlib.import_module(_BASE).PoolTransferResult
    if "restorable_prefix_pages" in inspect.signature(kind).parameters:
        return kind(pages, found, restorable_prefix_pages=restorable)
    contiguous = 0  # without the list, every length up to the answer has to be allowed
    while contiguous < len(restorable) and restorable[contiguous] == contiguous + 1:
        contiguous += 1
    return kind(contiguous, found)


def metrics(loads: Sequence[tuple[int, float]], saves: Sequence[tuple[int, float]]) -> Any:
    """StorageMetrics of (pages, GB/s); None where the installed version has none."""
    for name in _METRICS:
        try:
            kind = importlib.import_module(name).StorageMetrics
        except (ImportError, AttributeError):
            continue
        return kind(
            prefetch_pgs=[p for p, _ in loads], backup_pgs=[p for p, _ in saves],
            prefetch_bandwidth=[b for _, b in loads], backup_bandwidth=[b for _, b in saves],
        )  # fmt: skip
    return None

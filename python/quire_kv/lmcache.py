"""Mounts Quire in LMCache's multi-process server as an L2 adapter plug-in (lmcache 0.5.6).

    lmcache server ... --l2-adapter '{"type": "plugin", "module_path": "quire_kv.lmcache", "class_name": "QuireL2Adapter",
                                      "adapter_params": {"server": "127.0.0.1:7420", "models": {"org/model": {...}}}}'

    store loop     submit_store_task ─> lane store ─> Cache.save ─> event, pop_completed_store_tasks
    prefetch loop  submit_lookup_and_lock_task ─> lane lookup ─> Cache.lookup with a lease ─> event, query_...
                   submit_load_task ─> lane load ─> Cache.load ─> event, query_load_result
                   submit_unlock ─> lane release: a lease goes when the last key that it pins is unlocked

LMCache sets no limit of time on a task, keeps one of eight places for each prefetch, and loses its prefetch thread for good
when submit_unlock raises. So every task is answered once, by its work or by its deadline, with an answer of the exact length;
nothing here raises; and a lease that nobody unlocks ends by its own time.
"""

from __future__ import annotations

import itertools
import threading
import time
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from .cache import Cache
from .config import Config
from .errors import ConfigError
from .lmcache_models import Place, Row, Shape, parse_rows, scope_of
from .locks import Locks
from .workers import Lane, Workers

__all__ = ["QuireL2Adapter"]

_SETTINGS = frozenset({"models", "lease_seconds", "wait_ready_ms"})
_LEASE_SECONDS = 10.0  # of a lookup's lease: the backstop for prefetches that are given up
_BATCH_BYTES = 64 << 20  # of one load or save: what the timeouts of the configuration are for
_QUEUE_SECONDS = 30.0  # a task waits so long for a thread at most
_STORE_DEPTH, _LOOKUP_DEPTH, _LOAD_DEPTH, _RELEASE_DEPTH = 256, 64, 64, 1024  # tasks that wait, by lane
_KEPT_ANSWERS = 4096  # answers that nobody asked for yet
_KEPT_LOCKS = 4096  # leases whose keys are not all unlocked
_KEPT_NAMES = 1024  # of models that are not in the table, and other lines that were said
_COUNTED_KEYS = 1 << 16  # stored lately, so that storing them again is not counted twice
_CLOSE_SECONDS = 1.0

_adapters = itertools.count()


class _Served:
    """One model of the table: its row, its cache, and the shape of its objects once the identity is made."""

    def __init__(self, row: Row, config: Config, log: Any, make: Callable[[Row, Config], tuple[str, Shape]], make_cache: Callable[..., Cache]) -> None:
        self.row = row
        self.shape: Shape | None = None

        def spec() -> str:
            text, self.shape = make(row, config)
            return text

        self.cache = make_cache(config, spec, log, adapter="lmcache", engine=row.engine)


class QuireL2Adapter(L2AdapterInterface):
    """See the module. `config` is the `adapter_params` of the JSON. Thread-safe; nothing raises."""

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        l1_memory_desc: Any = None,
        *,
        describe: Callable[[Row, Config], tuple[str, Shape]] | None = None,
        make_cache: Callable[..., Cache] = Cache,
        **_: Any,
    ) -> None:
        super().__init__(max_capacity_bytes=0)
        self._log = init_logger("lmcache.quire")
        self._events = {kind: create_event_notifier() for kind in ("store", "lookup", "load")}
        self._lock = threading.Lock()
        self._closed = False
        self._notifies = True  # until the events are closed
        self._task = itertools.count(1)
        self._answers: dict[str, OrderedDict[int, Any]] = {kind: OrderedDict() for kind in self._events}
        self._said: OrderedDict[str, None] = OrderedDict()
        self._counted: OrderedDict[Any, None] = OrderedDict()
        self._models: dict[str, _Served] = {}
        self._off = ""
        self._lease_seconds = _LEASE_SECONDS
        self._lookup_timeout = 1.0
        self._locks = Locks(_KEPT_LOCKS)
        self._workers = Workers(
            f"quire-l2-{next(_adapters)}",
            {"lookup": Lane(2, _LOOKUP_DEPTH), "load": Lane(2, _LOAD_DEPTH), "store": Lane(2, _STORE_DEPTH), "release": Lane(1, _RELEASE_DEPTH)},
        )
        try:
            self._begin(config, describe or _describe, make_cache)
        except ConfigError as e:
            self._off = str(e)
            self._log.error("%s; nothing is cached in Quire", e)
        _publish_counters(weakref.ref(self))

    def _begin(self, settings: Mapping[str, Any] | None, make: Callable[[Row, Config], tuple[str, Shape]], make_cache: Callable[..., Cache]) -> None:
        common = Config.parse(settings, allowed=_SETTINGS)
        seconds = common.extra.get("lease_seconds", _LEASE_SECONDS)
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0.1 <= seconds <= 3600:
            raise ConfigError(f"quire: lease_seconds is {seconds!r}; make it seconds from 0.1 to 3600")
        self._lease_seconds = float(seconds)
        wait = common.extra.get("wait_ready_ms", 0)
        if isinstance(wait, bool) or not isinstance(wait, int) or not 0 <= wait <= 60_000:
            raise ConfigError(f"quire: wait_ready_ms is {wait!r}; make it whole milliseconds from 0 to 60000")
        self._lookup_timeout = common.lookup_timeout
        rows, lines = parse_rows(common.extra.get("models"))
        for line in lines:
            self._log.error("%s", line)
        for name, row in rows.items():
            self._models[name] = _Served(row, row.config(common), self._log, make, make_cache)
        until = time.monotonic() + wait / 1000
        for served in self._models.values():  # only where it is asked for: a server starts without its store too
            served.cache.wait_ready(max(0.0, until - time.monotonic()))

    # -- events --------------------------------------------------------------------------------------------------

    def get_store_event_fd(self) -> int:
        return self._events["store"].fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._events["lookup"].fileno()

    def get_load_event_fd(self) -> int:
        return self._events["load"].fileno()

    # -- tasks ---------------------------------------------------------------------------------------------------

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Publishes objects. One answer: whether all of them are stored now, and their bytes."""
        return self._submit("store", lambda _: self._store(keys, objects), L2StoreResult(False, 0), timeout=_QUEUE_SECONDS)

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        with self._lock:
            done, self._answers["store"] = self._answers["store"], OrderedDict()
        return dict(done)

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: dict[int, Any]) -> int:
        """Looks keys up and pins what is there, for a bounded time."""
        return self._submit(
            "lookup",
            lambda left: self._lookup(keys, group_layout_descs, left),
            Bitmap(len(keys)),
            timeout=2 * self._lookup_timeout,
            detached=True,
            late=lambda bits: self._unlock_late(keys, bits),
        )

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._answer("lookup", task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        """Gives back the leases whose last key this is. Never raises: a raise here ends LMCache's prefetch thread."""
        try:
            self._release(self._locks.unlock(keys))
        except Exception:
            self._log.exception("quire: an unlock failed; the leases end by their time")

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        """Loads into the objects. Only keys whose bytes were verified where they now lie are answered True."""
        return self._submit("load", lambda _: self._load(keys, objects), Bitmap(len(keys)), timeout=_QUEUE_SECONDS)

    def query_load_result(self, task_id: int) -> Any:
        return self._answer("load", task_id)

    # -- state ---------------------------------------------------------------------------------------------------

    def report_status(self) -> dict[str, Any]:
        """is_healthy is about this adapter's threads: a store that is away is a miss, and no reason to restart a server."""
        return {
            "is_healthy": self._workers.alive,
            "type": "quire",
            "state": "closed" if self._closed else f"off: {self._off}" if self._off else "on",
            "models": {name: {"state": m.cache.state, "transport": m.cache.transport, **m.cache.stats()} for name, m in self._models.items()},
            "locks": len(self._locks),
            "queued": self._workers.queued(),
            "refused_tasks": self._workers.refused,
            "overdue_tasks": self._workers.overdue,
        }

    def close(self) -> None:
        """Answers what waits, gives leases back, ends threads and connections. Idempotent; returns within seconds."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        until = time.monotonic() + _CLOSE_SECONDS
        for lease in self._locks.drain():
            self._workers.submit("release", partial(_release, lease), None, _drop, timeout=_CLOSE_SECONDS)
        self._workers.drain(_CLOSE_SECONDS / 2)
        for m in self._models.values():
            m.cache.close(timeout=max(0.05, until - time.monotonic()))  # ends calls under way
        self._workers.close(max(0.05, until - time.monotonic()))
        with self._lock:
            self._notifies = False
            for event in self._events.values():
                event.close()

    # -- inside --------------------------------------------------------------------------------------------------

    def _submit(self, kind: str, run: Callable[[float], Any], miss: Any, **how: Any) -> int:
        task = next(self._task)
        self._workers.submit(kind, run, miss, lambda answer: self._deliver(kind, task, answer), **how)
        return task

    def _deliver(self, kind: str, task: int, answer: Any) -> None:
        with self._lock:
            answers = self._answers[kind]
            answers[task] = answer
            while len(answers) > _KEPT_ANSWERS:  # of requests that were given up
                answers.popitem(last=False)
            if self._notifies:
                self._events[kind].notify()

    def _answer(self, kind: str, task: int) -> Any:
        with self._lock:
            return self._answers[kind].pop(task, None)

    def _lookup(self, keys: Sequence[Any], descs: Mapping[int, Any], left: float) -> Any:
        bits = Bitmap(len(keys))
        until = time.monotonic() + min(left, self._lookup_timeout)
        self._release([])  # what nobody unlocked
        hits: list[int] = []
        for (name, group, salt), ranks in _by_request(keys).items():
            served = self._served(name, group)
            if served is None or not self._hashes_fit(served, keys[next(iter(ranks.values()))[0]]):
                continue
            shape = served.shape
            assert shape is not None
            places = {rank: place for rank in ranks if (place := self._place(served, rank)) is not None}
            if not all(self._described(served, descs.get(group), place) for place in places.values()):
                continue
            for wanted, view, rank in _questions(keys, shape, ranks, places):
                left = until - time.monotonic()
                if left <= 0:
                    break
                hits += self._ask(served, keys, wanted, view, scope_of(salt, rank), left)
        for i in hits:
            bits.set(i)
        if hits:
            self._notify_keys_accessed([keys[i] for i in hits])
        return bits

    def _ask(self, served: _Served, keys: Sequence[Any], wanted: list[list[int]], view: Any, scope: bytes, left: float) -> list[int]:
        """One lookup of the hashes of wanted[0]; what it answers counts for the keys of all ranks in wanted."""
        lease = self._lease_seconds if self._locks.room() else None
        found = served.cache.lookup([keys[i].chunk_hash for i in wanted[0]], scope=scope, view=view, lease=lease, timeout=left)
        hits = [indices[n] for n, there in enumerate(found.present) if there for indices in wanted]
        if found.lease is not None:
            if hits:
                self._locks.lock(found.lease, [keys[i] for i in hits], self._lease_seconds)
            else:
                self._release([found.lease])
        return hits

    def _load(self, keys: Sequence[Any], objects: Sequence[Any]) -> Any:
        bits = Bitmap(len(keys))
        self._each_batch(keys, objects, "load", lambda i, _: bits.set(i))
        return bits

    def _store(self, keys: Sequence[Any], objects: Sequence[Any]) -> Any:
        stored: dict[int, int] = {}
        self._each_batch(keys, objects, "save", stored.__setitem__)
        fresh = [i for i in stored if self._first_time(keys[i])]
        if fresh:
            self._notify_keys_stored([keys[i] for i in fresh], [stored[i] for i in fresh])
        return L2StoreResult(len(stored) == len(keys), sum(stored.values()))

    def _each_batch(self, keys: Sequence[Any], objects: Sequence[Any], what: str, good: Callable[[int, int], object]) -> None:
        """Moves objects, in batches of _BATCH_BYTES, and calls good(index, bytes) for each that came through."""
        if len(objects) != len(keys):
            return self._say("objects", f"quire: {len(keys)} keys came with {len(objects)} objects; refused")
        for (name, group, salt), ranks in _by_request(keys).items():
            served = self._served(name, group)
            if served is None:
                continue
            for rank, indices in ranks.items():
                place = self._place(served, rank)
                if place is not None and self._hashes_fit(served, keys[indices[0]]):
                    self._move(served, keys, objects, indices, place, scope_of(salt, place.rank), what, good)

    def _move(
        self,
        served: _Served,
        keys: Sequence[Any],
        objects: Sequence[Any],
        indices: Sequence[int],
        place: Place,
        scope: bytes,
        what: str,
        good: Callable[[int, int], object],
    ) -> None:
        shape = served.shape
        assert shape is not None
        size = shape.object_bytes(place.view)
        fitting = [(i, at) for i in indices if (at := self._address(served, shape, objects[i], place, size))]
        step = max(1, _BATCH_BYTES // size)
        for first in range(0, len(fitting), step):
            batch = fitting[first : first + step]
            memory = shape.memory([at for _, at in batch], objects, place.view)
            hashes = [keys[i].chunk_hash for i, _ in batch]
            if what == "load":
                answers = served.cache.load(hashes, memory, scope=scope, view=place.view)
            else:
                answers = served.cache.save(hashes, memory, linked=False, scope=scope, view=place.view)
            for (i, _), ok in zip(batch, answers, strict=True):
                if ok:
                    good(i, size)
            if not any(answers):
                return  # the store is away or refuses: the rest would only wait for it too

    def _served(self, name: str, group: int) -> _Served | None:
        served = self._models.get(name)
        if served is None:
            self._say(f"model {name}", f"quire: models has no whole row for {name!r}: it is not cached; add one if it should be")
            return None
        if group != 0:
            self._say(
                f"group {name}",
                f"quire: {name!r} comes in several object groups, which a row cannot describe: only the first is stored, and a prefix of it alone is no hit",
            )
            return None
        return served if served.shape is not None and served.cache.ready else None

    def _place(self, served: _Served, kv_rank: int) -> Place | None:
        shape = served.shape
        place = shape.place(kv_rank) if shape is not None else None
        if place is None:
            self._say(
                f"rank {served.row.name} {kv_rank >> 24}",
                f"quire: models[{served.row.name!r}] says tp {served.row.tp} and pp {served.row.pp}, and keys come from rank {kv_rank >> 16 & 0xFF} of {kv_rank >> 24 & 0xFF}: they are not cached; correct the row",
            )
        return place

    def _hashes_fit(self, served: _Served, key: Any) -> bool:
        n, want = len(key.chunk_hash), served.row.hash_bytes
        if n == want:
            return True
        if n < 16:
            self._say(
                "hash",
                f"quire: LMCache hashes chunks to {n} bytes, which differ between processes and can be made to collide: nothing is cached; run the server with --hash-algorithm blake3",
            )
        else:
            self._say(
                "hash",
                f"quire: LMCache hashes chunks to {n} bytes and models[{served.row.name!r}].hash_bytes is {want}: not cached; correct hash_algorithm and hash_bytes in the row",
            )
        return False

    def _described(self, served: _Served, desc: Any, place: Place) -> bool:
        """Whether the layout that a lookup gives is the row's. A lookup without one is judged by its objects, at the load."""
        if desc is None or not desc.shapes:
            return True
        return self._matches(served, desc.shapes, desc.dtypes, place)

    def _matches(self, served: _Served, shapes: Iterable[Any], dtypes: Iterable[Any], place: Place) -> bool:
        assert served.shape is not None
        shapes, names = [tuple(s) for s in shapes], [str(d).removeprefix("torch.") for d in dtypes]
        if served.shape.fits(shapes, names, place.view):
            return True
        self._say(
            f"shape {served.row.name}",
            f"quire: {served.row.name!r} has objects of {shapes} {names}, which is not what its row and manifest give: not cached; correct tp, pp, layer_split, chunk_size, dtype or format in the row",
        )
        return False

    def _address(self, served: _Served, shape: Shape, obj: Any, place: Place, size: int) -> int:
        """Where an object's bytes are; 0 for one that does not fit."""
        try:
            if place.view is not None and not self._matches(served, obj.get_shapes(), obj.get_dtypes(), place):
                return 0
            if obj.get_size() == size:
                return int(obj.data_ptr)
            self._say(
                f"size {served.row.name}",
                f"quire: {served.row.name!r} has objects of {obj.get_size()} bytes and its row gives {size}: not cached; correct chunk_bytes or the shape in the row",
            )
        except Exception as e:
            self._say(f"object {served.row.name}", f"quire: an object of {served.row.name!r} has no memory to copy: {type(e).__name__}: {e}")
        return 0

    def _first_time(self, key: Any) -> bool:
        """Whether to count a stored key: one that was stored lately is counted already."""
        with self._lock:
            seen = key in self._counted
            self._counted[key] = None
            self._counted.move_to_end(key)
            while len(self._counted) > _COUNTED_KEYS:
                self._counted.popitem(last=False)
        return not seen

    def _unlock_late(self, keys: Sequence[Any], bits: Any) -> None:
        """A lookup that came after its deadline: nobody will use what it pinned."""
        self.submit_unlock([k for i, k in enumerate(keys) if bits.test(i)])

    def _release(self, leases: Iterable[Any]) -> None:
        for lease in [*leases, *self._locks.expired()]:
            self._workers.submit("release", partial(_release, lease), None, _drop, timeout=self._lease_seconds)

    def _say(self, kind: str, text: str) -> None:
        """One line a kind."""
        with self._lock:
            if kind in self._said:
                return
            self._said[kind] = None
            while len(self._said) > _KEPT_NAMES:
                self._said.popitem(last=False)
        self._log.error("%s", text)


def _publish_counters(adapter: weakref.ref[QuireL2Adapter]) -> None:
    """Shows all counters in LMCache's own metrics, as one gauge by model and counter."""
    try:
        from lmcache.v1.mp_observability.otel_init import register_gauge
    except ImportError:
        return

    def observe() -> list[tuple[int | float, dict[str, object]]]:
        a = adapter()
        return [] if a is None else [(v, {"model": name, "counter": c}) for name, m in a._models.items() for c, v in m.cache.stats().items()]

    register_gauge("lmcache.l2_quire", "lmcache_mp.quire", "Counters of the Quire L2 adapter, by model", observe)


def _by_request(keys: Sequence[Any]) -> dict[tuple[str, int, str], dict[int, list[int]]]:
    """Indices of keys by (model, object group, salt) and rank, in their order."""
    out: dict[tuple[str, int, str], dict[int, list[int]]] = defaultdict(dict)
    for i, k in enumerate(keys):
        out[(k.model_name, k.object_group_id, k.cache_salt)].setdefault(k.kv_rank, []).append(i)
    return out


def _questions(
    keys: Sequence[Any], shape: Shape, ranks: Mapping[int, list[int]], places: Mapping[int, Place]
) -> Iterable[tuple[list[list[int]], Any, int | None]]:
    """What to ask the store: (indices of each rank that the answer is for, view, rank in the scope).

    When all ranks ask for the same chunks, one question about whole pages answers all of them alike.
    """
    known = [ranks[rank] for rank in places]
    if not shape.row.opaque and len(known) == len(ranks) == shape.world:
        first = [keys[i].chunk_hash for i in known[0]]
        if all([keys[i].chunk_hash for i in indices] == first for indices in known[1:]):
            yield known, None, None
            return
    for rank, place in places.items():
        yield [ranks[rank]], place.view, place.rank


def _release(lease: Any, _: float) -> None:
    try:
        lease.release()
    except Exception:  # it ends by its time
        pass


def _drop(_: Any) -> None:
    """Nobody waits for a release."""


def _describe(row: Row, config: Config) -> tuple[str, Shape]:
    from .lmcache_identity import describe

    return describe(row, config)

"""The scheduler's side: what is looked up, what is loaded, what is saved. Nothing here waits.

    on_new_request ──> lookup on the pool ──────────────┐
    get_num_new_matched_tokens  None while young ... (n, True) when the answer came, (0, False) when it is late
    update_state_after_alloc    keys bound to blocks ──> loads of the next plan
    build_connector_meta        loads, and full blocks that the store is not known to have ──> plan
    update_connector_output     loads ended: leases released, failures remembered
    request_finished            leases released, the store told how long the answer was (on the pool); a load under way keeps its
                                entry until the workers have ended it

An entry is one request. A request whose load failed once is answered "no hit" for ever: asking again would loop. Leases
are released on the pool, since a release is a call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..cache import Cache, Lookup
from ..hint import Hint, said
from .lookups import Background
from .meta import Load, Plan, Report, Save

__all__ = ["Blocks", "Scheduling", "Scopes"]

LEASE_SECONDS = 10.0  # a hit stays pinned until its blocks are allocated and loaded; a longer wait asks again
_KNOWN_KEYS = 1 << 17  # keys that this engine has saved or planned to
_THREADS = 16  # lookups at a time; they wait for the network, not for a core
_WAITING = 512  # lookups that may queue; beyond that requests are no hit at once
_ON_ITS_WAY_SECONDS = 5.0  # a planned save that a lookup does not find after this time is planned again
_YIELD_SECONDS = 50e-6  # once in a step that waits for a lookup: an engine in its caller's process spins, and keeps the lookup's thread from running
_ANSWERED = ("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED")  # vLLM's states of a request whose answer was not cut off
_SAVES_PER_STEP = 4096  # blocks of one plan; the rest follow in the next step


class Scopes(Protocol):
    """The scope of a request (adapters, salt)."""

    def quick(self, request: Any) -> bytes | None:
        """The scope where it is known without reading anything, else None."""

    def slow(self, request: Any) -> bytes | None:
        """The scope, from files if need be; None: never for this request. Runs on the pool."""


class Blocks(Protocol):
    """What the engine's block pool says of a block."""

    def carries(self, block: int, key: bytes) -> bool:
        """Whether the block holds the page of this key now."""


@dataclass
class _Entry:
    request: Any
    since: float
    scope: bytes | None = None
    hint: Hint | None = None  # what the request says of its pages' future
    answer: Lookup | None = None
    pinned_until: float = 0.0
    looking: bool = False
    barred: bool = False  # no lookup and no save: the request is none of ours
    failed: bool = False  # a load of it failed once
    admitted: bool = False  # it has got blocks since the last lookup
    gone: bool = False  # finished; kept only while a load of it runs
    computed: int = 0  # tokens the engine had when it was last told of a hit
    saved: int = 0  # full blocks that were planned or need not be
    loading: frozenset[int] = field(default_factory=frozenset)  # blocks


class Scheduling:
    """One per engine, on its scheduler's thread; answers of lookups come in from the pool.

    The lock guards entries' answer, scope and lease, which the pool writes. It is held for a few assignments.
    """

    def __init__(self, cache: Cache, scopes: Scopes, log: logging.Logger, *, block_tokens: int, group: int = 0, late_seconds: float = 0.02,
                 clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self._cache = cache
        self._scopes = scopes
        self._log = log
        self._tokens = block_tokens
        self._group = group
        self._late = late_seconds
        self._clock = clock
        self._pool = Background("quire-lookup", _THREADS, _WAITING)
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._ending: dict[str, _Entry] = {}  # finished while a load of them runs
        self._loads: list[Load] = []
        self._known: OrderedDict[tuple[bytes, bytes], float] = OrderedDict()  # (scope, key) -> when it was planned
        self._releases: deque[Any] = deque()
        self._off = ""
        self._said = False
        self._yielded = False
        self.blocks: Blocks | None = None
        self.late = 0  # requests that were told "no hit" because their lookup took too long
        self.refused = 0  # lookups that found no room in the pool

    # -- the engine's calls ---------------------------------------------------------------------------------------

    def new_request(self, request: Any) -> None:
        """A request came in: its lookup starts."""
        if request.request_id not in self._entries:
            self._begin(request)

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        """Tokens beyond `computed` that can be loaded; None: ask again. Called in each step while a request waits."""
        entry = self._entries.get(request.request_id) or self._begin(request)
        if self._off or entry.barred or entry.failed or request.skip_reading_prefix_cache:
            return 0, False
        if entry.admitted:  # it had blocks and lost them: what was known then is old
            self._look(entry)
        with self._lock:
            answer, looking, pinned_until = entry.answer, entry.looking, entry.pinned_until
        if answer is None:
            if looking and self._clock() - entry.since < self._late:
                self._yield()
                return None, False
            return 0, False
        if answer.leading and self._clock() > pinned_until:  # it waited for blocks for so long that the pages may be gone
            self._unpin(entry)
            self._look(entry)
            return None, False
        usable = min(answer.leading, (request.num_tokens - 1) // self._tokens) * self._tokens
        if usable <= computed:
            return 0, False
        entry.computed = computed
        return usable - computed, True

    def _yield(self) -> None:
        if not self._yielded:
            self._yielded = True
            time.sleep(_YIELD_SECONDS)

    def allocated(self, request: Any, blocks: Any, external: int) -> bool:
        """Blocks were allocated; `external` tokens of them are to be loaded. Whether they will be, or nothing is."""
        entry = self._entries.get(request.request_id)
        if entry is None:
            return False
        if not entry.admitted and entry.answer is None and entry.looking and external == 0:
            self.late += 1
        entry.admitted = True
        if external > 0:
            first, end = entry.computed // self._tokens, (entry.computed + external) // self._tokens
            ids = list(blocks.get_block_ids()[self._group][first:end])
            keys = list(request.block_hashes[first:end])
            entry.loading = frozenset(ids)
            self._loads.append(Load(request.request_id, entry.scope or b"", keys, ids))
        elif not entry.loading:
            self._unpin(entry)
        return True

    def give_up(self, request: Any) -> None:
        """A load that was promised cannot be: the workers report it as failed."""
        self._loads.append(Load(request.request_id, b"", [], []))

    def plan(self, output: Any) -> Plan:
        """What the workers do in this step."""
        plan = Plan(loads=self._loads, off=self._off)
        self._loads = []
        self._yielded = False
        if self._off:
            return plan
        try:
            self._plan_saves(plan, output)
        except Exception:  # loads have to reach the workers, since requests wait for them
            if not self._said:
                self._said = True
                self._log.exception("quire: saves could not be planned")
        self._release_some()
        return plan

    def _plan_saves(self, plan: Plan, output: Any) -> None:
        state = output.kv_connector_block_state
        room = _SAVES_PER_STEP
        for request_id, scheduled in output.num_scheduled_tokens.items():
            entry = self._entries.get(request_id)
            if entry is None or entry.barred or room <= 0:
                continue
            saves = self._saves(entry, scheduled, state, room)
            room -= sum(len(s.keys) for s in saves)
            plan.saves += saves

    def output(self, output: Any) -> None:
        """What the workers did."""
        bad = output.invalid_block_ids or ()
        failed = set(output.failed_recving or ())
        if bad:
            failed |= {r for r, e in self._all() if not e.loading.isdisjoint(bad)}
        for request_id in failed:
            entry = self._entries.get(request_id)
            if entry is not None:
                entry.failed = True
                entry.saved = 0  # its pages are offered again once they have been recomputed
                self._forget(entry)
        for request_id in output.finished_recving or ():
            entry = self._entries.get(request_id) or self._ending.pop(request_id, None)
            if entry is not None:
                entry.loading = frozenset()
                self._unpin(entry)
        report = output.kv_connector_worker_meta
        if isinstance(report, Report):
            for lost in report.lost:
                self._known.pop(lost, None)
            if report.off and not self._off:
                self.stop(report.off)
        self._release_some()

    def finished(self, request: Any) -> None:
        """A request ended, well or not. Its blocks may be freed: nothing reads them any more."""
        entry = self._entries.pop(request.request_id, None)
        if entry is None:
            return
        with self._lock:
            entry.gone = True
        if entry.loading:
            self._ending[request.request_id] = entry
        else:
            self._unpin(entry)
        self._release_some()
        self._tell(entry)

    def stop(self, why: str) -> None:
        """Nothing is looked up, loaded or saved any more."""
        self._off = why
        self._cache.invalidate(why)

    def close(self) -> None:
        """Gives leases back as far as there is no wait for it; what is left runs out by itself."""
        for _, entry in self._all():
            self._unpin(entry)
        self._release_some()
        self._pool.close()

    def _tell(self, entry: _Entry) -> None:
        """Tells the store how long the answer was, of the pages that it has by then."""
        request = entry.request
        if self._off or entry.barred or not self._cache.ready or getattr(request.status, "name", "") not in _ANSWERED:
            return
        with self._lock:
            scope = entry.scope
        keys, tokens = list(request.block_hashes), request.num_output_tokens
        if scope is not None and keys and not self._pool.submit(lambda: self._cache.ended(keys, tokens, scope=scope)):
            self._log.debug("quire: the store was not told of the end of a request")

    # -- lookups --------------------------------------------------------------------------------------------------

    def _begin(self, request: Any) -> _Entry:
        entry = _Entry(request, self._clock())
        self._entries[request.request_id] = entry
        entry.barred = bool(self._off) or bool(getattr(request, "resumable", False))
        if not entry.barred:
            entry.hint = self._cache.hint_of(said(getattr(request, "kv_transfer_params", None)))
            entry.scope = self._scopes.quick(request)
            self._look(entry)
        return entry

    def _look(self, entry: _Entry) -> None:
        """Starts a lookup of all full blocks of the request but for its last token's."""
        request = entry.request
        with self._lock:
            entry.answer = None
            entry.admitted = False
            entry.since = self._clock()
            unknown = entry.scope is None
            if entry.looking:
                return
        keys = [] if request.skip_reading_prefix_cache else list(request.block_hashes[: (request.num_tokens - 1) // self._tokens])
        if (not keys and not unknown) or not self._cache.ready:
            return
        entry.looking = True
        if not self._pool.submit(lambda: self._work(entry, keys)):
            entry.looking = False
            self.refused += 1

    def _work(self, entry: _Entry, keys: Sequence[bytes]) -> None:
        """On the pool: the scope if it is not known, and the lookup."""
        answer, until = None, 0.0
        scope = entry.scope
        try:
            if scope is None:
                scope = self._scopes.slow(entry.request)
            if scope is not None and keys:
                until = self._clock() + 0.8 * LEASE_SECONDS
                answer = self._cache.lookup(keys, scope=scope, lease=LEASE_SECONDS, hint=entry.hint)
        finally:
            with self._lock:
                entry.looking = False
                entry.scope = scope
                entry.barred = entry.barred or scope is None
                lease = answer.lease if answer is not None and (entry.gone or entry.admitted) else None
                if lease is not None and answer is not None:  # too late for a load; it still says what need not be saved
                    answer = answer._replace(lease=None)
                entry.answer, entry.pinned_until = answer, until
            if lease is not None:
                lease.release()

    # -- saves ----------------------------------------------------------------------------------------------------

    def _saves(self, entry: _Entry, scheduled: int, state: Any, room: int) -> list[Save]:
        """Blocks of a request that are full when this step has run, and that the store is not known to have."""
        request = entry.request
        with self._lock:
            scope, answer = entry.scope, entry.answer
        full = min((request.num_computed_tokens + scheduled) // self._tokens, len(request.block_hashes))
        if scope is None or full <= entry.saved:
            return []
        tables = state.get_block_ids(request.request_id) if state is not None else None
        if tables is None:
            return []
        table, hashes = tables[self._group], request.block_hashes
        present: Sequence[bool] = () if answer is None or entry.failed else answer.present
        saves: list[Save] = []
        for i in range(entry.saved, min(full, len(table))):
            key = hashes[i]
            if table[i] != 0 and not (i < len(present) and present[i]) and not self._is_known(scope, key, i < len(present)):  # block 0 holds nothing
                if self.blocks is not None and not self.blocks.carries(table[i], key):
                    break  # not registered under this key yet: in the next step
                if room <= 0:
                    break
                room -= 1
                if saves and saves[-1].keys[-1] == hashes[i - 1]:
                    saves[-1].keys.append(key)
                    saves[-1].blocks.append(table[i])
                else:
                    saves.append(Save(scope, hashes[i - 1] if i else None, [key], [table[i]], entry.hint))
                self._known[(scope, key)] = self._clock()
                if len(self._known) > _KNOWN_KEYS:
                    self._known.popitem(last=False)
            entry.saved = i + 1
        return saves

    def _is_known(self, scope: bytes, key: bytes, absent: bool) -> bool:
        """Whether the page was saved, or is on its way. `absent`: a lookup did not find it, so that only the latter counts."""
        when = self._known.get((scope, key))
        return when is not None and not (absent and self._clock() - when > _ON_ITS_WAY_SECONDS)

    def _forget(self, entry: _Entry) -> None:
        """The store may not have this request's pages any more, whatever was saved."""
        scope = entry.scope or b""
        for h in entry.request.block_hashes:
            self._known.pop((scope, h), None)

    # -- leases ---------------------------------------------------------------------------------------------------

    def _unpin(self, entry: _Entry) -> None:
        """Gives the lease of an answer back; the answer stays, for what it says of saves."""
        with self._lock:
            answer = entry.answer
            if answer is None or answer.lease is None:
                return
            entry.answer = answer._replace(lease=None)
        self._releases.append(answer.lease)

    def _release_some(self) -> None:
        """Hands collected leases to the pool, all in one piece of work."""
        if not self._releases:
            return
        leases = list(self._releases)
        self._releases.clear()
        if not self._pool.submit(lambda: _release(leases)):
            self._log.debug("quire: %d leases are left to run out", len(leases))

    def _all(self) -> Iterable[tuple[str, _Entry]]:
        return [*self._entries.items(), *self._ending.items()]


def _release(leases: Iterable[Any]) -> None:
    for lease in leases:
        try:
            lease.release()
        except Exception:  # it runs out by itself
            logging.getLogger(__name__).debug("quire: a lease could not be given back", exc_info=True)

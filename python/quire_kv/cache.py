"""What every adapter stands on: a session that opens by itself, answers by its deadline and never raises.

    adapter ──lookup, load, save──> Cache ──> client.Session ──> store
                                      │
                                      ├─ breaker: while the store is away, everything is a miss at once
                                      └─ keeper, one thread: opens the session, probes an open breaker, reports counters

Nothing here raises into an engine: whatever goes wrong is a miss of the exact shape, counted by its reason. A page is
reported loaded only after its bytes were verified where they now lie.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

from . import client as _client
from .breaker import Breaker
from .config import Config
from .errors import ConfigError, QuireError, Reason
from .frames import Crowded
from .hint import Hint, WorkCategory
from .layout import PageMemory
from .metrics import Counters
from .page import Geometry, View
from .visibility import Visibility

__all__ = ["Cache", "Lookup"]

_OPEN_PAUSES = (0.1, 0.25, 0.5, 1.0, 2.0)  # seconds between attempts to open; the last one repeats
_PROBE_TIMEOUT = 1.0  # seconds of one probe of an open breaker
_REPORT_SECONDS = 10.0  # between reports to the store, unless it says otherwise
_RETRY_PAUSE = 0.02  # seconds before what was refused for now is offered again
_LOG_SECONDS = 60.0  # one line per kind of failure in this time

_SILENT = frozenset({Reason.ABSENT, Reason.INCOMPLETE, Reason.EXPIRED, Reason.NOT_WORTH})  # plain misses, and what the store need not keep: no failures

# Refusals of the identity, or of who we are, that stay until an operator changes what this process was started with:
# the cache is off. After every other one, also one that a later store may name, it is opened again after a pause.
_FINAL = frozenset({
    Reason.INVALID_SPEC, Reason.HASH_CONTRACT_FORK, Reason.WEAK_NAMES, Reason.UNAUTHORIZED, Reason.UNSUPPORTED, Reason.INVALID_VIEW,
    Reason.SIZE_MISMATCH, Reason.BUFFER_SIZE,
})  # fmt: skip
_ENDED = frozenset({Reason.RETIRED, Reason.STALE_EPOCH, Reason.ABSENT, Reason.NOT_FOUND})  # of a whole call: the store has no such namespace any more
_REOPEN_SECONDS = 1.0  # from one opening to the next, where a namespace ends as soon as it is opened


class Lookup(NamedTuple):
    """The answer of a lookup. `leading` keys from the start are there, pinned as far as `lease` covers them."""

    leading: int
    present: Sequence[bool]  # one a key
    lease: _client.Lease | None
    reason: Reason  # NONE, or why the store was not asked or did not answer


class Cache:
    """One namespace as one adapter of one process uses it. Thread-safe; survives a fork.

    `spec` is the text of the identity, or a function that makes it: it runs on the keeper's thread, and a ConfigError
    from it turns the cache off for good with one line in the log. `adapter` and `engine` are shown to operators.
    """

    def __init__(
        self,
        config: Config,
        spec: str | Callable[[], str],
        log: logging.Logger,
        *,
        adapter: str,
        engine: str = "",
        make_client: Callable[[Config], _client.Client] | None = None,
    ) -> None:
        self._config = config
        self._log = log
        self._adapter = adapter
        self._engine = engine
        self._make_client = make_client or client_of
        self._default_hint = Hint(WorkCategory[config.category.upper()]) if config.category is not None else None
        self.counters = Counters()
        self._started = time.monotonic()
        self._begin(spec)
        _alive.add(self)

    def _begin(self, spec: str | Callable[[], str]) -> None:
        self._spec = spec
        self._breaker = Breaker()
        self._lock = threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._closed = False
        self._off = ""  # why the cache is off
        self._revision = 0  # of the identity: raised by invalidate and reopen
        self._client: _client.Client | None = None
        self._session: _client.Session | None = None
        self._old: list[_client.Client] = []  # that the keeper closes: an engine's thread does not wait for it
        self._open_at = 0.0  # by the monotonic clock: not opened again before
        self._stands = False  # the session's attach stream
        self._look = False  # it came or went: the keeper asks the store how it is
        self._visibility = Visibility()
        self._logged: dict[str, float] = {}
        self._start_keeper()

    def _start_keeper(self) -> None:
        self._keeper = threading.Thread(target=self._keep, name="quire-keeper", daemon=True)
        self._keeper.start()

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether calls go to the store now."""
        return self._session is not None and self._breaker.allows

    @property
    def state(self) -> str:
        """One line: opening, ready, away (the breaker is open), closed, or off and why."""
        if self._closed:
            return "closed"
        if self._off:
            return f"off: {self._off}"
        if self._session is None:
            return "opening" + (f": {self._breaker.why}" if self._breaker.why else "")
        return "ready" if self._breaker.allows else f"away: {self._breaker.why}"

    @property
    def session(self) -> _client.Session | None:
        """The open session, or None. For what an adapter asks of it beyond pages; its calls raise QuireError."""
        return self._session

    @property
    def transport(self) -> str:
        """shm, data or grpc; empty before the session is open."""
        client = self._client
        return client.transport if client is not None and self._session is not None else ""

    def geometry(self, group: bytes | None = None) -> Geometry | None:
        """The geometry of a group, of the only one by default; None until the session is open."""
        session = self._session
        if session is None:
            return None
        if group is None and len(session.geometries) == 1:
            return next(iter(session.geometries.values()))
        return session.geometries.get(group or b"")

    def wait_ready(self, timeout: float) -> bool:
        """Waits until the cache is ready, off or closed; True when it is ready. Not for an engine's threads."""
        until = time.monotonic() + timeout
        with self._wake:
            while not (self.ready or self._off or self._closed):
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._wake.wait(min(left, 0.05))
        return self.ready

    # -- pages ---------------------------------------------------------------------------------------------------

    def lookup(
        self,
        keys: Sequence[bytes],
        *,
        group: bytes | None = None,
        scope: bytes = b"",
        view: View | None = None,
        lease: float | None = None,
        hint: Hint | None = None,
        timeout: float | None = None,
    ) -> Lookup:
        """Which pages are there, for all heads and layers unless a view is given. One call for any number of keys.

        `lease` seconds pin the leading run; the caller releases it. `hint` is of the pages that are pinned. A key whose load
        failed lately ends the run.
        """
        n = len(keys)
        nothing = Lookup(0, [False] * n, None, Reason.NONE)
        if n == 0:
            return nothing
        self.counters.add(lookups=1, lookup_keys=n)
        session = self._usable()
        if session is None:
            return nothing._replace(reason=Reason.UNKNOWN)
        visible = self._visibility.leading(keys, group, scope)
        if visible == 0:
            return nothing._replace(reason=Reason.ABSENT)
        ask = keys if visible == n else keys[:visible]
        try:
            p = session.exists(
                ask, group=group, scope=scope, view=view, lease=lease, hint=self._advice(hint),
                timeout=self._config.lookup_timeout if timeout is None else timeout,
            )  # fmt: skip
        except Exception as e:
            return nothing._replace(reason=self._failed("lookup", e, 0, session))
        self._answered()
        if session is not self._session:  # the identity changed meanwhile
            if p.lease is not None:
                p.lease.release()
            return nothing._replace(reason=Reason.STALE_EPOCH)
        present: Sequence[bool] = p.present
        if len(ask) < n:
            present = [*present, *([False] * (n - len(ask)))]
        self.counters.add(hits=p.leading)
        return Lookup(p.leading, present, p.lease, Reason.NONE)

    def load(
        self,
        keys: Sequence[bytes],
        memory: PageMemory,
        *,
        group: bytes | None = None,
        scope: bytes = b"",
        view: View | None = None,
        lease: _client.Lease | None = None,
        timeout: float | None = None,
    ) -> list[bool]:
        """Copies pages into memory; one answer a key. Only pages answered True were written whole and verified.

        When it has returned, nothing writes into memory any more.
        """
        n = len(keys)
        if n == 0:
            return []
        self.counters.add(loads=n)
        session = self._usable()
        if session is None:
            return [False] * n
        try:
            pages = session.fetch(
                keys, memory, group=group, scope=scope, view=view, lease=lease, timeout=self._config.load_timeout if timeout is None else timeout
            )
        except Exception as e:
            good = _done(e, n)
            self._failed("load", e, n - sum(good), session)
        else:
            self._judge("load", "loaded", pages, keys, group, scope)
            good = [p.ok for p in pages]
        if session is not self._session:
            return [False] * n
        self._count_bytes("load", session, group, view, sum(good))
        self.counters.add(recompute_fallbacks=n - sum(good))
        return good

    def save(
        self,
        keys: Sequence[bytes],
        memory: PageMemory,
        *,
        parent: bytes | _client.Parent = _client.UNKNOWN_PARENT,
        linked: bool = True,
        group: bytes | None = None,
        scope: bytes = b"",
        view: View | None = None,
        hint: Hint | None = None,
        timeout: float | None = None,
    ) -> list[bool]:
        """Publishes consecutive pages of one chain; one answer a key: whether the store holds it now.

        `parent` is the page before keys[0]; not `linked`, the pages are no chain and the parent of each is unknown. What was refused for the moment is offered once more within the timeout.
        When it has returned, nothing reads memory any more.
        """
        n = len(keys)
        if n == 0:
            return []
        self.counters.add(saves=n)
        session = self._usable()
        if session is None:
            return [False] * n
        until = time.monotonic() + (self._config.save_timeout if timeout is None else timeout)
        good = [False] * n
        pages: list[_client.Page] = []
        first = 0
        for attempt in (0, 1):
            left = until - time.monotonic()
            if left <= 0:
                break
            before: bytes | _client.Parent = keys[first - 1] if first and linked else parent
            try:
                pages = session.publish(
                    keys[first:],
                    memory if first == 0 else memory.select(slice(first, n)),
                    parent=before,
                    linked=linked,
                    group=group,
                    scope=scope,
                    view=view,
                    durability=self._config.durability,
                    hint=self._advice(hint),
                    timeout=left,
                )
            except Exception as e:
                done = _done(e, n - first)
                good[first:] = [a or b for a, b in zip(good[first:], done, strict=True)]
                self._failed("save", e, n - first - sum(done), session)
                pages = []
                if attempt == 0 and self._breaker.allows and isinstance(e, QuireError) and e.reason.retryable:
                    continue
                break
            for i, p in enumerate(pages):
                good[first + i] = good[first + i] or p.ok
            again = next((first + i for i, p in enumerate(pages) if not p.ok and p.reason.retryable), None)
            if again is None or attempt or until - time.monotonic() < 2 * _RETRY_PAUSE:
                break
            first = again
            time.sleep(_RETRY_PAUSE)
        if pages:
            self._judge("save", "saved", pages, keys[first:], group, scope)
        if session is not self._session:
            return [False] * n
        self._visibility.show([k for k, ok in zip(keys, good, strict=True) if ok], group, scope)
        self._count_bytes("save", session, group, view, sum(good))
        return good

    def ended(self, keys: Sequence[bytes], answer_tokens: int, *, group: bytes | None = None, scope: bytes = b"") -> None:
        """Tells that the request for these pages has ended, after an answer of so many tokens. That is no use of them, and what the
        request's hint said of them stays; where it does not come through, nothing is lost."""
        session = self._usable() if keys and answer_tokens > 0 else None
        if session is None:
            return
        try:
            session.touch(keys, group=group, scope=scope, hint=Hint(answer_tokens=answer_tokens), hint_only=True, timeout=self._config.lookup_timeout)
        except Exception as e:
            self._failed("end", e, 0, session)
        else:
            self._answered()

    def hint_of(self, given: object) -> Hint | None:
        """What a request's own hint says (hint.Hint.parse); None where there is none, or where it is wrong: that is counted and logged."""
        if given is None:
            return None
        try:
            return Hint.parse(given)
        except Exception as e:
            self.counters.add(bad_hints=1)
            self._say("hint", f"quire: a request's hint is ignored: {_line(e)}")
            return None

    def _advice(self, hint: Hint | None) -> Hint | None:
        """The hint, with the category of the configuration where it names none."""
        return self._default_hint if hint is None else hint.otherwise(self._default_hint)

    # -- the life of the identity --------------------------------------------------------------------------------

    def clear(self) -> None:
        """Hides every page from this instance, until it has published it again (or offered one that was stored).

        Nothing is deleted: pages belong to everybody who shares the namespace. Idempotent.
        """
        self._visibility.clear()

    def invalidate(self, why: str) -> None:
        """The model is not any more what the identity says: no lookup, load or save from now on, until reopen.

        Calls under way publish nothing and report nothing loaded.
        """
        with self._wake:
            if self._closed or self._off:
                return
            self._off = why
            self._revision += 1
            session, self._session = self._session, None
            self._wake.notify_all()
        self._log.warning("quire: the cache is off: %s", why)
        if session is not None:
            _quietly(lambda: session.invalidate(why))

    def reopen(self, spec: str | Callable[[], str]) -> None:
        """Begins again with another identity, after invalidate or instead of it."""
        self.invalidate("the identity changes")
        with self._wake:
            self._spec = spec
            self._off = ""
            self._open_at = 0.0
            self._revision += 1
            self._wake.notify_all()

    def stats(self) -> dict[str, float]:
        """All counters, failures as failures_<reason>, and breaker_open (0 or 1)."""
        out: dict[str, float] = dict(self.counters.snapshot())
        out.update({f"failures_{r.label}": n for r, n in self.counters.failures().items()})
        out["breaker_open"] = 0 if self._breaker.allows else 1
        out["breaker_opened"] = self._breaker.opened
        return out

    def close(self, timeout: float = 1.0) -> None:
        """Ends calls under way and the keeper. Idempotent; returns within the timeout."""
        until = time.monotonic() + timeout
        with self._wake:
            self._closed = True
            self._session = None
            client, self._client = self._client, None
            self._wake.notify_all()
        if client is not None:
            _quietly(lambda: client.close(timeout=max(0.05, until - time.monotonic())))
        if self._keeper is not threading.current_thread():
            self._keeper.join(max(0.0, until - time.monotonic()))

    # -- keeper --------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        attempt = 0
        report_at = 0.0
        while True:
            with self._wake:
                old, self._old = self._old, []
                closed, session, off = self._closed, self._session, self._off
            for client in old:
                _quietly(functools.partial(client.close, timeout=0.5))
            if closed:
                return
            if session is None and not off and (pause := self._open_at - time.monotonic()) > 0:
                pass
            elif session is None and not off:
                if self._open():
                    attempt, report_at = 0, 0.0
                    continue
                pause = _OPEN_PAUSES[min(attempt, len(_OPEN_PAUSES) - 1)]
                attempt += 1
            elif session is not None and self._look:
                self._look = False
                self._probe(session)
                continue
            elif session is not None and (due := self._breaker.probe_in()) is not None:
                pause = due
                if due <= 0:
                    self._probe(session)
                    continue
            elif session is not None and time.monotonic() >= report_at:
                pause = self._report(session)
                report_at = time.monotonic() + pause
            else:
                pause = max(0.0, report_at - time.monotonic()) if session is not None else _REPORT_SECONDS
            with self._wake:
                if not self._closed and self._session is session and self._off == off and not self._look:
                    due = self._breaker.probe_in() if session is not None else None
                    self._wake.wait(max(0.001, pause if due is None else min(pause, due)))

    def _open(self) -> bool:
        """One attempt to open the session. False when it is to be tried again."""
        with self._lock:
            revision, spec = self._revision, self._spec
        client: _client.Client | None = None
        try:
            text = spec if isinstance(spec, str) else spec()
            client = self._make_client(self._config)
            with self._lock:
                if self._closed:
                    raise _Superseded
                self._client = client
            session = client.open(text, timeout=self._config.open_timeout)
        except ConfigError as e:
            self._give_up(revision, str(e))
        except QuireError as e:
            if e.reason in _FINAL and not e.broken:
                self._give_up(revision, f"the store refused the identity: {e}")
            else:
                self._breaker.why = _line(e)
                does = "does not answer" if e.broken else "does not open the namespace now"
                self._say(f"open {does}", f"quire: the store at {self._config.server} {does}; the engine runs without it until it does: {_line(e)}")
        except _Superseded:
            pass
        except Exception as e:
            self._give_up(revision, f"the identity could not be made: {type(e).__name__}: {e}")
        else:
            with self._wake:
                current = not self._closed and revision == self._revision
                if current:
                    self._session = session
                    self._open_at = time.monotonic() + _REOPEN_SECONDS
                    self._breaker.succeeded()
                    self._wake.notify_all()
            if current:
                session.watch(lambda stands: self._linked(session, stands))
                self._log.info("quire: ready: namespace %s, over %s", session.namespace.hex()[:16], client.transport)
                return True
        if client is not None:
            with self._lock:
                if self._client is client:
                    self._client = None
            _quietly(lambda: client.close(timeout=0.5))
        return False

    def _give_up(self, revision: int, why: str) -> None:
        if revision == self._revision and not self._closed:
            self._log.error("quire: the cache is off; the engine runs on without it: %s", why)
        with self._wake:
            if revision != self._revision or self._closed:
                return
            self._off = why
            self._wake.notify_all()

    def _linked(self, session: _client.Session, stands: bool) -> None:
        """The session's stream stands, or does not any more: reason to ask the store at once, also when nobody calls."""
        with self._wake:
            if self._session is session:
                self._stands, self._look = stands, True
                self._wake.notify_all()

    def _probe(self, session: _client.Session) -> None:
        """Asks the store how it is. One that was started anew may have forgotten the namespace, or who uses it: it is
        opened again."""
        client = self._client
        if client is None:
            return
        try:
            found = client.capabilities(timeout=_PROBE_TIMEOUT)
        except Exception as e:
            if not self._breaker.allows:
                self._breaker.probe_failed(_line(e))
            elif not isinstance(e, QuireError) or e.broken:
                self._broke(_line(e), sure=not self._stands)
        else:
            if found.boot != session.boot:
                self._reopen_later(session, "the store was started anew")
            self._answered()

    def _report(self, session: _client.Session) -> float:
        try:
            return session.report(
                self.counters.snapshot(),
                self.counters.failures(),
                instance=self._config.name,
                engine=self._engine,
                adapter=self._adapter,
                breaker="closed" if self._breaker.allows else "open",
                uptime=time.monotonic() - self._started,
                timeout=_PROBE_TIMEOUT,
            )
        except QuireError as e:
            if e.broken:
                self._failed("report", e, 0, session)
            elif e.reason in _ENDED:
                self._reopen_later(session, _line(e))
        except Exception as e:
            self._say("report", f"quire: a report failed: {_line(e)}")
        return _REPORT_SECONDS

    def _reopen_later(self, session: _client.Session, why: str) -> None:
        """The namespace ended, was forgotten or began another life under us: opens it again, as the store lets us."""
        with self._wake:
            if self._session is not session or self._closed:
                return
            self._session = None
            self._breaker.why = why
            self._revision += 1
            if self._client is not None:
                self._old.append(self._client)
                self._client = None
            self._wake.notify_all()
        self._log.warning("quire: opening the namespace again: %s", why)

    # -- what happened -------------------------------------------------------------------------------------------

    def _usable(self) -> _client.Session | None:
        session = self._session
        if session is None:
            return None
        if not self._breaker.allows:
            self.counters.add(refused_open=1)
            return None
        return session

    def _answered(self) -> None:
        if self._breaker.succeeded():
            self._log.warning("quire: the store answers again")

    def _failed(self, what: str, error: Exception, pages: int, session: _client.Session) -> Reason:
        """Counts a call that did not come through, and opens the breaker when it must."""
        reason = error.reason if isinstance(error, QuireError) else Reason.UNKNOWN
        self.counters.fail(reason, max(pages, 1))
        if not isinstance(error, QuireError):
            self._say(f"{what} {type(error).__name__}", f"quire: {what} failed: {_line(error)}", exc_info=error)
            return reason
        if isinstance(error, Crowded) or isinstance(error, _client.DeadlineError) and error.crowded:  # of our own making: no word of the store's
            self._say(f"{what} crowded", f"quire: {what} waited for other calls: {_line(error)}")
        elif not error.broken:
            self._answered()
            if reason in _ENDED:
                self._reopen_later(session, _line(error))
            self._say(f"{what} {reason.label}", f"quire: {what} was refused: {_line(error)}")
        else:
            self._broke(_line(error), sure=isinstance(error, _client.DeadlineError))
        return reason

    def _broke(self, why: str, *, sure: bool) -> None:
        if self._breaker.failed(why, sure=sure):
            self._log.warning("quire: the store does not answer, the engine runs without it until it does: %s", why)
            with self._wake:
                self._wake.notify_all()

    def _judge(self, what: str, done: str, pages: Sequence[_client.Page], keys: Sequence[bytes], group: bytes | None, scope: bytes) -> None:
        """Counts the pages of a call that came through, and distrusts those that a load did not bring."""
        self._answered()
        bad: list[bytes] = []
        for p, k in zip(pages, keys, strict=True):
            if p.ok:
                continue
            if p.reason not in _SILENT:
                self.counters.fail(p.reason)
                self._say(f"{what} {p.reason.label}", f"quire: a page could not be {done}: {p.reason.label}")
            bad.append(k)
        if bad and what == "load":
            self._visibility.distrust(bad, group, scope)

    def _count_bytes(self, what: str, session: _client.Session, group: bytes | None, view: View | None, pages: int) -> None:
        geometry = next(iter(session.geometries.values())) if group is None else session.geometries[group]
        each = geometry.payload_bytes(view if view is not None else geometry.whole)
        if what == "load":
            self.counters.add(loaded_pages=pages, load_bytes=pages * each)
        else:
            self.counters.add(saved_pages=pages, save_bytes=pages * each)

    def _say(self, kind: str, text: str, exc_info: BaseException | None = None) -> None:
        """Logs one line per kind of failure and _LOG_SECONDS."""
        now = time.monotonic()
        if self._logged.get(kind, -_LOG_SECONDS) + _LOG_SECONDS <= now:
            self._logged[kind] = now
            self._log.warning(text, exc_info=exc_info)

    def _after_fork(self) -> None:
        """In the child: locks may have been held, the keeper is gone, the session is the parent's."""
        closed, off = self._closed, self._off
        self.counters, self._started = Counters(), time.monotonic()
        if closed or off:
            self._lock = threading.Lock()
            self._wake = threading.Condition(self._lock)
            return
        self._begin(self._spec)


class _Superseded(Exception):
    """The cache was closed while its session was being opened."""


def client_of(config: Config) -> _client.Client:
    """The store's client for a configuration; it does not dial. ConfigError where a file cannot be read."""
    tls = _client.Tls(ca=config.tls_ca, cert=config.tls_cert, key=config.tls_key) if config.tls_ca is not None else None
    return _client.Client(
        _client.Options(
            address=config.server,
            token=config.token(),
            tls=tls,
            transport=config.transport,
            instance=config.name,
            copy_threads=config.copy_threads or 1,
            call_timeout=max(config.load_timeout, config.save_timeout),
        )
    )


def _done(error: Exception, n: int) -> list[bool]:
    """Which of n pages a call had brought to their end, verified or committed, before it broke off."""
    pages: Sequence[_client.Page] = error.pages if isinstance(error, QuireError) else ()
    return [p.ok for p in pages] if len(pages) == n else [False] * n


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300] if not isinstance(error, QuireError) else str(error).replace("\n", " ")[:300]


def _quietly(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception:  # ending what is given up anyway
        logging.getLogger(__name__).debug("quire: ending a session failed", exc_info=True)


_alive: weakref.WeakSet[Cache] = weakref.WeakSet()


def _forked() -> None:
    for cache in list(_alive):
        cache._after_fork()


os.register_at_fork(after_in_child=_forked)

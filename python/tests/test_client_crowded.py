"""More calls at once than a client has connections for: they wait for each other, and that says nothing of the store."""

from __future__ import annotations

import logging
import threading

import pytest
from serving import spec_text
from waiting import PATIENT, wait_for

from quire_kv.breaker import FAILURES
from quire_kv.cache import Cache
from quire_kv.config import Config
from quire_kv.deadline import Call, DeadlineError
from quire_kv.errors import QuireError, Reason
from quire_kv.frames import BULK, SHORT, Crowded, Pool

pytestmark = pytest.mark.once

SECONDS = 20.0


class Connection:
    """As much of one as a pool touches."""

    clean = True

    def __init__(self):
        self.attached = {}
        self.stream = self

    def idle(self):
        return True

    def abort(self):
        pass

    def close(self):
        pass


class Callers:
    """Threads that each hold a connection of a pool until they are let go."""

    def __init__(self, pool: Pool, kind: int, count: int):
        self.let = threading.Event()
        self.inside: list = []
        self.threads = [threading.Thread(target=pool.run, args=(kind, Call(SECONDS), self._hold)) for _ in range(count)]
        for t in self.threads:
            t.start()
        wait_for(lambda: len(self.inside) == count, SECONDS, "every caller's connection")

    def _hold(self, connection) -> None:
        self.inside.append(connection)
        self.let.wait(SECONDS)

    def end(self) -> None:
        self.let.set()
        for t in self.threads:
            t.join(SECONDS)


@pytest.mark.parametrize("kind", [BULK, SHORT], ids=["bulk", "short"])
def test_a_call_that_finds_no_room_in_time_was_not_made(kind):
    pool = Pool(lambda call: Connection(), 2)
    other = SHORT if kind == BULK else BULK
    callers = Callers(pool, kind, 2)
    with pytest.raises(Crowded) as e:
        pool.run(kind, Call(0.05), lambda c: pytest.fail("there was no room"))
    assert not e.value.broken and e.value.reason is Reason.BUSY
    assert pool.run(other, Call(SECONDS), lambda c: "there is for the other kind") == "there is for the other kind"
    callers.end()
    assert pool.run(kind, Call(SECONDS), lambda c: "now there is") == "now there is"
    assert len(pool._all) <= 4


def test_a_call_that_waited_for_others_says_so_where_its_time_ends():
    """One that got its room late has too little time left to say anything of the server; one that got it at once has not."""
    pool = Pool(lambda call: Connection(), 1)

    def out_of_time(connection) -> None:
        raise DeadlineError

    with pytest.raises(DeadlineError) as e:
        pool.run(SHORT, Call(SECONDS), out_of_time)
    assert not e.value.crowded
    for late in (False, True):
        callers, call, errors = Callers(pool, SHORT, 1), Call(SECONDS), []

        def ask(call=call, errors=errors) -> None:
            try:
                pool.run(SHORT, call, out_of_time)
            except DeadlineError as why:
                errors.append(why)

        asker = threading.Thread(target=ask)
        asker.start()
        wait_for(lambda: pool._waiting == 1, SECONDS, "the call to wait for room")
        if late:
            call.deadline -= 0.6 * SECONDS
        callers.end()
        asker.join(SECONDS)
        assert [e.crowded for e in errors] == [late]


def test_a_cache_learns_nothing_of_its_store_from_a_crowd(quire_server):
    """It neither opens the breaker nor counts as an answer."""
    c = Cache(Config.parse({"server": quire_server.address, **PATIENT}), spec_text(), logging.getLogger("quire_kv.test"), adapter="test")
    try:
        assert c.wait_ready(SECONDS), c.state
        errors: list[Exception] = []

        def exists(*args, **kw):
            raise errors.pop(0)

        c.session.exists = exists  # type: ignore[method-assign]
        gone = [QuireError(Reason.UNKNOWN, "gone", broken=True) for _ in range(FAILURES)]
        late = DeadlineError()
        late.crowded = True
        errors += [Crowded() for _ in range(2 * FAILURES)]
        while errors:
            assert c.lookup([bytes(32)]).reason is Reason.BUSY and c.ready
        errors += [*gone[:-1], Crowded(), late, gone[-1]]
        while len(errors) > 1:
            c.lookup([bytes(32)])
            assert c.ready
        c.lookup([bytes(32)])
        assert c.stats()["breaker_opened"] == 1
    finally:
        c.close()

"""Opening: which refusals turn the cache off for good, and which are tried again. Every reason is named here."""

from __future__ import annotations

import logging
import threading

import pytest
from doubles.faults import Fault
from serving import spec_text
from waiting import PATIENT, wait_for

from quire_kv import cache as cache_module
from quire_kv.cache import Cache
from quire_kv.config import Config
from quire_kv.errors import QuireError, Reason

pytestmark = pytest.mark.once

SECONDS = 20.0  # for what comes about by itself
log = logging.getLogger("quire_kv.test")

OFF = {  # what this process was started with is wrong, and stays so until an operator changes it
    Reason.UNAUTHORIZED, Reason.INVALID_SPEC, Reason.HASH_CONTRACT_FORK, Reason.WEAK_NAMES, Reason.UNSUPPORTED, Reason.INVALID_VIEW,
    Reason.SIZE_MISMATCH, Reason.BUFFER_SIZE,
}  # fmt: skip
AGAIN = {  # a state of the store, which passes or is changed there
    Reason.NONE, Reason.ABSENT, Reason.INCOMPLETE, Reason.PROVENANCE, Reason.CORRUPT, Reason.EXPIRED, Reason.RETIRED, Reason.DRAINING,
    Reason.STALE_EPOCH, Reason.STALE_TOKEN, Reason.LEASE_EXPIRED, Reason.HELD, Reason.PARENT_MISSING, Reason.PARENT_CONFLICT, Reason.NOT_WORTH,
    Reason.BUSY, Reason.QUOTA_EXCEEDED, Reason.TRUNCATED, Reason.UNKNOWN, Reason.LIMIT_EXCEEDED, Reason.LOST_RACE, Reason.ABORTED, Reason.NOT_FOUND,
}  # fmt: skip


def test_every_reason_is_on_one_side():
    assert set(Reason) == OFF | AGAIN and not OFF & AGAIN


class Refusing:
    """A client whose store refuses to open."""

    transport = "none"

    def __init__(self, error: QuireError):
        self.error = error
        self.opened = 0

    def open(self, spec, timeout):
        self.opened += 1
        raise self.error

    def close(self, timeout=1.0):
        pass


def cache_on(client) -> Cache:
    return Cache(Config.parse({}), "a spec", log, adapter="test", make_client=lambda config: client)


@pytest.mark.parametrize("broken", [False, True], ids=["refused", "broken"])
@pytest.mark.parametrize("reason", Reason, ids=lambda r: r.label)
def test_a_refusal_is_final_or_tried_again(monkeypatch, caplog, reason, broken):
    monkeypatch.setattr(cache_module, "_OPEN_PAUSES", (0.001,))
    client = Refusing(QuireError(reason, "as asked\nin two lines", broken=broken))
    c = cache_on(client)
    try:
        if reason in OFF and not broken:  # a word that the transport garbled is not the store's
            wait_for(lambda: c.state.startswith("off: "), SECONDS, "the end")
            assert reason.label in c.state and client.opened == 1
            wait_for(lambda: [r for r in caplog.records if "the cache is off" in r.getMessage() and reason.label in r.getMessage()], SECONDS, "the line")
        else:
            wait_for(lambda: client.opened > 3, SECONDS, "more attempts")
            assert c.state.startswith("opening: ") and reason.label in c.state and "\n" not in c.state
            said = [r.getMessage() for r in caplog.records if reason.label in r.getMessage()]
            assert len(said) == 1 and ("does not answer" in said[0]) == broken, "one line, however often"
    finally:
        c.close()


def test_attempts_are_spaced():
    pauses = cache_module._OPEN_PAUSES
    assert sorted(pauses) == list(pauses) and 0 < pauses[0] and pauses[-1] + 1 < 5, "back within 5 s of the store's return"


@pytest.mark.parametrize("reason", [Reason.STALE_EPOCH, Reason.LOST_RACE, Reason.ABORTED, Reason.LEASE_EXPIRED, Reason.LIMIT_EXCEEDED, Reason.RETIRED])
@pytest.mark.parametrize("method", ["Open", "Attach"])
def test_a_real_store_that_refuses_for_a_while(chaos, reason, method):
    chaos.fault = Fault("reason", frozenset({method}), reason)
    c = Cache(Config.parse({"server": chaos.address, **PATIENT}), spec_text(), log, adapter="test")
    try:
        wait_for(lambda: chaos.struck >= 2, SECONDS, "a second attempt")
        chaos.fault = None
        assert c.wait_ready(SECONDS), c.state
    finally:
        c.close()


def test_a_namespace_that_ends_whenever_it_is_opened_is_opened_now_and_then(chaos):
    c = Cache(Config.parse({"server": chaos.address, **PATIENT}), spec_text(), log, adapter="test")
    keys = [bytes(32)]
    try:
        assert c.wait_ready(SECONDS), c.state
        opened = chaos.calls["Open"]
        chaos.fault = Fault("reason", frozenset({"BatchExists"}), Reason.STALE_EPOCH)
        for _ in range(2):
            wait_for(lambda: c.lookup(keys).reason is Reason.STALE_EPOCH, SECONDS, "a refusal of a session that was opened")
            assert not c.ready, "the namespace is to be opened again"
            assert c.lookup(keys).reason is Reason.UNKNOWN, "meanwhile nobody is asked"
        wait_for(lambda: c.ready, SECONDS, "the session after")
        assert chaos.calls["Open"] == opened + 2
        chaos.fault = None
        assert c.lookup(keys).reason is Reason.NONE
    finally:
        c.close()


def test_many_calls_that_learn_of_one_end_open_the_namespace_once(chaos):
    """Those that come back after it was opened again speak of the session before."""
    c = Cache(Config.parse({"server": chaos.address, **PATIENT}), spec_text(), log, adapter="test")
    keys = [bytes(32)]
    try:
        assert c.wait_ready(SECONDS), c.state
        old, opened = c.session, chaos.calls["Open"]
        late, inside = threading.Event(), []

        def exists(*args, **kw):
            inside.append(None)
            late.wait(SECONDS)
            raise QuireError(Reason.STALE_EPOCH, "ended")

        old.exists = exists  # type: ignore[method-assign]
        calls = [threading.Thread(target=c.lookup, args=(keys,)) for _ in range(8)]
        for t in calls:
            t.start()
        wait_for(lambda: len(inside) == len(calls), SECONDS, "the calls")
        chaos.fault = Fault("reason", frozenset({"BatchExists", "BeginPublish", "Fetch"}), Reason.RETIRED, times=1)
        old.exists = type(old).exists.__get__(old)  # type: ignore[method-assign]
        c.lookup(keys)
        wait_for(lambda: c.ready and c.session is not old, SECONDS, "the next session")
        new = c.session
        late.set()
        for t in calls:
            t.join(SECONDS)
        assert c.session is new and c.ready and chaos.calls["Open"] == opened + 1
    finally:
        c.close()

"""A publish that ran out of time gives its places back, after its call and without holding it up."""

from __future__ import annotations

import threading
import time

import pytest
from doubles.faults import Fault
from test_client import GUARD_SECONDS, flat, good, keys_of
from waiting import wait_for

from quire_kv import aborts, publish
from quire_kv.aborts import Aborts
from quire_kv.client import ROOT_PARENT, Client, Options, QuireError, Reason
from quire_kv.deadline import Call

pytestmark = pytest.mark.once

TIMEOUT_SECONDS = 1.0  # in which a busy machine gets as far as the fault
SLACK_SECONDS = GUARD_SECONDS / 2  # of a busy machine; what waits for the store takes GUARD_SECONDS


def ended() -> bool:
    return not any(t.name == "quire-abort" for t in threading.enumerate())


@pytest.mark.parametrize("way", ["grpc", "data", "shm"])
def test_case_c48_what_ran_out_of_time_may_be_published_at_once(chaos, spec_text, way, monkeypatch):
    """The lease of the publication is a minute: nobody waits for that, what frees its places is the abort."""
    monkeypatch.setattr(publish, "_LEASE_SLACK", 60.0)
    monkeypatch.setattr(aborts, "_SECONDS", GUARD_SECONDS)
    with Client(Options(chaos.address, transport=way, call_timeout=GUARD_SECONDS)) as client:
        session = client.open(spec_text())
        keys = keys_of(3)
        _, memory = flat(session, 3, seed=1)
        chaos.fault = Fault("hang", frozenset({"WritePages"}))
        began = time.monotonic()
        with pytest.raises(QuireError) as e:
            session.publish(keys, memory, parent=ROOT_PARENT, timeout=TIMEOUT_SECONDS)
        assert e.value.broken and time.monotonic() - began < TIMEOUT_SECONDS + SLACK_SECONDS
        wait_for(ended, GUARD_SECONDS, "the end of the abort")
        assert chaos.calls["AbortPublish"] == 1
        chaos.fault = None
        assert good(session.publish(keys, memory, parent=ROOT_PARENT))
        assert session.exists(keys).leading == 3


def test_a_store_that_hangs_holds_nobody_up(chaos, spec_text):
    """The abort hangs too: it ends by itself, and close does not wait for it."""
    with Client(Options(chaos.address, transport="data", call_timeout=GUARD_SECONDS)) as client:
        session = client.open(spec_text())
        keys = keys_of(1)
        _, memory = flat(session, 1, seed=1)
        chaos.fault = Fault("hang", frozenset({"WritePages", "AbortPublish"}))
        for _ in range(2):
            with pytest.raises(QuireError):
                session.publish(keys_of(1), memory, timeout=0.1)
        wait_for(ended, GUARD_SECONDS, "the end of the aborts")
        with pytest.raises(QuireError):
            session.publish(keys, memory, timeout=0.1)
        began = time.monotonic()
        client.close(timeout=1.0)
        assert time.monotonic() - began < 1.0 + SLACK_SECONDS
        wait_for(ended, GUARD_SECONDS, "the end of the abort")


def test_what_waits_is_bounded_and_ends_with_the_client(monkeypatch):
    monkeypatch.setattr(aborts, "_SECONDS", GUARD_SECONDS)
    a, let = Aborts(), threading.Event()
    calls: list[Call] = []

    def send(call: Call) -> None:
        calls.append(call)
        call.register(let.set)
        let.wait(GUARD_SECONDS)
        call.left()

    for _ in range(10 * aborts._MOST):
        a.add(send)
    assert len(a._waiting) <= aborts._MOST
    wait_for(lambda: calls, GUARD_SECONDS, "the first")
    a.close(QuireError(Reason.ABORTED, "closed"), time.monotonic() + GUARD_SECONDS)
    assert ended() and len(calls) == 1
    a.add(send)
    assert ended() and len(calls) == 1


def test_one_that_fails_does_not_end_the_others():
    a = Aborts()
    sent: list[int] = []

    def send(n: int) -> None:
        sent.append(n)
        raise QuireError(Reason.UNKNOWN, "away", broken=True)

    for n in range(5):
        a.add(lambda call, n=n: send(n))
    wait_for(ended, GUARD_SECONDS, "the end of them")
    assert sent == list(range(5))
    a.add(lambda call: send(5))
    wait_for(lambda: ended() and len(sent) == 6, GUARD_SECONDS, "one more, after the thread had ended")

"""More came on a connection than was asked for: the next call does not meet it."""

from __future__ import annotations

import numpy as np
import pytest
from doubles.faults import Fault
from doubles.frame_proxy import FrameProxy, ProxiedClient
from test_client import GUARD_SECONDS, flat, good, keys_of
from waiting import wait_for

from quire_kv import wire
from quire_kv.client import ROOT_PARENT, Client, Options
from quire_kv.errors import QuireError

pytestmark = pytest.mark.once


def first_time(session, connections: int) -> None:
    """Calls that are made once each: one that met a spoilt connection would fail."""
    keys = keys_of(2)
    source, memory = flat(session, 2, seed=connections)
    assert good(session.publish(keys, memory, parent=ROOT_PARENT))
    target, into = flat(session, 2)
    assert good(session.fetch(keys, into)) and np.array_equal(source, target)


@pytest.mark.parametrize("late", [False, True], ids=["together", "late"])
def test_a_doubled_answer_costs_its_connection(quire_server, spec_text, late):
    doubled: list[int] = []
    with FrameProxy(quire_server.data_address) as proxy:
        options = Options(quire_server.address, transport="data", call_timeout=GUARD_SECONDS)
        with ProxiedClient(options, proxy) as client:
            session = client.open(spec_text())
            pool = client._ways[0].transport._pool
            first_time(session, 0)

            def twice(frame, body, data):
                raw = wire.encode_frame(frame.kind, frame.method, frame.call, body, flags=frame.flags, data=len(data), extra=frame.extra) + data
                if frame.kind == wire.RESPONSE and frame.method == wire.METHODS["BatchExists"]:
                    doubled.append(frame.call)
                    return [raw, raw] if late else [raw + raw]
                return [raw]

            proxy.raw = twice
            for n in range(20):
                assert session.exists(keys_of(3)).leading == 0
                assert len(doubled) == n + 1, "the answer was taken, and not asked for again"
                if late:
                    wait_for(lambda: all(c.stream.readable() or not c.clean for c in pool._idle), GUARD_SECONDS, "the second answer")
                else:
                    assert all(c.clean for c in pool._idle)
                first_time(session, n)


@pytest.mark.parametrize("way", ["data", "shm"])  # gRPC itself ends such a call
@pytest.mark.parametrize("method", ["BatchExists", "BeginPublish", "CommitPublish"])
def test_a_store_that_answers_twice(chaos, spec_text, way, method):
    with Client(Options(chaos.address, transport=way, call_timeout=GUARD_SECONDS)) as client:
        session = client.open(spec_text())
        for _ in range(10):
            struck = chaos.struck
            chaos.fault = Fault("twice", frozenset({method}))
            keys = keys_of(2)
            _, memory = flat(session, 2, seed=1)
            if method == "BeginPublish":  # the rest of the publication is under way on that connection
                with pytest.raises(QuireError) as e:
                    session.publish(keys, memory, parent=ROOT_PARENT)
                assert e.value.broken
            else:
                assert good(session.publish(keys, memory, parent=ROOT_PARENT))
                assert session.exists(keys).leading == 2
            assert chaos.struck > struck
            chaos.fault = None
            first_time(session, 1)

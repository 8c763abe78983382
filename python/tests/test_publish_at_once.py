"""A publication whose Begin, pages and Commit are sent at once: what was not granted changes nothing."""

from __future__ import annotations

import contextlib
import socket

import numpy as np
import pytest
from test_client import GUARD_SECONDS, HEADS, LAYERS, TOKENS, TRANSPORTS, WIDTH, flat, good, keys_of, reasons

from quire_kv import kernels, proto
from quire_kv.client import ROOT_PARENT, Client, Options
from quire_kv.deadline import Call
from quire_kv.errors import QuireError, Reason
from quire_kv.frame_transport import FrameTransport, _FrameUpload
from quire_kv.frames import BULK, Refused
from quire_kv.page import View

FRAMES = [t for t in TRANSPORTS if t != "grpc"]


@pytest.fixture(params=FRAMES)
def client(request, quire_server):
    with Client(Options(quire_server.address, transport=request.param, call_timeout=GUARD_SECONDS)) as c:
        yield c


@pytest.fixture
def session(client, spec_text):
    return client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS, model="at-once"))


@pytest.fixture
def methods(monkeypatch):
    """Names of the calls that were made one by one."""
    made = []
    unary = FrameTransport.unary
    monkeypatch.setattr(FrameTransport, "unary", lambda self, method, *rest: made.append(method) or unary(self, method, *rest))
    return made


def content(session, keys):
    target, memory = flat(session, len(keys))
    return session.fetch(keys, memory), target


def test_one_round_trip(session, methods):
    keys = keys_of(5)
    source, memory = flat(session, 5, seed=1)
    assert good(session.publish(keys, memory, parent=ROOT_PARENT))
    assert methods == []
    pages, target = content(session, keys)
    assert good(pages) and np.array_equal(target, source)


def test_pages_that_are_there_stay_as_they_are(session, methods):
    """All of them, and some among others; over a socket their bytes go in the frames."""
    keys = keys_of(5)
    source, memory = flat(session, 5, seed=2)
    assert good(session.publish(keys[1:4], memory.select([1, 2, 3])))
    other, changed = flat(session, 5, seed=3)
    assert good(session.publish(keys[1:4], changed.select([1, 2, 3])))
    assert good(session.publish(keys, changed))
    assert methods == []
    pages, target = content(session, keys)
    assert good(pages) and np.array_equal(target[1:4], source[1:4])
    assert np.array_equal(target[:1], other[:1]) and np.array_equal(target[4:], other[4:])


def test_what_is_granted_in_part_is_written_in_turn(session, methods):
    keys, whole = keys_of(4), session.only.whole
    left = View(0, HEADS // 2, 0, LAYERS)
    half, memory = flat(session, 2, seed=4, view=left)
    assert good(session.publish(keys[1:3], memory, view=left, linked=False))
    source, memory = flat(session, 4, seed=5)
    assert good(session.publish(keys, memory))
    assert methods == ["AbortPublish", "BeginPublish"]
    pages, target = content(session, keys)
    assert good(pages) and np.array_equal(target[0], source[0]) and np.array_equal(target[3], source[3])
    got = target.reshape(4, whole.heads, -1)
    assert np.array_equal(got[1:3, : HEADS // 2].reshape(2, -1), half) and np.array_equal(got[1:3, HEADS // 2 :], source.reshape(got.shape)[1:3, HEADS // 2 :])


def test_a_missing_parent_and_a_refused_begin(session, methods):
    keys = keys_of(3)
    _, memory = flat(session, 3, seed=6)
    assert reasons(session.publish(keys, memory, parent=keys_of(1)[0]))[0] is Reason.PARENT_MISSING
    assert good(session.publish(keys, memory, parent=keys_of(1)[0], unlinked=True))
    connections = len(session._client._ways[0].transport._pool._all)
    for _ in range(3):
        with pytest.raises(QuireError) as e:
            session.publish(keys_of(3), memory, durability="disk")  # the server has no disk tier
        assert e.value.reason is Reason.UNSUPPORTED and not e.value.broken
    assert len(session._client._ways[0].transport._pool._all) == connections, "their connections are sound"
    assert good(session.publish(keys_of(3), memory)) and not {"BeginPublish", "CommitPublish"} & set(methods)


def test_a_write_that_names_nothing_is_of_the_begin_before_it_alone(session):
    """Not of an older one: not behind another call, and not behind a Begin that was refused."""
    client, call = session._client, Call(GUARD_SECONDS)
    keys = keys_of(2)
    _, memory = flat(session, 2, seed=7)

    def begin(durability: int):
        request = proto.BeginPublishRequest(durability=durability, session_id=session._session_id)
        request.namespace.CopyFrom(session._ref)
        request.run.group, request.run.hashes = session.only.group, b"".join(keys)
        proto.set_seconds(request.lease, 30.0)
        for _ in keys:
            request.pages.add(payload_bytes=session.only.page_bytes, parent_unknown=True)
        return request

    def commit(c):
        request = proto.CommitPublishRequest()
        request.namespace.CopyFrom(session._ref)
        request.pages.add(page=0, headers=[b"x" * 500])
        return c.unary("CommitPublish", request, proto.CommitPublishResponse, call)

    def use(c):
        granted = c.unary("BeginPublish", begin(0), proto.BeginPublishResponse, call)
        assert [p.outcome for p in granted.pages] == [2, 2]
        assert commit(c).pages[0].outcome != 4, "it is known, and its header is none"
        c.unary("GetCapabilities", proto.GetCapabilitiesRequest(), proto.GetCapabilitiesResponse, call)
        with pytest.raises(Refused):
            commit(c)
        assert commit_after_refusal(c)
        return granted.token

    def commit_after_refusal(c):
        c.unary("BeginPublish", begin(0), proto.BeginPublishResponse, call)
        with pytest.raises(Refused):
            c.unary("BeginPublish", begin(2), proto.BeginPublishResponse, call)
        with pytest.raises(Refused):
            commit(c)
        return True

    pool = client._ways[0].transport._pool
    pool.run(BULK, call, use)
    assert not any(session.exists(keys).present)


def test_a_connection_that_breaks_meanwhile(session, monkeypatch):
    """The call fails as broken, nothing is half there, and the next one is made over another connection."""
    keys = keys_of(3)
    _, memory = flat(session, 3, seed=8)
    name = "publish" if kernels.NATIVE else "answers"
    whole = getattr(_FrameUpload, name)

    def cut(self, *rest):
        self._connection.stream._sock.shutdown(socket.SHUT_RDWR)
        return whole(self, *rest)

    monkeypatch.setattr(_FrameUpload, name, cut)
    with pytest.raises(QuireError) as e:
        session.publish(keys, memory)
    assert e.value.broken
    monkeypatch.setattr(_FrameUpload, name, whole)
    assert not any(session.exists(keys).present)
    with contextlib.suppress(QuireError):  # what was begun may be in the way until its lease is over
        session.publish(keys, memory)
    assert good(session.publish(keys_of(3), memory))

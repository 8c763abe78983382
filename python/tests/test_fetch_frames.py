"""A Fetch over shared memory that native code makes in one call: equal to the general way, whatever comes and however it is cut."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import deque

import pytest
from test_fetched import PAGES, SLOT, Batch
from test_shm import memfd, words

from quire_kv import frame_transport, kernels, proto, shm, wire
from quire_kv.deadline import Call
from quire_kv.errors import QuireError, Reason
from quire_kv.frame_transport import FrameTransport
from quire_kv.frames import Connection, Refused
from quire_kv.intake import Intake, Wanted
from quire_kv.sockets import Stream

pytestmark = pytest.mark.skipif(not (shm.AVAILABLE and kernels.NATIVE), reason="no shared memory or no native code")


def frame(body: bytes, kind: int = wire.MESSAGE, flags: int = wire.CHUNKS, call: int = 1) -> bytes:
    return wire.encode_frame(kind, wire.METHODS["Fetch"], call, body, flags=flags)


def status(code: int = 0) -> bytes:
    return frame(proto.Status(code=code, message="said so").SerializeToString() if code else b"", wire.STATUS, 0)


class Outcome:
    """What one Fetch came to: pages, their bytes, the error, and what the server was sent."""

    def __init__(self, batch: Batch, answer: list[bytes], *, native: bool, descriptors: tuple[int, ...] = (), timeout: float = 20.0) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.connection = Connection(Stream(ours))
        self.connection._max_body = wire.MAX_BODY_BYTES  # as after a welcome
        transport = FrameTransport("shm", lambda call: self.connection, 1, batch.slabs, shm.Budget(0))
        self.target, memory = batch.memory(False)
        self.pages = [Wanted(k) for k in batch.keys]
        intake = Intake(self.pages, list(range(PAGES)), memory, batch.geometry, batch.view, batch.expect, threads=1)
        if not native:
            intake.plain = False
        request = proto.FetchRequest()
        request.run.hashes = b"".join(batch.keys)
        self.error: QuireError | Refused | None = None

        def serve() -> None:
            with contextlib.suppress(OSError):
                fds = list(descriptors)
                for part in answer:
                    if fds:
                        socket.send_fds(theirs, [part[:1]], fds)
                        part, fds = part[1:], []
                    theirs.sendall(part)

        server = threading.Thread(target=serve)
        server.start()
        try:
            transport._fetch(self.connection, request, intake, Call(timeout))
        except (QuireError, Refused) as e:
            self.error = e
        self.clean = self.connection.clean
        self.held = self.connection.request("GetCapabilities", b"", None)[: -wire.HEADER_BYTES]  # what goes along with the next request
        assert self.connection.request("GetCapabilities", b"", None)[4] == wire.REQUEST, "once"
        self.connection.close()
        server.join()
        self.sent = b""
        with contextlib.suppress(ConnectionResetError):  # it was closed with something unread
            while got := theirs.recv(1 << 16):
                self.sent += got
        theirs.close()

    @property
    def said(self) -> list[tuple]:
        return [(p.result, p.stale, p.corrupt, p.resume) for p in self.pages]

    def release(self) -> int:
        """References that were released; 0: none."""
        last = self.held or self.sent[-wire.HEADER_BYTES :]
        return wire.decode_frame(last).extra if last[4] == wire.RELEASE else 0


@pytest.mark.parametrize("most_held", [0, 1 << 20], ids=["at-once", "with-the-next-request"])
def test_all_of_it_in_one_call(most_held, monkeypatch):
    monkeypatch.setattr(frame_transport, "_LITTLE_TO_HOLD", most_held)
    batch = Batch(3, 2, 4096, 1 << 13)
    cut = batch.starts[2]
    answer = [frame(bytes(batch.body[:cut])), frame(bytes(batch.body[cut:])), status()]
    out = Outcome(batch, answer, native=True)
    assert out.error is None and out.clean and all(p.result.ok and batch.right(out.target, k) for k, p in enumerate(out.pages))
    assert out.release() == len(wire.entries(bytes(batch.body), 0)) and bool(out.held) == bool(most_held)
    assert out.sent == Outcome(batch, answer, native=False).sent


def test_frames_that_come_in_pieces():
    batch, rnd = Batch(2, 3, 4096, 3 << 12), random.Random(4)
    whole = frame(bytes(batch.body[: batch.starts[1]])) + frame(bytes(batch.body[batch.starts[1] :])) + status()
    for _ in range(40):
        cuts = sorted({0, len(whole), *(rnd.randrange(len(whole)) for _ in range(rnd.randrange(1, 30)))})
        out = Outcome(batch, [whole[a:b] for a, b in zip(cuts, cuts[1:], strict=False)], native=True)
        assert out.error is None and out.clean and all(p.result.ok and batch.right(out.target, k) for k, p in enumerate(out.pages))


def test_more_than_the_room_holds():
    """Bodies larger than what is read ahead, alone and between others."""
    batch = Batch(64, 16, 256, 1 << 20)
    for copies in (1, 60):
        miss = proto.FetchResponse(page=PAGES - 1)
        miss.trailer.outcome, miss.trailer.reason = 2, 2
        padding = bytearray()
        for _ in range(copies * 100):
            wire.append_entry(padding, proto.FetchResponse(page=PAGES - 1).SerializeToString(), 0)
        wire.append_entry(padding, miss.SerializeToString(), 0)
        answer = [frame(bytes(batch.body[: batch.starts[PAGES - 1]])), frame(bytes(padding)), status()]
        out = Outcome(batch, answer, native=True)
        assert out.error is None and out.clean and [p.result.ok for p in out.pages] == [True, True, True, False]


def test_descriptors_come_with_it():
    batch = Batch(3, 2, 4096, 1 << 13)
    slab = batch.slabs.table()[1][0]
    content = bytes(kernels.memory_at(slab.address, slab.bytes))
    for others in (0, 1):
        fds = [memfd(content), memfd(words(size=SLOT * PAGES, slot=SLOT, slots=PAGES, generations=tuple(range(1, PAGES + 1))))]
        batch.slabs = shm.Slabs()
        cut = batch.starts[others]
        answer = [frame(bytes(batch.body[:cut]))] if cut else []
        out = Outcome(batch, [*answer, frame(bytes(batch.body[cut:])), status()], native=True, descriptors=tuple(fds))
        assert out.error is None and out.clean and all(p.result.ok and batch.right(out.target, k) for k, p in enumerate(out.pages))


def test_it_ends_by_its_deadline_and_with_its_connection():
    batch = Batch(1, 1, 4096, 1 << 13)
    began = time.monotonic()
    out = Outcome(batch, [frame(bytes(batch.body))], native=True, timeout=2.0)  # in which a busy machine takes what is there
    assert isinstance(out.error, QuireError) and out.error.broken and time.monotonic() - began < 10
    assert all(p.result.ok for p in out.pages) and out.release() == 0
    assert isinstance(Outcome(batch, [frame(bytes(batch.body), call=2), status()], native=True).error, QuireError)
    assert isinstance(Outcome(batch, [b"x" * 100], native=True).error, QuireError)


def test_whatever_comes_it_is_what_the_general_way_makes_of_it():
    batch, rnd, served = Batch(2, 3, 4096, 3 << 12), random.Random(11), 0
    for _ in range(400):
        body, answer = bytearray(batch.body), []
        for _ in range(rnd.choice((0, 0, 1, 2))):
            at = rnd.randrange(len(body))
            if rnd.random() < 0.5:
                body[at] ^= 1 << rnd.randrange(8)
            else:
                del body[at : at + rnd.randrange(1, 60)]
        cuts = sorted(rnd.sample(batch.starts[1:], rnd.randrange(0, PAGES)))
        for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True):
            answer.append(frame(bytes(body[a:b])))
        miss = proto.FetchResponse(page=rnd.randrange(PAGES))
        miss.trailer.outcome, miss.trailer.reason = 2, 2
        if rnd.random() < 0.3:
            answer.insert(rnd.randrange(len(answer) + 1), frame(miss.SerializeToString(), flags=0))
        answer.append(status(rnd.choice((0, 0, 0, 5))))
        native, plain = (Outcome(batch, answer, native=way) for way in (True, False))
        served += sum(bool(p.result and p.result.ok) for p in native.pages)
        assert all(not (p.result and p.result.ok) or batch.right(native.target, k) for k, p in enumerate(native.pages))
        assert (native.error is None) == (plain.error is None)
        if plain.error is None:
            assert native.said == plain.said and native.release() == plain.release()
    assert served > 600


def test_damage_is_reported_once_and_the_rest_is_served():
    batch = Batch(3, 2, 4096, 1 << 13)
    slab = batch.slabs.table()[1][0]
    content = bytearray(kernels.memory_at(slab.address, slab.bytes))
    content[SLOT + 4096 + 7000] ^= 4
    batch.slabs = shm.Slabs()
    batch.slabs.take(deque([memfd(bytes(content)), memfd(words(size=SLOT * PAGES, slot=SLOT, slots=PAGES, generations=(1, 2, 9, 4)))]))
    out = Outcome(batch, [frame(bytes(batch.body)), status()], native=True)
    assert out.error is None and out.pages[0].result.ok and out.pages[3].result.ok
    assert out.pages[1].result.reason is Reason.CORRUPT and len(out.pages[1].corrupt[0]) == 40
    assert out.pages[2].result is None and out.pages[2].stale
    assert out.said == Outcome(batch, [frame(bytes(batch.body)), status()], native=False).said

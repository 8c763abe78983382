"""Pages that native code takes off a socket by itself: equal to what the general reader makes of the same bytes, whatever
comes, and within the deadline."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
import threading
import time

import numpy as np
import pytest

from quire_kv import kernels, proto, wire
from quire_kv.deadline import Call, DeadlineError
from quire_kv.errors import QuireError, Reason
from quire_kv.frame_transport import FrameTransport
from quire_kv.frames import Connection, Refused
from quire_kv.intake import Intake, Wanted
from quire_kv.layout import Layout, PageMemory, Rows
from quire_kv.page import ZERO32, Expectation, ExtentID, Geometry, Header, encode_header, payload_digest
from quire_kv.shm import Budget
from quire_kv.sockets import Stream

pytestmark = pytest.mark.skipif(not kernels.NATIVE, reason=f"no native code: {kernels.why_not}")

PAGES = 5
GUARD_SECONDS = 20.0
FETCH = wire.METHODS["Fetch"]


class Answer:
    """PAGES pages of a geometry, and the entries that hand them out in chunks of some bytes."""

    def __init__(self, heads: int, layers: int, cell: int, chunk: int) -> None:
        self.geometry = g = Geometry(bytes(32), "kv", 16, heads, layers, cell, "elements", 32)
        size = g.page_bytes
        self.payloads = np.frombuffer(random.randbytes(PAGES * size), dtype=np.uint8).reshape(PAGES, size)
        self.keys = [random.randbytes(32) for _ in range(PAGES)]
        self.expect = Expectation(b"n" * 32, 3, b"", g)
        self.entries: list[tuple[proto.FetchResponse, bytes]] = []
        for k in range(PAGES):
            sums = kernels.sums(self.payloads[k].ctypes.data, g, g.whole)
            header = encode_header(Header(
                namespace=b"n" * 32, epoch=3, scope=ZERO32, group=bytes(32), hash=self.keys[k], parent=b"", flags=0, depth=1,
                extent=ExtentID(b"w" * 16, k, payload_digest(sums.tobytes())), view=g.whole, tokens=16, cell_bytes=cell, page_heads=heads,
                page_layers=layers, grade="elements", components=0, packing_id=ZERO32, created=7, declared_flops=1.5, expiry=0,
                provenance=b"p", sums=sums,
            ))  # fmt: skip
            for off in range(0, size, chunk):
                n = min(chunk, size - off)
                head = proto.FetchResponse(page=k, offset=off, header=header if off == 0 else b"")
                if off + n == size:
                    head.trailer.outcome = 1
                self.entries.append((head, self.payloads[k, off : off + n].tobytes()))

    def memory(self, strided: bool) -> tuple[np.ndarray, PageMemory]:
        """Room for the pages, in Quire's order or with tokens apart."""
        g = self.geometry
        if not strided:
            target = np.zeros((PAGES, g.page_bytes), dtype=np.uint8)
            return target, PageMemory.flat(list(target), g, g.whole)
        row = g.cell_bytes // 16
        target = np.zeros((PAGES, 16, g.heads, g.layers, row), dtype=np.uint8)
        strides = target.strides
        layout = Layout(g.heads, g.layers, (Rows(row, strides[2], strides[1], 16),))
        return target, PageMemory.strided(layout, target.ctypes.data, np.arange(PAGES) * strides[0], [0], np.arange(g.layers) * strides[3], target)

    def right(self, target: np.ndarray, k: int) -> bool:
        flat = target[k] if target.ndim == 2 else target[k].transpose(1, 2, 0, 3)
        return bool(np.array_equal(flat.reshape(-1), self.payloads[k]))


def frames(entries: list[tuple[proto.FetchResponse, bytes]], per_frame: int) -> bytes:
    """Batches of some entries each, as the server sends them, and the end of the stream."""
    out = bytearray()
    for i in range(0, len(entries), per_frame):
        body, data = bytearray(), b""
        for head, chunk in entries[i : i + per_frame]:
            wire.append_entry(body, head.SerializeToString(), len(chunk))
            data += chunk
        out += wire.encode_frame(wire.MESSAGE, FETCH, 1, body, flags=wire.CHUNKS, data=len(data)) + data
    return bytes(out + wire.encode_frame(wire.STATUS, FETCH, 1))


@contextlib.contextmanager
def connected():
    """A connection of the client, and the socket of its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    connection = Connection(Stream(ours))
    connection._max_body = wire.MAX_BODY_BYTES
    connection.welcome = wire.Welcome(wire.MAX_BODY_BYTES, wire.MAX_DATA_BYTES, b"")
    try:
        yield connection, theirs
    finally:
        connection.close()
        theirs.close()


def wanted(answer: Answer, strided: bool):
    """The memory and the pages of a fetch of all that a server answers, and what makes it over a connection, for a call."""
    target, memory = answer.memory(strided)
    pages = [Wanted(k) for k in answer.keys]
    intake = Intake(pages, list(range(PAGES)), memory, answer.geometry, answer.geometry.whole, answer.expect, threads=1)
    request = proto.FetchRequest()
    request.run.hashes = b"".join(answer.keys)
    transport = FrameTransport("data", lambda call: pytest.fail("no second connection"), 1, None, Budget(1 << 20))
    return target, pages, lambda connection, call: transport._fetch(connection, request, intake, call)


def fetched(answer: Answer, said: bytes, strided: bool, step: int = 1 << 30, timeout: float = GUARD_SECONDS):
    """What a fetch makes of what a server says, in parts of some bytes: the pages, the memory and the error."""
    target, pages, fetch = wanted(answer, strided)
    with connected() as (connection, peer):

        def say() -> None:
            with contextlib.suppress(OSError):
                for at in range(0, len(said), step):
                    peer.sendall(said[at : at + step])
                peer.shutdown(socket.SHUT_WR)

        speaker = threading.Thread(target=say)
        speaker.start()
        error: Exception | None = None
        try:
            fetch(connection, Call(timeout))
        except (QuireError, Refused) as e:
            error = e
        finally:
            peer.shutdown(socket.SHUT_RDWR)
            connection.abort()
            speaker.join()
    return pages, target, error


def equal(answer: Answer, said: bytes, strided: bool, monkeypatch, step: int = 1 << 30) -> list[Wanted]:
    """Holds native code against the general reader, and both against what was stored."""
    out = []
    for native in (True, False):
        monkeypatch.setattr(kernels, "NATIVE", native)
        pages, target, error = fetched(answer, said, strided, step)
        assert all(answer.right(target, k) for k, p in enumerate(pages) if p.result and p.result.ok)
        out.append(([(p.result, p.corrupt, p.resume, p.stale) for p in pages], type(error), pages))
    assert out[0][1] is out[1][1]
    for ours, general in zip(out[0][0], out[1][0], strict=True):
        assert ours == general or general[0] is None, "native code may have come further in the frame where the stream ended"
    return out[0][2]


SHAPES = [(2, 2, 4096), (3, 1, 4096), (4, 20, 4096), (1, 3, 1 << 17), (8, 4, 1 << 13)]


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(("heads", "layers", "cell"), SHAPES)
def test_pages_arrive(heads, layers, cell, strided, monkeypatch):
    """Whole frames and pages over several, all at once and in parts that cut headers, entries and pieces."""
    native = Intake.receive
    for chunk, per_frame, step in ((1 << 20, 3, 1 << 30), (1 << 16, 1, 1 << 30), (1 << 16, 4, 9999), (layers * cell, 2, 40001)):
        unit = layers * cell
        if chunk < heads * unit and chunk % unit and unit % chunk:
            continue  # chunks are whole pieces
        answer = Answer(heads, layers, cell, chunk)
        left: list[int] = []

        def receive(self, *a, left=left):
            out = native(self, *a)
            left.append(out[0])
            return out

        monkeypatch.setattr(Intake, "receive", receive)
        pages = equal(answer, frames(answer.entries, per_frame), strided, monkeypatch, step)
        assert all(p.result.ok for p in pages)
        assert left == [kernels.LEFT_NOTHING], "all of it is native code's"


@pytest.mark.parametrize("strided", [False, True])
def test_others_among_them(strided, monkeypatch):
    """Misses, messages that come whole, a page that ends as a miss, and chunks that are no whole pieces."""
    for chunk, per_frame in ((1 << 20, 2), (1 << 14, 3)):
        answer = Answer(4, 2, 1 << 13, chunk)
        miss = proto.FetchResponse(page=1)
        miss.trailer.outcome, miss.trailer.reason = 2, int(Reason.ABSENT)
        one = [e for e in answer.entries if e[0].page == 1]
        others = [e for e in answer.entries if e[0].page != 1]
        first = [e for e in others if e[0].page < 1]
        rest = [e for e in others if e[0].page > 1]
        pages = equal(answer, frames([*first, (miss, b""), *rest], per_frame), strided, monkeypatch)
        assert [p.result.ok for p in pages] == [True, False, True, True, True] and pages[1].result.reason is Reason.ABSENT
        half = one[: len(one) // 2]
        pages = equal(answer, frames([*first, *half, (miss, b""), *rest], per_frame), strided, monkeypatch)
        assert [p.result.ok for p in pages] == [True, False, True, True, True]
        whole = bytearray()
        for head, data in one:
            message = proto.FetchResponse()
            message.CopyFrom(head)
            message.chunk = data
            whole += wire.encode_frame(wire.MESSAGE, FETCH, 1, message.SerializeToString())
        end = len(wire.encode_frame(wire.STATUS, FETCH, 1))
        said = frames(first, per_frame)[:-end] + bytes(whole) + frames(rest, per_frame)
        assert all(p.result.ok for p in equal(answer, said, strided, monkeypatch))
        cut = []
        for head, data in answer.entries:
            head.ClearField("cut_sums")
            a, b = proto.FetchResponse(page=head.page, offset=head.offset, header=head.header), proto.FetchResponse(page=head.page, offset=head.offset + 24)
            if head.HasField("trailer"):
                b.trailer.CopyFrom(head.trailer)
            cut += [(a, data[:24]), (b, data[24:])]
        pages = equal(answer, frames(cut, per_frame), strided, monkeypatch)
        assert {p.result.reason for p in pages} == {Reason.CORRUPT}, "parts of pieces without their sums"


@pytest.mark.parametrize("strided", [False, True])
def test_damage_anywhere(strided, monkeypatch):
    """A flipped bit, or the end, at any place of what the server says."""
    answer = Answer(2, 2, 1 << 13, 1 << 14)
    said = frames(answer.entries, 3)
    ends: set[bool] = set()
    for _ in range(150):
        at, damaged = random.randrange(len(said)), bytearray(said)
        damaged[at] ^= 1 << random.randrange(8)
        ends |= {bool(p.result and p.result.ok) for p in equal(answer, bytes(damaged), strided, monkeypatch)}
        ends |= {bool(p.result and p.result.ok) for p in equal(answer, said[:at], strided, monkeypatch)}
    assert ends == {True, False}


def test_a_page_at_hand_goes_on_elsewhere(monkeypatch):
    """What is known of a page when the connection ends: its extents, for another stream."""
    answer = Answer(4, 2, 1 << 13, 1 << 14)
    said = frames(answer.entries, 1)
    pages = equal(answer, said[: len(said) // 2], False, monkeypatch)
    begun = [p for p in pages if p.resume]
    assert len(begun) == 1 and begun[0].result is None and len(begun[0].resume[0]) == 40


def test_a_server_that_falls_silent():
    """The call ends by its deadline in the middle of a page, and at once when it is cancelled or a signal's handler raises."""
    answer = Answer(4, 2, 1 << 13, 1 << 14)
    said = frames(answer.entries, 1)[:70_000]
    enough = 1.0  # seconds in which a busy machine takes what is there
    for end in ("deadline", "cancel", "signal"):
        target, pages, fetch = wanted(answer, False)
        with connected() as (connection, peer):
            call = Call(enough if end == "deadline" else GUARD_SECONDS)
            call.register(connection.abort)
            peer.sendall(said)
            began = time.monotonic()
            if end == "deadline":
                with pytest.raises(DeadlineError):
                    fetch(connection, call)
                assert time.monotonic() - began >= enough
            elif end == "cancel":
                threading.Timer(enough, call.cancel, [QuireError(Reason.ABORTED, "enough")]).start()
                with pytest.raises(QuireError, match="enough"):
                    fetch(connection, call)
            else:

                def handler(*_: object) -> None:
                    raise KeyboardInterrupt

                before = signal.signal(signal.SIGALRM, handler)
                try:
                    signal.setitimer(signal.ITIMER_REAL, 0.1)
                    with pytest.raises(KeyboardInterrupt):
                        fetch(connection, call)
                finally:
                    signal.signal(signal.SIGALRM, before)
            assert time.monotonic() - began < GUARD_SECONDS / 2
        assert end == "signal" or pages[0].result.ok and answer.right(target, 0)


def test_wrong_tables_are_refused():
    answer = Answer(2, 2, 4096, 1 << 20)
    with connected() as (connection, _peer):
        fd, timers = connection.stream.native
        _, memory = answer.memory(False)
        room = connection._room
        good = dict(hashes=b"".join(answer.keys), index=np.arange(PAGES), span=(0, 0))
        for wrong in (dict(hashes=b"x"), dict(index=np.arange(1, PAGES + 1)), dict(span=(9, 3)), dict(span=(0, 1 << 30))):
            a = good | wrong
            tables = kernels.PageTables(answer.expect, a["hashes"], memory, a["index"], 1)
            with pytest.raises(ValueError):
                kernels.receive(tables, b"", time.monotonic() + 1, -1, (fd, timers, room.address, room.bytes, *a["span"], 1))

"""Pages that native code publishes by itself: what it sends is what the general writer makes, and only answers that say that
all of it is stored are taken without a look at each."""

from __future__ import annotations

import contextlib
import threading
import time

import numpy as np
import pytest
from test_received import GUARD_SECONDS, PAGES, Answer, connected

from quire_kv import kernels, proto, wire
from quire_kv.client import ROOT_PARENT, Client, Options
from quire_kv.encode import field
from quire_kv.headers import HeaderMaker
from quire_kv.layout import PageMemory
from quire_kv.page import FLAG_PARENT_UNKNOWN, ZERO32, ExtentID, Header, encode_header, payload_digest

pytestmark = pytest.mark.skipif(not kernels.NATIVE, reason=f"no native code: {kernels.why_not}")

SHAPES = [(2, 2, 4096), (3, 1, 4096), (4, 20, 4096), (1, 3, 131072), (8, 4, 8192)]
WRITER, FIRST_SEQUENCE, CALL, AREA = b"w" * 16, 90, 7, 3
CHUNK = 1 << 16


class Sent:
    """PAGES pages of an answer's geometry on their way into a publication."""

    def __init__(self, answer: Answer, strided: bool, begins: bool, lead: int) -> None:
        self.answer, self.geometry = answer, answer.geometry
        g = answer.geometry
        self.target, self.memory = answer.memory(strided)
        for k in range(PAGES):
            page = answer.payloads[k]
            self.target[k] = page if not strided else page.reshape(g.heads, g.layers, 16, -1).transpose(2, 0, 1, 3)
        self.like = Header(
            namespace=b"n" * 32, epoch=3, scope=ZERO32, group=bytes(32), hash=ZERO32, parent=b"", flags=0, depth=0, extent=ExtentID(bytes(16), 0, bytes(16)),
            view=g.whole, tokens=16, cell_bytes=g.cell_bytes, page_heads=g.heads, page_layers=g.layers, grade="elements", components=0, packing_id=ZERO32,
            created=7, declared_flops=1.5, expiry=0, provenance=b"p", sums=np.empty(0, dtype="<u8"),
        )  # fmt: skip
        maker = HeaderMaker(self.like)
        templates = [maker.template(g.whole, 0, FLAG_PARENT_UNKNOWN, WRITER, 32)] if lead else []
        templates += [maker.template(g.whole, 32, 0, WRITER, 32)] if lead < PAGES else []
        self.parents = [b"" if k < lead else bytes([k]) * 32 for k in range(PAGES)]
        self.flags = [FLAG_PARENT_UNKNOWN if k < lead else 0 for k in range(PAGES)]
        self.names = np.array([0, 1, 2, 200, 70000])
        ref = field(2, proto.NamespaceRef(epoch=3).SerializeToString())
        request = proto.BeginPublishRequest(durability=1).SerializeToString() if begins else b""
        granted = proto.BeginPublishResponse()
        granted.pages.add(outcome=2).grants.add(h1=g.heads, l1=g.layers)
        own = self.memory.contiguous()
        self.whole = kernels.Whole(
            request, granted.SerializeToString(), self.memory, np.arange(PAGES), self.names, own, g, g.whole, ref, b"".join(templates), lead,
            b"".join(answer.keys), b"".join(self.parents), FIRST_SEQUENCE, 1,
        )  # fmt: skip

    def headers(self) -> list[bytes]:
        """As the codec makes them."""
        out = []
        for k in range(PAGES):
            sums = kernels.sums(self.answer.payloads[k].ctypes.data, self.geometry, self.geometry.whole)
            extent = ExtentID(WRITER, FIRST_SEQUENCE + k, payload_digest(sums.tobytes()))
            out.append(encode_header(self.like._replace(hash=self.answer.keys[k], parent=self.parents[k], flags=self.flags[k], extent=extent, sums=sums)))
        return out

    def usual(self) -> list[tuple[int, int, int, object]]:
        """Kind, method, call and message of each answer of a server that stores all."""
        begun = proto.BeginPublishResponse(token=proto.FencingToken(boot_id=b"b" * 16, sequence=4), decided_at=1 << 40)
        begun.lease.seconds = 30
        begun.MergeFromString(self.whole.granted * PAGES)
        written, committed = proto.WritePagesResponse(), proto.CommitPublishResponse(decided_at=(1 << 40) + 300)
        for header in self.headers():
            written.pages.add(outcome=1)
            committed.pages.add(outcome=4, extent_ids=[header[264:304]])
        answers = [(wire.RESPONSE, 4, CALL - 1, begun)] if self.whole.begin else []
        return [*answers, (wire.RESPONSE, 5, CALL, written), (wire.RESPONSE, 6, CALL + 1, committed)]

    def publish(self, said: bytes, shared: bool, timeout: float = GUARD_SECONDS, reads: bool = True) -> tuple[kernels.Published, bytes, bytes]:
        """What came of it when the server says that, all that the server got, and what was received and is left."""
        packs = self.whole.addresses is None
        room = np.zeros((PAGES, self.geometry.page_bytes), dtype=np.uint8) if packs else self.target
        at = np.array([p.ctypes.data for p in room], dtype=np.uint64)
        area = (AREA, room.ctypes.data - 4096) if shared else None
        got = bytearray()
        with connected() as (connection, peer):
            peer.sendall(said)

            def read() -> None:
                while reads and (some := peer.recv(1 << 20)):
                    got.extend(some)

            reader = threading.Thread(target=read)
            reader.start()
            where, size = connection._room.address, connection._room.bytes
            try:
                out = kernels.publish(self.whole, at, packs, area, CHUNK, connection.stream.native, CALL, time.monotonic() + timeout, (where, size))
                left = bytes(connection._ahead[out.start : out.end])
            finally:
                connection.stream.abort()
                reader.join()
        return out, bytes(got), left


def encoded(answers) -> bytes:
    return b"".join(wire.encode_frame(kind, method, call, m if isinstance(m, bytes) else m.SerializeToString()) for kind, method, call, m in answers)


@pytest.mark.parametrize("shared", [False, True], ids=["carried", "named"])
@pytest.mark.parametrize(("strided", "begins", "lead"), [(False, True, 1), (True, True, 0), (False, False, PAGES), (True, False, 1)])
@pytest.mark.parametrize(("heads", "layers", "cell"), SHAPES)
def test_what_is_sent(heads, layers, cell, strided, begins, lead, shared):
    answer = Answer(heads, layers, cell, CHUNK)
    sent = Sent(answer, strided, begins, lead)
    g = answer.geometry
    out, got, left = sent.publish(encoded(sent.usual()), shared)
    assert (out.error, out.stored, out.commit, left) == (0, 1, b"", b"") and len(out.answers) == 2 + begins
    at = 0

    def frame() -> tuple[wire.Frame, bytes]:
        nonlocal at
        f = wire.decode_frame(got, at)
        at += wire.HEADER_BYTES + f.body
        return f, got[at - f.body : at]

    if begins:
        f, body = frame()
        assert (f.kind, f.method, f.call, body) == (wire.REQUEST, wire.METHODS["BeginPublish"], CALL - 1, sent.whole.begin)
        assert 0 < f.extra <= GUARD_SECONDS * 1000
    f, body = frame()
    assert (f.kind, f.flags, f.method, f.call, body) == (wire.REQUEST, wire.MORE, wire.METHODS["WritePages"], CALL, b"")
    heads_of, pages = [], {int(name): b"" for name in sent.names}
    base = sent.target.ctypes.data - 4096
    while (f := wire.decode_frame(got, at)).kind == wire.MESSAGE:
        f, body = frame()
        assert (f.flags, f.method, f.call) == (wire.CHUNKS, wire.METHODS["WritePages"], CALL)
        for e in wire.entries(body, f.data):
            head = proto.parse(proto.WritePagesRequest, e.head)
            heads_of.append(head)
            assert not head.grant and head.offset == len(pages[head.page]) and 0 < e.bytes <= CHUNK
            if shared:
                assert e.reference is not None and e.reference.slab == AREA and not e.reference.slot_generation and not f.data
                if not strided:
                    k = list(sent.names).index(head.page)
                    assert base + e.reference.offset == sent.target[k].ctypes.data + head.offset
                pages[head.page] += bytes(e.bytes)
            else:
                pages[head.page] += got[at : at + e.bytes]
                at += e.bytes
    assert [h.namespace.epoch for h in heads_of] == [3] + [0] * (len(heads_of) - 1)
    assert [len(p) for p in pages.values()] == [g.page_bytes] * PAGES
    if not shared:
        assert list(pages.values()) == [p.tobytes() for p in answer.payloads]
    f, _ = frame()
    assert (f.kind, f.method, f.call, f.body) == (wire.END, wire.METHODS["WritePages"], CALL, 0)
    f, body = frame()
    assert (f.kind, f.method, f.call, at) == (wire.REQUEST, wire.METHODS["CommitPublish"], CALL + 1, len(got))
    commit = proto.parse(proto.CommitPublishRequest, body)
    assert commit.namespace.epoch == 3 and [p.page for p in commit.pages] == list(sent.names)
    assert [list(p.headers) for p in commit.pages] == [[h] for h in sent.headers()]


def test_other_answers_are_left_to_be_looked_at():
    answer = Answer(2, 2, 4096, CHUNK)
    sent = Sent(answer, False, True, 1)
    usual = sent.usual()
    begun, written, committed = (m for *_, m in usual)

    def changed(message, change):
        out = type(message).FromString(message.SerializeToString())
        change(out)
        return out

    refused = proto.Status(code=9, message="no").SerializeToString()
    others = {
        "present": (0, (wire.RESPONSE, 4, CALL - 1, changed(begun, lambda m: setattr(m.pages[2], "outcome", 3))), 3),
        "in parts": (0, (wire.RESPONSE, 4, CALL - 1, changed(begun, lambda m: setattr(m.pages[0].grants[0], "h1", 1))), 3),
        "too few grants": (0, (wire.RESPONSE, 4, CALL - 1, changed(begun, lambda m: m.pages.pop())), 3),
        "a write that failed": (1, (wire.RESPONSE, 5, CALL, changed(written, lambda m: setattr(m.pages[4], "reason", 19))), 3),
        "no pages written": (1, (wire.RESPONSE, 5, CALL, b""), 3),
        "a commit refused": (2, (wire.RESPONSE, 6, CALL + 1, changed(committed, lambda m: setattr(m.pages[1], "outcome", 6))), 3),
        "another extent": (2, (wire.RESPONSE, 6, CALL + 1, changed(committed, lambda m: m.pages[3].extent_ids.__setitem__(0, b"e" * 40))), 3),
        "more than is known": (0, (wire.RESPONSE, 4, CALL - 1, begun.SerializeToString() + b"\x28\x01"), 3),
        "half a number": (2, (wire.RESPONSE, 6, CALL + 1, committed.SerializeToString()[:-1]), 3),
        "one more": (2, (wire.RESPONSE, 6, CALL + 1, changed(committed, lambda m: m.pages.add(outcome=4))), 3),
        "a Begin refused": (0, (wire.STATUS, 4, CALL - 1, refused), 0),
        "a write refused": (1, (wire.STATUS, 5, CALL, refused), 1),
        "a commit refused whole": (2, (wire.STATUS, 6, CALL + 1, refused), 2),
        "another call": (1, (wire.RESPONSE, 5, CALL + 5, written), 1),
    }
    for name, (number, other, taken) in others.items():
        said = [*usual]
        said[number] = other
        out, got, left = sent.publish(encoded(said), False)
        assert (out.error, out.stored, len(out.answers)) == (0, 0, taken), name
        assert left.startswith(encoded(said[taken:])[:24]), name
        commit = proto.CommitPublishRequest.FromString(out.commit) if taken < 3 else None
        assert commit is None or got.endswith(out.commit) and len(commit.pages) == PAGES, name
    for _, _, _, message in (usual[0], usual[2]):
        message.ClearField("decided_at")
    out, _, _ = sent.publish(encoded(usual), False)
    assert out.stored
    releases = wire.encode_frame(wire.RELEASE, 5, CALL, extra=4)
    out, _, _ = sent.publish(encoded(usual[:1]) + releases * 2 + encoded(usual[1:]), False)
    assert out.stored


@pytest.mark.parametrize("transport", ["data", "shm"])
def test_what_a_server_says_of_stored_pages_is_understood(transport, quire_server, spec_text, monkeypatch):
    """Its own answers are the usual ones, to a publication at once and to one in turn: else Python reads them, page by page."""
    seen: list[kernels.Published] = []
    publish = kernels.publish

    def recorded(*a):
        seen.append(publish(*a))
        return seen[-1]

    with Client(Options(quire_server.address, transport=transport, call_timeout=GUARD_SECONDS)) as client:
        session = client.open(spec_text(8, 12, 32, 16, model=transport))
        for pages in (1, 1, 4, 8):  # the first one over shared memory brings the area along
            room = np.zeros((pages, session.only.page_bytes), dtype=np.uint8)
            keys = [np.random.bytes(32) for _ in range(pages)]
            assert all(p.ok for p in session.publish(keys, PageMemory.flat(list(room), session.only, session.only.whole), parent=ROOT_PARENT))
            monkeypatch.setattr(kernels, "publish", recorded)
    assert [p.stored for p in seen] == [1, 1, 1]


def test_a_server_that_is_silent_or_takes_nothing():
    answer = Answer(8, 64, 1 << 14, 1 << 20)
    sent = Sent(answer, False, True, 1)
    enough = 1.0  # seconds in which a busy machine sends what there is, and takes what was said
    began = time.monotonic()
    out, _, _ = sent.publish(b"", False, timeout=enough, reads=False)
    assert out.error == kernels.OVERDUE and enough <= time.monotonic() - began < GUARD_SECONDS / 2
    began = time.monotonic()
    out, _, _ = sent.publish(encoded(sent.usual()[:1]), True, timeout=enough)
    assert (out.error, out.stored, len(out.answers)) == (0, 0, 1) and 0.9 * enough <= time.monotonic() - began < GUARD_SECONDS / 2


def test_wrong_tables_are_refused():
    sent = Sent(Answer(2, 2, 4096, CHUNK), True, True, 1)
    whole, size = sent.whole, sent.geometry.page_bytes
    room = np.zeros((PAGES, size), dtype=np.uint8)
    at = np.array([p.ctypes.data for p in room], dtype=np.uint64)
    with connected() as (connection, _peer):
        where = connection._room.address, connection._room.bytes

        def publish(w=whole, at=at, packs=True, area=None, chunk=CHUNK, room=where):
            kernels.publish(w, at, packs, area, chunk, connection.stream.native, CALL, time.monotonic() + 1, room)

        for wrong in (
            dict(hashes=b"x"), dict(hashes=whole.hashes + bytes(32)), dict(parents=b""), dict(templates=whole.templates[:-1]), dict(templates=b""),
            dict(templates=whole.templates * 2), dict(lead=PAGES + 1), dict(lead=0), dict(names=np.array([0, 1, 2, 3])), dict(names=np.array([0, 1, 2, 3, -1])),
            dict(names=np.array([0, 1, 2, 3, 1 << 32])), dict(pages=np.array([0, 1, 2, 3, PAGES])), dict(pages=np.array([0, 1, 2, 3, -1])),
            dict(pages=np.array([0, 1])), dict(threads=0), dict(threads=65),
        ):  # fmt: skip
            with pytest.raises(ValueError):
                publish(whole._replace(**wrong))
        for wrong in (
            dict(at=at[:3]),
            dict(at=at * 0),
            dict(area=(0, 1 << 63)),
            dict(chunk=0),
            dict(chunk=1 << 30),
            dict(room=(0, 1 << 16)),
            dict(room=(where[0], 3)),
        ):
            with pytest.raises(ValueError):
                publish(**wrong)
        with contextlib.suppress(BlockingIOError):
            _peer.setblocking(False)
            assert not _peer.recv(1), "nothing was sent"

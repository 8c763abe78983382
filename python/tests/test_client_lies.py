"""A server that lies, or breaks off, in any detail of the protocol: a miss or a QuireError within the deadline, never
another exception, never a wrong byte, and the next call is served again."""

from __future__ import annotations

import random
import struct
import time

import numpy as np
import pytest
from doubles.frame_proxy import FrameProxy, ProxiedClient, encoded
from test_client import GUARD_SECONDS, HEADS, LAYERS, TOKENS, WIDTH, flat, good, keys_of

from quire_kv import proto, wire
from quire_kv.client import Options, QuireError, Reason
from quire_kv.page import Page

TIMEOUT_SECONDS = 1.0  # of what waits for bytes that never come
SLACK_SECONDS = GUARD_SECONDS / 2  # of a busy machine
PAGES = 3


@pytest.fixture(scope="module")
def place(quire_bin, tmp_path_factory):
    """A server and a proxy before its data connections, for all tests of this file."""
    import serving

    server = serving.Server(quire_bin, tmp_path_factory.mktemp("lies")).start()
    with FrameProxy(server.data_address) as proxy:
        yield server, proxy
    server.close()


@pytest.fixture
def proxy(place):
    proxy = place[1]
    proxy.raw = proxy.messages = None
    yield proxy
    proxy.raw = proxy.messages = None


@pytest.fixture
def world(place, proxy, spec_text):
    """A session through the proxy, keys of pages that are stored, their bytes."""
    with ProxiedClient(Options(place[0].address, transport="data", call_timeout=GUARD_SECONDS), proxy) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS, model="lies"))
        keys = keys_of(PAGES)
        source, memory = flat(session, PAGES, seed=random.randrange(1 << 30))
        assert good(session.publish(keys, memory))
        yield session, keys, source


def fetched(session, keys, source, timeout: float = GUARD_SECONDS) -> list[Page]:
    """What a fetch comes to, held to the promise."""
    target, into = flat(session, len(keys))
    began = time.monotonic()
    try:
        pages = session.fetch(keys, into, timeout=timeout)
    except QuireError as e:
        assert len(e.pages) == len(keys)
        pages = list(e.pages)
    assert time.monotonic() - began < timeout + SLACK_SECONDS
    assert len(pages) == len(keys) and all(type(p) is Page for p in pages)
    for i, p in enumerate(pages):
        assert not p.ok or np.array_equal(target[i], source[i]), "wrong bytes"
        assert p.ok == (p.reason is Reason.NONE)
    return pages


def sound_again(proxy, session, keys, source) -> None:
    proxy.raw = proxy.messages = None
    assert good(fetched(session, keys, source))


def header_of(pages) -> bytes:
    return next(bytes(h.header) for h, _ in pages if h.header)


def flip_header(pages):
    h = bytearray(pages[0][0].header)
    h[len(h) // 2] ^= 1
    pages[0][0].header = bytes(h)
    return pages


def flip_chunk(pages):
    head, chunk = pages[0]
    return [(head, chunk[:7] + bytes([chunk[7] ^ 1]) + chunk[8:]), *pages[1:]]


def swap_headers(pages):
    if len(pages) > 1:
        pages[0][0].header, pages[1][0].header = pages[1][0].header, pages[0][0].header
    return pages


def swap_bodies(pages):
    return [(pages[0][0], pages[1][1]), (pages[1][0], pages[0][1]), *pages[2:]] if len(pages) > 1 else pages


def change(**fields):
    def lie(pages):
        for name, value in fields.items():
            setattr(pages[0][0], name, value)
        return pages

    return lie


def shorter(pages):
    return [(pages[0][0], pages[0][1][:-8]), *pages[1:]]


def longer(pages):
    return [(pages[0][0], pages[0][1] + bytes(8)), *pages[1:]]


def untrailed(pages):
    for h, _ in pages:
        h.ClearField("trailer")
    return pages


def only_trailers(pages):
    return [(proto.FetchResponse(page=h.page, trailer=proto.PageStatus(outcome=1)), b"") for h, _ in pages]


def never_a_reason(pages):
    return [(proto.FetchResponse(page=h.page, trailer=proto.PageStatus(outcome=5)), b"") for h, _ in pages]


def unknown_reason(pages):
    return [(proto.FetchResponse(page=h.page, trailer=proto.PageStatus(outcome=99, reason=4711)), b"") for h, _ in pages]


def many_extents(pages):
    header = header_of(pages)
    return [(proto.FetchResponse(page=0, extent=i, header=header), b"") for i in range(400)] + pages


# Lies about pages: what each of the first page's lies must come to. None: any miss or error.
LIES = {
    "a header with a flipped bit": (flip_header, Reason.CORRUPT),
    "a chunk with a flipped bit": (flip_chunk, Reason.CORRUPT),
    "headers of one another": (swap_headers, Reason.CORRUPT),
    "bodies of one another": (swap_bodies, Reason.CORRUPT),
    "no header": (change(header=b""), Reason.CORRUPT),
    "garbage for a header": (change(header=b"QEXT" + bytes(500)), Reason.CORRUPT),
    "an extent that was not opened": (change(extent=3), Reason.CORRUPT),
    "an offset beyond the end": (change(offset=1 << 63), Reason.CORRUPT),
    "an offset that is a little off": (change(offset=8), Reason.CORRUPT),
    "sums for nothing": (change(cut_sums=bytes(24)), Reason.CORRUPT),
    "half a sum": (change(cut_sums=bytes(5)), Reason.CORRUPT),
    "a chunk that is too short": (shorter, Reason.TRUNCATED),
    "a chunk that is too long": (longer, Reason.CORRUPT),
    "no trailers": (untrailed, None),
    "only trailers": (only_trailers, Reason.TRUNCATED),
    "misses without a reason": (never_a_reason, Reason.UNKNOWN),
    "outcomes that nobody knows": (unknown_reason, Reason.UNKNOWN),
    "a page that was not asked for": (change(page=PAGES), None),
    "a page number that is out of this world": (change(page=0xFFFFFFFF), None),
    "pages backwards": (lambda pages: pages[::-1], None),
    "every page twice": (lambda pages: [m for m in pages for _ in range(2)], None),
    "one page twice": (lambda pages: [*pages, *pages], None),
    "nothing at all": (lambda pages: [(proto.FetchResponse(), b"")], None),
    "hundreds of extents": (many_extents, Reason.CORRUPT),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_about_pages(world, proxy, lie):
    session, keys, source = world
    proxy.messages, reason = LIES[lie]
    pages = fetched(session, keys, source)
    if "twice" not in lie and "backwards" not in lie:  # those are good once they are asked for alone
        assert not pages[0].ok
    if reason is not None:
        assert pages[0].reason is reason
    sound_again(proxy, session, keys, source)


def frame_of(frame, body, data, /, **changes):
    """A frame with fields of its header changed."""
    f = frame._replace(**changes)
    return [struct.pack("<4sBBHIIII", b"QRF1", f.kind, f.flags, f.method, f.call, f.body, f.data, f.extra), body, data]


def answers(method):
    """A decorator: only frames of one method are changed."""

    def limit(lie):
        def raw(frame, body, data):
            return lie(frame, body, data) if frame.method == wire.METHODS[method] else frame_of(frame, body, data)

        return raw

    return limit


def reference(frame, body, data):
    out = bytearray()
    wire.append_entry(out, proto.FetchResponse().SerializeToString(), 8, wire.Reference(1, 2, 8, 1, 1))
    return [wire.encode_frame(wire.MESSAGE, frame.method, frame.call, out, flags=wire.CHUNKS)]


BROKEN = {
    "garbage": lambda f, b, d: [random.Random(1).randbytes(200)],
    "another magic": lambda f, b, d: [b"QRF2" + frame_of(f, b, d)[0][4:], b, d],
    "an unknown kind": lambda f, b, d: frame_of(f, b, d, kind=99),
    "unknown flags": lambda f, b, d: frame_of(f, b, d, flags=0x80),
    "a body of 4 GiB": lambda f, b, d: frame_of(f, b, d, body=0xFFFFFFFF),
    "a body of 32 MiB that never comes": lambda f, b, d: frame_of(f, b, d, body=32 << 20),
    "data of 4 GiB": lambda f, b, d: frame_of(f, b, d, data=0xFFFFFFF0),
    "another call": lambda f, b, d: frame_of(f, b, d, call=f.call + 1),
    "an empty batch": lambda f, b, d: [wire.encode_frame(wire.MESSAGE, f.method, f.call, b"", flags=wire.CHUNKS)],
    "an entry that leaves its batch": lambda f, b, d: [wire.encode_frame(wire.MESSAGE, f.method, f.call, struct.pack("<II", 1000, 0), flags=wire.CHUNKS)],
    "half an entry": lambda f, b, d: [wire.encode_frame(wire.MESSAGE, f.method, f.call, b"abc", flags=wire.CHUNKS)],
    "data that no chunk has": lambda f, b, d: [wire.encode_frame(wire.MESSAGE, f.method, f.call, struct.pack("<II", 0, 0), flags=wire.CHUNKS, data=9) + bytes(9)],
    "a head that is no message": lambda f, b, d: [wire.encode_frame(wire.MESSAGE, f.method, f.call, struct.pack("<II", 4, 0) + b"\xff" * 4, flags=wire.CHUNKS)],
    "a reference where no memory is shared": reference,
    "a response to a stream": lambda f, b, d: [wire.encode_frame(wire.RESPONSE, f.method, f.call, b"")],
    "a status that is none": lambda f, b, d: [wire.encode_frame(wire.STATUS, f.method, f.call, b"\xff\xff")],
    "the end at once": lambda f, b, d: [wire.encode_frame(wire.STATUS, f.method, f.call)],
    "half a frame, then the end": lambda f, b, d: None if f.kind != wire.MESSAGE else [frame_of(f, b, d)[0], b[: len(b) // 2]],
    "the end of the connection": lambda f, b, d: None,
    "silence": lambda f, b, d: [],
    "frames without end": lambda f, b, d: [wire.encode_frame(wire.MESSAGE, f.method, f.call, proto.FetchResponse().SerializeToString())] * 50,
}  # fmt: skip


@pytest.mark.parametrize("lie", BROKEN)
def test_broken_frames(world, proxy, lie):
    session, keys, source = world
    proxy.raw = answers("Fetch")(BROKEN[lie])
    assert not all(p.ok for p in fetched(session, keys, source, TIMEOUT_SECONDS))
    sound_again(proxy, session, keys, source)


@pytest.mark.parametrize("code", range(1, 17))
def test_every_status(world, proxy, code):
    session, keys, source = world
    proxy.raw = answers("Fetch")(lambda f, b, d: [wire.encode_frame(wire.STATUS, f.method, f.call, proto.Status(code=code, message="no").SerializeToString())])
    assert not any(p.ok for p in fetched(session, keys, source))
    sound_again(proxy, session, keys, source)


def test_messages_come_whole_too(world, proxy):
    """The bytes inside of the message, not behind it: another way that a server may choose."""

    def whole(frame, body, data):
        if frame.kind != wire.MESSAGE or frame.method != wire.METHODS["Fetch"]:
            return frame_of(frame, body, data)
        out, at = [], 0
        for e in wire.entries(body, len(data)):
            m = proto.FetchResponse.FromString(e.head)
            m.chunk = data[at : at + e.bytes]
            at += e.bytes
            out.append(wire.encode_frame(wire.MESSAGE, frame.method, frame.call, m.SerializeToString()))
        return out

    session, keys, source = world
    proxy.raw = whole
    assert good(fetched(session, keys, source))


def test_a_broken_stream_goes_on_where_it_was(world, proxy):
    """The first stream ends in the middle of the second page: the first is kept, the others come on another stream."""
    session, keys, source = world
    streams: list[int] = []  # calls that were answered

    def cut(frame, body, data):
        if frame.method != wire.METHODS["Fetch"]:
            return frame_of(frame, body, data)
        if not streams or frame.call != streams[-1]:
            streams.append(frame.call)
        if len(streams) > 1 and (len(streams) > 2 or frame.call != streams[0]):
            return frame_of(frame, body, data)
        pages, at = [], 0
        for e in wire.entries(body, len(data)):
            pages.append((proto.FetchResponse.FromString(e.head), data[at : at + e.bytes]))
            at += e.bytes
        return cut_at(encoded(frame, pages[:1]), encoded(frame, pages[1:2])[:-100])

    def cut_at(*pieces):
        yield from pieces
        raise EOFError

    proxy.raw = cut
    assert good(fetched(session, keys, source))
    assert len(streams) == 2


WRONG_COUNTS = {
    "BatchExists": [b"", proto.BatchExistsResponse(present=b"\xff" * 64, leading=[999]), proto.BatchExistsResponse(leading=[3]), proto.BatchExistsResponse(present=b"\x07")],
    "BeginPublish": [b"", proto.BeginPublishResponse(pages=[proto.PageStatus(outcome=2)] * 50), proto.BeginPublishResponse(pages=[proto.PageStatus(outcome=4)] * 3)],
    "WritePages": [proto.WritePagesResponse(pages=[proto.PageStatus(reason=18)] * 50), b"\x0a"],
    "CommitPublish": [b"", proto.CommitPublishResponse(pages=[proto.PageStatus(outcome=1)] * 3), proto.CommitPublishResponse(pages=[proto.PageStatus()] * 99)],
}  # fmt: skip


@pytest.mark.parametrize("method, number", [(m, i) for m, a in WRONG_COUNTS.items() for i in range(len(a))])
def test_wrong_answers(world, proxy, method, number):
    session, keys, source = world
    wrong = WRONG_COUNTS[method][number]
    body = wrong if isinstance(wrong, bytes) else wrong.SerializeToString()
    proxy.raw = answers(method)(lambda f, b, d: [wire.encode_frame(wire.RESPONSE, f.method, f.call, body)])
    if method == "BatchExists":
        there = session.exists(keys)
        assert len(there.present) == PAGES and 0 <= there.leading <= PAGES
        assert there.present[: there.leading] == [True] * there.leading
    else:
        fresh = keys_of(PAGES)
        try:
            pages = session.publish(fresh, flat(session, PAGES, seed=1)[1])
            assert len(pages) == PAGES and not any(p.ok for p in pages)
        except QuireError as e:
            assert len(e.pages) == PAGES
    sound_again(proxy, session, keys, source)


@pytest.mark.parametrize("grant", [(0, 9, 0, 1), (0, 1, 0, 99), (3, 3, 0, 1), (2, 1, 0, 1), (0, 70000, 0, 1)])
def test_grants_that_nobody_asked_for(world, proxy, grant):
    session, keys, source = world
    h0, h1, l0, l1 = grant

    def lie(frame, body, data):
        m = proto.BeginPublishResponse.FromString(body)
        for p in m.pages:
            del p.grants[:]
            p.grants.add(h0=h0, h1=h1, l0=l0, l1=l1)
        return [wire.encode_frame(wire.RESPONSE, frame.method, frame.call, m.SerializeToString())]

    proxy.raw = answers("BeginPublish")(lie)
    assert [p.reason for p in session.publish(keys_of(2), flat(session, 2, seed=2)[1])] == [Reason.UNSUPPORTED] * 2
    sound_again(proxy, session, keys, source)


def test_flipped_bits_anywhere(world, proxy):
    """Any bit of anything that the server sends in a fetch."""
    session, keys, source = world
    rng = random.Random(11)
    misses = 0

    def flip(frame, body, data):
        raw = bytearray(b"".join(frame_of(frame, body, data)))
        if frame.method == wire.METHODS["Fetch"]:
            for _ in range(rng.choice((1, 1, 3, 20))):
                near = rng.random() < 0.7  # heads are small beside data
                raw[rng.randrange(min(len(raw), 24 + frame.body) if near else len(raw))] ^= 1 << rng.randrange(8)
        return [bytes(raw)]

    proxy.raw = flip
    for _ in range(150):
        misses += not all(p.ok for p in fetched(session, keys, source, 0.1))
    assert misses > 100
    sound_again(proxy, session, keys, source)


def test_a_server_that_trickles(world, proxy):
    """One byte after the other, for ever: the deadline holds."""
    session, keys, source = world

    def trickle(frame, body, data):
        def pieces():
            for b in b"".join(frame_of(frame, body, data)):
                time.sleep(0.01)
                yield bytes([b])

        return pieces()

    proxy.raw = answers("Fetch")(trickle)
    assert not any(p.ok for p in fetched(session, keys, source, TIMEOUT_SECONDS))
    sound_again(proxy, session, keys, source)

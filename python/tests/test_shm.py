"""Shared memory as a client sees it: what is mapped, what is refused, and that nothing stale or damaged is believed."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import random
import struct
from collections import deque

import numpy as np
import pytest
from test_client import GUARD_SECONDS, HEADS, LAYERS, TOKENS, WIDTH, flat, good, keys_of

from quire_kv import frame_transport, kernels, proto, shm
from quire_kv.client import Client, Options, QuireError, Reason
from quire_kv.layout import PageMemory
from quire_kv.shm import Area, Budget, Slab, Slabs
from quire_kv.wire import Reference

pytestmark = pytest.mark.skipif(not shm.AVAILABLE, reason="no memfd here")

SLOT, SLOTS = 4096, 4


def memfd(content: bytes, seals: int = 7) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.write(fd, content)
    if seals:
        fcntl.fcntl(fd, 1033, seals)
    return fd


def words(number=7, size=SLOT * SLOTS, slot=SLOT, slots=SLOTS, slab=1, magic=b"QURSLAB1", generations=(1, 2, 3, 4)) -> bytes:
    return magic + struct.pack("<7Q", number, size, slot, slots, slab, 0, 0) + struct.pack(f"<{len(generations)}Q", *generations)


def made(**changes) -> Slab:
    a, b = memfd(bytes(range(256)) * 64), memfd(words(**changes))
    try:
        return Slab(a, b)
    finally:
        os.close(a)
        os.close(b)


def test_a_slab():
    slab = made()
    assert (slab.number, slab.bytes, slab.slot_bytes, slab.slots, slab.gone) == (7, SLOT * SLOTS, SLOT, SLOTS, False)
    assert ctypes.string_at(slab.address + 5, 3) == bytes([5, 6, 7])
    assert slab.valid(0, 1, 1) and slab.valid(SLOT * 3 + 100, 4, 1)
    assert not slab.valid(0, 2, 1) and not slab.valid(0, 1, 2) and not slab.valid(SLOT * SLOTS, 1, 1)
    assert made(slab=(1 << 64) - 1).gone


def test_generations_are_read_anew():
    a, b = memfd(bytes(SLOT * SLOTS)), memfd(words())
    slab = Slab(a, b)
    with mmap.mmap(b, 0) as m:
        m[64:72] = struct.pack("<Q", 9)
    assert not slab.valid(0, 1, 1) and slab.valid(0, 9, 1)
    os.close(a)
    os.close(b)


@pytest.mark.parametrize(
    "changes",
    [dict(magic=b"QURSLAB2"), dict(slot=0), dict(slots=0), dict(slots=5), dict(slots=1 << 60), dict(size=1), dict(slot=1 << 62), dict(generations=())],
)
def test_what_is_no_slab(changes):
    with pytest.raises(QuireError) as e:
        made(**changes)
    assert e.value.broken


def test_what_is_not_safe_to_map():
    """No seal against shrinking, no memfd, nothing in it: a read could end the process."""
    sound = words()
    read, write = os.pipe()
    for a, b in (
        (memfd(bytes(SLOT * SLOTS), 0), memfd(sound)), (memfd(bytes(SLOT * SLOTS)), memfd(sound, 0)), (os.dup(read), memfd(sound)), (memfd(bytes(SLOT * SLOTS)), memfd(b"")),
        (memfd(bytes(SLOT * SLOTS)), memfd(b"QURSLAB1")),
    ):  # fmt: skip
        with pytest.raises(QuireError):
            Slab(a, b)
        os.close(a)
        os.close(b)
    os.close(read)
    os.close(write)


def test_a_table_of_slabs():
    slabs = Slabs()
    before = len(os.listdir("/proc/self/fd"))
    slabs.take(deque())
    slabs.take(deque([memfd(bytes(SLOT * SLOTS)), memfd(words()), memfd(bytes(SLOT * SLOTS)), memfd(words(number=8))]))
    slabs.take(deque([memfd(bytes(SLOT * SLOTS)), memfd(words())]))  # again: another connection was faster
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors are closed once they are mapped"
    assert slabs.resolve(Reference(8, SLOT, 10, 2, 1)).number == 8
    for r in (Reference(9, 0, 1, 1, 1), Reference(7, SLOT * SLOTS, 1, 1, 1), Reference(7, 0, SLOT * SLOTS + 1, 1, 1), Reference(7, 1 << 63, 1 << 63, 1, 1)):
        with pytest.raises(QuireError) as e:
            slabs.resolve(r)
        assert e.value.broken
    with pytest.raises(QuireError):
        slabs.take(deque([memfd(bytes(8))]))
    with pytest.raises(QuireError):
        slabs.take(deque([memfd(bytes(8)), memfd(bytes(8)), memfd(bytes(8))]))
    assert len(os.listdir("/proc/self/fd")) == before
    slabs.clear()
    with pytest.raises(QuireError):
        slabs.resolve(Reference(8, SLOT, 10, 2, 1))


def test_an_area():
    budget = Budget(1 << 20)
    assert budget.take(1 << 19) and not budget.take(1 << 20)
    area = Area(1 << 19, budget)
    ctypes.memset(area.address, 7, 100)
    assert os.pread(area.fd, 3, 98) == b"\x07\x07\x00"
    with pytest.raises(OSError):
        os.ftruncate(area.fd, 0)
    fd = os.dup(area.fd)
    area.close()
    area.close()
    assert os.pread(fd, 1, 0) == b"\x00", "the memory is given back also where somebody else has it"
    os.close(fd)
    assert budget.take(1 << 20)


@pytest.fixture
def world(quire_server, spec_text):
    with Client(Options(quire_server.address, transport="shm", call_timeout=GUARD_SECONDS)) as client:
        yield client, client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS))


def slab_files(pid: int):
    """The memory of a server's slabs, open for writing. Another process could not; root can."""
    for name in os.listdir(f"/proc/{pid}/fd"):
        path = f"/proc/{pid}/fd/{name}"
        with contextlib.suppress(OSError):
            if os.readlink(path).startswith("/memfd:"):
                yield open(path, "r+b")


def damage(server, page: np.ndarray) -> int:
    """Flips a bit wherever the server's memory has the bytes of a page. Returns how many places."""
    needle, done = page.tobytes()[:512], 0
    for f in slab_files(server.process.pid):
        with f, mmap.mmap(f.fileno(), 0) as m:
            at = m.find(needle)
            while at >= 0:
                m[at + 100] ^= 1
                done += 1
                at = m.find(needle, at + 1)
    return done


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write into another process's memory files")
def test_case_c19_a_flipped_bit_in_a_slab_is_a_miss(world, quire_server):
    client, session = world
    keys = keys_of(4)
    source, memory = flat(session, 4, seed=1)
    assert good(session.publish(keys, memory))
    assert damage(quire_server, source[2]) > 0, "the page lies in a memfd of the server"
    target, into = flat(session, 4)
    pages = session.fetch(keys, into)
    assert [p.reason for p in pages] == [Reason.NONE, Reason.NONE, Reason.CORRUPT, Reason.NONE]
    assert np.array_equal(np.delete(target, 2, 0), np.delete(source, 2, 0))
    assert session.exists(keys).present == [True, True, False, True], "the server looked itself, and found the same"
    assert good(session.publish(keys, memory))
    target, into = flat(session, 4)
    assert good(session.fetch(keys, into)) and np.array_equal(target, source)


def test_memory_taken_back_while_it_was_read(world, spec_text):
    """The namespace ends between the last byte copied and the look at the generations: nothing of it is believed."""
    client, session = world
    keys = keys_of(3)
    source, memory = flat(session, 3, seed=2)
    session.publish(keys, memory)
    done = []

    def end() -> None:
        if not done:
            done.append(1)
            client.namespaces("Purge", proto.PurgeRequest(id=session.namespace))

    client._on_copied = end
    with pytest.raises(QuireError) as e:
        session.fetch(keys, flat(session, 3)[1])
    assert done and e.value.reason is Reason.STALE_EPOCH and not any(p.ok for p in e.value.pages)


class Generations:
    """Lets what readers see of generations differ from what they were told, for both readers."""

    def __init__(self, monkeypatch) -> None:
        self.differ = 0  # how often
        valid, table = Slab.valid, Slabs.table

        def told(slab: Slab, *numbers: int) -> bool:
            if self.differ:
                self.differ -= 1
                return False
            return valid(slab, *numbers)

        def copied(slabs: Slabs):
            rows, keep = table(slabs)
            if not self.differ:
                return rows, keep
            self.differ -= 1
            rows, words = rows.copy(), [np.array(s._words) for s in keep]
            for row, w in zip(rows, words, strict=True):
                w[8:] += 1
                row[3] = w.ctypes.data
            return rows, [*keep, *words]

        monkeypatch.setattr(Slab, "valid", told)
        monkeypatch.setattr(Slabs, "table", copied)


@pytest.mark.parametrize("native", [pytest.param(True, marks=pytest.mark.skipif(not kernels.NATIVE, reason="no native code")), False])
def test_pages_that_moved_are_asked_for_again(world, monkeypatch, native):
    """Generations that differ once: the page is fetched again, and is right."""
    client, session = world
    keys = keys_of(3)
    source, memory = flat(session, 3, seed=3)
    session.publish(keys, memory)
    if not native:
        monkeypatch.setattr(kernels, "NATIVE", False)
    generations = Generations(monkeypatch)
    generations.differ = 1 if native else 2
    target, into = flat(session, 3)
    assert good(session.fetch(keys, into)) and np.array_equal(target, source) and not generations.differ
    generations.differ = 1 << 30
    assert [p.reason for p in session.fetch(keys, into)] == [Reason.ABSENT] * 3
    lease = session.exists(keys, lease=30.0).lease
    assert [p.reason for p in session.fetch(keys, into, lease=lease)] == [Reason.LEASE_EXPIRED] * 3
    generations.differ = 0
    assert session.exists(keys).leading == 3, "what moved was not reported as corrupt"


def areas_of(client: Client) -> list:
    """What the idle connections over shared memory have told the node of."""
    pool = client._ways[0].transport._pool
    return [c.attached["areas"] for c in pool._idle if "areas" in c.attached]


def test_publish_out_of_staging(world, monkeypatch):
    """The node reads it where it lies: nothing is packed, and what is stored is what was there."""
    client, session = world
    size = session.only.page_bytes
    with contextlib.closing(client.staging(4 * size + 4096)) as staging:
        rows = staging.memory[100 : 100 + 4 * size].reshape(4, size)
        rows[...] = np.frombuffer(random.randbytes(4 * size), dtype=np.uint8).reshape(4, size)
        monkeypatch.setattr(kernels, "pack", None)
        for part in ([3, 0], [1], [2]):
            keys = keys_of(len(part))
            source = np.array(rows[part])
            assert good(session.publish(keys, PageMemory.flat([rows[i] for i in part], session.only, session.only.whole)))
            target, into = flat(session, len(part))
            assert good(session.fetch(keys, into)) and np.array_equal(target, source)
        assert [(a.area, a._stagings) for a in areas_of(client)] == [(None, {staging.serial: 0})]
        sums_of, publish = kernels.sums_of, kernels.publish
        monkeypatch.setattr(kernels, "sums_of", lambda *a, **k: sums_of(*a, **k) ^ np.uint64(1))
        monkeypatch.setattr(kernels, "publish", lambda w, at, packs, area, *rest: publish(w, at, packs, (area[0], area[1] - 64), *rest))
        keys = keys_of(4)
        memory = PageMemory.flat(list(rows), session.only, session.only.whole)
        assert [p.reason for p in session.publish(keys, memory)] == [Reason.CORRUPT] * 4, "what changed while it was read"
        assert session.exists(keys).leading == 0
    monkeypatch.undo()
    source, memory = flat(session, 4, seed=5)
    assert good(session.publish(keys, memory))


def test_what_is_lent_is_named_before_it_is_summed(world, monkeypatch):
    """So much that the server begins while the sums are taken: its answers come in order, wherever it has stopped to read."""
    client, session = world
    size = session.only.page_bytes
    n = -(-(1 << 20) // size)
    with contextlib.closing(client.staging(n * size)) as staging:
        rows = staging.memory.reshape(n, size)
        rows[...] = np.frombuffer(random.randbytes(size), dtype=np.uint8)
        rows[:, :8] = np.arange(n, dtype=np.uint64)[:, None].view(np.uint8)
        monkeypatch.setattr(kernels, "pack", None)
        for _ in range(5):
            keys = keys_of(n)
            assert good(session.publish(keys, PageMemory.flat(list(rows), session.only, session.only.whole)))
            target, into = flat(session, n)
            assert good(session.fetch(keys, into)) and np.array_equal(target, rows)


def test_staging_that_the_node_does_not_take_is_copied(world, monkeypatch):
    client, session = world
    size = session.only.page_bytes
    monkeypatch.setattr(frame_transport, "_MAX_AREA_BYTES", 9 << 20)
    with contextlib.closing(client.staging(10 << 20)) as staging:
        rows = staging.memory[: 2 * size].reshape(2, size)
        rows[...] = 7
        keys = keys_of(2)
        assert good(session.publish(keys, PageMemory.flat(list(rows), session.only, session.only.whole)))
        target, into = flat(session, 2)
        assert good(session.fetch(keys, into)) and np.array_equal(target, rows)
        assert [a._stagings for a in areas_of(client)] == [{}]
    staging.close()
    with pytest.raises(QuireError) as e:
        client.staging(-1)
    assert e.value.reason is Reason.UNSUPPORTED


def test_staging_over_another_transport(quire_server, spec_text):
    """It is memory like any other there."""
    with Client(Options(quire_server.address, transport="data")) as client:
        session = client.open(spec_text(HEADS, LAYERS, WIDTH, TOKENS, model="staging"), timeout=GUARD_SECONDS)
        size = session.only.page_bytes
        with contextlib.closing(client.staging(size)) as staging:
            staging.memory[:] = 9
            keys = keys_of(1)
            assert good(session.publish(keys, PageMemory.flat([staging.memory], session.only, session.only.whole)))
            target, into = flat(session, 1)
            assert good(session.fetch(keys, into)) and (target == 9).all()


def test_bytes_go_through_shared_memory(world, quire_server):
    """Not in frames: the server's counters of the transport say so, and slabs are mapped here."""
    client, session = world
    keys = keys_of(8)
    source, memory = flat(session, 8, seed=4)
    assert good(session.publish(keys, memory))
    assert client._slabs._slabs == {}
    assert good(session.fetch(keys, flat(session, 8)[1]))
    assert len(client._slabs._slabs) >= 1
    wrote = quire_server.metric("quire_write_bytes_total", transport="shm"), quire_server.metric("quire_fetch_bytes_total", transport="shm")
    assert wrote == (source.nbytes, source.nbytes)
    areas = [c.attached.get("areas") for c in client._ways[0].transport._pool._all]
    assert any(a is not None and a.area is not None for a in areas)


def test_a_ring_turns(world):
    """Many more pages than fit into the staging ring, of two sizes, over one connection."""
    client, session = world
    rng = random.Random(5)
    for n in (3, 120, 1, 60):
        keys = keys_of(n)
        source, memory = flat(session, n, seed=rng.randrange(1 << 30))
        assert good(session.publish(keys, memory))
        target, into = flat(session, n)
        assert good(session.fetch(keys, into)) and np.array_equal(target, source)

"""kernels: native and numpy against each other, against numpy's transpose and against the xxhash package.

Every test runs for numpy and for each instruction set that the native module has on this machine. The randomised ones print
their seed and take QUIRE_TEST_SEED.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
import xxhash
from engine_orders import Engine, engine, random_engine
from seeds import seed

from quire_kv import kernels, page
from quire_kv.kernels import CORRUPT, IN_PLACE, OK, PRIVATE, REFUSED, UNPACK
from quire_kv.layout import Layout, PageMemory, Rows, address_of, regions_of
from quire_kv.page import Geometry, View, pieces_of

NATIVE = kernels._module


@pytest.fixture(params=["numpy", "plain", "avx2", "avx512"])
def isa(request, monkeypatch):
    """Runs the test with these kernels."""
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "_module", None)
    elif NATIVE is None:
        pytest.skip(f"no native module: {kernels.why_not}")
    else:
        try:
            kernels.instruction_set(request.param)
        except ValueError:
            pytest.skip(f"no {request.param} on this machine")
    yield request.param
    if NATIVE is not None:
        NATIVE.use("")


def room(size: int, skew: int = 0) -> np.ndarray:
    """Zeroed bytes, aligned to 64 but for the skew, with guards on both sides (see `guarded`)."""
    raw = np.full(size + 320, 0xEE, dtype=np.uint8)
    start = 64 + -address_of(raw)[0] % 64 + skew
    raw[start : start + size] = 0
    a = raw[start : start + size]
    a.flags.writeable = True
    return a


def guarded(a: np.ndarray) -> bool:
    """Whether nothing was written around `a`."""
    raw, at = a.base, a.__array_interface__["data"][0] - a.base.__array_interface__["data"][0]
    return bool((raw[:at] == 0xEE).all() and (raw[at + a.nbytes :] == 0xEE).all())


def pack_all(e: Engine, pages=None, skew: int = 0, threads: int = 1) -> tuple[np.ndarray, np.ndarray]:
    pages = list(range(len(e.memory))) if pages is None else pages
    size = e.geometry.payload_bytes(e.view)
    out = room(size * len(pages), skew)
    at = np.uint64(address_of(out)[0]) + np.arange(len(pages), dtype=np.uint64) * np.uint64(size)
    sums = kernels.pack(e.memory, pages, e.geometry, e.view, at, threads=threads)
    assert guarded(out)
    return out.reshape(len(pages), size), sums


def plain_sums(payload: np.ndarray, view: View, cell: int) -> list[int]:
    p = pieces_of(view.layers, cell)
    raw = payload.tobytes()
    return [xxhash.xxh3_64_intdigest(raw[at : at + n]) for at, n in map(p.span, range(p.count(view.heads)))]


def test_xxh3_64_of_every_length(isa):
    data = np.frombuffer(random.Random(7).randbytes(4096 + 64), dtype=np.uint8).copy()
    at, raw = address_of(data)[0], data.tobytes()
    for n in range(4097):
        skew = n % 61
        assert kernels.xxh3_64(at + skew, n) == xxhash.xxh3_64_intdigest(raw[skew : skew + n]), n


def test_xxh3_64_of_long_inputs(isa):
    rng = random.Random(seed())
    data = np.frombuffer(rng.randbytes(1 << 20), dtype=np.uint8).copy()
    at, raw = address_of(data)[0], data.tobytes()
    for _ in range(150):
        n = rng.choice((rng.randint(241, 1 << 20), 1024 * rng.randint(1, 1000), 64 * rng.randint(4, 16000)))
        skew = rng.randint(0, min(64, (1 << 20) - n))
        assert kernels.xxh3_64(at + skew, n) == xxhash.xxh3_64_intdigest(raw[skew : skew + n]), (skew, n)


def test_digest128_is_canonical():
    assert kernels.digest128(b"").hex() == "99aa06d3014798d86001c324468d497f"


def test_pack_equals_numpys_transpose(isa):
    rng = random.Random(seed())
    for _ in range(60):
        e, _ = random_engine(rng)
        pages = [rng.randrange(len(e.memory)) for _ in range(rng.randint(0, 5))]
        got, sums = pack_all(e, pages, rng.choice((0, 0, 16, 1)), rng.choice((1, 1, 3)))
        want = e.head_major()[pages]
        assert np.array_equal(got, want)
        for i in range(len(pages)):
            assert sums[i].tolist() == plain_sums(want[i], e.view, e.geometry.cell_bytes)
            assert kernels.sums(address_of(got[i])[0], e.geometry, e.view).tolist() == sums[i].tolist()


def tiling(rng: random.Random, view: View) -> list[View]:
    """Disjoint views that cover `view`, some of them larger than their part of it."""
    if view.heads > 1 and rng.random() < 0.6:
        cut = rng.randint(view.h0 + 1, view.h1 - 1)
        return tiling(rng, view._replace(h1=cut)) + tiling(rng, view._replace(h0=cut))
    if view.layers > 1 and rng.random() < 0.6:
        cut = rng.randint(view.l0 + 1, view.l1 - 1)
        return tiling(rng, view._replace(l1=cut)) + tiling(rng, view._replace(l0=cut))
    return [view]


class Wire:
    """Extents of pages as they come from a store: runs of bytes of each, cut as a node cuts them."""

    def __init__(self, rng: random.Random, e: Engine) -> None:
        """`e` is the engine that published all of its pages, in extents that tile its view."""
        self.rng, self.cell = rng, e.geometry.cell_bytes
        self.payloads: list[np.ndarray] = []  # kept alive
        self.sums: list[int] = [rng.getrandbits(64) for _ in range(rng.randint(0, 3))]
        self.jobs: list[tuple] = []
        whole = e.head_major().reshape(len(e.memory), e.view.heads, e.view.layers, self.cell)
        for number in range(len(e.memory)):
            for extent in tiling(rng, e.view):
                v = e.view
                part = whole[number, extent.h0 - v.h0 : extent.h1 - v.h0, extent.l0 - v.l0 : extent.l1 - v.l0]
                payload = room(part.size, rng.choice((0, 0, 1, 16)))
                payload[:] = part.reshape(-1)
                self.payloads.append(payload)
                first = len(self.sums)
                self.sums += plain_sums(payload, extent, self.cell)
                self.add(number, extent, e.view, payload, first)

    def add(self, number: int, extent: View, view: View, payload: np.ndarray, first: int) -> None:
        """Jobs for the cells of `view`, each run cut at the ends of pieces."""
        r, p = page.runs(extent, view, self.cell), pieces_of(extent.layers, self.cell)
        for k in range(r.count):
            at, end = r.offset + k * r.stride, r.offset + k * r.stride + r.size
            while at < end:
                stop = end
                if self.rng.random() < 0.6:
                    stop = min(end, sum(p.span(p.at(self.rng.randrange(at, end)))))
                a, b, cut_a, cut_b = p.touched(at, stop - at)
                cuts = [xxhash.xxh3_64_intdigest(payload[at : min(sum(p.span(a)), stop)].tobytes())] if cut_a else []
                if cut_b and b - 1 > a:
                    cuts.append(xxhash.xxh3_64_intdigest(payload[p.span(b - 1)[0] : stop].tobytes()))
                self.jobs.append(
                    (
                        address_of(payload)[0] + at,
                        at,
                        stop - at,
                        first,
                        cuts + [0] * (2 - len(cuts)),
                        number,
                        *extent,
                        len(cuts),
                        self.rng.choice((0, PRIVATE)),
                        9,
                    )
                )
                at = stop

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        self.rng.shuffle(self.jobs)
        jobs = np.zeros(len(self.jobs), UNPACK)
        for i, (src, at, n, first, cuts, number, h0, h1, l0, l1, count, flags, status) in enumerate(self.jobs):
            jobs[i] = (src, at, n, first, cuts, number, h0, h1, l0, l1, count, flags, status)
        return jobs, np.array(self.sums, dtype=np.uint64)


def test_unpack_assembles_any_tiling_in_any_order(isa):
    rng = random.Random(seed())
    for _ in range(60):
        source, target = random_engine(rng)
        wire = Wire(rng, source)
        jobs, sums = wire.table()
        kernels.unpack(jobs, target.memory, source.geometry, source.view, sums, threads=rng.choice((1, 1, 4)))
        assert (jobs["status"] == OK).all()
        assert np.array_equal(target.head_major(), source.head_major())


def test_unpack_of_a_part_writes_nothing_else(isa):
    """A reader of a part of what the extents hold: bytes outside of its view are left alone, and verified all the same."""
    rng = random.Random(seed())
    for _ in range(60):
        source, _ = random_engine(rng)
        v = source.view
        h0, l0 = rng.randrange(v.h0, v.h1), rng.randrange(v.l0, v.l1)
        view = View(h0, rng.randint(h0 + 1, v.h1), l0, rng.randint(l0 + 1, v.l1))
        rows = tuple(r.row_bytes for r in source.memory.layout.rows)
        g = source.geometry
        target = engine(rng.choice(("ptlh", "lpth", "hlpt")), len(source.memory), view, g.heads, g.layers, g.page_tokens, rows, None)
        for a in target.arrays:
            a[...] = 0xAA
        wire = Wire(rng, source)
        jobs, sums = wire.table()
        kernels.unpack(jobs, target.memory, g, view, sums)
        assert (jobs["status"] == OK).all()
        want = source.head_major().reshape(-1, v.heads, v.layers, g.cell_bytes)
        want = want[:, view.h0 - v.h0 : view.h1 - v.h0, view.l0 - v.l0 : view.l1 - v.l0]
        assert np.array_equal(target.head_major(), want.reshape(len(want), -1))
        for a in target.arrays:  # what surrounds the arrays
            raw = a.base.base if a.base.base is not None else a.base
            assert not raw[: (a.__array_interface__["data"][0] - raw.__array_interface__["data"][0])].any()


def test_cut_pieces_are_checked_by_the_sums_of_their_parts(isa):
    """A slice of layers of one extent: the pieces that it cuts come with sums of their own."""
    cell, view = 4096, View(0, 3, 0, 40)  # 16 cells a piece: cuts at 5 and 37
    source = engine("phlt", 1, view, 3, 40, 16, (256,), random.Random(1))
    take = View(0, 3, 5, 37)
    target = engine("lpth", 1, take, 3, 40, 16, (256,), None)
    wire = Wire(random.Random(2), source)
    wire.jobs.clear()
    payload = room(view.cells * cell)
    payload[:] = source.head_major()[0]
    first = len(wire.sums)
    wire.sums += plain_sums(payload, view, cell)
    wire.add(0, view, take, payload, first)
    jobs, sums = wire.table()
    assert (jobs["cuts"] > 0).any()
    kernels.unpack(jobs, target.memory, source.geometry, take, sums)
    assert (jobs["status"] == OK).all()
    want = source.head_major().reshape(3, 40, cell)[:, 5:37]
    assert np.array_equal(target.head_major().reshape(3, 32, cell), want)
    # Without them, with wrong ones, with the whole piece's sum: corrupt, never guessed.
    for change in ({"cuts": 0}, {"cut_sums": 1}):
        bad = jobs.copy()
        for name, value in change.items():
            bad[name] = value
        kernels.unpack(bad, target.memory, source.geometry, take, sums)
        assert (bad["status"] == np.where(jobs["cuts"] > 0, CORRUPT, OK)).all()


@pytest.mark.parametrize("flags", [0, PRIVATE])
@pytest.mark.parametrize("row", [96, 256])
def test_case_c19_a_flipped_bit_is_seen_and_its_piece_not_written(isa, flags, row):
    """Every piece before the bad one is there, nothing of it and behind it is."""
    tokens, view = 16, View(0, 2, 0, 50)
    source = engine("ptlh", 2, view, 2, 50, tokens, (row, row), random.Random(3))
    cell = source.geometry.cell_bytes
    payload, sums = pack_all(source)
    p = pieces_of(50, cell)
    rng = random.Random(seed())
    for _ in range(12):
        target = engine("lpth", 2, view, 2, 50, tokens, (row, row), None)
        bad = payload.copy()
        at = rng.randrange(payload.shape[1])
        bad[1, at] ^= 1 << rng.randrange(8)
        jobs = np.zeros(2, UNPACK)
        jobs["src"] = [address_of(b)[0] for b in bad]
        jobs["bytes"], jobs["page"], jobs["first_sum"] = payload.shape[1], [0, 1], [0, p.count(2)]
        jobs["eh1"], jobs["el1"], jobs["flags"] = 2, 50, flags
        kernels.unpack(jobs, target.memory, source.geometry, view, sums.reshape(-1))
        assert jobs["status"].tolist() == [OK, CORRUPT]
        got, stop = target.head_major(), p.span(p.at(at))[0]
        assert np.array_equal(got[0], payload[0])
        assert np.array_equal(got[1, :stop], payload[1, :stop]) and not got[1, stop:].any()
        jobs["status"] = 7
        kernels.verify(jobs, source.geometry, sums.reshape(-1))
        assert jobs["status"].tolist() == [OK, CORRUPT]


def test_in_place_jobs_are_summed_and_not_copied(isa):
    source = engine("phlt", 3, View(0, 2, 0, 4), 2, 4, 8, (64, 64), random.Random(3))
    at = source.memory.contiguous()
    payload, sums = pack_all(source)
    wide = engine("phlt", 1, View(0, 2, 0, 4), 2, 4, 8, (64, 64), None)
    jobs = np.zeros(3, UNPACK)
    base = address_of(payload)[0]
    jobs["src"] = base + np.arange(3) * payload.shape[1]
    jobs["bytes"], jobs["first_sum"] = payload.shape[1], np.arange(3) * sums.shape[1]
    jobs["eh1"], jobs["el1"], jobs["flags"], jobs["page"] = 2, 4, IN_PLACE, 77
    payload[2, 5] ^= 1
    kernels.unpack(jobs, wide.memory, source.geometry, source.view, sums.reshape(-1))
    assert jobs["status"].tolist() == [OK, OK, CORRUPT] and not wide.head_major().any()
    assert at is None or len(at) == 3


def test_what_was_summed_is_what_is_written(isa):
    """The source of a shared job may change under the copy. Here the copy itself changes it: the piece is permuted onto the
    memory that it comes from. Only bytes that were set aside before they were summed come out right."""
    layers, tokens, row = 8, 16, 64
    buffer = room(layers * tokens * row)
    buffer[:] = np.frombuffer(random.Random(3).randbytes(buffer.size), dtype=np.uint8)
    want = buffer.reshape(layers, tokens, row).transpose(1, 0, 2).copy()
    g, view = Geometry(bytes(32), "full", tokens, 1, layers, tokens * row, "elements", 32), View(0, 1, 0, layers)
    layout = Layout(1, layers, (Rows(row, 0, layers * row, tokens),))
    mem = PageMemory.strided(layout, address_of(buffer)[0], [0], [0], np.arange(layers) * row, buffer, regions_of([buffer]))
    jobs = np.zeros(1, UNPACK)
    jobs["src"], jobs["bytes"], jobs["eh1"], jobs["el1"] = address_of(buffer)[0], buffer.size, 1, layers
    kernels.unpack(jobs, mem, g, view, kernels.sums(address_of(buffer)[0], g, view))
    assert jobs["status"][0] == OK and np.array_equal(buffer.reshape(want.shape), want) and guarded(buffer)


def good_job(source: Engine, payload: np.ndarray) -> np.ndarray:
    jobs = np.zeros(1, UNPACK)
    jobs["src"], jobs["bytes"] = address_of(payload)[0], payload.size
    jobs["eh0"], jobs["eh1"], jobs["el0"], jobs["el1"] = source.view
    return jobs


CONTRADICTIONS = {
    "offset behind the payload": dict(offset=1 << 40),
    "run behind the payload": dict(offset=1),
    "run of all memory": dict(bytes=(1 << 64) - 1),
    "offset and bytes that wrap": dict(offset=(1 << 64) - 1, bytes=2),
    "no heads": dict(eh1=0),
    "no layers": dict(el0=4),
    "heads the wrong way": dict(eh0=9, eh1=3),
    "extent larger than its sums": dict(eh1=65535, el1=65535),
    "sums behind the table": dict(first_sum=1),
    "sums that wrap": dict(first_sum=(1 << 64) - 1),
    "page behind the memory": dict(page=1),
    "last of all pages": dict(page=(1 << 32) - 1),
    "three cut sums": dict(cuts=3),
    "no source": dict(src=0),
    "source at the end of all memory": dict(src=(1 << 64) - 1),
}


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_a_job_that_contradicts_itself_is_refused_alone(isa, change):
    source = engine("ptlh", 1, View(0, 2, 0, 4), 2, 4, 8, (64,), random.Random(3))
    target = engine("lpth", 1, View(0, 2, 0, 4), 2, 4, 8, (64,), None)
    payload, sums = pack_all(source)
    jobs = np.concatenate([good_job(source, payload[0])] * 2)
    for name, value in change.items():
        jobs[name][0] = value
    kernels.unpack(jobs[:1], target.memory, source.geometry, source.view, sums.reshape(-1))
    assert jobs["status"][0] == REFUSED and not target.head_major().any()
    kernels.unpack(jobs, target.memory, source.geometry, source.view, sums.reshape(-1))
    assert jobs["status"].tolist() == [REFUSED, OK] and np.array_equal(target.head_major(), source.head_major())
    if "page" not in change:
        jobs["status"] = 9
        kernels.verify(jobs, source.geometry, sums.reshape(-1))
        assert jobs["status"].tolist() == [REFUSED, OK]


def test_wrong_tables_are_value_errors(isa):
    source = engine("ptlh", 2, View(0, 2, 0, 4), 2, 4, 8, (64,), random.Random(3))
    mem, geo, view = source.memory, source.geometry, source.view
    payload, sums = pack_all(source)
    at = np.array([address_of(p)[0] for p in payload], dtype=np.uint64)
    jobs = good_job(source, payload[0])
    readonly = jobs.copy()
    readonly.flags.writeable = False
    crooked = np.zeros(129, np.uint8)
    crooked = crooked[1 - address_of(crooked)[0] % 8 :][:64].view(UNPACK)
    all_sums = sums.reshape(-1)
    smaller = Geometry(bytes(32), "full", 8, 2, 4, geo.cell_bytes - 64, "elements", 32)
    calls = {
        "page below": lambda: kernels.pack(mem, [-1], geo, view, at[:1]),
        "page above": lambda: kernels.pack(mem, [2], geo, view, at[:1]),
        "pages and addresses": lambda: kernels.pack(mem, [0], geo, view, at),
        "pages of two axes": lambda: kernels.pack(mem, [[0]], geo, view, at[:1]),
        "no out address": lambda: kernels.pack(mem, [0], geo, view, np.zeros(1, np.uint64)),
        "out address too high": lambda: kernels.pack(mem, [0], geo, view, np.full(1, (1 << 64) - 64, np.uint64)),
        "view": lambda: kernels.pack(mem, [0], geo, View(0, 1, 0, 4), at[:1]),
        "geometry": lambda: kernels.pack(mem, [0], smaller, view, at[:1]),
        "no threads": lambda: kernels.pack(mem, [0], geo, view, at[:1], threads=0),
        "many threads": lambda: kernels.unpack(jobs, mem, geo, view, all_sums, threads=65),
        "unpack view": lambda: kernels.unpack(jobs, mem, geo, View(0, 2, 0, 3), all_sums),
        "jobs of another type": lambda: kernels.unpack(jobs.view(np.uint8), mem, geo, view, all_sums),
        "jobs of two axes": lambda: kernels.unpack(jobs[None], mem, geo, view, all_sums),
        "every other job": lambda: kernels.unpack(np.zeros(4, UNPACK)[::2], mem, geo, view, all_sums),
        "jobs that cannot be written": lambda: kernels.unpack(readonly, mem, geo, view, all_sums),
        "jobs between addresses": lambda: kernels.unpack(crooked, mem, geo, view, all_sums),
        "signed sums": lambda: kernels.unpack(jobs, mem, geo, view, all_sums.astype(np.int64)),
        "sums of two axes": lambda: kernels.verify(jobs, geo, sums),
        "sums of nothing": lambda: kernels.sums(int(at[0]), geo, View(0, 0, 0, 4)),
        "sums of no address": lambda: kernels.sums(8, geo, view),
        "sums of an address too high": lambda: kernels.sums((1 << 64) - 4096, geo, view),
        "sums of no number": lambda: kernels.sums(-1, geo, view),
        "xxh3 of no address": lambda: kernels.xxh3_64(8, 1),
        "less than no bytes": lambda: kernels.xxh3_64(int(at[0]), -1),
    }
    before = source.head_major()
    for name, call in calls.items():
        with pytest.raises(ValueError):
            call()
            pytest.fail(name)
    assert np.array_equal(source.head_major(), before)


@pytest.mark.skipif(NATIVE is None, reason=f"no native module: {kernels.why_not}")
def test_the_native_module_checks_for_itself():
    """Every number of every call, replaced by wrong ones: a ValueError or TypeError before memory is touched."""
    source = engine("ptlh", 2, View(0, 2, 0, 4), 2, 4, 8, (64, 32), random.Random(3))
    payload, sums = pack_all(source)
    table, index = source.memory.layout.table(), np.arange(2)
    at = np.array([address_of(p)[0] for p in payload], dtype=np.uint64)
    jobs = np.concatenate([good_job(source, p) for p in payload])
    raw, flat = kernels._raw, np.ascontiguousarray(sums.reshape(-1))
    good = {
        "pack": [*raw(table), *raw(source.memory.addresses), *raw(index), *raw(at), *raw(sums), 1],
        "unpack": [*raw(jobs), *raw(table), *raw(source.memory.addresses), *raw(flat), 0, 2, 0, 4, source.geometry.cell_bytes, 1],
        "verify": [*raw(jobs), *raw(flat), source.geometry.cell_bytes, 1],
        "sums": [*raw(at), 2, 4, source.geometry.cell_bytes, *raw(flat), 1],
    }
    # A table whose length nothing else says is as long as it says: only lengths that are no whole number of items are wrong.
    own_length = {("pack", 3), ("unpack", 1), ("unpack", 5), ("unpack", 7), ("verify", 1), ("verify", 3)}
    exact = {("pack", i) for i in (1, 5, 7, 9)} | {("unpack", i) for i in (3, 8, 9, 10, 11, 12)} | {("sums", i) for i in (1, 6)}
    fine = {("unpack", 8, 0), ("unpack", 10, 0), ("verify", 4, 1 << 40)}  # where the view begins; the largest cell
    for name, args in good.items():
        call = getattr(NATIVE, name)
        call(*args)
        for i, right in enumerate(args):
            wrongs = [-1, 1 << 64, (1 << 64) - 1, "x", None, 1.5]
            if (name, i) in own_length:
                wrongs += [right + 1]
            elif right < 1 << 32:  # not an address: one that is plausible cannot be told from the right one
                wrongs += [0, 1 << 40, (1 << 63) + 1] + ([right + 1] if (name, i) in exact else [])
            else:
                wrongs += [0, 8]
            for wrong in wrongs:
                if wrong == right or (name, i, wrong) in fine:
                    continue
                with pytest.raises((ValueError, TypeError)):
                    call(*args[:i], wrong, *args[i + 1 :])
                    pytest.fail(f"{name}, argument {i}: {wrong}")
        for n in range(len(args)):
            with pytest.raises(TypeError):
                call(*args[:n])
    rows = table.copy()
    for r in range(rows.shape[0]):
        for c in range(4):
            for wrong in (0, -1, 1 << 62, int(table[r, c]) + 1):
                if r == 1 or wrong == table[r, c] or r > 1 and c == 1 and 0 <= wrong < 1 << 44 or r > 1 and c == 2 and 64 <= wrong < 1 << 44:
                    continue
                if r > 1 and c == 2 and wrong >= table[r, 0]:
                    continue
                rows[...] = table
                rows[r, c] = wrong
                with pytest.raises(ValueError):
                    NATIVE.pack(*raw(rows), *good["pack"][2:])
                    pytest.fail(f"layout row {r}, column {c}: {wrong}")
    with pytest.raises(ValueError):
        NATIVE.use("mmx")
    with pytest.raises(TypeError):
        NATIVE.use(1)


@pytest.mark.skipif(NATIVE is None, reason=f"no native module: {kernels.why_not}")
def test_calls_run_without_the_interpreter_lock():
    """Two threads call at once and another one runs Python meanwhile: all of them get on."""
    source = engine("ptlh", 16, View(0, 4, 0, 16), 4, 16, 16, (128, 128), random.Random(3))
    want, done, counted = source.head_major(), threading.Event(), [0]

    def count():
        while not done.is_set():
            counted[0] += 1

    def work(out):
        for _ in range(20):
            got, _ = pack_all(source, threads=2)
            out.append(np.array_equal(got, want))

    results = [[], []]
    spinner = threading.Thread(target=count)
    workers = [threading.Thread(target=work, args=(r,)) for r in results]
    spinner.start()
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    done.set()
    spinner.join()
    assert results == [[True] * 20] * 2 and counted[0] > 0


def test_large_batches_go_past_the_caches_with_equal_results(isa):
    """Above the bound the stores are others: aligned and not, both ways."""
    source = engine("ptlh", 2, View(0, 8, 0, 32), 8, 32, 16, (256, 256), random.Random(3))
    want = source.head_major()
    for skew in (0, 32, 3):
        got, sums = pack_all(source, [0, 1], skew)
        assert np.array_equal(got, want)
        target = engine("lpth", 2, View(0, 8, 0, 32), 8, 32, 16, (256, 256), None)
        jobs = np.concatenate([good_job(source, p) for p in got])
        jobs["page"], jobs["first_sum"] = [0, 1], [0, sums.shape[1]]
        kernels.unpack(jobs, target.memory, source.geometry, source.view, sums.reshape(-1), threads=2)
        assert not jobs["status"].any() and np.array_equal(target.head_major(), want)


def test_flat_memory_round_trips(isa):
    g = Geometry(bytes(32), "full", 4, 3, 5, 70_000, "whole", 32)
    rng = np.random.default_rng(5)
    a, b = rng.integers(0, 256, (2, g.page_bytes), dtype=np.uint8), np.zeros((2, g.page_bytes), np.uint8)
    out = np.zeros_like(a)
    at = np.array([address_of(o)[0] for o in out], np.uint64)
    sums = kernels.pack(PageMemory.flat(list(a), g, g.whole), [0, 1], g, g.whole, at)
    assert np.array_equal(a, out)
    jobs = np.zeros(2, UNPACK)
    jobs["src"], jobs["bytes"], jobs["page"], jobs["eh1"], jobs["el1"] = at, g.page_bytes, [0, 1], 3, 5
    jobs["first_sum"] = [0, sums.shape[1]]
    kernels.unpack(jobs, PageMemory.flat(list(b), g, g.whole), g, g.whole, sums.reshape(-1))
    assert not jobs["status"].any() and np.array_equal(a, b)


def test_nothing_to_do(isa):
    source = engine("ptlh", 1, View(0, 1, 0, 1), 1, 1, 1, (64,), random.Random(3))
    none = np.zeros(0, np.uint64)
    assert kernels.pack(source.memory, [], source.geometry, source.view, none).shape == (0, 1)
    kernels.unpack(np.zeros(0, UNPACK), source.memory, source.geometry, source.view, none)
    kernels.verify(np.zeros(0, UNPACK), source.geometry, none)
    job = good_job(source, np.zeros(64, np.uint8))
    job["bytes"] = 0
    kernels.unpack(job, source.memory, source.geometry, source.view, np.zeros(1, np.uint64))
    assert job["status"][0] == OK


def test_the_environment_can_force_numpy():
    code = "from quire_kv import kernels; print(kernels.NATIVE, kernels.instruction_set(), kernels.why_not)"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "QUIRE_KV_NATIVE": "0"}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "numpy", "QUIRE_KV_NATIVE=0"]

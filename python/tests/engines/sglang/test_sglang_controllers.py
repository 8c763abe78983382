"""SGLang's real controllers, pools and backend factory over a real server: every layout, ranks, faults and refusals."""

from __future__ import annotations

import argparse
import json
import logging
import pathlib
import re
import threading
import time

import pytest
import serving

pytest.importorskip("sglang", reason="sglang is not installed in this environment")

import sglang_controllers as c
import torch
from doubles.chaos import Chaos
from doubles.faults import Fault
from sglang.srt.server_args import prepare_server_args

import quire_kv

pytestmark = [pytest.mark.sglang, pytest.mark.limit(180)]

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")


def stored(server) -> tuple[int, int]:
    """Namespaces and pages that the server has."""
    models = json.loads(server.run("ns", "list", "-o", "json").stdout)["models"]
    spaces = [n for m in models for r in m["revisions"] for n in r["namespaces"]]
    return len(spaces), sum(int(s["pages"]) for s in spaces)


def lines(caplog) -> int:
    """Errors that ours wrote, once there is one: the cache's own thread writes it."""
    deadline = time.monotonic() + 10
    while not (ours := [r for r in caplog.records if r.name == "quire_kv.sglang" and r.levelno >= logging.ERROR]) and time.monotonic() < deadline:
        time.sleep(0.01)
    return len(ours)


@pytest.mark.parametrize("generic", [False, True], ids=["zero copy", "generic"])
@pytest.mark.parametrize("hybrid", [True, False], ids=["hybrid", "base"])
@pytest.mark.parametrize(("kind", "layout"), [("llama", x) for x in LAYOUTS] + [("deepseek", x) for x in LAYOUTS[:3]])
def test_every_layout_comes_back_byte_for_byte(request, quire_server, digests, ranks, kind, layout, hybrid, generic):
    folder, config = request.getfixturevalue(kind)
    c.run_as(folder)
    rank = ranks(config, layout, c.settings_of(quire_server, digests(folder)), hybrid=hybrid, generic=generic)
    rank.ready()
    tokens, slots = c.tokens(300), rank.host.alloc(300 * c.PAGE)
    rank.fill(slots, 7)
    want = rank.read(slots)
    assert rank.backup(slots, tokens) == 300
    rank.host.free(slots)
    rank.host.kv_buffer.zero_()
    assert rank.host.alloc(5 * c.PAGE) is not None  # pages come to lie elsewhere
    found, loaded, at = rank.prefetch(tokens)
    assert (found, loaded) == (300, 300) and c.same(want, rank.read(at))
    assert quire_server.read_counter() == 300 * rank.host.size_per_token * c.PAGE
    stats = rank.backend.cache.stats()
    assert stats["lookups"] == (1 if hybrid else 3) and stats["hits"] == 300 == stats["saved_pages"]


@pytest.mark.parametrize("kind", ["llama", "deepseek"])
def test_layouts_share_one_copy(request, quire_server, digests, ranks, kind):
    folder, config = request.getfixturevalue(kind)
    c.run_as(folder)
    settings = c.settings_of(quire_server, digests(folder))
    tokens = c.tokens(40)
    writer = ranks(config, "page_first", settings)
    writer.ready()
    slots = writer.host.alloc(40 * c.PAGE)
    writer.fill(slots, 1)
    assert writer.backup(slots, tokens) == 40
    for layout in LAYOUTS[: 4 if kind == "llama" else 3]:
        for generic in (False, True):
            reader = ranks(config, layout, settings, generic=generic)
            reader.ready()
            found, loaded, at = reader.prefetch(tokens)
            assert (found, loaded) == (40, 40) and c.same(reader.read(at), writer.read(slots)), (layout, generic)
    assert stored(quire_server) == (1, 40)


@pytest.mark.parametrize("backend", ["file", "quire"])
def test_side_by_side_another_layout_of_the_same_pages(quire_server, digests, ranks, llama, tmp_path, backend):
    """Upstream's file backend serves the bytes of one layout to another: a hit, and wrong. Quire permutes them."""
    folder, config = llama
    c.run_as(folder)
    how = {"backend": "file"} if backend == "file" else {}
    settings = {"file_storage_path": str(tmp_path)} if backend == "file" else c.settings_of(quire_server, digests(folder))
    tokens = c.tokens(8)
    ours = [ranks(config, layout, settings, **how) for layout in ("page_first", "page_head")]
    for rank in ours if backend == "quire" else ():
        rank.ready()
    slots = ours[0].host.alloc(8 * c.PAGE)
    ours[0].fill(slots, 3)
    assert ours[0].backup(slots, tokens) == 8
    found, loaded, at = ours[1].prefetch(tokens)
    assert (found, loaded) == (8, 8)
    assert c.same(ours[1].read(at), ours[0].read(slots)) == (backend == "quire")


@pytest.mark.parametrize(("writers", "readers"), [(2, 1), (1, 2)])
def test_side_by_side_tensor_parallel_sizes_share(quire_server, digests, ranks, llama, tmp_path, writers, readers):
    """Each size stores files of its own in the file backend; in Quire they are views of one copy."""
    folder, config = llama
    settings = c.settings_of(quire_server, digests(folder))
    tokens, whole = c.tokens(10), (2, 3, c.PAGE, 2, 8)

    def heads(rank: int, size: int) -> slice:
        return slice(2 * rank // size, 2 * (rank + 1) // size)

    for r in range(writers):
        c.run_as(folder, tp_rank=r, tp_size=writers)
        for where in (settings, {"file_storage_path": str(tmp_path)}):
            writer = ranks(config, "page_first", where, heads=2 // writers, backend="dynamic" if where is settings else "file")
            if where is settings:
                writer.ready()
            slots = writer.host.alloc(10 * c.PAGE)
            writer.fill(slots, 9, heads(r, writers), shape=whole)
            assert writer.backup(slots, tokens) == 10
    for r in range(readers):
        c.run_as(folder, tp_rank=r, tp_size=readers)
        other = ranks(config, "page_first", {"file_storage_path": str(tmp_path)}, heads=2 // readers, backend="file")
        assert other.prefetch(tokens)[0] == 0
        reader = ranks(config, "page_head", settings, heads=2 // readers)
        reader.ready()
        found, loaded, at = reader.prefetch(tokens)
        assert (found, loaded) == (10, 10)
        want = reader.host.alloc(10 * c.PAGE)
        reader.fill(want, 9, heads(r, readers), shape=whole)
        assert c.same(reader.read(at), reader.read(want))


def test_pipeline_ranks_are_views_of_layers(quire_server, digests, ranks, llama):
    folder, config = llama
    settings = c.settings_of(quire_server, digests(folder))
    tokens, whole = c.tokens(10), (2, 3, c.PAGE, 2, 8)
    for r, part in enumerate([(0, 1), (1, 3)]):
        c.run_as(folder, pp_rank=r, pp_size=2)
        writer = ranks(config, "page_first_direct", settings, layers=part)
        writer.ready()
        slots = writer.host.alloc(10 * c.PAGE)
        writer.fill(slots, 2, layers=slice(*part), shape=whole)
        assert writer.backup(slots, tokens) == 10
        c.run_as(folder)
        reader = ranks(config, "layer_first", settings)
        reader.ready()
        found, loaded, at = reader.prefetch(tokens)
        assert (found, loaded) == ((10, 10) if r else (0, 0))
    want = reader.host.alloc(10 * c.PAGE)
    reader.fill(want, 2)
    assert c.same(reader.read(at), reader.read(want))


def test_prefix_keys_link_pages(quire_server, digests, ranks, llama):
    folder, config = llama
    c.run_as(folder)
    rank = ranks(config, "page_first", c.settings_of(quire_server, digests(folder)))
    rank.ready()
    slots = rank.host.alloc(200 * c.PAGE)
    tokens = c.tokens(200)
    keys = c.get_hash_str(tokens, page_size=c.PAGE)
    assert rank.backup(slots, tokens, prefix=[]) == 200
    space = rank.backend.cache.session.namespace.hex()
    for i in (1, 128, 199):  # also over the border of two batches
        shown = json.loads(quire_server.run("page", "explain", space, keys[i], "-o", "json").stdout)
        assert shown["parent_hash"] == keys[i - 1] and shown["depth"] == i


# -- faults ------------------------------------------------------------------------------------------------------


def written(rank: c.Rank, pages: int = 40) -> tuple[list[int], list[torch.Tensor]]:
    tokens, slots = c.tokens(pages), rank.host.alloc(pages * c.PAGE)
    rank.fill(slots, 11)
    want = rank.read(slots)
    assert rank.backup(slots, tokens) == pages
    rank.host.free(slots)
    return tokens, want


def test_case_c43_the_engine_does_not_need_the_store(quire_server, digests, ranks, llama):
    """Absent at the start, stopped, frozen, back again: no thread dies, and what is there then is right."""
    folder, config = llama
    c.run_as(folder)
    quire_server.kill()
    rank = ranks(config, "page_first", c.settings_of(quire_server, digests(folder), lookup_timeout_ms=2000))
    tokens, slots = c.tokens(40), rank.host.alloc(40 * c.PAGE)
    assert rank.backup(slots, tokens) == 0 and rank.prefetch(tokens)[0] == 0
    quire_server.start()
    rank.ready()
    tokens, want = written(rank)
    quire_server.pause()
    assert rank.prefetch(tokens, "frozen")[0] == 0
    assert rank.prefetch(tokens, "open breaker")[0] == 0
    quire_server.resume()
    rank.ready()
    found, loaded, at = rank.prefetch(tokens, "thawed")
    assert (found, loaded) == (40, 40) and c.same(rank.read(at), want)
    quire_server.kill()
    assert rank.prefetch(tokens, "killed")[1] == 0 and rank.backup(slots, tokens) == 0
    assert rank.alive()


@pytest.mark.parametrize(
    "fault",
    [Fault(what) for what in ("garbage", "empty", "fewer", "more", "out_of_range", "twice", "flip", "cut", "close", "hang")]
    + [Fault("code", number=code) for code in (1, 4, 5, 8, 13, 14, 16)],
    ids=lambda f: f"{f.what}{f.number or ''}",
)  # fmt: skip
def test_case_c42_whatever_the_store_answers_is_a_miss_or_right(quire_server, digests, ranks, llama, fault):
    folder, config = llama
    c.run_as(folder)
    with Chaos(quire_server) as chaos:
        settings = c.settings_of(chaos, digests(folder), lookup_timeout_ms=2000, load_timeout_ms=2000, transport="data")
        rank = ranks(config, "page_first", settings)
        rank.ready()
        tokens, want = written(rank)
        chaos.fault = fault
        for i in range(3):
            found, loaded, at = rank.prefetch(tokens, f"fault {i}")
            assert 0 <= loaded <= found <= 40
            if at is not None:
                assert c.same(rank.read(at[: loaded * c.PAGE]), want[:loaded]) or loaded == 0
                rank.host.free(at)
        more = rank.host.alloc(4 * c.PAGE)
        assert rank.backup(more, c.tokens(4, first=50_000)) in (0, 4)
        chaos.fault = None
        rank.ready()
        deadline = time.monotonic() + 20  # a page whose load failed is left alone for some seconds
        while rank.prefetch(tokens, "sound")[1] < 40:
            assert time.monotonic() < deadline, rank.backend.state
            time.sleep(0.2)
        assert rank.alive()


def test_case_c49_clear_hides_from_this_engine_only(quire_server, digests, ranks, llama):
    folder, config = llama
    c.run_as(folder)
    settings = c.settings_of(quire_server, digests(folder))
    one, other = ranks(config, "page_first", settings), ranks(config, "page_head", settings)
    one.ready()
    other.ready()
    tokens, want = written(one)
    threads = [threading.Thread(target=one.controller.clear_storage_backend) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert one.prefetch(tokens)[0] == 0
    found, loaded, at = other.prefetch(tokens)
    assert (found, loaded) == (40, 40) and c.same(other.read(at), want)
    written(one)
    assert one.prefetch(tokens, "stored again")[0] == 40


def test_detach_with_a_call_in_flight(quire_server, digests, ranks, llama):
    """The engine gives its threads ten seconds; ours end by their deadline, and close within one."""
    folder, config = llama
    c.run_as(folder)
    rank = ranks(config, "page_first", c.settings_of(quire_server, digests(folder), load_timeout_ms=3000))
    rank.ready()
    tokens, _ = written(rank)
    op = rank.look_up(tokens, "hangs")
    assert op.storage_hit_count == 40 * c.PAGE
    quire_server.pause()
    rank.load(op)
    rank.close()
    quire_server.resume()
    assert rank.controller.storage_backend is None


@pytest.mark.parametrize("size", [{"attn_dcp_size": 2}, {"attn_cp_size": 2}], ids=["decode", "attention"])
def test_case_c70_token_sliced_ranks_are_refused(quire_server, digests, ranks, llama, caplog, monkeypatch, size):
    """By the engine itself for decode, by us for attention: in either case nothing is ever stored."""
    folder, config = llama
    c.run_as(folder)
    if "attn_cp_size" in size:
        monkeypatch.setattr(c.HybridCacheController, "get_attn_cp_rank_and_size", lambda self: (0, 2))
        with caplog.at_level(logging.ERROR, "quire_kv.sglang"):
            rank = ranks(config, "page_first", c.settings_of(quire_server, digests(folder)))
        assert "context parallelism" in rank.backend.state and lines(caplog) == 1
        slots = rank.host.alloc(4 * c.PAGE)
        assert rank.backup(slots, c.tokens(4)) == 0 and rank.prefetch(c.tokens(4))[0] == 0
    else:
        c.get_parallel()._overrides.update(size)
        with pytest.raises(NotImplementedError, match="DCP"):
            ranks(config, "page_first", c.settings_of(quire_server, digests(folder)))


@pytest.mark.parametrize("layout", ["page_unified"])
def test_layouts_that_are_not_known_are_refused(quire_server, digests, ranks, llama, caplog, layout):
    folder, config = llama
    c.run_as(folder)
    with caplog.at_level(logging.ERROR, "quire_kv.sglang"):
        rank = ranks(config, layout, c.settings_of(quire_server, digests(folder)))
    assert rank.backend.state.startswith("off: host layout") and rank.prefetch(c.tokens(4))[0] == 0


def test_a_folder_that_is_not_the_digested_one_is_refused(quire_server, digests, ranks, llama, deepseek, caplog):
    folder, config = llama
    c.run_as(folder)
    with caplog.at_level(logging.ERROR, "quire_kv.sglang"):
        rank = ranks(config, "page_first", c.settings_of(quire_server, digests(deepseek[0])))
        assert not rank.backend.cache.wait_ready(30)
    assert "off: " in rank.backend.cache.state and lines(caplog) == 1
    assert rank.prefetch(c.tokens(4))[0] == 0


# -- the hash contract -------------------------------------------------------------------------------------------


def seeds():
    import hashlib

    def words(tokens):
        return b"".join(int(t).to_bytes(4, "little") for t in tokens)

    def paged(link):
        def get_hash_str(tokens, prior_hash=None, page_size=None):
            tokens, out, prior = list(tokens), [], prior_hash or ""
            for at in range(0, len(tokens), page_size or len(tokens)):
                prior = link(tokens[at : at + (page_size or len(tokens))], prior)
                out.append(prior)
            return out if page_size else out[-1]

        return get_hash_str

    return {
        "root seed": paged(lambda t, p: hashlib.sha256(bytes.fromhex(p) + words(t) if p else b"seed" + words(t)).hexdigest()),
        "big endian": paged(lambda t, p: hashlib.sha256(bytes.fromhex(p) + b"".join(int(x).to_bytes(4, "big") for x in t)).hexdigest()),
        "wide tokens": paged(lambda t, p: hashlib.sha256(bytes.fromhex(p) + b"".join(int(x).to_bytes(8, "little") for x in t)).hexdigest()),
        "prior as text": paged(lambda t, p: hashlib.sha256(p.encode() + words(t)).hexdigest()),
        "another algorithm": paged(lambda t, p: hashlib.blake2s(bytes.fromhex(p) + words(t)).hexdigest()),
    }


@pytest.mark.parametrize("kind", ["root seed", "big endian", "wide tokens", "prior as text", "another algorithm"])
def test_case_c72_another_hash_is_loud_at_start(quire_server, digests, ranks, llama, caplog, monkeypatch, kind):
    """An engine that hashes in another way finds out in the first second, not by a hit rate of nothing."""
    folder, config = llama
    c.run_as(folder)
    settings = c.settings_of(quire_server, digests(folder))
    ranks(config, "page_first", settings).ready()
    monkeypatch.setattr("sglang.srt.mem_cache.utils.get_hash_str", seeds()[kind])
    with caplog.at_level(logging.ERROR, "quire_kv.sglang"):
        other = ranks(config, "page_first", settings)
        assert not other.backend.cache.wait_ready(30)
    assert "hash_contract_fork" in other.backend.state and "hash.probe" in other.backend.state
    assert lines(caplog) == 1


def test_the_launch_command_of_the_page_is_the_engines(llama, tmp_path, monkeypatch):
    """Every flag of docs/engines/sglang.md is one of the installed version, and its file is read by its own parser."""
    page = (serving.ROOT / "docs" / "engines" / "sglang.md").read_text()
    command = page[page.index("python3 -m sglang.launch_server") :].split("```")[0].replace("\\\n", " ").replace('"$MODEL"', str(llama[0]))
    (tmp_path / "quire.json").write_text((serving.ROOT / "python" / "examples" / "sglang.json").read_text())
    monkeypatch.chdir(tmp_path)
    args = prepare_server_args(command.split()[3:] + ["--device", "cpu", "--attention-backend", "torch_native"])
    settings, *_, pass_prefix = c.HybridCacheController.parse_storage_backend_extra_config(args.hicache_storage_backend_extra_config)
    assert args.hicache_storage_backend == "dynamic" and pass_prefix
    assert settings["class_name"] == "QuireHiCache" and settings["interface_v1"] == 1


def test_flags_that_refusals_name_are_the_engines():
    parser = argparse.ArgumentParser()
    c.ServerArgs.add_cli_args(parser)
    known = {option for action in parser._actions for option in action.option_strings}
    sources = [*(pathlib.Path(quire_kv.__file__).parent / "sglang").glob("*.py"), serving.ROOT / "docs" / "engines" / "sglang.md"]
    named = {flag for file in sources for flag in re.findall(r"--[a-z][a-z-]+", file.read_text())}
    assert len(named) > 10 and named - {"--model"} <= known  # --model is of `quire model digest`

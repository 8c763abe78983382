"""LMCache's own StorageManager, L1 and controllers over the plug-in and a real server. No engine: its side is played through L1."""

from __future__ import annotations

import json
import os

import pytest

pytestmark = pytest.mark.lmcache
pytest.importorskip("lmcache")

import torch  # noqa: E402
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec  # noqa: E402
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig  # noqa: E402
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig  # noqa: E402
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig  # noqa: E402
from lmcache.v1.distributed.storage_manager import StorageManager  # noqa: E402
from lmcache.v1.multiprocess.token_hasher import TokenHasher  # noqa: E402
from lmcache_rows import CHUNK, row  # noqa: E402
from tinymodel import HEADS, LAYERS, WIDTH  # noqa: E402
from waiting import PATIENT, wait_for  # noqa: E402


class Node:
    """A storage manager with the plug-in: what `lmcache server` makes of `--l2-adapter`."""

    def __init__(self, server: str, models: dict, **settings) -> None:
        params = {"server": server, "models": models, **PATIENT, **settings}
        plug = PluginL2AdapterConfig.from_dict({"module_path": "quire_kv.lmcache", "class_name": "QuireL2Adapter", "adapter_params": params})
        self.manager = StorageManager(
            StorageManagerConfig(
                l1_manager_config=L1ManagerConfig(L1MemoryManagerConfig(64 << 20, False, shm_name="")), eviction_config=EvictionConfig("LRU"),
                l2_adapter_config=L2AdaptersConfig([plug]),
            )
        )  # fmt: skip
        self.adapter = next(iter(self.manager._l2_adapters.values()))
        self.offered = 0  # keys that the store controller has handed on
        submit = self.adapter.submit_store_task

        def submit_store_task(keys, objects):
            task = submit(keys, objects)
            self.offered += len(keys)
            return task

        self.adapter.submit_store_task = submit_store_task

    def ready(self) -> None:
        wait_for(lambda: all(m["state"] == "ready" for m in self.status()["models"].values()), 20)

    def status(self) -> dict:
        return self.adapter.report_status()

    def write(self, keys, layout, fill) -> dict:
        """Fills L1 objects and waits until the store controller is through with them."""
        objects = self.manager.reserve_write(keys, layout)
        want = {}
        for i, (key, o) in enumerate(objects.items()):
            want[key] = fill(i, key, o.get_size())
            memoryview(o.byte_array).cast("B")[: o.get_size()] = want[key]
        before = self.offered
        self.manager.finish_write(list(objects))
        wait_for(lambda: self.offered == before + len(objects), 20)  # its thread finds them some time later: nothing is pending until then
        stores = self.manager.report_status
        wait_for(lambda: stores()["store_controller"]["in_flight_task_count"] == 0 and stores()["store_controller"]["pending_keys_count"] == 0, 20)
        wait_for(lambda: not any(self.status()["queued"].values()), 20)
        wait_for(lambda: stores()["store_controller"]["in_flight_task_count"] == 0, 20)
        return want

    def forget(self, keys) -> None:
        """Out of L1; what a controller still holds is let go of first."""
        wait_for(lambda: self.manager.delete_l1_keys(keys)[1] == 0, 20)

    def fetch(self, rows, layout) -> tuple[list[bool], dict]:
        """One prefetch of rows of keys, one a rank: chunks that all rows have, and the bytes of each key of them."""
        handle = self.manager.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(keys, 0, layout) for keys in rows]))
        assert self.manager.wait_prefetch_status(handle, 20), "the request waits for ever"
        result = self.manager.query_prefetch_status(handle)
        hit = [all(cells.test(i) for cells in result.hit_cells) for i in range(len(rows[0]))]
        good = [keys[i] for keys in rows for i in range(len(keys)) if hit[i]]
        got = {}
        if good:
            with self.manager.read_prefetched_results(good, result.l1_owners) as objects:
                for key, o in zip(good, objects, strict=True):
                    got[key] = bytes(memoryview(o.byte_array).cast("B")[: o.get_size()])
            self.manager.finish_read_prefetched(good, 1, result.l1_owners)
        return hit, got

    def close(self) -> None:
        self.manager.close()


def keys_of(model, chunks, rank=0, world=1, salt=""):
    hasher = TokenHasher(CHUNK, "blake3")
    tokens = list(range(1, CHUNK * chunks + 1))
    return [ObjectKey(h, model, ObjectKey.ComputeKVRank(world, rank, world, rank), 0, salt) for h in hasher.compute_chunk_hashes(tokens)]


def layout_of(tp=1):
    return MemoryLayoutDesc([torch.Size([2, LAYERS, CHUNK, HEADS // tp * WIDTH])], [torch.bfloat16])


def noise(i, key, size):
    return os.urandom(size)


@pytest.fixture
def node(request):
    made = []

    def make(*args, **settings):
        made.append(Node(*args, **settings))
        made[-1].ready()
        return made[-1]

    yield make
    for n in made:
        n.close()


def leases(server) -> int:
    return int(server.metric("quire_read_leases"))


def test_round_trip_and_locks(quire_bin, quire_server, node, tmp_path):
    n = node(quire_server.address, {"org/m": row(quire_bin, tmp_path, "org/m")})
    keys, layout = keys_of("org/m", 6), layout_of()
    want = n.write(keys, layout, noise)
    n.forget(keys)
    before = quire_server.read_counter()
    hit, got = n.fetch([keys], layout)
    assert hit == [True] * 6 and got == want
    assert quire_server.read_counter() - before == sum(len(v) for v in want.values())
    wait_for(lambda: leases(quire_server) == 0)
    n.write(keys[:2], layout, noise)  # again, with other bytes: the first stays
    n.forget(keys)
    assert n.fetch([keys], layout)[1] == want
    status = n.manager.report_status()
    assert status["is_healthy"] and status["prefetch_controller"]["thread_alive"]
    listed = json.loads(quire_server.run("ns", "list", "-o", "json").stdout)
    assert "org/m" in json.dumps(listed)


def test_case_c21_a_lookup_without_a_load_gives_its_leases_back(quire_bin, quire_server, node, tmp_path):
    n = node(quire_server.address, {"org/m": row(quire_bin, tmp_path, "org/m")}, lease_seconds=5)  # longer than a busy machine takes to be asked
    keys, layout = keys_of("org/m", 4), layout_of()
    n.write(keys, layout, noise)
    task = n.adapter.submit_lookup_and_lock_task(keys, {0: layout})
    bits = wait_for(lambda: n.adapter.query_lookup_and_lock_result(task))
    assert bits.popcount() == 4 and n.adapter.query_lookup_and_lock_result(task) is None
    assert leases(quire_server) == 1
    wait_for(lambda: leases(quire_server) == 0, 20)


def test_a_hole_and_a_page_that_is_gone(quire_bin, quire_server, node, tmp_path):
    n = node(quire_server.address, {"org/m": row(quire_bin, tmp_path, "org/m")})
    keys, layout = keys_of("org/m", 6), layout_of()
    want = n.write(keys[:3] + keys[4:], layout, noise)
    n.forget(keys[:3] + keys[4:])
    hit, got = n.fetch([keys], layout)
    assert hit == [True] * 3 + [False] * 3 and got == {k: want[k] for k in keys[:3]}
    wait_for(lambda: leases(quire_server) == 0)


def test_case_c40_written_by_two_ranks_read_by_one_and_by_four(quire_bin, quire_server, node, tmp_path):
    base = row(quire_bin, tmp_path, "org/m")
    a = node(quire_server.address, {"org/m": {**base, "tp": 2}})
    page = [torch.arange(2 * LAYERS * CHUNK * HEADS * WIDTH, dtype=torch.int32).add(i).to(torch.int16).view(2, LAYERS, CHUNK, HEADS, WIDTH) for i in range(3)]

    def part(i, tp, rank):
        each = HEADS // tp
        return page[i][:, :, :, rank * each : (rank + 1) * each].contiguous().numpy().tobytes()

    for rank in range(2):
        a.write(keys_of("org/m", 3, rank, 2), layout_of(2), lambda i, key, size, rank=rank: part(i, 2, rank))
    for tp in (1, 4):
        b = node(quire_server.address, {"org/m": {**base, "tp": tp}})
        rows = [keys_of("org/m", 3, rank, tp) for rank in range(tp)]
        hit, got = b.fetch(rows, layout_of(tp))
        assert hit == [True] * 3
        for rank in range(tp):
            assert [got[k] for k in rows[rank]] == [part(i, tp, rank) for i in range(3)]
    assert quire_server.metric("quire_pages") == 3  # one stored copy


def test_case_c74_two_models_of_equal_shapes(quire_bin, quire_server, node, tmp_path):
    models = {name: row(quire_bin, tmp_path, name, seed) for seed, name in enumerate(("org/m", "org/n"), 1)}
    n = node(quire_server.address, models)
    layout = layout_of()
    want = {name: n.write(keys_of(name, 2), layout, noise) for name in models}
    lost = keys_of("org/undeclared", 2)
    n.write(lost, layout, noise)
    for name in (*models, "org/undeclared"):
        n.forget(keys_of(name, 2))
    for name in models:
        hit, got = n.fetch([keys_of(name, 2)], layout)
        assert hit == [True, True] and got == want[name]
    assert n.fetch([lost], layout)[0] == [False, False]
    more = keys_of("org/m", 2, salt="tenant")
    assert n.fetch([more], layout)[0] == [False, False]
    assert quire_server.metric("quire_pages") == 4


def test_case_c43_the_store_dies_and_comes_back(quire_bin, quire_server, node, tmp_path):
    n = node(quire_server.address, {"org/m": row(quire_bin, tmp_path, "org/m")})
    keys, layout = keys_of("org/m", 3), layout_of()
    n.write(keys, layout, noise)
    n.forget(keys)
    quire_server.kill()
    for _ in range(3):
        assert n.fetch([keys], layout)[0] == [False] * 3
    n.write(keys_of("org/m", 3, salt="x"), layout, noise)  # refused, and L1 lets go of it
    n.forget(keys_of("org/m", 3, salt="x"))
    assert n.manager.report_status()["prefetch_controller"]["thread_alive"]
    quire_server.start()
    n.ready()
    want = n.write(keys, layout, noise)
    n.forget(keys)
    hit, got = n.fetch([keys], layout)
    assert hit == [True] * 3 and got == want


def test_a_folder_that_is_not_the_digests_is_one_line_and_a_miss(quire_bin, quire_server, tmp_path, caplog):
    spoiled = row(quire_bin, tmp_path, "org/m")
    weights = tmp_path / "org_m" / "model.safetensors"
    whole = weights.read_bytes()
    data = 8 + int.from_bytes(whole[:8], "little")
    weights.write_bytes(whole[:data] + bytes(b ^ 1 for b in whole[data:]))  # a start looks at one block of each tensor, drawn at random
    n = Node(quire_server.address, {"org/m": spoiled})
    try:
        wait_for(lambda: n.status()["models"]["org/m"]["state"].startswith("off"), 20)
        assert "model.safetensors" in n.status()["models"]["org/m"]["state"]
        assert n.fetch([keys_of("org/m", 1)], layout_of())[0] == [False]
        assert n.status()["is_healthy"]
    finally:
        n.close()


@pytest.mark.parametrize("algorithm", ["sha256_cbor", "builtin", "no-such"])
def test_an_algorithm_that_falls_back_to_hash_is_refused(quire_bin, quire_server, tmp_path, algorithm):
    """vLLM is not importable here: LMCache itself would go on with Python's hash()."""
    n = Node(quire_server.address, {"org/m": row(quire_bin, tmp_path, "org/m", hash_algorithm=algorithm)})
    try:
        wait_for(lambda: n.status()["models"]["org/m"]["state"].startswith("off"), 20)
        assert "--hash-algorithm blake3" in n.status()["models"]["org/m"]["state"]
    finally:
        n.close()

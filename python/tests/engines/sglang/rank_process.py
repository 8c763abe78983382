"""One of two ranks over gloo, with the real controller: main(RANK, INIT_FILE, CHECKPOINT, SETTINGS).

Prints one line of JSON a step: what the rank found and loaded after the ranks agreed.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import sglang_checkpoints as checkpoints
import sglang_controllers as c
import torch.distributed as dist

PAGES = 300


def main(number: str, meeting: str, folder: str, given: str) -> None:
    rank, settings = int(number), json.loads(given)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    group = dist.new_group([0, 1], backend="gloo")
    c.run_as(pathlib.Path(folder), tp_rank=rank, tp_size=2)
    ours = c.Rank({**checkpoints.LLAMA, "head_dim": 8}, "page_first" if rank else "page_head", settings, heads=1, tp_group=group)
    ours.ready()
    tokens, slots = c.tokens(PAGES), ours.host.alloc(PAGES * c.PAGE)
    ours.fill(slots, 7 + rank)
    want = ours.read(slots)
    keys = [bytes.fromhex(k) for k in c.get_hash_str(tokens, page_size=c.PAGE)]
    cache = ours.backend.cache
    sound = {name: getattr(cache, name) for name in ("lookup", "load")}

    def step(name: str) -> None:
        dist.barrier(group)
        found, loaded, at = ours.prefetch(tokens, name)
        right = at is None or c.same(ours.read(at)[:loaded], want[:loaded]) or loaded == 0
        if at is not None:
            ours.host.free(at)
        print(json.dumps({"step": name, "found": found, "loaded": loaded, "right": right, "alive": ours.alive()}), flush=True)

    def broken(name: str, answer: Any) -> None:
        if rank == 1:
            setattr(cache, name, answer)

    assert ours.backup(slots, tokens) == PAGES
    step("sound")
    broken("lookup", lambda k, **how: sound["lookup"](k[:5], **how))
    step("one rank finds five")
    broken("lookup", lambda *_, **__: 1 / 0)
    step("one rank's lookup fails")
    broken("lookup", sound["lookup"])
    broken("load", lambda k, m, **how: [ok and x != keys[150] for ok, x in zip(sound["load"](k, m, **how), k, strict=True)])
    step("one rank loses page 150")
    broken("load", lambda *_, **__: 1 / 0)
    step("one rank's load fails")
    broken("load", sound["load"])
    step("sound again")
    if rank == 1:
        cache.invalidate("a test")
    step("one rank is off")
    dist.barrier(group)
    ours.close()
    dist.destroy_process_group()

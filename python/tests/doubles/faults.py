"""What a store can do wrong, apart from how it is brought to do so (chaos.py).

A Fault says what is done to the calls of some methods; `spoil` does to one message of an answer what a fault says.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from quire_kv import proto
from quire_kv.errors import Reason

STATUS_CODES = range(1, 17)  # every code of gRPC that is not OK

ANSWERS = ("garbage", "empty", "fewer", "more", "out_of_range", "twice", "flip")  # wrong messages, on a sound connection
ENDINGS = ("cut", "close", "hang")  # answers that stop: ended as if whole, with the connection, or never
FAULTS = (*ANSWERS, *ENDINGS, "slow", "code", "reason")


@dataclass(frozen=True)
class Fault:
    """What happens to calls. `what` is one of FAULTS; "code" and "reason" answer a status with `number`.

    `methods` are names as in proto/quire/v1, empty for all but those that have no deadline of their own (Attach).
    `after` messages of an answer pass before it begins. `times` is how many calls it hits; None for all.
    """

    what: str
    methods: frozenset[str] = frozenset()
    number: int = 0
    after: int = 0
    times: int | None = None

    def __str__(self) -> str:
        return f"{self.what} {self.number or ''} after {self.after} of {', '.join(sorted(self.methods)) or 'all'}"

    def __post_init__(self) -> None:
        assert self.what in FAULTS, self.what


READS = ("BatchExists", "Fetch", "ReleaseLease")
WRITES = ("BeginPublish", "WritePages", "CommitPublish")


TELLING = (Reason.RETIRED, Reason.STALE_EPOCH, Reason.BUSY, Reason.HELD, Reason.CORRUPT, Reason.UNAUTHORIZED, Reason.LIMIT_EXCEEDED)  # a kind each


def every_fault(methods: tuple[str, ...] = READS + WRITES, reasons: Iterable[Reason] = tuple(Reason)) -> Iterator[Fault]:
    """Each fault on each method alone: what an adapter is put through."""
    for method in methods:
        only = frozenset({method})
        for what in (*ANSWERS, *ENDINGS, "slow"):
            if what != "flip" or method == "Fetch":
                yield Fault(what, only)
        for code in STATUS_CODES:
            yield Fault("code", only, code)
        for reason in reasons:
            if reason:
                yield Fault("reason", only, reason)
    if "Fetch" in methods:
        for what in ENDINGS:
            yield Fault(what, frozenset({"Fetch"}), after=2)  # half a stream


def status_of(fault: Fault) -> proto.Status:
    """The status of a "code" or a "reason": the latter with the detail that a store gives."""
    if fault.what == "code":
        return proto.Status(code=fault.number, message="as asked")
    detail = proto.ErrorDetail(reason=fault.number)
    status = proto.Status(code=9, message="as asked")
    packed = status.details.add()
    packed.type_url = "type.googleapis.com/quire.v1.ErrorDetail"
    packed.value = detail.SerializeToString()
    return status


def spoil(what: str, method: str, body: bytes, rng: random.Random) -> list[bytes]:
    """What is sent in place of one message of an answer. A message that the fault does not apply to stays."""
    if what == "garbage":
        return [b"\xff" + rng.randbytes(max(16, min(len(body), 4096)))]
    if what == "empty":
        return [b""]
    if what == "twice":
        return [body, body]
    change = _CHANGES.get((what, method)) or _CHANGES.get((what, ""))
    if change is None:
        return [body]
    answer = RESPONSES[method].FromString(body)
    change(answer)
    return [answer.SerializeToString()]


RESPONSES = {name.partition(".")[2]: response for name, (_, _, response) in proto.METHODS.items() if name.startswith("PageService.")}


def _fewer(answer) -> None:
    if hasattr(answer, "pages") and len(answer.pages):
        del answer.pages[-1]


def _more(answer) -> None:
    if hasattr(answer, "pages") and len(answer.pages):
        answer.pages.add().CopyFrom(answer.pages[-1])


def _fewer_bits(answer) -> None:
    answer.present = answer.present[:-1]
    del answer.leading[:]


def _more_bits(answer) -> None:
    answer.present = answer.present + b"\xff" * 9
    answer.leading.append(1 << 31)


def _false_counts(answer) -> None:
    answer.leading[:] = [(1 << 32) - 1 for _ in answer.leading]
    answer.lease.covered[:] = [(1 << 32) - 1]


def _other_page(answer) -> None:
    answer.page = (1 << 32) - 1


def _far_away(answer) -> None:
    answer.offset = (1 << 64) - 1 - len(answer.chunk)
    answer.extent = (1 << 32) - 1


def _strange_grants(answer) -> None:
    for page in answer.pages:
        for grant in page.grants:
            grant.h0, grant.h1, grant.l1 = 0, (1 << 16) - 1, (1 << 16) - 1


def _flip(answer) -> None:
    if answer.chunk:
        spoilt = bytearray(answer.chunk)
        spoilt[len(spoilt) // 2] ^= 0x10
        answer.chunk = bytes(spoilt)


_CHANGES: dict[tuple[str, str], Callable] = {
    ("fewer", ""): _fewer,
    ("more", ""): _more,
    ("fewer", "BatchExists"): _fewer_bits,
    ("more", "BatchExists"): _more_bits,
    ("out_of_range", "BatchExists"): _false_counts,
    ("fewer", "Fetch"): lambda answer: answer.ClearField("trailer"),
    ("more", "Fetch"): _other_page,
    ("out_of_range", "Fetch"): _far_away,
    ("out_of_range", "BeginPublish"): _strange_grants,
    ("flip", "Fetch"): _flip,
}

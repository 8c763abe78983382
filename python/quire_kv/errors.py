"""Why something was not served, not taken or refused: the store's reasons, and the one exception of this package.

Branch on `reason`, never on text. Numbers are those of proto/quire/v1 Reason; a test compares the two lists.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = ["ConfigError", "Difference", "QuireError", "Reason"]


class Reason(enum.IntEnum):
    """What a page or a call was answered. NONE: it worked."""

    NONE = 0
    ABSENT = 1
    INCOMPLETE = 2
    PROVENANCE = 3
    CORRUPT = 4
    EXPIRED = 5
    RETIRED = 6
    DRAINING = 7
    STALE_EPOCH = 8
    STALE_TOKEN = 9
    LEASE_EXPIRED = 10
    HELD = 11
    PARENT_MISSING = 12
    PARENT_CONFLICT = 13
    NOT_WORTH = 14
    BUSY = 15
    QUOTA_EXCEEDED = 16
    SIZE_MISMATCH = 17
    BUFFER_SIZE = 18
    TRUNCATED = 19
    HASH_CONTRACT_FORK = 20
    UNAUTHORIZED = 21
    UNKNOWN = 22
    INVALID_VIEW = 23
    INVALID_SPEC = 24
    UNSUPPORTED = 25
    LIMIT_EXCEEDED = 26
    LOST_RACE = 27
    ABORTED = 28
    WEAK_NAMES = 29
    NOT_FOUND = 30

    @property
    def label(self) -> str:
        """The stable lower-case name of metrics and JSON."""
        return self.name.lower()

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later without any change by the caller."""
        return self in _RETRYABLE

    @classmethod
    def of(cls, number: int) -> Reason:
        """The reason of a number on the wire; UNKNOWN for one that this version does not have."""
        return _BY_NUMBER.get(number, cls.UNKNOWN)


_BY_NUMBER = {int(r): r for r in Reason}
_RETRYABLE = frozenset({Reason.HELD, Reason.BUSY, Reason.UNKNOWN, Reason.LEASE_EXPIRED})


class Difference(NamedTuple):
    """One factor in which two identities differ; an empty side means that it is absent there."""

    path: str
    a: str
    b: str
    cls: str  # semantic, representation, provenance or recorded


class QuireError(Exception):
    """A call that was refused or did not come through. The only exception of quire_kv.client.

    `broken` says that the transport failed or did not answer in time, so that the store's word is not known: that is
    what opens a breaker. A refusal by a living store is not broken.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        broken: bool = False,
        path: str = "",
        differences: Sequence[Difference] = (),
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.broken = broken
        self.path = path
        self.differences = tuple(differences)
        self.pages: Sequence[Any] = ()  # of a fetch or publish that broke off: what each page had come to by then

    def __str__(self) -> str:
        text = f"{self.reason.label}: {super().__str__()}"
        if self.differences:
            text += "; differs in " + ", ".join(f"{d.path} ({d.a or 'absent'} and {d.b or 'absent'})" for d in self.differences)
        return text


class ConfigError(ValueError):
    """A setting that is missing or wrong. Its text is one line that names the setting and what to put there."""

"""Hint: what a client knows of the future of pages. It is advice: it may reorder the pages of the client's own tenant, and
nothing else."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

from . import proto
from .errors import QuireError, Reason

__all__ = ["Hint", "NextStep", "WorkCategory"]

_MAX_SECONDS = 365 * 24 * 3600  # the store takes what lies beyond for this


class WorkCategory(enum.IntEnum):
    """The kind of work that pages belong to, as quire.v1.WorkCategory."""

    UNKNOWN = 0
    INTERACTIVE = 1  # a person waits, and will answer
    AGENT = 2  # a program works in turns
    BATCH = 3  # nobody waits; each prompt once
    SYSTEM = 4  # a prefix that many requests share: system prompt, tools


class NextStep(enum.IntEnum):
    """What comes after the request that pages belong to, as quire.v1.NextStep."""

    UNKNOWN = 0
    TOOL_CALL = 1  # the session waits for a tool and goes on
    SESSION_END = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Hint:
    """What is left out says nothing, and leaves in force what was said before. QuireError for times that are none.

    expected_reuse  seconds from now until the next use that is expected; 0: not known
    """

    category: WorkCategory = WorkCategory.UNKNOWN
    expected_reuse: float = 0.0
    next: NextStep = NextStep.UNKNOWN

    def __post_init__(self) -> None:
        if not math.isfinite(self.expected_reuse) or self.expected_reuse < 0:
            raise QuireError(Reason.SIZE_MISMATCH, f"an expected reuse of {self.expected_reuse} seconds")

    def write(self, message: Any) -> None:
        """Fills a quire.v1.Hint."""
        message.category, message.next = int(self.category), int(self.next)
        if self.expected_reuse > 0:
            proto.set_seconds(message.expected_reuse, min(self.expected_reuse, _MAX_SECONDS))

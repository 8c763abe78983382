"""Hint: what a client knows of the future of pages. It is advice: it may reorder the pages of the client's own tenant, and
nothing else."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any

from . import proto
from .errors import QuireError, Reason

__all__ = ["CATEGORIES", "Hint", "NextStep", "WorkCategory", "said"]

_PARAM = "quire"  # the name of a hint among what a request to an engine carries for its connectors

_MAX_SECONDS = 365 * 24 * 3600  # the store takes what lies beyond for this
_MAX_TOKENS = 2**32 - 1
_FIELDS = ("category", "reuse_in_s", "tool_call_pending", "end_of_session")


class WorkCategory(enum.IntEnum):
    """The kind of work that pages belong to, as quire.v1.WorkCategory."""

    UNKNOWN = 0
    INTERACTIVE = 1  # a person waits, and will answer
    AGENT = 2  # a program works in turns
    BATCH = 3  # nobody waits; each prompt once
    SYSTEM = 4  # a prefix that many requests share: system prompt, tools


CATEGORIES = tuple(c.name.lower() for c in WorkCategory if c)


class NextStep(enum.IntEnum):
    """What comes after the request that pages belong to, as quire.v1.NextStep."""

    UNKNOWN = 0
    TOOL_CALL = 1  # the session waits for a tool and goes on
    SESSION_END = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Hint:
    """What is left out says nothing, and leaves in force what was said before. QuireError for times that are none.

    expected_reuse  seconds from now until the next use that is expected; 0: not known
    answer_tokens   of the answer to the request that used the pages last, once it has ended; 0: not known
    """

    category: WorkCategory = WorkCategory.UNKNOWN
    expected_reuse: float = 0.0
    next: NextStep = NextStep.UNKNOWN
    answer_tokens: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.answer_tokens <= _MAX_TOKENS:
            raise QuireError(Reason.SIZE_MISMATCH, f"an answer of {self.answer_tokens} tokens")
        if not math.isfinite(self.expected_reuse) or self.expected_reuse < 0:
            raise QuireError(Reason.SIZE_MISMATCH, f"an expected reuse of {self.expected_reuse} seconds")

    @classmethod
    def parse(cls, given: object) -> Hint:
        """A hint as requests to engines carry it, any of {"category": "agent", "reuse_in_s": 30, "tool_call_pending": true,
        "end_of_session": true}. ValueError names what is wrong; nothing of such a hint counts."""
        if not isinstance(given, Mapping):
            raise ValueError(f"it is {_short(given)}; want an object")
        unknown = [k for k in given if k not in _FIELDS]
        if unknown:
            raise ValueError(f"{_short(unknown[0])} is unknown; known are {', '.join(_FIELDS)}")
        category, reuse = given.get("category"), given.get("reuse_in_s")
        tool, end = (_flag(given, name) for name in ("tool_call_pending", "end_of_session"))
        if category is not None and category not in CATEGORIES:
            raise ValueError(f"category is {_short(category)}; want one of {', '.join(CATEGORIES)}")
        if reuse is not None and (isinstance(reuse, bool) or not isinstance(reuse, (int, float)) or not 0 < reuse < math.inf):
            raise ValueError(f"reuse_in_s is {_short(reuse)}; want seconds from now")
        if end and (tool or reuse):
            raise ValueError("end_of_session together with what comes next")
        return cls(
            WorkCategory[category.upper()] if category is not None else WorkCategory.UNKNOWN,
            float(min(reuse, _MAX_SECONDS)) if reuse is not None else 0.0,
            NextStep.SESSION_END if end else NextStep.TOOL_CALL if tool else NextStep.UNKNOWN,
        )

    def otherwise(self, default: Hint | None) -> Hint:
        """This hint, with the category of the default where it names none."""
        if default is None or self.category:
            return self
        return dataclasses.replace(self, category=default.category)

    def write(self, message: Any) -> None:
        """Fills a quire.v1.Hint."""
        message.category, message.next, message.answer_tokens = int(self.category), int(self.next), self.answer_tokens
        if self.expected_reuse > 0:
            proto.set_seconds(message.expected_reuse, min(self.expected_reuse, _MAX_SECONDS))


def said(params: object) -> Any:
    """The hint, not parsed, in what a request carries for an engine's connectors; None where there is none."""
    return params.get(_PARAM) if isinstance(params, Mapping) else None


def _flag(given: Mapping[Any, Any], name: str) -> bool:
    value = given.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} is {_short(value)}; want true or false")
    return bool(value)


def _short(value: object) -> str:
    """What a request said, fit for a line of a log."""
    return repr(value[:40]) if isinstance(value, str) else repr(value) if isinstance(value, (bool, float)) else f"a {type(value).__name__}"

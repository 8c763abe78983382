"""Read leases: the bytes of pages stay until release, the lease's time, or the end of its session."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from .errors import QuireError

if TYPE_CHECKING:
    from .session import Session

__all__ = ["Lease"]


class Lease:
    """Pins the leading pages of a lookup. Thread-safe; usable by other processes of the namespace by its id.

    `covered` leading pages are pinned; `ttl` are the seconds that were granted, counted from when they were asked for.
    """

    def __init__(self, session: Session, lease_id: bytes, ttl: float, covered: int, asked_at: float) -> None:
        self.id = lease_id
        self.ttl = ttl
        self.covered = covered
        self._session = session
        self._until = asked_at + ttl
        self._released = False

    @property
    def remaining(self) -> float:
        """Seconds left by this side's clock; 0 when it is over or released."""
        return 0.0 if self._released else max(0.0, self._until - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether it pins nothing any more, by this side's clock."""
        return self.remaining <= 0

    def renew(self, ttl: float | None = None, timeout: float | None = None) -> None:
        """Extends the lease to `ttl` seconds from now, as many as it had by default. QuireError LEASE_EXPIRED when it is
        over."""
        asked = time.monotonic()
        self.ttl = self._session._renew(self.id, self.ttl if ttl is None else ttl, timeout)
        self._until = asked + self.ttl

    def release(self, timeout: float | None = None) -> None:
        """Gives the lease back. Idempotent. What cannot be given back ends by its time: no errors."""
        if self._released:
            return
        self._released = True
        try:
            self._session._release(self.id, b"", timeout)
        except QuireError:
            return

    def release_pages(self, keys: list[bytes], *, group: bytes | None = None, scope: bytes = b"", timeout: float | None = None) -> None:
        """Gives some of the pages back. QuireError."""
        self._session._release_pages(self.id, keys, group, scope, timeout)

"""Who decides, for an endpoint: the engine of this process, or a control plane elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forewarn.core.approval import Approval, Approver
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity

__all__ = ["Authority"]


class Authority(Protocol):
    """Enables audiences, takes approvals, and says what is shown."""

    @property
    def feed(self) -> Feed:
        """What is shown now."""
        ...

    @property
    def identity(self) -> Identity:
        """Who asks."""
        ...

    async def enable(self, key: str, scope: str | None) -> None:
        """The first valid GET of an audience enables the service for it (R67); returns when its document is there.

        Raises:
            ForewarnError: It cannot be enabled now.
        """
        ...

    async def approve(self, event_ids: Sequence[str], approver: Approver) -> Approval:
        """Approve events; when this returns, it is on disk (invariant 5).

        Raises:
            ForewarnError: Nothing is known to be approved.
        """
        ...

"""Interface between an endpoint and its decision maker: the local engine or a remote control plane."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity

__all__ = ["Authority"]


class Authority(Protocol):
    """Source of documents and callers that also enables audiences and accepts approvals."""

    @property
    def feed(self) -> Feed:
        """Current documents."""

    @property
    def identity(self) -> Identity:
        """Mapping of addresses to VMs."""

    async def enable(self, key: str, scope: str | None) -> None:
        """Enable the service for an audience after its first valid GET (R67); return when its document is available.

        Raises:
            ForewarnError: The audience cannot be enabled now.
        """

    async def approve(self, event_ids: Sequence[str], approver: Approver) -> ApprovalResult:
        """Approve events; the approval is on disk when this returns (invariant 5).

        Raises:
            ForewarnError: The approval failed, or its outcome is unknown.
        """

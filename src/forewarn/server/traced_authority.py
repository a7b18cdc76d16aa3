"""Authority wrapper that traces the approvals of VMs."""

from __future__ import annotations

from collections.abc import Sequence

from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.endpoint.authority import Authority
from forewarn.observability.tracing import Tracing

__all__ = ["TracedAuthority"]


class TracedAuthority:
    """An authority whose approvals are traced, each as the POST of its VM.

    Args:
        authority: Authority to wrap.
        tracing: Recorder of the spans.

    Attributes:
        feed: Documents of the wrapped authority.
        identity: Mapping of addresses to VMs of the wrapped authority.
    """

    def __init__(self, authority: Authority, tracing: Tracing) -> None:
        self.feed = authority.feed
        self.identity = authority.identity
        self._authority = authority
        self._tracing = tracing

    async def enable(self, key: str, scope: str | None) -> None:
        """See `Authority`."""
        await self._authority.enable(key, scope)

    async def approve(self, event_ids: Sequence[str], approver: Approver) -> ApprovalResult:
        """See `Authority`."""
        with self._tracing.approval_span(approver, len(event_ids)):
            return await self._authority.approve(event_ids, approver)

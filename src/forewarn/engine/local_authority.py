"""Commands of VMs: enable an audience, approve events."""

from __future__ import annotations

from collections.abc import Sequence

from forewarn.core.maintenance import enablement, settlement
from forewarn.core.maintenance.approval import ApprovalResult, Approver, approve_events
from forewarn.core.maintenance.decision import Draft, WorkingSet
from forewarn.core.model import SERVICE, Audience
from forewarn.engine.transaction import Commands, Committer, trace_command
from forewarn.observability.tracing import Origin
from forewarn.store.contract import Transaction
from forewarn.util.fair_share import FairBatcher, QueueLimits

__all__ = ["LocalAuthority"]

_APPROVALS_MAX = 500
"""Maximum number of approvals in one transaction."""

_IDS_MAX = 1000
"""Maximum number of event ids in one transaction or read, unless a single approval has more."""

ApprovalRequest = tuple[tuple[str, ...], Approver, Origin | None]
"""Events to approve, the approver, and the trace origin of the request."""


class LocalAuthority(Commands):
    """Authority of an endpoint that is backed by the store of this service.

    Args:
        committer: Carries out the commands.
        limits: Maximum number of waiting approvals, per caller and in total, weighed by their event ids.

    Attributes:
        feed: Current documents.
        identity: Mapping of addresses to VMs.
    """

    def __init__(self, *, committer: Committer, limits: QueueLimits) -> None:
        super().__init__(committer=committer)
        self.feed = committer.feed
        self.identity = committer.identity
        # Inline commands make no one wait, so there is nothing to batch.
        requests_max = 1 if committer.is_inline else _APPROVALS_MAX
        self._approvals = FairBatcher(self._approve_all, requests_max=requests_max, weight_max=_IDS_MAX, limits=limits)
        self._look_ups = FairBatcher(
            self._find_unknown_ids, requests_max=requests_max, weight_max=_IDS_MAX, limits=limits
        )

    async def enable(self, key: str, scope: str | None) -> None:
        """Enable the service for an audience, on its first valid GET (R67); repeating it changes nothing."""

        def load(tx: Transaction) -> WorkingSet:
            return tx.load_audiences([key], with_waiting=True)

        def decide(draft: Draft) -> None:
            enablement.enable_audience(draft, draft.audiences.get(key) or Audience(key=key, scope=scope))

        await self._committer.decide(load, decide, actor=SERVICE)
        shown = self.feed.find_audience(key)
        if shown is None or shown.enabled_at is None:
            # Another replica has enabled it, and the change has not arrived here yet.
            await self._committer.catch_up()

    @trace_command("approve")
    async def approve(self, event_ids: Sequence[str], approver: Approver) -> ApprovalResult:
        """Approve events; when this returns, the approval is on disk (R49 to R57a, invariant 5).

        Approvals that arrive while the database is busy share the next transaction: the VMs of a fleet approve at
        about the same time, and the transaction is what takes time. Each VM, or operator, has an equal share of it.

        Ids that the VM is not shown now are looked up first. Those that its audience never had are refused without a
        transaction, so they do not delay others.

        Raises:
            StoreUnavailable: Nothing was approved, as far as is known; or too many approvals wait already.
            LimitExceeded: Too many approvals of this VM or operator wait already.
        """
        # A repeated id counts once (R52), also against the caller's share of the queue.
        ids = tuple(dict.fromkeys(event_ids))
        owner, weight = approver.vm or approver.actor, max(1, len(ids))
        if approver.audience is not None:
            unlisted = self.feed.channel(approver.audience).find_unlisted(ids)
            # A client may repeat a stale approval with every poll; a read is much cheaper than a place in the writer's
            # queue.
            if unlisted:
                unknown = await self._look_ups.submit((unlisted, approver.audience), owner=owner, weight=len(unlisted))
                if unknown:
                    return ApprovalResult(unknown=unknown)
        return await self._approvals.submit(
            (ids, approver, self._committer.tracing.current_span()), owner=owner, weight=weight
        )

    async def drain(self) -> None:
        """Wait for the approvals under way; used when the service stops."""
        await self._approvals.drain()

    async def store_last_polls(self) -> None:
        """Record when audiences last asked, so that they do not count as silent after a restart (R69)."""
        asked = self.feed.last_polls()
        if asked:
            await self._committer.write(lambda tx: tx.extend_active_until(asked))

    async def _find_unknown_ids(self, wanted: Sequence[tuple[tuple[str, ...], str]]) -> list[tuple[str, ...]]:
        """Return, for each audience, the ids among those given that it never had, in one read."""
        found = await self._committer.read(
            lambda reader: reader.find_event_audiences({i for ids, _ in wanted for i in ids})
        )
        return [tuple(i for i in ids if found.get(i) != audience) for ids, audience in wanted]

    async def _approve_all(self, wanted: Sequence[ApprovalRequest]) -> list[ApprovalResult]:
        def load(tx: Transaction) -> WorkingSet:
            return tx.load_events({i for ids, _, _ in wanted for i in ids})

        def decide(draft: Draft) -> list[ApprovalResult]:
            found = []
            for ids, approver, _ in wanted:
                # One draft serves several approvers; each is named for what it causes.
                draft.actor = approver.actor
                found.append(approve_events(draft, ids, approver))
                # Now, so that starts caused by this approval are recorded under its actor.
                settlement.settle_maintenances(draft)
            return found

        with self._committer.tracing.batch_span([origin for _, _, origin in wanted]):
            return await self._committer.decide(load, decide, actor=wanted[0][1].actor)

"""The engine: all commands of operators, VMs and the scheduler over one committer.

`forewarn.engine.transaction` describes how each of them runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from forewarn.core.clock_jump import ClockJump
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.engine.clock import ClockCommands
from forewarn.engine.deadlines import DeadlineCommands
from forewarn.engine.faults import FaultCommands
from forewarn.engine.inventory import InventoryCommands
from forewarn.engine.leader_election import Leadership
from forewarn.engine.local_authority import LocalAuthority
from forewarn.engine.maintenances import MaintenanceCommands
from forewarn.engine.retention import RetentionCommands
from forewarn.engine.rollouts import RolloutCommands
from forewarn.engine.subscriptions import SubscriptionCommands
from forewarn.engine.tokens import TokenCommands
from forewarn.engine.transaction import Committer
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.store.contract import Reader, Transaction
from forewarn.util.fair_share import QueueLimits

__all__ = ["Engine", "make_engine"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """All commands, grouped by what they are about.

    Attributes:
        committer: Carries out the transactions of all commands, and publishes their changes.
        maintenances: Commands for maintenances.
        authority: Commands of VMs: enable an audience, approve events.
        inventory: Commands for the inventory.
        rollouts: Commands for rollouts.
        subscriptions: Commands for subscriptions to notifications.
        tokens: Commands for access.
        faults: Commands for injected faults.
        clock: Commands for the clock.
        deadlines: Commands of the scheduler.
        retention: Commands of housekeeping.
    """

    committer: Committer
    maintenances: MaintenanceCommands
    authority: LocalAuthority
    inventory: InventoryCommands
    rollouts: RolloutCommands
    subscriptions: SubscriptionCommands
    tokens: TokenCommands
    faults: FaultCommands
    clock: ClockCommands
    deadlines: DeadlineCommands
    retention: RetentionCommands

    @property
    def feed(self) -> Feed:
        """Current documents."""
        return self.committer.feed

    @property
    def identity(self) -> Identity:
        """Mapping of addresses to VMs."""
        return self.committer.identity

    @property
    def leadership(self) -> Leadership:
        """Leadership of this replica."""
        return self.committer.leadership

    @property
    def listeners(self) -> list[Callable[[ChangeSet], None]]:
        """Functions called with the changes of each commit, once their documents are published."""
        return self.committer.listeners

    async def read(self, function: Callable[[Reader], T]) -> T:
        """Run a read on a reader thread."""
        return await self.committer.read(function)

    async def restore_state(self) -> None:
        """Fill the feed and the identity from the store; silence while the service was down does not count."""
        committer, guard = self.committer, self.clock.guard
        rules = committer.rules
        # No VM can ask while the service is down, so no audience counts as silent before the grace is over (R69).
        threshold = committer.clock.now() - rules.disable_after + rules.restart_grace

        def extend(tx: Transaction) -> None:
            tx.extend_active_until({audience.key: threshold for audience in tx.list_inactive(threshold, 1_000_000)})

        def read_clock(reader: Reader) -> tuple[ClockJump | None, datetime | None]:
            newest = reader.list_entries(limit=1, newest=True).items
            return reader.get_clock_jump(), newest[-1].at if newest else None

        await committer.write(extend)
        jump, written_at = await committer.read(read_clock)
        if jump is not None:
            guard.distrust(jump)
        # Replicas decide by the database's clock, and the newest entry may be another replica's.
        elif written_at is not None and committer.store.shared is None:
            guard.detect_setback(written_at, committer.clock.now())
        await committer.load_snapshot()

    async def drain(self) -> None:
        """Wait for the commands under way; used when the service stops."""
        # First, because approvals that wait here become commands of the committer.
        await self.authority.drain()
        await self.committer.drain()


def make_engine(  # noqa: PLR0913 - settings, each with its default
    committer: Committer,
    *,
    faults: FaultRegistry | None = None,
    limits: QueueLimits | None = None,
    tokens_max: int = 1000,
    subscriptions_max: int = 100,
    deliveries_dead_max: int = 10_000,
    secret_overlap: timedelta = timedelta(hours=24),
) -> Engine:
    """Build an engine over a committer.

    Args:
        committer: Carries out the transactions of all commands.
        faults: Injected faults; None for a new, empty registry.
        limits: Maximum number of waiting approvals, per caller and in total, weighed by their event ids; None for the
            defaults.
        tokens_max: Maximum number of valid tokens of people and programs.
        subscriptions_max: Maximum number of subscriptions.
        deliveries_dead_max: Number of dead deliveries at which a subscription is paused.
        secret_overlap: Time for which the former secret of a subscription still signs.
    """
    faults = faults or FaultRegistry(committer.clock)
    return Engine(
        committer=committer,
        maintenances=MaintenanceCommands(committer=committer, faults=faults),
        authority=LocalAuthority(committer=committer, limits=limits or QueueLimits()),
        inventory=InventoryCommands(committer=committer),
        rollouts=RolloutCommands(committer=committer),
        subscriptions=SubscriptionCommands(
            committer=committer,
            subscriptions_max=subscriptions_max,
            deliveries_dead_max=deliveries_dead_max,
            secret_overlap=secret_overlap,
        ),
        tokens=TokenCommands(committer=committer, tokens_max=tokens_max),
        faults=FaultCommands(committer=committer, registry=faults),
        clock=ClockCommands(committer=committer),
        deadlines=DeadlineCommands(committer=committer),
        retention=RetentionCommands(committer=committer),
    )

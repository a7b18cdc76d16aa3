"""Commands for subscriptions: create, pause, resume, delete them; and record the results of deliveries.

The cursor of a subscription moves in the transaction that records the results of the deliveries before it, after the
receiver has answered. So a crash loses nothing, but may repeat a delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forewarn.core.maintenance.decision import ChangeSet, Draft
from forewarn.core.model import SERVICE, EntryKind
from forewarn.core.subscription import (
    Delivery,
    DeliveryState,
    NotificationKind,
    Subscription,
    SubscriptionState,
    make_delivery_id,
)
from forewarn.engine.ownership import check_owned
from forewarn.engine.transaction import Commands, Committer, TransactionResult, save_draft, trace_command
from forewarn.errors import Conflict, Hint, InvalidRequest, LimitExceeded, NotFound
from forewarn.store.contract import Reader, Transaction
from forewarn.util.secrets import new_signing_secret

__all__ = ["DeliveryResults", "SubscriptionCommands", "find_subscription"]

_REDELIVERED_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResults:
    """Result of a round of deliveries for one subscription.

    Attributes:
        cursor: Last audit log entry up to which everything was delivered or is in `stored`.
        delivered: Keys of stored deliveries that succeeded.
        stored: Deliveries to store, waiting or dead.
        failing_since: Start of the current failures; None if there are none.
        pause_reason: Reason to pause the subscription; None to leave it active.
    """

    cursor: int
    delivered: tuple[tuple[int, str], ...] = ()
    stored: tuple[Delivery, ...] = ()
    failing_since: datetime | None = None
    pause_reason: str | None = None


class SubscriptionCommands(Commands):
    """Commands of operators on subscriptions, and of the delivery workers.

    Args:
        committer: Carries out the commands.
        subscriptions_max: Maximum number of subscriptions.
        deliveries_dead_max: Number of dead deliveries at which a subscription is paused.
        secret_overlap: Time for which the former secret still signs.
    """

    def __init__(
        self, *, committer: Committer, subscriptions_max: int, deliveries_dead_max: int, secret_overlap: timedelta
    ) -> None:
        super().__init__(committer=committer)
        self._subscriptions_max = subscriptions_max
        self._deliveries_dead_max = deliveries_dead_max
        self._secret_overlap = secret_overlap

    @trace_command("create subscription")
    async def create(  # noqa: PLR0913 - the fields of a subscription
        self,
        name: str,
        url: str,
        *,
        scopes: Iterable[str] = (),
        vms: Iterable[str] = (),
        kinds: Iterable[NotificationKind] = (),
        actor: str,
    ) -> Subscription:
        """Create a subscription to what happens from now on. Its secret is to be shown only now.

        Raises:
            Conflict: A subscription has this name already.
            LimitExceeded: There are too many subscriptions.
            NotFound: A scope or VM does not exist.
            InvalidRequest: A scope is of the kind standalone, or a VM is in another scope.
        """
        scopes, vms, kinds = tuple(dict.fromkeys(scopes)), tuple(dict.fromkeys(vms)), tuple(dict.fromkeys(kinds))

        def work(tx: Transaction, draft: Draft) -> Subscription:
            before = tx.list_subscriptions()
            if any(each.name == name for each in before):
                raise Conflict(f"subscription {name!r} already exists: choose another name, or delete it", name=name)
            if len(before) >= self._subscriptions_max:
                raise LimitExceeded(f"there are {len(before)} subscriptions already (subscriptions_max)")
            check_owned(tx, scopes, vms)
            draft.record(EntryKind.SUBSCRIPTION, reason=f"subscription {name!r} created")
            made = Subscription(
                id=draft.new_id("subscription"),
                name=name,
                url=url,
                secret=new_signing_secret(),
                scopes=scopes,
                vms=vms,
                kinds=tuple(kind.value for kind in kinds),
                cursor=tx.get_position(),
                created_at=draft.now,
                created_by=actor,
            )
            tx.save_subscription(made)
            return made

        return await self._committer.record(work, actor=actor)

    @trace_command("delete subscription")
    async def delete(self, id_or_name: str, *, actor: str) -> Subscription:
        """Delete a subscription with its waiting and dead deliveries.

        Raises:
            NotFound: No subscription has this id or name.
        """

        def work(tx: Transaction, draft: Draft) -> Subscription:
            found = find_subscription(tx, id_or_name)
            draft.record(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} deleted")
            tx.delete_subscription(found.id)
            return found

        return await self._committer.record(work, actor=actor)

    @trace_command("pause subscription")
    async def pause(self, id_or_name: str, *, actor: str, reason: str | None = None) -> Subscription:
        """Pause a subscription. Nothing is lost until it is resumed, as far as the audit log goes back."""

        def change(_tx: Transaction, draft: Draft, found: Subscription) -> Subscription:
            if found.state is SubscriptionState.PAUSED:
                return found
            because = f": {reason}" if reason else ""
            draft.record(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} paused{because}")
            return replace(found, state=SubscriptionState.PAUSED, reason=reason, is_given_up=False)

        return await self._change_subscription(id_or_name, change, actor)

    @trace_command("resume subscription")
    async def resume(self, id_or_name: str, *, actor: str, is_skipping: bool = False) -> Subscription:
        """Resume a subscription where it was paused.

        Args:
            id_or_name: Id or name of the subscription.
            actor: Actor named in the audit log.
            is_skipping: True to skip everything up to now and delete waiting deliveries.
        """

        def change(tx: Transaction, draft: Draft, found: Subscription) -> Subscription:
            draft.record(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} resumed")
            cursor = found.cursor
            if is_skipping:
                cursor = tx.get_position()
                while waiting := tx.list_deliveries(found.id, DeliveryState.WAITING, limit=_REDELIVERED_MAX):
                    tx.delete_deliveries(found.id, [delivery.key for delivery in waiting])
            active = SubscriptionState.ACTIVE
            return replace(found, state=active, reason=None, is_given_up=False, cursor=cursor, failing_since=None)

        return await self._change_subscription(id_or_name, change, actor)

    @trace_command("rotate secret")
    async def rotate_secret(self, id_or_name: str, *, actor: str, is_at_once: bool = False) -> Subscription:
        """Create a new signing secret, to be shown only now; the present one also signs for `secret_overlap`.

        Args:
            id_or_name: Id or name of the subscription.
            actor: Actor named in the audit log.
            is_at_once: True to stop signing with earlier secrets now, as after a leak.

        Raises:
            NotFound: There is no such subscription.
            Conflict: The secret before the present one still signs and would be dropped; a receiver may still need it.
        """

        def change(_tx: Transaction, draft: Draft, found: Subscription) -> Subscription:
            draft.record(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} has a new secret")
            changed = replace(found, secret=new_signing_secret(), former_secret=None, former_until=None)
            if is_at_once:
                return changed
            # At most two secrets sign at a time. A third would drop the oldest before its receivers had the promised
            # time to switch.
            if len(found.get_signing_secrets(draft.now)) > 1:
                msg = f"the former secret of {found.name!r} still signs: wait, or use --at-once"
                raise Conflict(msg, name=found.name)
            return replace(changed, former_secret=found.secret, former_until=draft.now + self._secret_overlap)

        return await self._change_subscription(id_or_name, change, actor)

    @trace_command("redeliver")
    async def redeliver(self, id_or_name: str, keys: Iterable[tuple[int, str]] | None, *, actor: str) -> int:
        """Retry dead deliveries at once; return their number.

        Args:
            id_or_name: Id or name of the subscription.
            keys: Keys of the deliveries, at most 1,000; None for up to 1,000 of all dead ones.
            actor: Actor named in the audit log.

        Raises:
            NotFound: The subscription, or one of the dead deliveries, does not exist.
            InvalidRequest: More than 1,000 keys are given.
            Conflict: The subscription is paused.
        """
        chosen = None if keys is None else set(keys)

        def work(tx: Transaction, draft: Draft) -> int:
            found = find_subscription(tx, id_or_name)
            if found.state is SubscriptionState.PAUSED:
                raise Conflict(f"subscription {found.name!r} is paused: resume it first", name=found.name)
            dead = _find_dead_deliveries(tx, found, chosen)
            if dead:
                words = f"subscription {found.name!r}: {len(dead)} deliveries retried"
                draft.record(EntryKind.SUBSCRIPTION, reason=words)
                again = DeliveryState.WAITING
                tx.save_deliveries(replace(each, state=again, attempts=0, next_at=draft.now) for each in dead)
            return len(dead)

        return await self._committer.record(work, actor=actor)

    async def record_deliveries(self, subscription_id: str, outcome: DeliveryResults) -> bool:
        """Record the results of deliveries; return True if the subscription is still active.

        Raises:
            LeaseLost: Another replica is the leader.
        """

        def work(tx: Transaction) -> TransactionResult[bool]:
            self._committer.leadership.ensure_leader_in(tx)
            found = tx.get_subscription(subscription_id)
            if found is None:
                return TransactionResult(answer=False)
            # One transaction for results and cursor: a cursor that moved alone would lose notifications.
            tx.delete_deliveries(subscription_id, outcome.delivered)
            tx.save_deliveries(outcome.stored)
            stop = outcome.pause_reason or self._check_dead_limit(tx, found, outcome)
            # An operator may have resumed the subscription further ahead while this round was under way.
            cursor = max(found.cursor, outcome.cursor)
            changed = replace(found, cursor=cursor, failing_since=outcome.failing_since)
            changes: list[ChangeSet] = []
            # A pause by an operator keeps its reason.
            if stop is not None and found.state is SubscriptionState.ACTIVE:
                draft = self._committer.make_draft(tx, SERVICE)
                draft.record(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} paused: {stop}")
                changed = replace(changed, state=SubscriptionState.PAUSED, reason=stop, is_given_up=True)
                changes = [save_draft(tx, draft)]
            if changed != found:
                tx.save_subscription(changed)
            return TransactionResult(answer=changed.state is SubscriptionState.ACTIVE, changes=changes)

        return await self._committer.commit(work)

    def _check_dead_limit(self, tx: Transaction, found: Subscription, outcome: DeliveryResults) -> str | None:
        """Return the reason to pause if dead deliveries have reached their limit; None if not."""
        # Only a round with a new dead delivery can reach the limit; others are spared the count.
        if not any(delivery.state is DeliveryState.DEAD for delivery in outcome.stored):
            return None
        count = tx.count_deliveries().get((found.id, DeliveryState.DEAD), 0)
        return None if count < self._deliveries_dead_max else f"{count} deliveries are dead (notify_dead_max)"

    async def _change_subscription(
        self, id_or_name: str, change: Callable[[Transaction, Draft, Subscription], Subscription], actor: str
    ) -> Subscription:
        def work(tx: Transaction, draft: Draft) -> Subscription:
            changed = change(tx, draft, find_subscription(tx, id_or_name))
            tx.save_subscription(changed)
            return changed

        return await self._committer.record(work, actor=actor)


def find_subscription(reader: Reader, id_or_name: str) -> Subscription:
    """Return the subscription with this id or name.

    Raises:
        NotFound: There is none.
    """
    for each in reader.list_subscriptions():
        if id_or_name in {each.id, each.name}:
            return each
    msg = f"subscription {id_or_name!r} does not exist"
    raise NotFound(msg, hint=Hint("see 'forewarn subscription list'"), id=id_or_name)


def _find_dead_deliveries(tx: Transaction, found: Subscription, chosen: set[tuple[int, str]] | None) -> list[Delivery]:
    if chosen is None:
        return tx.list_deliveries(found.id, DeliveryState.DEAD, limit=_REDELIVERED_MAX)
    if len(chosen) > _REDELIVERED_MAX:
        raise InvalidRequest(f"{len(chosen)} deliveries are named: at most {_REDELIVERED_MAX} at a time")
    dead = [each for each in tx.find_deliveries(found.id, chosen) if each.state is DeliveryState.DEAD]
    missing = chosen - {each.key for each in dead}
    if missing:
        id = make_delivery_id(*min(missing))
        raise NotFound(f"subscription {found.name!r} has no dead delivery {id}", id=id)
    return dead

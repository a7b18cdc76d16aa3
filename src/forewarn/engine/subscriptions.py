"""Commands for subscriptions: create, pause, resume, delete them; and record the results of deliveries.

The cursor of a subscription moves in the transaction that records the results of the deliveries before it, after the
receiver has answered. So a crash loses nothing, but may repeat a delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from forewarn.core.decision import Changes, Draft, State
from forewarn.core.model import EntryKind
from forewarn.core.subscription import (
    Delivery,
    DeliveryState,
    NotificationKind,
    Subscription,
    SubscriptionState,
    delivery_id,
)
from forewarn.engine.ownership import check_owned
from forewarn.engine.transaction import Committer, traced
from forewarn.errors import Conflict, InvalidRequest, LimitExceeded, NotFound
from forewarn.store.contract import Reader, Transaction
from forewarn.util.secrets import new_signing_secret

__all__ = ["HandedOver", "SubscriptionCommands", "find_subscription"]

T = TypeVar("T")

_REDELIVERED_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """Result of a round of deliveries for one subscription.

    Attributes:
        cursor: Last audit log entry up to which everything was delivered or is in `kept`.
        delivered: Keys of stored deliveries that succeeded.
        kept: Deliveries to store, waiting or dead.
        failing_since: Start of the current failures; None if there are none.
        stop: Reason to pause the subscription; None to leave it active.
    """

    cursor: int
    delivered: tuple[tuple[int, str], ...] = ()
    kept: tuple[Delivery, ...] = ()
    failing_since: datetime | None = None
    stop: str | None = None


class SubscriptionCommands(Committer):
    """Commands of operators on subscriptions, and of the delivery workers."""

    subscriptions_max = 100
    deliveries_dead_max = 10_000
    secret_overlap = timedelta(hours=24)

    @traced
    async def create_subscription(  # noqa: PLR0913 - the fields of a subscription
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
            before = tx.subscriptions()
            if any(each.name == name for each in before):
                msg = f"there is a subscription {name!r} already: choose another name, or delete it"
                raise Conflict(msg, name=name)
            if len(before) >= self.subscriptions_max:
                msg = f"there are {len(before)} subscriptions already (subscriptions_max)"
                raise LimitExceeded(msg)
            check_owned(tx, scopes, vms)
            draft.note(EntryKind.SUBSCRIPTION, reason=f"subscription {name!r} created")
            made = Subscription(
                id=draft.new_id("subscription"),
                name=name,
                url=url,
                secret=new_signing_secret(),
                scopes=scopes,
                vms=vms,
                kinds=tuple(kind.value for kind in kinds),
                cursor=tx.position(),
                created_at=draft.now,
                created_by=actor,
            )
            tx.keep_subscription(made)
            return made

        return await self._change(work, actor)

    @traced
    async def delete_subscription(self, wanted: str, *, actor: str) -> Subscription:
        """Delete a subscription with its waiting and dead deliveries.

        Raises:
            NotFound: No subscription has this id or name.
        """

        def work(tx: Transaction, draft: Draft) -> Subscription:
            found = find_subscription(tx, wanted)
            draft.note(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} deleted")
            tx.forget_subscription(found.id)
            return found

        return await self._change(work, actor)

    @traced
    async def pause_subscription(self, wanted: str, *, actor: str, reason: str | None = None) -> Subscription:
        """Pause a subscription. Nothing is lost until it is resumed, as far as the audit log goes back."""

        def change(_tx: Transaction, draft: Draft, found: Subscription) -> Subscription:
            if found.state is SubscriptionState.PAUSED:
                return found
            because = f": {reason}" if reason else ""
            draft.note(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} paused{because}")
            return replace(found, state=SubscriptionState.PAUSED, reason=reason, is_given_up=False)

        return await self._change_one(wanted, change, actor)

    @traced
    async def resume_subscription(self, wanted: str, *, actor: str, is_skipping: bool = False) -> Subscription:
        """Resume a subscription where it was paused.

        Args:
            wanted: Id or name of the subscription.
            actor: Actor named in the audit log.
            is_skipping: True to skip everything up to now and delete waiting deliveries.
        """

        def change(tx: Transaction, draft: Draft, found: Subscription) -> Subscription:
            draft.note(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} resumed")
            cursor = found.cursor
            if is_skipping:
                cursor = tx.position()
                while waiting := tx.deliveries(found.id, DeliveryState.WAITING, limit=_REDELIVERED_MAX):
                    tx.forget_deliveries(found.id, [delivery.key for delivery in waiting])
            active = SubscriptionState.ACTIVE
            return replace(found, state=active, reason=None, is_given_up=False, cursor=cursor, failing_since=None)

        return await self._change_one(wanted, change, actor)

    @traced
    async def rotate_secret(self, wanted: str, *, actor: str, is_at_once: bool = False) -> Subscription:
        """Create a new signing secret, to be shown only now; the present one also signs for `secret_overlap`.

        Args:
            wanted: Id or name of the subscription.
            actor: Actor named in the audit log.
            is_at_once: True to stop signing with earlier secrets now, as after a leak.

        Raises:
            NotFound: There is no such subscription.
            Conflict: The secret before the present one still signs and would be dropped; a receiver may still need it.
        """

        def change(_tx: Transaction, draft: Draft, found: Subscription) -> Subscription:
            draft.note(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} has a new secret")
            changed = replace(found, secret=new_signing_secret(), former_secret=None, former_until=None)
            if is_at_once:
                return changed
            if len(found.secrets(draft.now)) > 1:
                msg = f"the secret before the present one of {found.name!r} still signs: wait, or say --at-once"
                raise Conflict(msg, name=found.name)
            return replace(changed, former_secret=found.secret, former_until=draft.now + self.secret_overlap)

        return await self._change_one(wanted, change, actor)

    @traced
    async def redeliver(self, wanted: str, keys: Iterable[tuple[int, str]] | None, *, actor: str) -> int:
        """Retry dead deliveries at once; return their number.

        Args:
            wanted: Id or name of the subscription.
            keys: Keys of the deliveries, at most 1,000; None for up to 1,000 of all dead ones.
            actor: Actor named in the audit log.

        Raises:
            NotFound: The subscription, or one of the dead deliveries, does not exist.
            InvalidRequest: More than 1,000 keys are given.
            Conflict: The subscription is paused.
        """
        chosen = None if keys is None else set(keys)

        def work(tx: Transaction, draft: Draft) -> int:
            found = find_subscription(tx, wanted)
            if found.state is SubscriptionState.PAUSED:
                msg = f"subscription {found.name!r} is paused: resume it first"
                raise Conflict(msg, name=found.name)
            dead = _dead(tx, found, chosen)
            if dead:
                draft.note(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r}: {len(dead)} tried again")
                again = DeliveryState.WAITING
                tx.keep_deliveries(replace(each, state=again, attempts=0, next_at=draft.now) for each in dead)
            return len(dead)

        return await self._change(work, actor)

    async def hand_over(self, subscription_id: str, outcome: HandedOver) -> bool:
        """Record the results of deliveries; return True if the subscription is still active.

        Raises:
            LeaseLost: Another replica is the leader.
        """

        def work(tx: Transaction) -> tuple[bool, Changes]:
            self.leadership.check(tx)
            found = tx.subscription(subscription_id)
            if found is None:
                return False, Changes()
            tx.forget_deliveries(subscription_id, outcome.delivered)
            tx.keep_deliveries(outcome.kept)
            stop = outcome.stop or self._full(tx, found, outcome)
            cursor = max(found.cursor, outcome.cursor)
            changed = replace(found, cursor=cursor, failing_since=outcome.failing_since)
            changes = Changes()
            if stop is not None and found.state is SubscriptionState.ACTIVE:
                draft = self._draft(State(), tx, "forewarn")
                draft.note(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} paused: {stop}")
                changed = replace(changed, state=SubscriptionState.PAUSED, reason=stop, is_given_up=True)
                changes = draft.finish()
                tx.save(changes)
            if changed != found:
                tx.keep_subscription(changed)
            return changed.state is SubscriptionState.ACTIVE, changes

        def publish(result: tuple[bool, Changes]) -> bool:
            self._publish(result[1])
            return result[0]

        return await self._command(work, publish)

    def _full(self, tx: Transaction, found: Subscription, outcome: HandedOver) -> str | None:
        """Return the reason to pause if dead deliveries have reached their limit; None if not."""
        if not any(delivery.state is DeliveryState.DEAD for delivery in outcome.kept):
            return None
        count = tx.delivery_counts().get((found.id, DeliveryState.DEAD), 0)
        return None if count < self.deliveries_dead_max else f"{count} deliveries are dead (notify_dead_max)"

    async def _change_one(
        self, wanted: str, change: Callable[[Transaction, Draft, Subscription], Subscription], actor: str
    ) -> Subscription:
        def work(tx: Transaction, draft: Draft) -> Subscription:
            changed = change(tx, draft, find_subscription(tx, wanted))
            tx.keep_subscription(changed)
            return changed

        return await self._change(work, actor)

    async def _change(self, change: Callable[[Transaction, Draft], T], actor: str) -> T:
        def work(tx: Transaction) -> tuple[T, Changes]:
            draft = self._draft(State(), tx, actor)
            result = change(tx, draft)
            changes = draft.finish()
            tx.save(changes)
            return result, changes

        def publish(result: tuple[T, Changes]) -> T:
            self._publish(result[1])
            return result[0]

        return await self._command(work, publish)


def find_subscription(reader: Reader, wanted: str) -> Subscription:
    """Return the subscription with this id or name.

    Raises:
        NotFound: There is none.
    """
    for each in reader.subscriptions():
        if wanted in {each.id, each.name}:
            return each
    msg = f"subscription {wanted!r} does not exist: see 'forewarn subscription list'"
    raise NotFound(msg, id=wanted)


def _dead(tx: Transaction, found: Subscription, chosen: set[tuple[int, str]] | None) -> list[Delivery]:
    if chosen is None:
        return tx.deliveries(found.id, DeliveryState.DEAD, limit=_REDELIVERED_MAX)
    if len(chosen) > _REDELIVERED_MAX:
        msg = f"{len(chosen)} deliveries are named: {_REDELIVERED_MAX} at a time"
        raise InvalidRequest(msg)
    dead = [each for each in tx.deliveries_by_key(found.id, chosen) if each.state is DeliveryState.DEAD]
    missing = chosen - {each.key for each in dead}
    if missing:
        id = delivery_id(*min(missing))
        msg = f"subscription {found.name!r} has no dead delivery {id}"
        raise NotFound(msg, id=id)
    return dead

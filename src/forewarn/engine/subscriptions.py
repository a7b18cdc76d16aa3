"""Commands about subscriptions: made, paused, deleted; and what came of deliveries, written down.

The cursor of a subscription moves in the transaction that writes down what came of the deliveries before it, after the
receiver has answered. Whatever dies in between, nothing is lost; what was handed over may be handed over once more.
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
    """What came of a round of deliveries for one subscription.

    Attributes:
        cursor: Up to which ledger entry all was handed over or is kept below.
        delivered: Keys of kept deliveries that got through.
        kept: Deliveries that wait, or are dead.
        failing_since: As it is now.
        stop: Why the subscription is to be paused; None: it is not.
    """

    cursor: int
    delivered: tuple[tuple[int, str], ...] = ()
    kept: tuple[Delivery, ...] = ()
    failing_since: datetime | None = None
    stop: str | None = None


class SubscriptionCommands(Committer):
    """What operators ask of subscriptions, and what is written down of deliveries."""

    subscriptions_max = 100
    deliveries_dead_max = 10_000
    secret_overlap = timedelta(hours=24)

    @traced
    async def create_subscription(  # noqa: PLR0913 - what there is to say of one
        self,
        name: str,
        url: str,
        *,
        scopes: Iterable[str] = (),
        vms: Iterable[str] = (),
        kinds: Iterable[NotificationKind] = (),
        actor: str,
    ) -> Subscription:
        """Tell somebody of what happens from now on. The secret is to be shown this once.

        Raises:
            Conflict: There is one of that name.
            LimitExceeded: There are too many.
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
        """Tell no more; what waits and what is dead is forgotten.

        Raises:
            NotFound: There is none of that id or name.
        """

        def work(tx: Transaction, draft: Draft) -> Subscription:
            found = find_subscription(tx, wanted)
            draft.note(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} deleted")
            tx.forget_subscription(found.id)
            return found

        return await self._change(work, actor)

    @traced
    async def pause_subscription(self, wanted: str, *, actor: str, reason: str | None = None) -> Subscription:
        """Send nothing until it is resumed; nothing is lost meanwhile, as far as the ledger goes back."""

        def change(_tx: Transaction, draft: Draft, found: Subscription) -> Subscription:
            if found.state is SubscriptionState.PAUSED:
                return found
            because = f": {reason}" if reason else ""
            draft.note(EntryKind.SUBSCRIPTION, reason=f"subscription {found.name!r} paused{because}")
            return replace(found, state=SubscriptionState.PAUSED, reason=reason, is_given_up=False)

        return await self._change_one(wanted, change, actor)

    @traced
    async def resume_subscription(self, wanted: str, *, actor: str, is_skipping: bool = False) -> Subscription:
        """Go on where it was paused.

        Args:
            wanted: Its id or name.
            actor: Who says so.
            is_skipping: Leave out what has happened until now, and forget what waits.
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
        """Sign with a new secret, to be shown this once; and with the present one too for a while.

        Args:
            wanted: Its id or name.
            actor: Who says so.
            is_at_once: From now on with the new one alone: somebody else knows the present one, or the one before it.

        Raises:
            NotFound: There is no such subscription.
            Conflict: The one before the present one still signs, and would not any more: a receiver may know no other.
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
        """Try dead deliveries again, at once; hands back how many.

        Args:
            wanted: The subscription's id or name.
            keys: Which; None: all that are dead, at most 1,000 at a time.
            actor: Who says so.

        Raises:
            NotFound: One is not dead, or not there.
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
        """Write down what came of deliveries; hands back whether the subscription is still to be served.

        Raises:
            LeaseLost: Another replica delivers.
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
        """Why no more can be given up; None: it can."""
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
    """The one of that id or name.

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

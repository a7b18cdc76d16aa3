"""`/v1/subscriptions`: webhook subscriptions, and their waiting and dead deliveries."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from forewarn.control.context import Actor, Caller, Context, ContextOf
from forewarn.core.access import Principal, Role
from forewarn.core.subscription import Delivery, DeliveryState, Subscription
from forewarn.engine.subscriptions import find_subscription
from forewarn.errors import InvalidRequest
from forewarn.net.outbound import check_url, origin_of
from forewarn.store.contract import Reader
from forewarn.wire.control import PageOut
from forewarn.wire.subscription import (
    DeliveryOut,
    PauseIn,
    RedeliveredOut,
    RedeliverIn,
    ResumeIn,
    RotateIn,
    SubscriptionIn,
    SubscriptionOut,
    TestOut,
)

__all__ = ["router"]

router = APIRouter(prefix="/v1/subscriptions", tags=["subscription"])


@router.post("", status_code=201)
async def create(context: ContextOf, actor: Actor, body: SubscriptionIn) -> SubscriptionOut:
    """Create a subscription that posts events from now on to a URL; the signing secret is shown only this once."""
    check_url(body.url)
    made = await context.engine.create_subscription(
        body.name, body.url, scopes=body.scopes, vms=body.vms, kinds=body.kinds, actor=actor
    )
    return SubscriptionOut.of(made, is_secret_shown=True)


@router.get("")
async def list_subscriptions(context: ContextOf, caller: Caller) -> PageOut[SubscriptionOut]:
    """List all subscriptions, oldest first. URL paths may hold keys, so read-only callers do not see them."""
    return PageOut(items=await context.engine.read(lambda reader: _shown(reader, reader.subscriptions(), caller)))


@router.get("/{name}")
async def show(context: ContextOf, caller: Caller, name: str) -> SubscriptionOut:
    """Show one subscription, by name or id."""
    return await context.engine.read(lambda reader: _shown(reader, [find_subscription(reader, name)], caller)[0])


@router.delete("/{name}")
async def delete(context: ContextOf, actor: Actor, name: str) -> SubscriptionOut:
    """Delete a subscription, with its waiting and dead deliveries."""
    return SubscriptionOut.of(await context.engine.delete_subscription(name, actor=actor))


@router.post("/{name}/pause")
async def pause(context: ContextOf, actor: Actor, name: str, body: PauseIn | None = None) -> SubscriptionOut:
    """Pause a subscription: nothing is sent until it is resumed."""
    reason = None if body is None else body.reason
    return await _after(context, await context.engine.pause_subscription(name, actor=actor, reason=reason))


@router.post("/{name}/resume")
async def resume(context: ContextOf, actor: Actor, name: str, body: ResumeIn | None = None) -> SubscriptionOut:
    """Resume a subscription where it was paused, or skip to what happens from now on."""
    is_skipping = body is not None and body.skip
    return await _after(context, await context.engine.resume_subscription(name, actor=actor, is_skipping=is_skipping))


@router.post("/{name}/rotate-secret")
async def rotate(context: ContextOf, actor: Actor, name: str, body: RotateIn | None = None) -> SubscriptionOut:
    """Rotate the secret; the new one is shown only this once. The old one also signs for a while, unless `at_once`."""
    is_at_once = body is not None and body.at_once
    rotated = await context.engine.rotate_secret(name, actor=actor, is_at_once=is_at_once)
    return SubscriptionOut.of(rotated, is_secret_shown=True)


@router.post("/{name}/test")
async def test(context: ContextOf, name: str) -> TestOut:
    """Post a ping now, and return the receiver's answer."""
    answer = await context.notifier.test(name)
    took_s = round(answer.took_s, 6)
    return TestOut(delivered=answer.is_taken, status=answer.status, error=answer.words, took_s=took_s)


@router.get("/{name}/deliveries")
async def list_deliveries(
    context: ContextOf,
    name: str,
    state: Annotated[DeliveryState, Query(description="Which.")] = DeliveryState.DEAD,
    after: Annotated[str | None, Query(max_length=200, description="`next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1)] = 100,
) -> PageOut[DeliveryOut]:
    """List deliveries that are waiting for a retry, or dead ones; oldest first."""
    size = min(limit, context.page_size_max)
    start = _key(after)

    def read(reader: Reader) -> list[Delivery]:
        return reader.deliveries(find_subscription(reader, name).id, state, after=start, limit=size + 1)

    found = await context.engine.read(read)
    following = found[size - 1].id if len(found) > size else None
    return PageOut(items=[DeliveryOut.of(delivery) for delivery in found[:size]], next=following)


@router.post("/{name}/deliveries/redeliver")
async def redeliver(context: ContextOf, actor: Actor, name: str, body: RedeliverIn | None = None) -> RedeliveredOut:
    """Retry some or all dead deliveries at once."""
    keys = None if body is None else body.keys()
    return RedeliveredOut(count=await context.engine.redeliver(name, keys, actor=actor))


def _shown(reader: Reader, subscriptions: list[Subscription], caller: Principal | None = None) -> list[SubscriptionOut]:
    counts = reader.delivery_counts()
    is_operator = caller is None or caller.role is Role.OPERATOR
    return [
        SubscriptionOut.of(
            each if is_operator else replace(each, url=origin_of(each.url)),
            waiting=counts.get((each.id, DeliveryState.WAITING), 0),
            dead=counts.get((each.id, DeliveryState.DEAD), 0),
        )
        for each in subscriptions
    ]


async def _after(context: Context, changed: Subscription) -> SubscriptionOut:
    return await context.engine.read(lambda reader: _shown(reader, [changed])[0])


def _key(after: str | None) -> tuple[int, str]:
    """Return the key of the delivery that a page comes after.

    Raises:
        InvalidRequest: The text is not the key of a delivery.
    """
    if after is None:
        return (0, "")
    sequence, _, subject = after.partition("-")
    if not sequence.isascii() or not sequence.isdecimal() or len(sequence) > len(str(1 << 62)) - 1 or "\0" in subject:
        msg = "after is expected to be the `next` of the page before"
        raise InvalidRequest(msg)
    return (int(sequence), subject)

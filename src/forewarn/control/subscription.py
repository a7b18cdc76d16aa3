"""`/v1/subscriptions`: webhook subscriptions, and their waiting and dead deliveries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query

from forewarn.control.context import Actor, AfterNumber, Caller, Context, ContextOf, PageLimit, cut_page
from forewarn.core.access import Principal, Role
from forewarn.core.subscription import Delivery, DeliveryState, Subscription
from forewarn.engine.subscriptions import find_subscription
from forewarn.errors import InvalidRequest
from forewarn.net.outbound import check_receiver_url, redact_url
from forewarn.store.contract import Reader
from forewarn.wire.control_response import PageOut
from forewarn.wire.subscription import (
    DeliveryOut,
    PingResultOut,
    RedeliveryIn,
    RedeliveryOut,
    SecretRotationIn,
    SubscriptionIn,
    SubscriptionOut,
    SubscriptionPauseIn,
    SubscriptionResumeIn,
)

__all__ = ["router"]

router = APIRouter(prefix="/v1/subscriptions", tags=["subscription"])


@router.post("", status_code=201)
async def create(context: ContextOf, actor: Actor, body: SubscriptionIn) -> SubscriptionOut:
    """Create a subscription that posts future notifications to a URL; its secret is shown only in this answer."""
    # The name is not resolved here: its address may change, so each delivery checks the one that it uses (ADR 18).
    check_receiver_url(body.url)
    made = await context.engine.subscriptions.create(
        body.name, body.url, scopes=body.scopes, vms=body.vms, kinds=body.kinds, actor=actor
    )
    return SubscriptionOut.from_model(made, is_secret_shown=True)


@router.get("")
async def list_subscriptions(
    context: ContextOf, caller: Caller, after: AfterNumber = None, limit: PageLimit = 100
) -> PageOut[SubscriptionOut]:
    """List subscriptions, oldest first; read-only callers see no URL paths, because these may hold keys."""
    size = min(limit, context.settings.page_size_max)

    def read(reader: Reader) -> PageOut[SubscriptionOut]:
        shown, following = cut_page(reader.list_subscriptions(), after, size)
        return PageOut(items=_make_subscriptions_out(reader, shown, caller), next=following)

    return await context.engine.read(read)


@router.get("/{name}")
async def show(context: ContextOf, caller: Caller, name: str) -> SubscriptionOut:
    """Show one subscription, by name or id."""
    return await context.engine.read(
        lambda reader: _make_subscriptions_out(reader, [find_subscription(reader, name)], caller)[0]
    )


@router.delete("/{name}")
async def delete(context: ContextOf, actor: Actor, name: str) -> SubscriptionOut:
    """Delete a subscription, with its waiting and dead deliveries."""
    return SubscriptionOut.from_model(await context.engine.subscriptions.delete(name, actor=actor))


@router.post("/{name}/pause")
async def pause(
    context: ContextOf, actor: Actor, name: str, body: SubscriptionPauseIn | None = None
) -> SubscriptionOut:
    """Pause a subscription: nothing is sent until it is resumed."""
    reason = None if body is None else body.reason
    return await _read_subscription_out(
        context, await context.engine.subscriptions.pause(name, actor=actor, reason=reason)
    )


@router.post("/{name}/resume")
async def resume(
    context: ContextOf, actor: Actor, name: str, body: SubscriptionResumeIn | None = None
) -> SubscriptionOut:
    """Resume a subscription where it was paused or, with `skip`, from now on."""
    is_skipping = body is not None and body.skip
    return await _read_subscription_out(
        context, await context.engine.subscriptions.resume(name, actor=actor, is_skipping=is_skipping)
    )


@router.post("/{name}/rotate-secret")
async def rotate(context: ContextOf, actor: Actor, name: str, body: SecretRotationIn | None = None) -> SubscriptionOut:
    """Replace the signing secret; the new secret is shown only in this answer.

    Unless `at_once` is true, the former secret also signs for a while.
    """
    is_at_once = body is not None and body.at_once
    rotated = await context.engine.subscriptions.rotate_secret(name, actor=actor, is_at_once=is_at_once)
    return SubscriptionOut.from_model(rotated, is_secret_shown=True)


@router.post("/{name}/test")
async def test(context: ContextOf, name: str) -> PingResultOut:
    """Post a ping now, and return the receiver's answer."""
    answer = await context.notifier.send_ping(name)
    took_s = round(answer.took_s, 6)
    return PingResultOut(delivered=answer.is_accepted, status=answer.status, error=answer.error, took_s=took_s)


@router.get("/{name}/deliveries")
async def list_deliveries(
    context: ContextOf,
    name: str,
    state: Annotated[DeliveryState, Query(description="State of the deliveries.")] = DeliveryState.DEAD,
    after: Annotated[str | None, Query(max_length=200, description="`next` of the previous page.")] = None,
    limit: PageLimit = 100,
) -> PageOut[DeliveryOut]:
    """List dead deliveries (given up), or deliveries that wait for a retry; oldest first."""
    size = min(limit, context.settings.page_size_max)
    start = _parse_delivery_key(after)

    def read(reader: Reader) -> list[Delivery]:
        return reader.list_deliveries(find_subscription(reader, name).id, state, after=start, limit=size + 1)

    found = await context.engine.read(read)
    following = found[size - 1].id if len(found) > size else None
    return PageOut(
        items=[DeliveryOut.model_validate(each, from_attributes=True) for each in found[:size]], next=following
    )


@router.post("/{name}/deliveries/redeliver")
async def redeliver(context: ContextOf, actor: Actor, name: str, body: RedeliveryIn | None = None) -> RedeliveryOut:
    """Retry some or all dead deliveries now."""
    keys = None if body is None else body.to_keys()
    return RedeliveryOut(count=await context.engine.subscriptions.redeliver(name, keys, actor=actor))


def _make_subscriptions_out(
    reader: Reader, subscriptions: Iterable[Subscription], caller: Principal | None = None
) -> list[SubscriptionOut]:
    counts = reader.count_deliveries()
    is_operator = caller is None or caller.role is Role.OPERATOR
    return [
        SubscriptionOut.from_model(
            each if is_operator else replace(each, url=redact_url(each.url)),
            waiting=counts.get((each.id, DeliveryState.WAITING), 0),
            dead=counts.get((each.id, DeliveryState.DEAD), 0),
        )
        for each in subscriptions
    ]


async def _read_subscription_out(context: Context, changed: Subscription) -> SubscriptionOut:
    return await context.engine.read(lambda reader: _make_subscriptions_out(reader, [changed])[0])


def _parse_delivery_key(after: str | None) -> tuple[int, str]:
    """Return the key of the delivery that a page comes after.

    Raises:
        InvalidRequest: The text is not the key of a delivery.
    """
    if after is None:
        return (0, "")
    sequence, _, subject = after.partition("-")
    # 18 digits always fit the 64-bit integers of the stores; a NUL would be an error in PostgreSQL.
    if not sequence.isascii() or not sequence.isdecimal() or len(sequence) > len(str(1 << 62)) - 1 or "\0" in subject:
        raise InvalidRequest("after must be the `next` of the previous page")
    return (int(sequence), subject)

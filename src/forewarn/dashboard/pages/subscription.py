"""Subscription pages: the list of subscriptions to notifications, and one with its deliveries."""

from __future__ import annotations

from dataclasses import replace

from forewarn.core.access import Role
from forewarn.core.subscription import DeliveryState, Subscription, SubscriptionState
from forewarn.dashboard.list_filter import read_offset
from forewarn.dashboard.page import PageModel, PageView
from forewarn.engine.subscriptions import find_subscription
from forewarn.errors import NotFound
from forewarn.net.outbound import redact_url
from forewarn.notifications.delivery_log import DeliveryLog
from forewarn.store.contract import Reader

__all__ = ["make_subscription_list", "make_subscription_page"]

_ROWS = 100
_DELIVERIES_MAX = 100


def make_subscription_list(reader: Reader, view: PageView) -> PageModel:
    """Make the list of subscriptions, oldest first."""
    found, counts = reader.list_subscriptions(), reader.count_deliveries()
    log = _get_log(view)
    begin = read_offset(view.query_params)
    rows = [
        {
            "s": _show_target(each, view),
            "state": describe_state(each),
            "waiting": counts.get((each.id, DeliveryState.WAITING), 0),
            "dead": counts.get((each.id, DeliveryState.DEAD), 0),
            "delivered_at": None if log is None else log.last_delivered_at(each.name),
        }
        for each in found[begin : begin + _ROWS]
    ]
    values = {
        "rows": rows,
        "is_leader": log is not None,
        "count": len(found),
        "from_": begin,
        "next_from": begin + _ROWS if begin + _ROWS < len(found) else None,
    }
    return PageModel(template="subscriptions.html", title="Subscriptions", values=values)


def make_subscription_page(reader: Reader, view: PageView) -> PageModel:
    """Make the page of one subscription.

    Raises:
        NotFound: No subscription has this name or id.
    """
    name = view.path_params["name"]
    try:
        found = find_subscription(reader, name)
    except NotFound:
        # The message of the engine names a command.
        raise NotFound(f"subscription {name!r} does not exist", id=name) from None
    counts, log = reader.count_deliveries(), _get_log(view)
    # The cursor is at an entry of the audit log, whose time says more than its number.
    handled = reader.list_entries(limit=1, newest=True, before=found.cursor + 1).items if found.cursor else ()
    values = {
        "s": _show_target(found, view),
        "state": describe_state(found),
        "waiting": reader.list_deliveries(found.id, DeliveryState.WAITING, limit=_DELIVERIES_MAX),
        "waiting_count": counts.get((found.id, DeliveryState.WAITING), 0),
        "dead": reader.list_deliveries(found.id, DeliveryState.DEAD, limit=_DELIVERIES_MAX),
        "dead_count": counts.get((found.id, DeliveryState.DEAD), 0),
        "handled_at": handled[0].at if handled else None,
        "is_leader": log is not None,
        "recent": [] if log is None else log.list_recent(found.name),
        "delivered_at": None if log is None else log.last_delivered_at(found.name),
    }
    return PageModel(template="subscription.html", title=f"Subscription {found.name}", values=values)


def describe_state(subscription: Subscription) -> str:
    """Return the state, or ``failing`` if an active subscription cannot deliver."""
    if subscription.state is SubscriptionState.ACTIVE and subscription.failing_since is not None:
        return "failing"
    return subscription.state.value


def _get_log(view: PageView) -> DeliveryLog | None:
    """Return the attempts of this process; None if another replica is the leader, which alone sends notifications."""
    return view.context.notifier.log if view.context.engine.leadership.is_held else None


def _show_target(subscription: Subscription, view: PageView) -> Subscription:
    """Return the subscription as the caller may see it: the path of a URL may hold a key (as in the API)."""
    if view.caller.role is Role.OPERATOR:
        return subscription
    return replace(subscription, url=redact_url(subscription.url))

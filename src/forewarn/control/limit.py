"""`/v1/limits`: use of the control API by each caller, and the limits met there or at the metadata endpoint."""

from __future__ import annotations

from datetime import datetime, timedelta

from fastapi import APIRouter

from forewarn.clock import uptime_s
from forewarn.control.context import AfterNumber, Context, ContextOf, PageLimit, cut_page
from forewarn.core.limit_log import CallerLimitHits
from forewarn.core.usage_limits import UsageAccount, UseKind
from forewarn.wire.access import AccountOut
from forewarn.wire.control_response import PageOut

__all__ = ["list_account_use", "router"]

router = APIRouter(prefix="/v1/limits", tags=["limit"])


@router.get("")
async def list_accounts(context: ContextOf, after: AfterNumber = None, limit: PageLimit = 100) -> PageOut[AccountOut]:
    """List callers, their use of the control API, and the limits they exceeded; most recently limited callers first.

    For the metadata endpoint, the list has the last 1,000 VMs and the last 100 other addresses that exceeded a
    limit. Each replica counts separately. Limits exceeded at host endpoints are not included.
    """
    await context.refresh_endpoint_state()
    page, following = cut_page(list_account_use(context), after, min(limit, context.settings.page_size_max))
    return PageOut(items=list(page), next=following)


def list_account_use(context: Context) -> list[AccountOut]:
    """Return all callers, their use and the limits they exceeded; most recently limited callers first."""
    now_s, now = uptime_s(), context.clock.now()

    def limited_at(found: UsageAccount | CallerLimitHits) -> datetime | None:
        if isinstance(found, CallerLimitHits):
            return found.limited_at
        return None if found.limited_s is None else now - timedelta(seconds=now_s - found.limited_s)

    def order(found: UsageAccount | CallerLimitHits) -> tuple[float, str]:
        at = limited_at(found)
        return (0.0 if at is None else -at.timestamp()), found.name

    def shown(found: UsageAccount | CallerLimitHits) -> AccountOut:
        account = found if isinstance(found, UsageAccount) else None
        return AccountOut(
            name=found.name,
            role=found.guest if isinstance(found, CallerLimitHits) else found.role,
            used={} if account is None else {use: account.measure_use(use, now_s) for use in UseKind},
            most={} if account is None else {use: account.budget.limit_of(use) for use in UseKind},
            limited={str(limit): count for limit, count in found.limited.items()},
            limited_at=limited_at(found),
        )

    return [shown(found) for found in sorted([*context.admission.accounts, *context.limits_met], key=order)]

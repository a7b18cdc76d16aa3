"""`/v1/limits`: use of the control API by each caller, and the limits met there or at the metadata endpoint."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from forewarn.clock import uptime_s
from forewarn.control.context import ContextOf
from forewarn.core.budget import Account, Use
from forewarn.core.limit_log import LimitsMet
from forewarn.wire.access import AccountOut
from forewarn.wire.control import PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/limits", tags=["limit"])


@router.get("")
async def list_accounts(context: ContextOf, limit: Annotated[int, Query(ge=1)] = 100) -> PageOut[AccountOut]:
    """List callers with their use of their budgets and the limits they met; the latest to meet a limit come first.

    For the metadata endpoint, the last 1,000 VMs and the last 100 other addresses that met a limit are listed. Each
    replica counts separately. Endpoints on hosts are not included.
    """
    await context.look()
    now_s, now = uptime_s(), context.clock.now()

    def limited_at(found: Account | LimitsMet) -> datetime | None:
        if isinstance(found, LimitsMet):
            return found.limited_at
        return None if found.limited_s is None else now - timedelta(seconds=now_s - found.limited_s)

    def order(found: Account | LimitsMet) -> tuple[float, str]:
        at = limited_at(found)
        return (0.0 if at is None else -at.timestamp()), found.name

    def shown(found: Account | LimitsMet) -> AccountOut:
        account = found if isinstance(found, Account) else None
        return AccountOut(
            name=found.name,
            role=found.guest if isinstance(found, LimitsMet) else found.role,
            used={} if account is None else {use: account.now_used(use, now_s) for use in Use},
            most={} if account is None else {use: account.budget.most(use) for use in Use},
            limited={str(limit): count for limit, count in found.limited.items()},
            limited_at=limited_at(found),
        )

    everyone = sorted([*context.admission.accounts, *context.limits_met], key=order)
    return PageOut(items=[shown(found) for found in everyone[: min(limit, context.page_size_max)]], next=None)

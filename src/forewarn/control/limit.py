"""`/v1/limits`: how much of the control API each caller uses, and who has met a limit."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query

from forewarn.clock import uptime_s
from forewarn.control.context import ContextOf
from forewarn.core.budget import Account, Use
from forewarn.wire.access import AccountOut
from forewarn.wire.control import PageOut

__all__ = ["router"]

router = APIRouter(prefix="/v1/limits", tags=["limit"])


@router.get("")
async def list_accounts(context: ContextOf, limit: Annotated[int, Query(ge=1)] = 100) -> PageOut[AccountOut]:
    """What callers of this replica use of their budgets; those that met a limit last come first."""
    accounts = sorted(context.admission.accounts, key=_order)[: min(limit, context.page_size_max)]
    now_s, now = uptime_s(), context.clock.now()

    def shown(account: Account) -> AccountOut:
        most = {use: account.budget.most(use) for use in Use}
        used = {use: account.now_used(use, now_s) for use in Use}
        ago = None if account.limited_s is None else timedelta(seconds=now_s - account.limited_s)
        return AccountOut(
            name=account.name,
            role=account.role,
            used=used,
            most=most,
            limited=dict(account.limited),
            limited_at=None if ago is None else now - ago,
        )

    return PageOut(items=[shown(account) for account in accounts], next=None)


def _order(account: Account) -> tuple[float, str]:
    return (0.0 if account.limited_s is None else -account.limited_s), account.name

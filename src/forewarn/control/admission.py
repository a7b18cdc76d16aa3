"""Limits on how much of the control address each caller may use at a time.

A known caller has an account (`core.budget`). A request takes what it uses from the account before any work is done,
and gives it back when the response has ended. Until a caller is known, only a few lookups per address run at a time;
the others wait.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import structlog
from starlette.requests import Request

from forewarn.clock import uptime_s
from forewarn.control.access import source_address
from forewarn.control.throttle import Throttle, credential_of, use_of
from forewarn.core.access import Principal, Role
from forewarn.core.budget import Account, Accounts, Exceeded, Use
from forewarn.errors import BudgetExceeded
from forewarn.net.pool import counted_address
from forewarn.net.tally import Tally

if TYPE_CHECKING:
    from forewarn.control.listener import Connection

__all__ = ["Admission"]

_log = structlog.get_logger("forewarn.control")

_LOOKUPS_MAX = 32
_WORDS = {
    Use.CONNECTIONS: "connections at a time",
    Use.REQUESTS: "requests at a time",
    Use.WATCHES: "watches at a time",
    Use.LIVE_PAGES: "live pages at a time",
    Use.BODY_BYTES: "bytes of request bodies at a time",
    Use.CHANGES: "changes per minute",
    Use.WATCH_STARTS: "watches begun per minute",
}


class Admission:
    """Charges requests to the accounts of their callers.

    Args:
        accounts: Accounts of all callers.
        throttle: Refuses callers who go on after they were refused.

    Attributes:
        limited: Number of refusals for each limit.
    """

    def __init__(self, accounts: Accounts, throttle: Throttle) -> None:
        self.accounts = accounts
        self.throttle = throttle
        self.limited: Counter[str] = Counter(dict.fromkeys(Use, 0))
        self._tally = Tally()
        self._lookups: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    @asynccontextmanager
    async def looking_up(self, address: str) -> AsyncIterator[None]:
        """Wait until few other callers at that address are being looked up."""
        key = counted_address(address)
        semaphore, users = self._lookups.setdefault(key, (asyncio.Semaphore(_LOOKUPS_MAX), []))
        users.append(None)
        try:
            async with semaphore:
                yield
        finally:
            users.pop()
            if not users:
                self._lookups.pop(key, None)

    def admit(self, request: Request, caller: Principal, use: Use) -> Account:
        """Charge a request, page or stream to its caller's account until its response has ended.

        Raises:
            BudgetExceeded: The account has no room for it.
        """
        account = self.accounts.of(caller)
        credential = credential_of(request.scope["headers"])
        if credential is not None:
            self.throttle.remember(credential, account)
        connection: Connection | None = getattr(request.state, "connection", None)
        if connection is not None:
            self._check(request, account, connection.admit(account))
        if use is Use.WATCHES:
            self._check(request, account, account.count(Use.WATCH_STARTS, uptime_s()))
            if caller.role is Role.HOST:
                _replace_oldest(account)
        self._check(request, account, account.take(use, uptime_s()))
        holds = _holds(request)
        holds.callback(account.give_back, use)
        if use is Use.WATCHES and caller.role is Role.HOST and connection is not None:
            # An endpoint that has lost its connection reconnects before we know that the old connection is dead.
            account.watches[holds] = connection.end
            holds.callback(account.watches.pop, holds, None)
        return account

    def change(self, request: Request, account: Account) -> None:
        """Count a change.

        Raises:
            BudgetExceeded: There were too many changes in the last minute.
        """
        self._check(request, account, account.count(Use.CHANGES, uptime_s()))

    def hold_body(self, request: Request, account: Account, size_bytes: int) -> None:
        """Charge more bytes of a request body to the account until the response has ended.

        Raises:
            BudgetExceeded: The account has no room for them.
        """
        self._check(request, account, account.take(Use.BODY_BYTES, uptime_s(), size_bytes))
        _holds(request).callback(account.give_back, Use.BODY_BYTES, size_bytes)

    def tell(self, now_s: float) -> None:
        """Log the callers that have met limits, at most one line per minute."""
        told = self._tally.due(now_s)
        if told is not None:
            _log.warning(
                "limits of the control API were met: see 'forewarn limit list'",
                count=told.count,
                worst=told.worst,
                worst_count=told.worst_count,
            )

    def note_unknown(self, request: Request) -> None:
        """Count a request from an unknown caller."""
        address = source_address(request)
        self.throttle.note_unknown(credential_of(request.scope["headers"]), address, uptime_s())

    def refuse_unread(self, headers: Iterable[tuple[bytes, bytes]], method: str, path: str, address: str) -> bool:
        """Return True if a request is to be refused unread because too many requests of its sender were refused.

        Args:
            headers: Request headers.
            method: Request method.
            path: Request path, without the query.
            address: Source address.
        """
        who = self.throttle.refuse_unread(credential_of(headers), use_of(method, path), address, uptime_s())
        if who is not None:
            self._tally.note(f"{who}: refusals")
        return who is not None

    def _check(self, request: Request, account: Account, exceeded: Exceeded | None) -> None:
        if exceeded is None:
            return
        account.note_refused(use_of(request.method, request.url.path), uptime_s())
        self.limited[exceeded.use] += 1
        self._tally.note(f"{account.name}: {exceeded.use}")
        msg = f"{account.name} has {exceeded.most} {_WORDS[exceeded.use]}, which is its limit: try again later"
        raise BudgetExceeded(
            msg, limit=exceeded.use.value, most=exceeded.most, retry_after_s=math.ceil(exceeded.retry_after_s)
        )


def _replace_oldest(account: Account) -> None:
    """Make room for another watch of a host by ending its oldest one, if that can be ended."""
    if account.used[Use.WATCHES] >= account.budget.watches_max and account.watches:
        holds, end = account.watches.popitem(last=False)
        assert isinstance(holds, ExitStack)  # noqa: S101 - see `Admission.admit`
        holds.close()
        end()


def _holds(request: Request) -> ExitStack:
    """Return the stack of charges to give back when the response has ended; the gate closes it."""
    found: ExitStack = request.state.holds
    return found

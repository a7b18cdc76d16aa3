"""Limits on how much of the control address each caller may use at a time.

A known caller has an account (`core.usage_limits`). A request takes what it uses from the account before any work is
done, and gives it back when the response has ended. Until a caller is known, only a few lookups per address run at a
time; the others wait.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import structlog
from starlette.requests import Request

from forewarn.clock import uptime_s
from forewarn.control.access import source_address
from forewarn.control.throttle import Throttle, classify_request, credential_of
from forewarn.core.access import Principal, Role
from forewarn.core.usage_limits import ExceededLimit, UsageAccount, UsageAccounts, UseKind
from forewarn.errors import BudgetExceeded
from forewarn.net.pool import get_counting_key
from forewarn.net.tally import Tally

if TYPE_CHECKING:
    from forewarn.control.listener import ListenerConnection

__all__ = ["Admission", "WatchCharge"]

_log = structlog.get_logger("forewarn.control")

_LOOKUPS_MAX = 32
_WORDS = {
    UseKind.CONNECTIONS: "connections at a time",
    UseKind.REQUESTS: "requests at a time",
    UseKind.WATCHES: "watches at a time",
    UseKind.LIVE_PAGES: "live pages at a time",
    UseKind.BODY_BYTES: "bytes of request bodies at a time",
    UseKind.CHANGES: "changes per minute",
    UseKind.WATCH_STARTS: "watches started per minute",
}


class Admission:
    """Charges requests to the accounts of their callers.

    Args:
        accounts: Accounts of all callers.
        throttle: Refuses callers who go on after they were refused.

    Attributes:
        limited: Number of refusals for each limit.
    """

    def __init__(self, accounts: UsageAccounts, throttle: Throttle) -> None:
        self.accounts = accounts
        self.throttle = throttle
        self.limited: Counter[str] = Counter(dict.fromkeys(UseKind, 0))
        self._tally = Tally()
        self._lookups: dict[str, tuple[asyncio.Semaphore, list[None]]] = {}

    @asynccontextmanager
    async def limit_lookups(self, address: str) -> AsyncIterator[None]:
        """Wait until few other callers at that address are being looked up."""
        key = get_counting_key(address)
        semaphore, users = self._lookups.setdefault(key, (asyncio.Semaphore(_LOOKUPS_MAX), []))
        # Counts the callers that hold or await the semaphore, so that the last one can drop the entry.
        users.append(None)
        try:
            async with semaphore:
                yield
        finally:
            users.pop()
            if not users:
                self._lookups.pop(key, None)

    def charge_request(self, request: Request, caller: Principal, use: UseKind) -> UsageAccount:
        """Charge a request, page or stream to its caller's account until its response has ended.

        Raises:
            BudgetExceeded: The account has no room for it.
        """
        account = self.accounts.get_account(caller)
        credential = credential_of(request.scope["headers"])
        if credential is not None:
            self.throttle.remember_credential(credential, account)
        connection: ListenerConnection | None = getattr(request.state, "connection", None)
        if connection is not None:
            self._raise_if_exceeded(request, account, connection.charge_account(account))
        if use is UseKind.WATCHES:
            # Counted before the oldest watch is replaced: a host that reconnects in a loop is still limited.
            self._raise_if_exceeded(request, account, account.count_use(UseKind.WATCH_STARTS, uptime_s()))
            if caller.role is Role.HOST:
                _end_oldest_watch(account)
        self._raise_if_exceeded(request, account, account.acquire(use, uptime_s()))
        if use is UseKind.WATCHES:
            request.state.watch_charge = charge = WatchCharge(account)
            _charges_of(request).callback(charge.release_with_request)
        else:
            _charges_of(request).callback(account.release, use)
        return account

    def charge_change(self, request: Request, account: UsageAccount) -> None:
        """Count a change.

        Raises:
            BudgetExceeded: There were too many changes in the last minute.
        """
        self._raise_if_exceeded(request, account, account.count_use(UseKind.CHANGES, uptime_s()))

    def charge_body(self, request: Request, account: UsageAccount, size_bytes: int) -> None:
        """Charge more bytes of a request body to the account until the response has ended.

        Raises:
            BudgetExceeded: The account has no room for them.
        """
        self._raise_if_exceeded(request, account, account.acquire(UseKind.BODY_BYTES, uptime_s(), size_bytes))
        _charges_of(request).callback(account.release, UseKind.BODY_BYTES, size_bytes)

    def log_limits(self, now_s: float) -> None:
        """Log the callers that have met limits, at most one line per minute."""
        line = self._tally.take_line(now_s)
        if line is not None:
            _log.warning(
                "callers reached limits of the control API: see 'forewarn limit list'",
                count=line.count,
                worst=line.worst,
                worst_count=line.worst_count,
            )

    def count_unknown(self, request: Request) -> None:
        """Count a request from an unknown caller."""
        address = source_address(request)
        self.throttle.count_unknown(credential_of(request.scope["headers"]), address, uptime_s())

    def should_refuse_unread(
        self, headers: Iterable[tuple[bytes, bytes]], method: str, path: str, address: str
    ) -> bool:
        """Return True if a request is to be refused unread because too many requests of its sender were refused.

        The path is without the query, and the address is the source of the connection.
        """
        who = self.throttle.refuse_unread(credential_of(headers), classify_request(method, path), address, uptime_s())
        if who is not None:
            self._tally.count_occurrence(f"{who}: refusals")
        return who is not None

    def _raise_if_exceeded(self, request: Request, account: UsageAccount, exceeded: ExceededLimit | None) -> None:
        if exceeded is None:
            return
        account.record_refusal(classify_request(request.method, request.url.path), uptime_s())
        self.limited[exceeded.use] += 1
        self._tally.count_occurrence(f"{account.name}: {exceeded.use}")
        msg = f"{account.name} has reached its limit of {exceeded.limit} {_WORDS[exceeded.use]}: try again later"
        raise BudgetExceeded(
            msg, limit=exceeded.use.value, most=exceeded.limit, retry_after_s=math.ceil(exceeded.retry_after_s)
        )


class WatchCharge:
    """Charge for a stream, released with its request unless the stream has taken it over."""

    __slots__ = ("_account", "_is_kept")

    def __init__(self, account: UsageAccount) -> None:
        self._account: UsageAccount | None = account
        self._is_kept = False

    def keep(self, end: Callable[[], None]) -> None:
        """Keep the charge until `release`; `end` ends the stream at once if a host's newer stream needs the room."""
        self._is_kept = True
        # An endpoint that has lost its connection reconnects before we know that the old connection is dead.
        if self._account is not None and self._account.role is Role.HOST:
            self._account.watches[self] = end

    def release(self) -> None:
        """Release the charge. May be repeated."""
        account, self._account = self._account, None
        if account is not None:
            account.release(UseKind.WATCHES)
            account.watches.pop(self, None)

    def release_with_request(self) -> None:
        """Release the charge at the end of the request, unless it is kept."""
        if not self._is_kept:
            self.release()


def _end_oldest_watch(account: UsageAccount) -> None:
    """Make room for another watch of a host by ending its oldest one, if that can be ended."""
    if account.used[UseKind.WATCHES] >= account.budget.watches_max and account.watches:
        end = next(iter(account.watches.values()))
        # Ending it releases its charge at once.
        end()


def _charges_of(request: Request) -> ExitStack:
    """Return the stack of charges to give back when the response has ended; the gate closes it."""
    found: ExitStack = request.state.holds
    return found

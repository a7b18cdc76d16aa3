"""How much of the service one principal may use at a time, and who has met a limit.

Operators and readers count by their name, hosts by theirs, and tenants by what they own: several tokens of one tenant
share one budget. What is in use is taken and given back; what is limited by the minute is counted in a bucket that
drains with time. All of it is in memory, for a bounded number of principals.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forewarn.core.access import Principal, Role

__all__ = ["A_MINUTE", "Account", "Accounts", "Bucket", "Budget", "Exceeded", "Use"]

_MINUTE_S = 60.0
_LOOKS_MAX = 100


class Use(StrEnum):
    """What a budget limits."""

    CONNECTIONS = "connections"
    """Connections to the control address."""

    REQUESTS = "requests"
    """Requests being worked on, without those that stream."""

    WATCHES = "watches"
    """Streams of the API."""

    LIVE_PAGES = "live-pages"
    """Streams of the dashboard."""

    BODY_BYTES = "body-bytes"
    """Bytes of request bodies held in memory."""

    CHANGES = "changes"
    """Requests that change something, in a minute."""

    WATCH_STARTS = "watch-starts"
    """Streams of the API that begin, in a minute."""

    REFUSALS = "refusals"
    """Requests refused over one of the other limits, in a minute; beyond that they are refused unread."""


A_MINUTE = frozenset({Use.CHANGES, Use.WATCH_STARTS, Use.REFUSALS})
"""Limits per minute; the others limit what is in use at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one principal may use: at a time, or in a minute where the name says so."""

    connections_max: int
    requests_max: int
    watches_max: int
    live_pages_max: int
    body_size_bytes_max: int
    changes_per_minute_max: int
    watch_starts_per_minute_max: int
    refusals_per_minute_max: int

    def most(self, use: Use) -> int:
        """The limit of one use."""
        return {
            Use.CONNECTIONS: self.connections_max,
            Use.REQUESTS: self.requests_max,
            Use.WATCHES: self.watches_max,
            Use.LIVE_PAGES: self.live_pages_max,
            Use.BODY_BYTES: self.body_size_bytes_max,
            Use.CHANGES: self.changes_per_minute_max,
            Use.WATCH_STARTS: self.watch_starts_per_minute_max,
            Use.REFUSALS: self.refusals_per_minute_max,
        }[use]


@dataclass(slots=True)
class Bucket:
    """Counts what happens, and forgets it steadily: as much in a minute as there may be in a minute.

    Args:
        per_minute_max: How often it may happen in a minute.
        burst_max: How often at once, if it has not happened for a while.
    """

    per_minute_max: float
    burst_max: float
    _level: float = 0.0
    _counted_s: float = float("-inf")

    def level(self, now_s: float) -> float:
        """Return the count that is left at this time."""
        drained = (now_s - self._counted_s) / _MINUTE_S * self.per_minute_max
        return max(0.0, self._level - drained)

    def wait_s(self, now_s: float) -> float:
        """Seconds until it may happen again; 0: it may now."""
        return max(0.0, self.level(now_s) + 1 - self.burst_max) * _MINUTE_S / self.per_minute_max

    def add(self, now_s: float) -> None:
        """It has happened."""
        self._level, self._counted_s = self.level(now_s) + 1, now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Exceeded:
    """A limit that was met.

    Attributes:
        retry_after_s: Seconds after which another try may succeed.
    """

    use: Use
    most: int
    retry_after_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class Account:
    """What one principal uses now.

    Attributes:
        name: The actor that used it last, as the ledger names it.
        used: In use now, by use; without what is counted by the minute.
        limited: How often each limit was met.
        limited_s: When one was met last; None: never.
        watches: Of a host: each watch, oldest first, with what ends it.
    """

    name: str
    role: Role
    budget: Budget
    used: Counter[Use] = field(default_factory=Counter)
    limited: Counter[Use] = field(default_factory=Counter)
    limited_s: float | None = None
    watches: OrderedDict[object, Callable[[], None]] = field(default_factory=OrderedDict)
    _buckets: dict[tuple[Use, Use], Bucket] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in use."""
        return not any(self.used.values())

    def now_used(self, use: Use, now_s: float) -> int:
        """How much of it is in use, or was in the last minute as far as that still counts."""
        if use not in A_MINUTE:
            return self.used[use]
        return round(sum(bucket.level(now_s) for (each, _), bucket in self._buckets.items() if each is use))

    def take(self, use: Use, now_s: float, amount: int = 1) -> Exceeded | None:
        """Take so much of it, unless that would be over the limit; see `give_back`."""
        most = self.budget.most(use)
        if self.used[use] + amount > most:
            return self._refuse(use, now_s, 1.0)
        self.used[use] += amount
        return None

    def give_back(self, use: Use, amount: int = 1) -> None:
        """It is not in use any more."""
        self.used[use] -= amount

    def count(self, use: Use, now_s: float) -> Exceeded | None:
        """Count something that is limited by the minute, unless there was too much of it in the last one."""
        bucket = self._bucket(use, use)
        wait_s = bucket.wait_s(now_s)
        if wait_s:
            return self._refuse(use, now_s, wait_s)
        bucket.add(now_s)
        return None

    def note_refused(self, use: Use, now_s: float) -> None:
        """Count a request for that use that was refused, at the cost of reading it."""
        self._bucket(Use.REFUSALS, use).add(now_s)

    def refuse_unread(self, use: Use, now_s: float) -> Exceeded | None:
        """Whether a request for that use is to be refused without reading it: too many were refused after reading."""
        wait_s = self._bucket(Use.REFUSALS, use).wait_s(now_s)
        return self._refuse(Use.REFUSALS, now_s, wait_s) if wait_s else None

    def _bucket(self, use: Use, of: Use) -> Bucket:
        bucket = self._buckets.get((use, of))
        if bucket is None:
            bucket = self._buckets[use, of] = Bucket(self.budget.most(use), self.budget.most(use))
        return bucket

    def _refuse(self, use: Use, now_s: float, retry_after_s: float) -> Exceeded:
        self.limited[use] += 1
        self.limited_s = now_s
        return Exceeded(use=use, most=self.budget.most(use), retry_after_s=retry_after_s)


class Accounts:
    """The accounts of all principals who use something, or have lately.

    Args:
        budgets: What each role may use.
        accounts_max: Principals that are remembered at a time. Those that use nothing make room first.
    """

    def __init__(self, budgets: Mapping[Role, Budget], accounts_max: int) -> None:
        self._budgets = budgets
        self._accounts_max = accounts_max
        self._accounts: OrderedDict[Hashable, Account] = OrderedDict()

    def __len__(self) -> int:
        """How many principals are remembered."""
        return len(self._accounts)

    def __iter__(self) -> Iterator[Account]:
        """All of them, the one that was used last at the end."""
        return iter(self._accounts.values())

    def of(self, principal: Principal) -> Account:
        """The account of a principal."""
        key = _key(principal)
        account = self._accounts.get(key)
        if account is None:
            self._make_room()
            account = Account(name=principal.actor, role=principal.role, budget=self._budgets[principal.role])
            self._accounts[key] = account
        account.name = principal.actor
        self._accounts.move_to_end(key)
        return account

    def _make_room(self) -> None:
        """Forget those that were used longest ago.

        One that is in use is put at the end, and stays: how many there are of those is bounded by the connections.
        """
        for _ in range(min(len(self._accounts), _LOOKS_MAX)):
            if len(self._accounts) < self._accounts_max:
                return
            key, account = self._accounts.popitem(last=False)
            if not account.is_idle:
                self._accounts[key] = account


def _key(principal: Principal) -> Hashable:
    if principal.role is Role.TENANT:
        return principal.role, principal.scopes, principal.vms
    return principal.role, principal.host or principal.actor

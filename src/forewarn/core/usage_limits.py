"""Budgets: how much of the service one principal may use at a time, and a count of the limits it met.

Operators and readers are counted by name, hosts by host name, and tenants by what they own: several tokens of one
tenant share one budget. Concurrent use is taken and given back; uses limited per minute are counted in a leaky bucket.
All of it is in memory, for a bounded number of principals.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forewarn.core.access import Principal, Role

__all__ = ["A_MINUTE", "ExceededLimit", "LeakyBucket", "UsageAccount", "UsageAccounts", "UsageLimits", "UseKind"]

_MINUTE_S = 60.0
_LOOKS_MAX = 100


class UseKind(StrEnum):
    """Kind of use that a budget limits."""

    CONNECTIONS = "connections"
    """Connections to the control address."""

    REQUESTS = "requests"
    """Requests in progress, except streams."""

    WATCHES = "watches"
    """Streams of the API."""

    LIVE_PAGES = "live-pages"
    """Streams of the dashboard."""

    BODY_BYTES = "body-bytes"
    """Bytes of request bodies held in memory."""

    CHANGES = "changes"
    """Requests per minute that change something."""

    WATCH_STARTS = "watch-starts"
    """API streams started per minute."""

    REFUSALS = "refusals"
    """Requests per minute refused over one of the other limits; any more are refused unread."""


A_MINUTE = frozenset({UseKind.CHANGES, UseKind.WATCH_STARTS, UseKind.REFUSALS})
"""Limits per minute; the others limit concurrent use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageLimits:
    """Limits of one principal: concurrent, or per minute if the name says so."""

    connections_max: int
    requests_max: int
    watches_max: int
    live_pages_max: int
    body_size_bytes_max: int
    changes_per_minute_max: int
    watch_starts_per_minute_max: int
    refusals_per_minute_max: int

    def limit_of(self, use: UseKind) -> int:
        """Return the limit of one use."""
        limit: int = getattr(self, _FIELD_OF[use])
        return limit


_FIELD_OF = {
    UseKind.CONNECTIONS: "connections_max",
    UseKind.REQUESTS: "requests_max",
    UseKind.WATCHES: "watches_max",
    UseKind.LIVE_PAGES: "live_pages_max",
    UseKind.BODY_BYTES: "body_size_bytes_max",
    UseKind.CHANGES: "changes_per_minute_max",
    UseKind.WATCH_STARTS: "watch_starts_per_minute_max",
    UseKind.REFUSALS: "refusals_per_minute_max",
}


@dataclass(slots=True)
class LeakyBucket:
    """Leaky bucket that counts occurrences and drains `per_minute_max` of them per minute.

    Args:
        per_minute_max: Rate limit per minute.
        burst_max: Number allowed at once after a quiet period.
    """

    per_minute_max: float
    burst_max: float
    _level: float = 0.0
    _counted_s: float = float("-inf")

    def level_at(self, now_s: float) -> float:
        """Return the count that is left at this time."""
        drained = (now_s - self._counted_s) / _MINUTE_S * self.per_minute_max
        return max(0.0, self._level - drained)

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until the next occurrence is allowed; 0 if one is allowed now."""
        return max(0.0, self.level_at(now_s) + 1 - self.burst_max) * _MINUTE_S / self.per_minute_max

    def count_one(self, now_s: float) -> None:
        """Count one occurrence."""
        self._level, self._counted_s = self.level_at(now_s) + 1, now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ExceededLimit:
    """A limit that was met.

    Attributes:
        retry_after_s: Seconds after which a retry may succeed.
    """

    use: UseKind
    limit: int
    retry_after_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class UsageAccount:
    """Current use of the service by one principal.

    Attributes:
        name: Actor that used the account last, as named in the audit log.
        used: Amounts in use now, by use; uses limited per minute are not included.
        limited: Number of times each limit was met.
        limited_s: Time at which a limit was last met; None if never.
        watches: Watches of a host, oldest first, each with the function that ends it.
    """

    name: str
    role: Role
    budget: UsageLimits
    used: Counter[UseKind] = field(default_factory=Counter)
    limited: Counter[UseKind] = field(default_factory=Counter)
    limited_s: float | None = None
    watches: dict[object, Callable[[], None]] = field(default_factory=dict)
    _buckets: dict[tuple[UseKind, UseKind], LeakyBucket] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """True if nothing is in use."""
        return not any(self.used.values())

    def measure_use(self, use: UseKind, now_s: float) -> int:
        """Return the amount in use; for uses limited per minute, the rounded level of their buckets."""
        if use not in A_MINUTE:
            return self.used[use]
        return round(sum(bucket.level_at(now_s) for (each, _), bucket in self._buckets.items() if each is use))

    def acquire(self, use: UseKind, now_s: float, amount: int = 1) -> ExceededLimit | None:
        """Take an amount, unless that would exceed the limit; see `release`."""
        most = self.budget.limit_of(use)
        if self.used[use] + amount > most:
            # It is not known when an amount will be released, so 1 s is a guess.
            return self._record_exceeded(use, now_s, 1.0)
        self.used[use] += amount
        return None

    def release(self, use: UseKind, amount: int = 1) -> None:
        """Release an amount."""
        self.used[use] -= amount

    def count_use(self, use: UseKind, now_s: float) -> ExceededLimit | None:
        """Count one occurrence of a use limited per minute, unless its limit is met."""
        bucket = self._get_bucket(use, use)
        # A refused occurrence is not counted; otherwise a client that keeps trying would never be allowed again.
        wait_s = bucket.wait_s(now_s)
        if wait_s:
            return self._record_exceeded(use, now_s, wait_s)
        bucket.count_one(now_s)
        return None

    def record_refusal(self, use: UseKind, now_s: float) -> None:
        """Count a request for that use that was refused after it was read."""
        self._get_bucket(UseKind.REFUSALS, use).count_one(now_s)

    def refuse_unread(self, use: UseKind, now_s: float) -> ExceededLimit | None:
        """Refuse a request for that use unread if too many were refused after reading; return None to let it pass."""
        wait_s = self._get_bucket(UseKind.REFUSALS, use).wait_s(now_s)
        # Decided without the body, so that refusing a flood of requests costs little.
        return self._record_exceeded(UseKind.REFUSALS, now_s, wait_s) if wait_s else None

    def _get_bucket(self, use: UseKind, request_use: UseKind) -> LeakyBucket:
        # Each kind of request has its own bucket of refusals, so that refused changes do not block reading.
        bucket = self._buckets.get((use, request_use))
        if bucket is None:
            bucket = self._buckets[use, request_use] = LeakyBucket(self.budget.limit_of(use), self.budget.limit_of(use))
        return bucket

    def _record_exceeded(self, use: UseKind, now_s: float, retry_after_s: float) -> ExceededLimit:
        self.limited[use] += 1
        self.limited_s = now_s
        return ExceededLimit(use=use, limit=self.budget.limit_of(use), retry_after_s=retry_after_s)


class UsageAccounts:
    """Accounts of all principals that use the service now or have used it lately.

    Args:
        budgets: Budget of each role.
        accounts_max: Maximum number of accounts kept. Idle accounts make room first.
    """

    def __init__(self, budgets: Mapping[Role, UsageLimits], accounts_max: int) -> None:
        self._budgets = budgets
        self._accounts_max = accounts_max
        self._accounts: OrderedDict[Hashable, UsageAccount] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of accounts kept."""
        return len(self._accounts)

    def __iter__(self) -> Iterator[UsageAccount]:
        """Iterate over the accounts; the last one used comes last."""
        return iter(self._accounts.values())

    def get_account(self, principal: Principal) -> UsageAccount:
        """Return the account of a principal."""
        key = _make_account_key(principal)
        account = self._accounts.get(key)
        if account is None:
            self._evict_idle()
            account = UsageAccount(name=principal.actor, role=principal.role, budget=self._budgets[principal.role])
            self._accounts[key] = account
        account.name = principal.actor
        self._accounts.move_to_end(key)
        return account

    def _evict_idle(self) -> None:
        """Drop the idle accounts that were used longest ago.

        An account in use moves to the end and stays; the limit on connections bounds their number.
        """
        # A bounded number of steps: with every account in use, this loop would otherwise scan them all each time.
        for _ in range(min(len(self._accounts), _LOOKS_MAX)):
            if len(self._accounts) < self._accounts_max:
                return
            key, account = self._accounts.popitem(last=False)
            if not account.is_idle:
                self._accounts[key] = account


def _make_account_key(principal: Principal) -> Hashable:
    if principal.role is Role.TENANT:
        # All tokens of a tenant count together; otherwise a tenant with more tokens could use more.
        return principal.role, principal.scopes, principal.vms
    return principal.role, principal.host or principal.actor

"""How much of the service one principal may use at a time, and who has met a limit.

Operators and readers count by their name, hosts by theirs, and tenants by what they own: several tokens of one tenant
share one budget. What is in use is taken and given back; changes are drawn from a bucket that fills with time. All of
it is in memory, for a bounded number of principals.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from forewarn.core.access import Principal, Role

__all__ = ["Account", "Accounts", "Budget", "Exceeded", "Use"]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What one principal may use at a time."""

    connections_max: int
    requests_max: int
    watches_max: int
    live_pages_max: int
    body_size_bytes_max: int
    changes_per_minute_max: int

    def most(self, use: Use) -> int:
        """The limit of one use."""
        return {
            Use.CONNECTIONS: self.connections_max,
            Use.REQUESTS: self.requests_max,
            Use.WATCHES: self.watches_max,
            Use.LIVE_PAGES: self.live_pages_max,
            Use.BODY_BYTES: self.body_size_bytes_max,
            Use.CHANGES: self.changes_per_minute_max,
        }[use]


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
        used: In use now, by use; without changes.
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
    _changes: float = 0.0
    _changes_s: float = float("-inf")

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in use."""
        return not any(self.used.values())

    def changes(self, now_s: float) -> float:
        """Changes of the last minute, as far as they still count."""
        drained = (now_s - self._changes_s) / _MINUTE_S * self.budget.changes_per_minute_max
        return max(0.0, self._changes - drained)

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

    def change(self, now_s: float) -> Exceeded | None:
        """Count a change, unless there were too many in the last minute."""
        most = self.budget.changes_per_minute_max
        before = self.changes(now_s)
        if before + 1 > most:
            return self._refuse(Use.CHANGES, now_s, (before + 1 - most) * _MINUTE_S / most)
        self._changes, self._changes_s = before + 1, now_s
        return None

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

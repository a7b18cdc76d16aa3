"""What the connections of one endpoint share: limits, the time in headers, what has been learnt, and counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from email.utils import format_datetime

from forewarn.endpoint.budget import Budgets
from forewarn.endpoint.fault_registry import Faults
from forewarn.endpoint.request_journal import Journal

__all__ = ["Limits", "Traffic"]

_MEMO_MAX = 4096
_MEMO_PER_VM_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one endpoint takes.

    Attributes:
        body_size_bytes_max: Largest body.
        header_size_bytes_max: Largest request line with headers.
        start_requests_max: StartRequests in one POST.
        request_timeout_s: For a request to arrive whole, and for an answer to be taken.
        idle_timeout_s: For a connection without requests.
        connections_max: All together.
        connections_per_vm_max: Of one VM; also of all unknown callers together.
        connections_per_unknown_address_max: Of one address that is no VM's.
        wait_s_max: Longest long poll.
        rate_limit_per_s: Requests per second and VM; None: no limit.
        approvals_at_work_per_vm_max: POSTs of one VM that have begun and are not answered.
        approval_bytes_per_vm_minute_max: Bytes of bodies that one VM may send a minute; each POST counts 256 at least.
        body_bytes_per_vm_max: Bytes of bodies of one VM that have arrived and are not decoded.
        body_bytes_max: The same, of all VMs together.
        host_names: Names taken in ``Host``, beside addresses and ``localhost``.
    """

    body_size_bytes_max: int = 256 << 10
    header_size_bytes_max: int = 16 << 10
    start_requests_max: int = 1000
    request_timeout_s: float = 10.0
    idle_timeout_s: float = 300.0
    connections_max: int = 16384
    connections_per_vm_max: int = 256
    connections_per_unknown_address_max: int = 16
    wait_s_max: float = 300.0
    rate_limit_per_s: int | None = None
    approvals_at_work_per_vm_max: int = 32
    approval_bytes_per_vm_minute_max: int = 4 << 20
    body_bytes_per_vm_max: int = 1 << 20
    body_bytes_max: int = 64 << 20
    host_names: frozenset[str] = frozenset()


class Traffic:
    """Shared by all connections.

    Args:
        limits: What is taken.
        versions: How many api-versions there are.
        faults: What goes wrong on purpose.
        journal: Where requests are written down; None: nowhere.

    Attributes:
        stamp: The lines of an answer that tell the time and who we are; made anew each second.
        prefix: Start of a fast answer, up to and with the stamp.
        now: The time as of the last second, for R69.
        second: Seconds of a clock that never goes back, as of the last tick, for time-outs.
        memo: Bytes of a whole request to its version's index and whether its connection is to be closed after it.
        fast: How many GETs the fast path answered, by version.
        outcomes: How many requests the app answered, by version, method and status.
        budgets: What each VM has in hand.
        unknown_connections: Open ones of each address that is no VM's.
    """

    def __init__(self, limits: Limits, versions: int, faults: Faults, journal: Journal | None = None) -> None:
        self.limits = limits
        self.faults = faults
        self.journal = journal
        self.stamp = b""
        self.prefix = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.now: datetime | None = None
        self.second = 0.0
        self.memo: dict[bytes, tuple[int, bool]] = {}
        self._taught: Counter[str] = Counter()
        self.fast = [0] * versions
        self.outcomes: Counter[tuple[str, str, int]] = Counter()
        self.unknown_callers = 0
        self.unknown_connections: Counter[str] = Counter()
        self.budgets = Budgets(limits)
        self.connections_refused = 0
        self.is_stopping = False

    def tick(self, now: datetime, monotonic_s: float) -> None:
        """Take over the time; called once a second, and when a virtual clock moves."""
        self.now = now
        self.second = monotonic_s
        self.budgets.tick(now, monotonic_s)
        date = format_datetime(now, usegmt=True).encode()
        self.stamp = b"date: " + date + b"\r\nserver: Forewarn\r\n"
        self.prefix = b"HTTP/1.1 200 OK\r\n" + self.stamp
        # The same list each time: a request that is held holds on to it, and is answered with the date of its answer.
        self.headers[:] = [(b"date", date), (b"server", b"Forewarn")]

    @property
    def over_limit(self) -> Counter[str]:
        """How many requests and connections were over a limit of theirs, by setting."""
        return self.budgets.refused

    def learn(self, request: bytes, version: int, *, closes: bool, vm: str) -> None:
        """Remember that these bytes ask for a plain document of that version.

        One VM may add only a few, and a full memo begins anew: nobody can make it grow, or keep others out.
        """
        if request in self.memo or self._taught[vm] >= _MEMO_PER_VM_MAX or self.limits.rate_limit_per_s is not None:
            return
        if len(self.memo) >= _MEMO_MAX:
            self.forget()
        self._taught[vm] += 1
        self.memo[request] = (version, closes)

    def forget(self) -> None:
        """Begin the memo anew."""
        self.memo.clear()
        self._taught.clear()

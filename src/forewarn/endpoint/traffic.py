"""State shared by the connections of one endpoint: limits, time headers, the memo of the fast path, counters."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from email.utils import format_datetime

from forewarn.endpoint.fault_registry import FaultRegistry
from forewarn.endpoint.quota import VmQuotas
from forewarn.endpoint.request_journal import RequestJournal
from forewarn.publishing.identity import Caller

__all__ = ["EndpointLimits", "Traffic"]

# Each entry has 2 KiB at most. A VM needs a few: one per HTTP library, api-version and connection header.
_MEMO_MAX = 4096
_MEMO_PER_VM_MAX = 8
# With a fixed limit of 256 connections for each VM, 64 VMs could take all of them. A share of the free ones leaves room
# for others (ADR 27).
_SHARES = 32
_SHARE_MIN = 16
"""A VM may hold 1/`_SHARES` of the free connections, and at least `_SHARE_MIN` while any are free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLimits:
    """Limits of one endpoint.

    Attributes:
        body_size_bytes_max: Maximum size of a body.
        header_size_bytes_max: Maximum size of the request line with headers.
        start_requests_max: Maximum number of StartRequests in one POST.
        request_timeout_s: Time limit for a request to arrive in full, and for the client to take a response.
        idle_timeout_s: Maximum time that a connection stays open without requests.
        connections_max: Maximum number of connections.
        connections_per_vm_max: Maximum number of connections of one VM.
        connections_per_unknown_address_max: Maximum number of connections of one unknown address.
        unknown_connections_max: Maximum number of connections of all unknown callers; None for that of one VM.
        wait_s_max: Maximum duration of a long poll.
        rate_limit_per_s: Maximum number of requests per second and VM; None if unlimited.
        approvals_at_work_per_vm_max: Maximum number of unanswered POSTs of one VM.
        approval_bytes_per_vm_minute_max: Maximum body bytes per VM and minute; each POST counts at least 256.
        body_bytes_per_vm_max: Maximum body bytes of one VM that have arrived and are not decoded.
        body_bytes_max: Maximum body bytes of all VMs together that have arrived and are not decoded.
        host_names: Names allowed in ``Host`` besides addresses and ``localhost``.
    """

    body_size_bytes_max: int = 256 << 10
    header_size_bytes_max: int = 16 << 10
    start_requests_max: int = 1000
    request_timeout_s: float = 10.0
    idle_timeout_s: float = 300.0
    connections_max: int = 16384
    connections_per_vm_max: int = 256
    connections_per_unknown_address_max: int = 16
    unknown_connections_max: int | None = None
    wait_s_max: float = 300.0
    rate_limit_per_s: int | None = None
    approvals_at_work_per_vm_max: int = 32
    approval_bytes_per_vm_minute_max: int = 4 << 20
    body_bytes_per_vm_max: int = 1 << 20
    body_bytes_max: int = 64 << 20
    host_names: frozenset[str] = frozenset()

    def divide(self, processes: int) -> EndpointLimits:
        """Return the limits of one of several processes that together keep to these.

        All connections from one address reach the same process. So limits for one VM or one address stay as they are,
        and limits for all callers together are divided; each process has at least 1.
        """
        if processes == 1:
            return self
        unknown = self.connections_per_vm_max if self.unknown_connections_max is None else self.unknown_connections_max
        return replace(
            self,
            connections_max=max(self.connections_max // processes, 1),
            unknown_connections_max=max(unknown // processes, 1),
            body_bytes_max=max(self.body_bytes_max // processes, 1),
        )


class Traffic:
    """State shared by all connections.

    Args:
        versions: Number of api-versions.
        journal: Journal of requests; None if none are recorded.

    Attributes:
        common_header_lines: `Date` and `Server` header lines, updated every second.
        fast_response_prefix: Start of a fast response, including the stamp.
        now: Time as of the last tick, for R69.
        monotonic_s: Monotonic seconds as of the last tick, for timeouts.
        memo: Index of the version, and whether to close the connection, by the bytes of a whole request.
        fast_path_counts: Number of GETs answered by the fast path, by version.
        outcomes: Number of requests answered by the app, by version, method and status.
        quotas: Pending work per VM.
        unknown_connections: Number of open connections of each unknown address.
    """

    def __init__(
        self, limits: EndpointLimits, versions: int, faults: FaultRegistry, journal: RequestJournal | None = None
    ) -> None:
        self.limits = limits
        self.faults = faults
        self.journal = journal
        self.common_header_lines = b""
        self.fast_response_prefix = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.now: datetime | None = None
        self.monotonic_s = 0.0
        self.memo: dict[bytes, tuple[int, bool]] = {}
        self._memo_entries_by_vm: Counter[str] = Counter()
        self.fast_path_counts = [0] * versions
        self.outcomes: Counter[tuple[str, str, int]] = Counter()
        self.unknown_callers = 0
        self.unknown_connections: Counter[str] = Counter()
        self.quotas = VmQuotas(limits)
        self.connections_refused = 0
        self.is_stopping = False

    def tick(self, now: datetime, monotonic_s: float) -> None:
        """Set the time; called once a second, and when a virtual clock moves."""
        self.now = now
        self.monotonic_s = monotonic_s
        self.quotas.tick(now, monotonic_s)
        date = format_datetime(now, usegmt=True).encode()
        self.common_header_lines = b"date: " + date + b"\r\nserver: Forewarn\r\n"
        self.fast_response_prefix = b"HTTP/1.1 200 OK\r\n" + self.common_header_lines
        # Update the list in place: a held request refers to it, and must be answered with the date of its response.
        self.headers[:] = [(b"date", date), (b"server", b"Forewarn")]

    @property
    def over_limit(self) -> Counter[str]:
        """Number of requests and connections over a limit, by setting."""
        return self.quotas.refusals

    def remember_request(self, request: bytes, version: int, *, closes: bool, vm: str) -> None:
        """Remember that these bytes request a plain document of this version.

        A VM may add only a few entries, and a full memo is cleared: no VM can make it grow or keep others out.
        """
        # The fast path does not count requests per VM, so a rate limit turns it off.
        if (
            request in self.memo
            or self._memo_entries_by_vm[vm] >= _MEMO_PER_VM_MAX
            or self.limits.rate_limit_per_s is not None
        ):
            return
        if len(self.memo) >= _MEMO_MAX:
            self.clear_memo()
        self._memo_entries_by_vm[vm] += 1
        self.memo[request] = (version, closes)

    def count_fast_request(  # noqa: PLR0913 - called for each request, where names would cost time
        self, version: int, caller: Caller, peer: str, request: bytes, answer: bytes, at: datetime | None = None
    ) -> None:
        """Count a request that the fast path answers, and record it in the journal.

        Args:
            version: Index of its version.
            caller: VM that sent it.
            peer: Source address.
            request: All bytes of the request.
            answer: Body of the response.
            at: Time of the request, for the journal; None for now.
        """
        self.fast_path_counts[version] += 1
        # The time of the last tick is exact enough (R69), and reading it costs no call to the clock.
        caller.channel.last_polled_at = self.now
        # The journal gets references only; it parses the request when it is read.
        if self.journal is not None:
            self.journal.record_fast_request(caller.vm.name, peer, request, answer, at)

    def find_limit_reached(self, caller: Caller | None, peer: str, open_count: int) -> str:
        """Return the setting that forbids another connection of this caller; empty if there is room.

        Args:
            caller: VM that connects; None if it is unknown.
            peer: Source address.
            open_count: Number of open connections of all callers.
        """
        limits = self.limits
        free = limits.connections_max - open_count
        if free <= 0:
            return "connections_max"
        if caller is None:
            if self.unknown_connections[peer] >= limits.connections_per_unknown_address_max:
                return "connections_per_unknown_address_max"
            counted = self.unknown_connections.total()  # all unknown callers together have the share of one VM
            most = limits.unknown_connections_max
        else:
            counted, most = caller.usage.connections, None
        share = limits.connections_per_vm_max if most is None else most
        if counted >= _SHARE_MIN:
            # Shares shrink as connections fill up, so one VM alone cannot take them all.
            share = min(share, max(_SHARE_MIN, free // _SHARES))
        return "connections_per_vm_max" if counted >= share else ""

    def clear_memo(self) -> None:
        """Clear the memo."""
        self.memo.clear()
        self._memo_entries_by_vm.clear()

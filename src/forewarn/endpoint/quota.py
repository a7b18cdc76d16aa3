"""Quotas for work pending at the endpoint, per VM and for all VMs together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import structlog

from forewarn.core.limit_log import CallerKind, LimitLog
from forewarn.errors import ForewarnError, LimitExceeded

if TYPE_CHECKING:
    from forewarn.endpoint.traffic import EndpointLimits

__all__ = ["HeldBody", "OverLimit", "VmQuotas", "find_exceeded_limit"]

_log = structlog.get_logger("forewarn.endpoint")

_MINUTE_S = 60
# Bounds of the memory and of the log; the counts of refusals stay exact.
_OFFENDERS_MAX = 1000
_OFFENDERS_NAMED_MAX = 10
_APPROVAL_BYTES_MIN = 256
"""Minimum that each approval counts towards the budget, however short its body is."""


class OverLimit(Exception):
    """Raised when a request exceeds a limit.

    Args:
        limit: Name of the setting.
        retry_after_s: Seconds after which the request may be sent again.

    Attributes:
        is_shared: True if all VMs share the limit, so that this VM is not to blame.
        is_read: True if the body of the request has been read to its end.
    """

    def __init__(self, limit: str, retry_after_s: int = 1, *, is_shared: bool = False) -> None:
        super().__init__(limit)
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.is_shared = is_shared
        self.is_read = False


def find_exceeded_limit(error: ForewarnError) -> str:
    """Return the limit that an error names as exceeded; empty if the error is about something else."""
    limit = error.details.get("limit")
    # Some errors give the number of the limit here, not its name.
    if isinstance(limit, str):
        return limit
    return error.code if isinstance(error, LimitExceeded) else ""


@dataclass(slots=True)
class _PendingWork:
    requests: int = 0
    body_bytes: int = 0


class HeldBody:
    """Bytes of one body, counted as they arrive; `size_bytes` is the number received."""

    def __init__(self, budgets: VmQuotas, vm: str) -> None:
        self._budgets = budgets
        self._vm = vm
        self._kept_bytes = 0
        self.size_bytes = 0

    def add(self, size_bytes: int) -> None:
        """Count bytes that have arrived.

        Raises:
            OverLimit: They must not be kept.
        """
        self.size_bytes += size_bytes
        # This may raise. Only bytes that it has accepted may be released later.
        self._budgets.add_body_bytes(self._vm, size_bytes)
        self._kept_bytes += size_bytes

    def release(self) -> None:
        """Release the bytes that were kept."""
        # Called twice for a body that was refused while it arrived; the second call must release nothing.
        kept_bytes, self._kept_bytes = self._kept_bytes, 0
        self._budgets.add_body_bytes(self._vm, -kept_bytes)


class VmQuotas:
    """Counters of pending work per VM.

    Args:
        limits: Limits of the endpoint.

    Attributes:
        refusals: Number of refusals by limit.
        limit_log: Log of the VMs and addresses that exceeded a limit.
    """

    def __init__(self, limits: EndpointLimits) -> None:
        self._limits = limits
        self._pending: dict[str, _PendingWork] = {}
        self._body_bytes = 0
        self._sent_bytes: Counter[str] = Counter()
        self._minute_ends_s = 0.0
        self._monotonic_s = 0.0
        self._now: datetime | None = None
        self._offenders: dict[str, Counter[str]] = {}
        self.refusals: Counter[str] = Counter()
        self.limit_log = LimitLog()

    def tick(self, now: datetime, monotonic_s: float) -> None:
        """Set the time, also as seconds of a monotonic clock; a new minute resets the budgets."""
        self._now, self._monotonic_s = now, monotonic_s
        if monotonic_s >= self._minute_ends_s:
            self._minute_ends_s = monotonic_s + _MINUTE_S
            # One minute for all VMs, instead of one per VM: no VM needs a timer or an entry while it sends nothing.
            self._sent_bytes.clear()
            self._log_offenders()

    @contextmanager
    def count_approval(self, vm: str) -> Iterator[None]:
        """Count an approval of this VM as pending while the block runs.

        Raises:
            OverLimit: The VM has too many pending, or has sent too much in this minute.
        """
        # Checked before the body is read: the request that crosses the limit is still accepted, the next one is not.
        if self._sent_bytes[vm] >= self._limits.approval_bytes_per_vm_minute_max:
            # At least a second: `Retry-After: 0` would invite a retry at once.
            raise OverLimit("approval_bytes_per_vm_minute_max", max(1, round(self._minute_ends_s - self._monotonic_s)))
        use = self._pending.setdefault(vm, _PendingWork())
        if use.requests >= self._limits.approvals_at_work_per_vm_max:
            raise OverLimit("approvals_at_work_per_vm_max")
        use.requests += 1
        try:
            yield
        finally:
            use.requests -= 1
            self._drop_if_unused(vm, use)

    @contextmanager
    def count_body(self, vm: str) -> Iterator[HeldBody]:
        """Count the bytes of a body until the block ends, and charge them to the VM's budget of this minute."""
        held = HeldBody(self, vm)
        try:
            yield held
        finally:
            # Charged even if the body was refused or incomplete, since it was received all the same.
            self._sent_bytes[vm] += max(_APPROVAL_BYTES_MIN, held.size_bytes)
            held.release()

    def add_body_bytes(self, vm: str, size_bytes: int) -> None:
        """Add bytes to those held for a VM; a negative size releases them.

        Raises:
            OverLimit: This VM or all VMs together would hold too much; nothing was counted.
        """
        use = self._pending.setdefault(vm, _PendingWork())
        # The limit of the VM comes first, so that a greedy VM gets 429 instead of an error about a busy endpoint.
        if use.body_bytes + size_bytes > self._limits.body_bytes_per_vm_max:
            raise OverLimit("body_bytes_per_vm_max")
        if self._body_bytes + size_bytes > self._limits.body_bytes_max:
            raise OverLimit("body_bytes_max", is_shared=True)
        use.body_bytes += size_bytes
        self._body_bytes += size_bytes
        self._drop_if_unused(vm, use)

    def count_refusal(self, limit: str, vm: str, address: str = "") -> None:
        """Count a refusal, for operators.

        Args:
            limit: Name of the setting.
            vm: Name of the VM; empty for unknown callers.
            address: Source address, which names unknown callers.
        """
        self.refusals[limit] += 1
        name = vm or address
        if name and self._now is not None:
            self.limit_log.count_refusal(CallerKind.VM if vm else CallerKind.ADDRESS, name, limit, self._now)
        # All unknown callers share the entry with the empty name.
        if vm in self._offenders or len(self._offenders) < _OFFENDERS_MAX:
            self._offenders.setdefault(vm, Counter())[limit] += 1

    def _drop_if_unused(self, vm: str, use: _PendingWork) -> None:
        # Most VMs have nothing pending, and must not take up memory here.
        if not use.requests and not use.body_bytes:
            self._pending.pop(vm, None)

    def _log_offenders(self) -> None:
        """Log the VMs refused most since the last call, in a few lines."""
        worst = sorted(self._offenders.items(), key=lambda item: (-item[1].total(), item[0]))
        for vm, limits in worst[:_OFFENDERS_NAMED_MAX]:
            _log.warning("a vm is over its limits", vm=vm, refused=limits.total(), limits=sorted(limits))
        self._offenders = {}

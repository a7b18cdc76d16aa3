"""Budgets for work pending at the endpoint, per VM and for all VMs together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import structlog

from forewarn.core.limit_log import Guest, LimitLog
from forewarn.errors import ForewarnError, LimitExceeded

if TYPE_CHECKING:
    from forewarn.endpoint.traffic import Limits

__all__ = ["Budgets", "HeldBody", "OverLimit", "limit_of"]

_log = structlog.get_logger("forewarn.endpoint")

_MINUTE_S = 60
_OFFENDERS_MAX = 1000
_OFFENDERS_NAMED_MAX = 10
_APPROVAL_BYTES_MIN = 256
"""Minimum that each approval counts towards the budget, however short its body is."""

_AT_WORK = "approvals_at_work_per_vm_max"
_A_MINUTE = "approval_bytes_per_vm_minute_max"
_BODY_BYTES = "body_bytes_per_vm_max"
_ALL_BODY_BYTES = "body_bytes_max"


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


def limit_of(error: ForewarnError) -> str:
    """Return the limit that an error names as exceeded; empty if the error is about something else."""
    limit = error.details.get("limit")
    if isinstance(limit, str):
        return limit
    return error.code if isinstance(error, LimitExceeded) else ""


@dataclass(slots=True)
class _Use:
    requests: int = 0
    body_bytes: int = 0


class HeldBody:
    """Bytes of one body, counted as they arrive.

    Args:
        budgets: Budgets that count them.
        vm: VM that sends them.

    Attributes:
        size_bytes: Number of bytes received.
    """

    def __init__(self, budgets: Budgets, vm: str) -> None:
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
        self._budgets.hold(self._vm, size_bytes)
        self._kept_bytes += size_bytes

    def drop(self) -> None:
        """Release the bytes that were kept."""
        kept_bytes, self._kept_bytes = self._kept_bytes, 0
        self._budgets.hold(self._vm, -kept_bytes)


class Budgets:
    """Counters of pending work per VM.

    Args:
        limits: Limits of the endpoint.

    Attributes:
        refused: Number of refusals by limit.
        met: Log of the VMs and addresses that exceeded a limit.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._uses: dict[str, _Use] = {}
        self._body_bytes = 0
        self._sent_bytes: Counter[str] = Counter()
        self._minute_ends_s = 0.0
        self._second = 0.0
        self._now: datetime | None = None
        self._offenders: dict[str, Counter[str]] = {}
        self.refused: Counter[str] = Counter()
        self.met = LimitLog()

    def tick(self, now: datetime, second: float) -> None:
        """Set the time, also as seconds of a monotonic clock; a new minute resets the budgets."""
        self._now, self._second = now, second
        if second >= self._minute_ends_s:
            self._minute_ends_s = second + _MINUTE_S
            self._sent_bytes.clear()
            self._name_offenders()

    @contextmanager
    def approval(self, vm: str) -> Iterator[None]:
        """Count an approval of this VM as pending while the block runs.

        Raises:
            OverLimit: The VM has too many pending, or has sent too much in this minute.
        """
        if self._sent_bytes[vm] >= self._limits.approval_bytes_per_vm_minute_max:
            raise OverLimit(_A_MINUTE, max(1, round(self._minute_ends_s - self._second)))
        use = self._uses.setdefault(vm, _Use())
        if use.requests >= self._limits.approvals_at_work_per_vm_max:
            raise OverLimit(_AT_WORK)
        use.requests += 1
        try:
            yield
        finally:
            use.requests -= 1
            self._forget(vm, use)

    @contextmanager
    def body(self, vm: str) -> Iterator[HeldBody]:
        """Count the bytes of a body until the block ends, and charge them to the VM's budget of this minute."""
        held = HeldBody(self, vm)
        try:
            yield held
        finally:
            self.spend(vm, held.size_bytes)
            held.drop()

    def hold(self, vm: str, size_bytes: int) -> None:
        """Add bytes to those held for a VM; a negative size releases them.

        Raises:
            OverLimit: This VM or all VMs together would hold too much; nothing was counted.
        """
        use = self._uses.setdefault(vm, _Use())
        if use.body_bytes + size_bytes > self._limits.body_bytes_per_vm_max:
            raise OverLimit(_BODY_BYTES)
        if self._body_bytes + size_bytes > self._limits.body_bytes_max:
            raise OverLimit(_ALL_BODY_BYTES, is_shared=True)
        use.body_bytes += size_bytes
        self._body_bytes += size_bytes
        self._forget(vm, use)

    def spend(self, vm: str, size_bytes: int) -> None:
        """Charge a body of this size to the VM's budget of this minute."""
        self._sent_bytes[vm] += max(_APPROVAL_BYTES_MIN, size_bytes)

    def note(self, limit: str, vm: str, address: str = "") -> None:
        """Count a refusal, for operators.

        Args:
            limit: Name of the setting.
            vm: Name of the VM; empty for unknown callers.
            address: Source address, which names unknown callers.
        """
        self.refused[limit] += 1
        name = vm or address
        if name and self._now is not None:
            self.met.note(Guest.VM if vm else Guest.ADDRESS, name, limit, self._now)
        if vm in self._offenders or len(self._offenders) < _OFFENDERS_MAX:
            self._offenders.setdefault(vm, Counter())[limit] += 1

    def _forget(self, vm: str, use: _Use) -> None:
        if not use.requests and not use.body_bytes:
            self._uses.pop(vm, None)

    def _name_offenders(self) -> None:
        """Log the VMs refused most since the last call, in a few lines."""
        worst = sorted(self._offenders.items(), key=lambda item: (-item[1].total(), item[0]))
        for vm, limits in worst[:_OFFENDERS_NAMED_MAX]:
            _log.warning("a vm is over its limits", vm=vm, refused=limits.total(), limits=sorted(limits))
        self._offenders = {}

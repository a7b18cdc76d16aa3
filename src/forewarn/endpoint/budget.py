"""What one VM may have in hand at the endpoint, and what all may have together."""

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
"""So much does each approval count, however short its body is."""

_AT_WORK = "approvals_at_work_per_vm_max"
_A_MINUTE = "approval_bytes_per_vm_minute_max"
_BODY_BYTES = "body_bytes_per_vm_max"
_ALL_BODY_BYTES = "body_bytes_max"


class OverLimit(Exception):
    """A request is over a limit.

    Args:
        limit: The setting.
        retry_after_s: When it may be sent again.

    Attributes:
        is_shared: Whether it is a limit of all VMs together, so that this one is not to blame.
        is_read: Whether the body of the request has been read to its end.
    """

    def __init__(self, limit: str, retry_after_s: int = 1, *, is_shared: bool = False) -> None:
        super().__init__(limit)
        self.limit = limit
        self.retry_after_s = retry_after_s
        self.is_shared = is_shared
        self.is_read = False


def limit_of(error: ForewarnError) -> str:
    """Return the setting that an error names as the limit that was met; empty if it is about something else."""
    limit = error.details.get("limit")
    if isinstance(limit, str):
        return limit
    return error.code if isinstance(error, LimitExceeded) else ""


@dataclass(slots=True)
class _Use:
    requests: int = 0
    body_bytes: int = 0


class HeldBody:
    """The bytes of one body, as they arrive.

    Args:
        budgets: Where they are counted.
        vm: Whose they are.

    Attributes:
        size_bytes: How many have arrived.
    """

    def __init__(self, budgets: Budgets, vm: str) -> None:
        self._budgets = budgets
        self._vm = vm
        self._kept_bytes = 0
        self.size_bytes = 0

    def add(self, size_bytes: int) -> None:
        """More has arrived.

        Raises:
            OverLimit: It must not be kept.
        """
        self.size_bytes += size_bytes
        self._budgets.hold(self._vm, size_bytes)
        self._kept_bytes += size_bytes

    def drop(self) -> None:
        """Nothing of it is kept any more."""
        kept_bytes, self._kept_bytes = self._kept_bytes, 0
        self._budgets.hold(self._vm, -kept_bytes)


class Budgets:
    """Counts what VMs have in hand.

    Args:
        limits: What they may have.

    Attributes:
        refused: How often each limit was exceeded.
        met: Who exceeded them.
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
        """Take over the time, also in seconds of a clock that never goes back; a new minute begins each budget anew."""
        self._now, self._second = now, second
        if second >= self._minute_ends_s:
            self._minute_ends_s = second + _MINUTE_S
            self._sent_bytes.clear()
            self._name_offenders()

    @contextmanager
    def approval(self, vm: str) -> Iterator[None]:
        """Count an approval of that VM as at work while the block runs.

        Raises:
            OverLimit: It has too many at work, or has sent too much in this minute.
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
        """Count the bytes of a body until the block ends, and take them off the VM's budget of this minute."""
        held = HeldBody(self, vm)
        try:
            yield held
        finally:
            self.spend(vm, held.size_bytes)
            held.drop()

    def hold(self, vm: str, size_bytes: int) -> None:
        """Count so many bytes that have to be kept, or fewer if it is negative.

        Raises:
            OverLimit: That is too much, of this VM or of all; nothing was counted.
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
        """Take a body of that size off the VM's budget of this minute."""
        self._sent_bytes[vm] += max(_APPROVAL_BYTES_MIN, size_bytes)

    def note(self, limit: str, vm: str, address: str = "") -> None:
        """Count a refusal, for operators.

        Args:
            limit: The setting.
            vm: Empty for callers that are no VM.
            address: Source address, which names those.
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
        """Log who was refused most since the last time, in a few lines."""
        worst = sorted(self._offenders.items(), key=lambda item: (-item[1].total(), item[0]))
        for vm, limits in worst[:_OFFENDERS_NAMED_MAX]:
            _log.warning("a vm is over its limits", vm=vm, refused=limits.total(), limits=sorted(limits))
        self._offenders = {}

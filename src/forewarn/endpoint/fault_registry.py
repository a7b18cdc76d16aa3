"""Registry of the injected faults in force.

It is kept in memory only, so a restart clears all faults.

Spec: R66
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta

from forewarn.clock import Clock
from forewarn.core.fault import FAULTS, FaultKind, FaultPoint, InjectedFault
from forewarn.errors import Hint, InvalidRequest, LimitExceeded, NotFound

__all__ = ["FaultRegistry"]

_METHODS = ("GET", "POST")


@dataclass(slots=True)
class FaultRegistry:
    """Faults of one service.

    Args:
        clock: Clock that expires faults with an end.
        faults_max: Maximum number of faults in force.
        seed: Seed of the random choice by `InjectedFault.rate`.

    Attributes:
        in_force: Faults by number, oldest first, for a quick check; some may be due to expire.
    """

    clock: Clock
    faults_max: int = 100
    seed: int = 0
    in_force: dict[int, InjectedFault] = field(default_factory=dict)
    _number: int = 0
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)  # noqa: S311 - deterministic on purpose

    @property
    def all(self) -> tuple[InjectedFault, ...]:
        """Faults in force, oldest first."""
        self._remove_expired()
        return tuple(self.in_force.values())

    def inject(  # noqa: PLR0913 - the parts of a fault
        self,
        kind: str,
        *,
        vms: Iterable[str] = (),
        method: str = "",
        count: int | None = None,
        rate: float = 1.0,
        lasts: timedelta | None = None,
        delay: timedelta | None = None,
    ) -> InjectedFault:
        """Put a fault into force; if several match a request, the oldest strikes.

        Args:
            kind: Name of a row of `FAULTS`.
            vms: Names of the VMs whose requests it strikes; empty for all.
            method: HTTP method, ``GET`` or ``POST``; empty for both.
            count: Number of requests to strike; None if unlimited.
            rate: Share of the requests to strike, above 0 and up to 1.
            lasts: Time until it ends; None until it is cleared.
            delay: Duration of its delay; None for the default of the kind.

        Raises:
            InvalidRequest: The kind does not exist, or an argument is out of range.
            LimitExceeded: Too many faults are in force.
        """
        row = FAULTS.get(kind)
        if row is None:
            raise InvalidRequest(f"unknown fault {kind!r}: expected one of {', '.join(FAULTS)}", kind=kind)
        _check_fault_arguments(row, method, count, rate, lasts, delay)
        # Expired faults must not count towards the limit.
        self._remove_expired()
        if len(self.in_force) >= self.faults_max:
            msg = f"{self.faults_max} faults are in force, the limit (faults_max); clear some first"
            raise LimitExceeded(msg, limit=self.faults_max)
        self._number += 1
        fault = InjectedFault(
            id=self._number,
            kind=row,
            vms=tuple(dict.fromkeys(vms)),
            method=method,
            count=count,
            rate=rate,
            until=None if lasts is None else self.clock.now() + lasts,
            delay=delay if delay is not None else row.delay or timedelta(0),
        )
        self.in_force[fault.id] = fault
        return fault

    def clear(self, fault_id: int | None = None) -> int:
        """End one fault, or all if `fault_id` is None; return the number of faults ended.

        Raises:
            NotFound: No fault with that number is in force.
        """
        self._remove_expired()
        if fault_id is None:
            count = len(self.in_force)
            self.in_force.clear()
            return count
        if self.in_force.pop(fault_id, None) is None:
            raise NotFound(f"fault {fault_id} is not in force", hint=Hint("see 'forewarn fault list'"), id=fault_id)
        return 1

    def take_matching_fault(self, vm: str, method: str, *places: FaultPoint) -> InjectedFault | None:
        """Return the fault that strikes this request at one of these places, and count it; None if there is none."""
        # Checked first: this runs for every request, and mostly there is no fault.
        if not self.in_force:
            return None
        self._remove_expired()
        for fault in self.in_force.values():
            # Draw a number only for a partial rate, so that other faults do not change the sequence of a seed.
            if fault.applies_to(vm, method, places) and (fault.rate >= 1.0 or self._rng.random() < fault.rate):
                # This may change `in_force`, which is safe because the iteration ends here.
                self._count_strike(fault)
                return fault
        return None

    def _count_strike(self, fault: InjectedFault) -> None:
        left = None if fault.count is None else fault.count - 1
        if left == 0:
            del self.in_force[fault.id]
        else:
            # Replaced, since requests in progress still hold the fault that struck them.
            self.in_force[fault.id] = replace(fault, count=left, struck=fault.struck + 1)

    def _remove_expired(self) -> None:
        now = self.clock.now()
        for fault in [each for each in self.in_force.values() if each.until is not None and each.until <= now]:
            del self.in_force[fault.id]


def _check_fault_arguments(  # noqa: PLR0913 - the arguments of `inject`
    kind: FaultKind,
    method: str,
    count: int | None,
    rate: float,
    lasts: timedelta | None,
    delay: timedelta | None,
) -> None:
    if method and method not in _METHODS:
        raise InvalidRequest(f"method is {method!r}: expected GET or POST, or empty for both")
    if count is not None and count < 1:
        raise InvalidRequest(f"count is {count}: expected at least 1")
    # Written as a negated range so that NaN fails, too.
    if not 0 < rate <= 1:
        raise InvalidRequest(f"rate is {rate:g}: expected more than 0 and at most 1")
    if lasts is not None and lasts <= timedelta(0):
        raise InvalidRequest(f"duration is {lasts.total_seconds():g} s: expected more than 0 s")
    if delay is not None and (kind.delay is None or delay < timedelta(0)):
        reason = "expected at least 0 s" if kind.delay is not None else f"fault {kind.name} has no delay"
        raise InvalidRequest(f"delay is {delay.total_seconds():g} s: {reason}")

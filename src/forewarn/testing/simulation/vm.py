"""A VM with a disk, in which something answers to events; its work takes a while, fails or hangs."""

from __future__ import annotations

import asyncio
import errno
import random
from abc import abstractmethod

from forewarn.agent.rule import EventStep
from forewarn.errors import HookFailed
from forewarn.testing.simulation.machine import Machine

__all__ = ["SimulatedVm"]

_SPANS_S = (0.0, 0.5, 2.0, 10.0, 45.0)
_HANGS_S = 900.0
_HANGING = 0.3
"""Share of the failing steps that hang before they fail."""


class SimulatedVm(Machine):
    """A VM, which may be killed and started again.

    Attributes:
        disk: What its disk holds.
        is_disk_full: True while the disk takes nothing.
        failures: Probability that a step fails or hangs.
    """

    def prepare(self, rng: random.Random) -> None:
        """Set up the disk; before the first start."""
        self.disk = b""
        self.is_disk_full = False
        self.failures = 0.0
        self.rng = rng
        self._is_saved = True

    @property
    @abstractmethod
    def is_at_rest(self) -> bool:
        """True if it runs and has nothing left to do."""

    def retry_failed_recoveries(self) -> None:
        """Do what a person would who repairs the cause: have failed recoveries run again."""

    def on_kill(self) -> None:
        """Forget that a write has failed: the next one is the first of another process."""
        self._is_saved = True

    def write(self, data: bytes) -> None:
        """Replace what the disk holds.

        Raises:
            OSError: The disk is full; it holds what it held before.
        """
        if self.is_disk_full:
            if self._is_saved:
                self.note("not-saved")
            self._is_saved = False
            raise OSError(errno.ENOSPC, "No space left on device")
        if not self._is_saved:
            self.note("saved")
        self._is_saved = True
        self.disk = data

    async def run_step(self, step: EventStep, event_id: str) -> None:
        """Take a while, and note when the step begins and ends.

        Raises:
            HookFailed: The step has failed.
        """
        self.note("step", step=step.value, event=event_id)
        how = "stopped"
        try:
            span_s, is_failing = self.rng.choice(_SPANS_S), self.rng.random() < self.failures
            if is_failing and self.rng.random() < _HANGING:
                span_s = _HANGS_S
            await asyncio.sleep(span_s)
            how = "failed" if is_failing else "done"
            if is_failing:
                raise HookFailed("the step failed")
        finally:
            self.note("step-end", step=step.value, event=event_id, how=how)

"""Checks during a trial that a VM is prepared when it has to be, and in service when it may be.

A VM has to be prepared for an event from the moment of its approval, or of its start, until the event is gone. An
approval is answered only after the check, so anything the handler does on its next line comes too late. The same holds
for each request that follows a changed document or a fault: by then, a handler that works step by step has acted on
the previous answer. Between these moments the check runs ten times a second.

Without a command that reports whether the VM is prepared, nothing is checked or found.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from forewarn.testing.finding import Findings
from forewarn.testing.lab import Lab
from forewarn.wire.document import Event

__all__ = ["PreparationMonitor", "Probe"]

_COMMAND_S = 10.0
_ASK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class Probe:
    """A shell command whose exit status reports the state of a VM.

    Attributes:
        command: Exits with status 0 within 10 s if the state holds; if empty, the state always holds.
        folder: Working directory; None for that of this process.
    """

    command: str
    folder: Path | None = None

    async def succeeds(self) -> bool:
        """Return True if the state holds now."""
        if not self.command:
            return True
        process = await asyncio.create_subprocess_shell(
            self.command, stdin=asyncio.subprocess.DEVNULL, cwd=self.folder, start_new_session=True
        )
        try:
            async with asyncio.timeout(_COMMAND_S):
                return await process.wait() == 0
        except TimeoutError:
            return False
        finally:
            # The command may have left children in its group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class PreparationMonitor:
    """Checks whether one VM is prepared, and records when it was not, or was without need.

    Args:
        lab: Running service with the endpoint of the handler.
        vm: Name of the VM.
        probe: Succeeds while the VM is prepared, and fails while it is not; empty if unknown.
        findings: Findings to add to.

    Attributes:
        is_active: True if there is a command to run.
    """

    def __init__(self, lab: Lab, vm: str, probe: Probe, findings: Findings) -> None:
        self.is_active = bool(probe.command)
        self._lab = lab
        self._vm = vm
        self._probe = probe
        self._findings = findings
        self._due: set[str] = set()
        """Events for which the VM was prepared, and has to stay so."""
        self._is_in_service = False
        """True once the VM was seen in service after the last event that affected it."""
        self._is_in_doubt = self.is_active
        """True while the command has succeeded every time, so its result means nothing yet."""
        self._reported_others: set[str] = set()

    async def is_prepared(self) -> bool:
        """Return True if the command succeeds now, or if there is none."""
        is_prepared = await self._probe.succeeds()
        self._is_in_doubt &= is_prepared
        return is_prepared

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Check repeatedly until the block ends, and once before it, while no handler runs."""
        if not self.is_active:
            yield
            return
        await self._look_whether_in_service()
        task = asyncio.create_task(self._ask_repeatedly())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # Observed moments

    async def note_approval(self, event_ids: Iterable[str]) -> None:
        """Check that the VM is prepared now: the handler approves, and waits for the answer."""
        hits = self._hits().keys() & set(event_ids)
        if not hits or not self.is_active:
            return
        if await self.is_prepared():
            self._due |= hits
        else:
            self._findings.add(
                "unprepared",
                "it approved while the VM was not prepared: an approval says 'do it now', so prepare first and approve "
                "after that (R100, R102)",
            )

    async def note_reaction(self, *, is_late: bool) -> bool:
        """Return True if the VM is in the right state after its handler has seen the current document.

        Args:
            is_late: True if the handler has had all the time allowed, so that a wrong state is a finding.
        """
        if not self.is_active:
            return True
        started = {event_id for event_id, event in self._hits().items() if event.is_started}
        missing = started - self._due
        if missing and await self.is_prepared():
            self._due |= missing & self._hits().keys()  # some may be gone since the command started
        elif missing and is_late:
            self._due -= missing
            self._findings.add(
                "unprepared-at-start",
                "the VM was not prepared though the event had started and the handler had seen it: an event may start "
                "without an approval, or be Started when it is seen first; prepare then as well (R77, R90)",
            )
        return not missing or missing <= self._due

    async def check(self) -> None:
        """Check that the VM is still prepared for its own events, and not for events that only affect other VMs."""
        if not self.is_active:
            return
        due = self._due & self._hits().keys()
        others = self._events_of_others()
        if self._is_in_doubt and not self._hits():
            await self._look_whether_in_service()  # the handler may remove what an earlier run left behind
        if not due and not (others and self._is_in_service):
            return
        is_prepared = await self.is_prepared()
        if due and not is_prepared:
            self._note_return(due & self._hits().keys())  # an event gone by now no longer requires preparation
        elif not due and is_prepared and not self._hits():
            self._note_others(others & self._events_of_others())

    def excuse(self) -> None:
        """Drop the duty to stay prepared: the VM was last shown an older document, or nothing after a restart."""
        self._due.clear()

    async def note_end(self) -> bool:
        """Return True if the VM is in service again, as far as the command shows, now that no event affects it."""
        if self.is_active and not await self.is_prepared():
            self._is_in_service = True
        return self._is_in_service or not self.is_active

    # Findings

    async def _look_whether_in_service(self) -> None:
        """Note whether the VM is in service; call it only while no event affects the VM."""
        if not await self.is_prepared():
            self._is_in_service = True

    def _note_doubt(self) -> None:
        self._is_in_doubt = False
        self._findings.add(
            "always-prepared",
            f"{self._probe.command!r} succeeded from the start until an event came, so nothing can be said of whether "
            "it prepares: check the command, and remove what an earlier run may have left",
        )

    def _note_return(self, due: set[str]) -> None:
        if not due:
            return
        self._due -= due
        events = self._hits()
        words = ", ".join(sorted({f"{events[each].type} is {events[each].status}" for each in due}))
        self._findings.add(
            "returned-early",
            f"the VM was back in service while {words}: it stays prepared until the event is gone from a document that "
            "could be read; an error, an empty body or a missing member says nothing, nor does the start (R100, R104)",
        )

    def _note_others(self, others: set[str]) -> None:
        new = others - self._reported_others
        if not new:
            return
        self._reported_others |= new
        events = {event.id: event for event in self._lab.document(self._vm).events}
        names = ", ".join(sorted({name for each in new for name in events[each].resources}))
        self._findings.add(
            "prepared-for-another",
            f"it prepared the VM for an event of {names}: all VMs of a scope see its events, and Resources says whose "
            "they are (R26, R103)",
        )

    async def _ask_repeatedly(self) -> None:
        while True:
            await asyncio.sleep(_ASK_EVERY_S)
            await self.check()

    # Documents

    def _hits(self) -> dict[str, Event]:
        """Return the events that affect the VM, by id."""
        hits = {event.id: event for event in self._lab.document(self._vm).events if event.affects(self._vm)}
        if hits:
            self._is_in_service = False
            if self._is_in_doubt:
                self._note_doubt()
        return hits

    def _events_of_others(self) -> set[str]:
        events = self._lab.document(self._vm).events
        return {event.id for event in events} - self._hits().keys()

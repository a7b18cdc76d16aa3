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

from forewarn.testing.lab import Lab
from forewarn.testing.trial.finding import Findings
from forewarn.wire.document import Event

__all__ = ["PreparationMonitor", "StateCommand"]

_COMMAND_S = 10.0
_ASK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class StateCommand:
    """A shell command whose exit status reports the state of a VM.

    Attributes:
        command: Exits with status 0 within 10 s if the state holds; if empty, the state always holds.
        folder: Working directory; None for that of this process.
    """

    command: str
    folder: Path | None = None

    async def is_satisfied(self) -> bool:
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
        probe: Succeeds while the VM is prepared, and fails while it is not; empty if unknown.

    Attributes:
        is_active: True if there is a command to run.
    """

    def __init__(self, lab: Lab, vm: str, probe: StateCommand, findings: Findings) -> None:
        self.is_active = bool(probe.command)
        self._lab = lab
        self._vm = vm
        self._command = probe
        self._findings = findings
        self._prepared_event_ids: set[str] = set()
        """Events for which the VM was prepared, and has to stay so."""
        self._is_in_service = False
        """True once the VM was seen in service after the last event that affected it."""
        self._is_command_unproven = self.is_active
        """True while the command has succeeded every time, so its result means nothing yet."""
        self._reported_others: set[str] = set()

    async def is_prepared(self) -> bool:
        """Return True if the command succeeds now, or if there is none."""
        is_prepared = await self._command.is_satisfied()
        # One failure shows that the command can tell the two states apart.
        self._is_command_unproven &= is_prepared
        return is_prepared

    @asynccontextmanager
    async def checking_repeatedly(self) -> AsyncIterator[None]:
        """Check repeatedly until the block ends, and once before it, while no handler runs."""
        if not self.is_active:
            yield
            return
        await self._update_service_state()
        task = asyncio.create_task(self._run_checks())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # Observed moments

    async def check_at_approval(self, event_ids: Iterable[str]) -> None:
        """Check that the VM is prepared now: the handler approves, and waits for the answer."""
        hits = self._find_own_events().keys() & set(event_ids)
        if not hits or not self.is_active:
            return
        if await self.is_prepared():
            self._prepared_event_ids |= hits
        else:
            self._findings.add(
                "unprepared",
                "it approved while the VM was not prepared: an approval lets maintenance start at once, so prepare "
                "before you approve (R100, R102)",
            )

    async def check_reaction(self, *, is_late: bool) -> bool:
        """Return True if the VM is in the right state after its handler has seen the current document.

        Args:
            is_late: True if the handler has had all the time allowed, so that a wrong state is a finding.
        """
        if not self.is_active:
            return True
        # Scheduled events are checked at their approval, since only the handler knows when it wants to be prepared for
        # them.
        started = {event_id for event_id, event in self._find_own_events().items() if event.is_started}
        missing = started - self._prepared_event_ids
        if missing and await self.is_prepared():
            self._prepared_event_ids |= (
                missing & self._find_own_events().keys()
            )  # some may be gone since the command started
        elif missing and is_late:
            self._prepared_event_ids -= missing
            self._findings.add(
                "unprepared-at-start",
                "the VM was not prepared although the handler had seen the event as Started: an event may start "
                "without an approval, or be Started when first seen; prepare in both cases (R77, R90)",
            )
        return not missing or missing <= self._prepared_event_ids

    async def check_preparation(self) -> None:
        """Check that the VM is still prepared for its own events, and not for events that only affect other VMs."""
        if not self.is_active:
            return
        due = self._prepared_event_ids & self._find_own_events().keys()
        others = self._find_foreign_event_ids()
        if self._is_command_unproven and not self._find_own_events():
            await self._update_service_state()  # the handler may remove what an earlier run left behind
        # The command costs a process, ten times a second: run it only if its result can matter.
        if not due and not (others and self._is_in_service):
            return
        is_prepared = await self.is_prepared()
        if due and not is_prepared:
            self._report_early_return(
                due & self._find_own_events().keys()
            )  # an event gone by now no longer requires preparation
        # The command took time: an event of this VM may have come meanwhile, for which it has to be prepared.
        elif not due and is_prepared and not self._find_own_events():
            self._report_foreign_preparation(others & self._find_foreign_event_ids())

    def drop_duty(self) -> None:
        """Drop the duty to stay prepared: the VM was last shown an older document, or nothing after a restart."""
        self._prepared_event_ids.clear()

    async def check_return_to_service(self) -> bool:
        """Return True if the VM is in service again, as far as the command shows, now that no event affects it."""
        if self.is_active and not await self.is_prepared():
            self._is_in_service = True
        return self._is_in_service or not self.is_active

    # Findings

    async def _update_service_state(self) -> None:
        """Note whether the VM is in service; call it only while no event affects the VM."""
        if not await self.is_prepared():
            self._is_in_service = True

    def _report_always_prepared(self) -> None:
        self._is_command_unproven = False
        self._findings.add(
            "always-prepared",
            f"{self._command.command!r} succeeded even before the first event, so it cannot show whether the handler "
            "prepares: check the command, and clean up after earlier runs",
        )

    def _report_early_return(self, due: set[str]) -> None:
        if not due:
            return
        self._prepared_event_ids -= due
        events = self._find_own_events()
        words = ", ".join(sorted({f"{events[each].type} is {events[each].status}" for each in due}))
        self._findings.add(
            "returned-early",
            f"the VM was back in service while {words}: stay prepared until a readable document no longer lists the "
            "event; an error, an empty body, a missing member or the start does not mean the end (R100, R104)",
        )

    def _report_foreign_preparation(self, others: set[str]) -> None:
        new = others - self._reported_others
        if not new:
            return
        # Reported once for each event, not ten times a second while it lasts.
        self._reported_others |= new
        events = {event.id: event for event in self._lab.get_document(self._vm).events}
        names = ", ".join(sorted({name for each in new for name in events[each].resources}))
        self._findings.add(
            "prepared-for-another",
            f"it prepared the VM for an event of {names}: every VM of a scope sees the events of all VMs of the scope; "
            "check Resources for the VM's own name (R26, R103)",
        )

    async def _run_checks(self) -> None:
        while True:
            await asyncio.sleep(_ASK_EVERY_S)
            await self.check_preparation()

    # Documents

    def _find_own_events(self) -> dict[str, Event]:
        """Return the events that affect the VM, by id."""
        hits = self._lab.find_own_events(self._vm)
        if hits:
            self._is_in_service = False
            if self._is_command_unproven:
                self._report_always_prepared()
        return hits

    def _find_foreign_event_ids(self) -> set[str]:
        return {event.id for event in self._lab.get_document(self._vm).events} - self._find_own_events().keys()

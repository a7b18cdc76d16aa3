"""Handler that stops systemd units, and starts again those that were running."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from forewarn.agent.handlers.contract import BuiltInHandler, HandlerContext
from forewarn.errors import HookFailed

__all__ = ["SystemdHandler"]

# The characters that systemd allows in a name, without a leading "-" (an option); patterns are not names.
_UNIT = re.compile(r"(?!-)[A-Za-z0-9:_.\\@-]{1,255}")

_SUFFIXES = (
    ".service",
    ".socket",
    ".target",
    ".timer",
    ".path",
    ".mount",
    ".automount",
    ".swap",
    ".slice",
    ".scope",
    ".device",
)

_RUNNING = frozenset({"active", "activating", "reloading", "refreshing"})
"""States of a unit that is meant to run; one that fails and is restarted repeatedly is ``activating``."""

_STOPS = ("RequiredBy", "RequisiteOf", "BoundBy", "ConsistsOf", "PropagatesStopTo")
"""Properties that list the units which systemd stops together with this one."""

_PROPERTIES = ("Id", "LoadState", "ActiveState", "CanStart", "TriggeredBy", *_STOPS)


class SystemdHandler(BuiltInHandler, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="systemd"):
    """Stops units during the event.

    Units that systemd stops along with these, because they require one of them, are started again as well.

    Attributes:
        units: Units to stop, in this order; they are started in reverse order. A name without a suffix is a service.
        is_user: True if the units belong to the user that the agent runs as; false if they belong to the system.
    """

    units: tuple[str, ...]
    is_user: bool = False

    def __post_init__(self) -> None:
        """Refuse, by a ValueError, no unit, invalid names, and a unit named twice."""
        if not self.units:
            raise ValueError("the handler systemd needs at least one unit")
        for unit in self.units:
            # A template without an instance, such as worker@.service, can be neither stopped nor started.
            if not _UNIT.fullmatch(unit) or "@." in _add_suffix(unit):
                msg = f"{unit!r} is not a valid unit name: expected for example web.service or worker@1.service"
                raise ValueError(msg)
        if len({_add_suffix(unit) for unit in self.units}) != len(self.units):
            raise ValueError("the handler systemd lists a unit twice")

    async def prepare(self, context: HandlerContext) -> None:
        units = await self._read_units(context, self.units)
        # Check all units before the first is stopped: a failure half-way would leave the service partly down.
        for unit in units:
            unit.check_restartable()
        running = [unit.name for unit in units if unit.is_running]
        along = await self._find_dependents(context, units)
        # On a repeated run after a crash, the units that were running at first must not be forgotten.
        remembered = context.memory.get("running", [])
        names = [unit.name for unit in units]
        await context.remember(
            running=[name for name in names if name in running or name in remembered],
            along=[*along, *(name for name in context.memory.get("along", []) if name not in along)],
        )
        # One at a time: systemctl returns when the unit has stopped, so the order of the list holds.
        for name in names:
            await self._run_systemctl(context, "stop", name)
        # A timer, a socket or a path may have started a unit again.
        for unit in await self._read_units(context, names):
            if unit.is_running:
                reason = f": {' or '.join(unit.triggered_by)} starts it" if unit.triggered_by else ""
                raise HookFailed(f"{unit.name} was stopped and is {unit.state} again{reason}")

    async def undo(self, context: HandlerContext) -> None:
        running, along = context.memory.get("running", []), context.memory.get("along", [])
        failures = []
        # The units stopped along with these need them, so they start afterwards.
        for name in [*reversed(running), *along]:
            try:
                await self._run_systemctl(context, "start", name)
            except HookFailed as error:
                failures.append(error.message)
        if failures:
            raise HookFailed("; ".join(failures))

    def describe_actions(self) -> Sequence[str]:
        whose = "the user's " if self.is_user else ""
        return [f"stop {whose}{', then '.join(map(_add_suffix, self.units))}"]

    async def _read_units(self, context: HandlerContext, names: Sequence[str]) -> list[_UnitState]:
        """Return the units of these names, in the same order."""
        if not names:
            return []
        shown = await self._run_systemctl(context, "show", f"--property={','.join(_PROPERTIES)}", "--", *names)
        units = [_UnitState.parse(block) for block in shown.strip().split("\n\n")]
        if len(units) != len(names):
            raise HookFailed(f"systemctl reported {len(units)} units, expected {len(names)}")
        return units

    async def _find_dependents(self, context: HandlerContext, units: Sequence[_UnitState]) -> list[str]:
        """Return running units that are not ours but stop with ours; each after those that it needs."""
        known = {unit.name for unit in units}
        found = []
        while units:
            names = sorted({name for unit in units for name in unit.stops if name not in known})
            known.update(names)
            units = [unit for unit in await self._read_units(context, names) if unit.is_running]
            # Starting a target would start everything that it wants, even what was not running.
            found += [unit.name for unit in units if unit.can_start and not unit.name.endswith(".target")]
        return found

    async def _run_systemctl(self, context: HandlerContext, verb: str, *arguments: str) -> str:
        """Run systemctl and return its output; its job is done when this returns."""
        whose = ("--user",) if self.is_user else ()
        command = ("systemctl", *whose, "--no-pager", "--no-ask-password", verb, *arguments)
        ran = await context.run(*command, is_checked=False)
        said = " ".join(ran.errors.split())
        if ran.status:
            msg = f"systemctl {verb} {arguments[-1]} ended with status {ran.status}{': ' if said else ''}{said}"
            raise HookFailed(msg)
        if said:
            context.log(said)
        return ran.output


def _add_suffix(unit: str) -> str:
    return unit if unit.endswith(_SUFFIXES) else f"{unit}.service"


@dataclass(frozen=True, slots=True, kw_only=True)
class _UnitState:
    """State of a unit as systemd reports it.

    Attributes:
        name: Name with its suffix, never an alias.
        load: ``loaded``, or the reason why it is not.
        state: ActiveState of the unit.
        can_start: True if it may be started by hand.
        triggered_by: Sockets, timers and paths that start it.
        stops: Units that are stopped together with it.
    """

    name: str
    load: str
    state: str
    can_start: bool
    triggered_by: tuple[str, ...]
    stops: tuple[str, ...]

    @classmethod
    def parse(cls, block: str) -> _UnitState:
        """Parse the lines ``Name=value``."""
        values = dict.fromkeys(_PROPERTIES, "") | dict(line.partition("=")[::2] for line in block.splitlines())
        return cls(
            name=values["Id"],
            load=values["LoadState"],
            state=values["ActiveState"],
            can_start=values["CanStart"] == "yes",
            triggered_by=tuple(values["TriggeredBy"].split()),
            stops=tuple(name for key in _STOPS for name in values[key].split()),
        )

    @property
    def is_running(self) -> bool:
        return self.state in _RUNNING

    def check_restartable(self) -> None:
        """Check that the unit can be stopped and started again.

        Raises:
            HookFailed: It cannot.
        """
        if self.load == "not-found":
            raise HookFailed(f"there is no unit {self.name}")
        if self.is_running and not self.can_start:
            raise HookFailed(f"{self.name} runs but could not be started again: it is {self.load}")

"""Handler that stops systemd units, and starts again those that were running."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from forewarn.agent.handlers.contract import Handler, Occasion
from forewarn.errors import HookFailed

__all__ = ["Systemd"]

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


class Systemd(Handler, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="systemd"):
    """Units that do not run during the event.

    Units that systemd stops along with these, because they require one of them, are started again as well.

    Attributes:
        units: Units, stopped in this order and started in reverse; a name without a suffix is a service.
        is_user: True if they are units of the user that the agent runs as, not of the system.
    """

    units: tuple[str, ...]
    is_user: bool = False

    def __post_init__(self) -> None:
        """Check what types cannot express.

        Raises:
            ValueError: There is no unit, an invalid name, or a unit named twice.
        """
        if not self.units:
            msg = "the handler systemd has at least one unit"
            raise ValueError(msg)
        for unit in self.units:
            if not _UNIT.fullmatch(unit) or "@." in _full(unit):
                msg = f"{unit!r} is not the name of a unit: expected for example web.service or worker@1.service"
                raise ValueError(msg)
        if len({_full(unit) for unit in self.units}) != len(self.units):
            msg = "the handler systemd names a unit twice"
            raise ValueError(msg)

    async def prepare(self, occasion: Occasion) -> None:
        units = await self._look(occasion, self.units)
        for unit in units:
            unit.check()
        running = [unit.name for unit in units if unit.is_running]
        along = await self._stopped_along(occasion, units)
        # On a repeated run after a crash, the units that were running at first must not be forgotten.
        remembered = occasion.memory.get("running", [])
        names = [unit.name for unit in units]
        await occasion.remember(
            running=[name for name in names if name in running or name in remembered],
            along=[*along, *(name for name in occasion.memory.get("along", []) if name not in along)],
        )
        for name in names:
            await self._systemctl(occasion, "stop", name)
        for unit in await self._look(occasion, names):
            if unit.is_running:
                reason = f": {' or '.join(unit.triggered_by)} starts it" if unit.triggered_by else ""
                msg = f"{unit.name} was stopped and is {unit.state} again{reason}"
                raise HookFailed(msg)

    async def undo(self, occasion: Occasion) -> None:
        running, along = occasion.memory.get("running", []), occasion.memory.get("along", [])
        failures = []
        # The units stopped along with these need them, so they start afterwards.
        for name in [*reversed(running), *along]:
            try:
                await self._systemctl(occasion, "start", name)
            except HookFailed as error:
                failures.append(error.message)
        if failures:
            raise HookFailed("; ".join(failures))

    def explain(self) -> Sequence[str]:
        whose = "the user's " if self.is_user else ""
        return [f"stop {whose}{', then '.join(map(_full, self.units))}"]

    async def _look(self, occasion: Occasion, names: Sequence[str]) -> list[_Unit]:
        """Return the units of these names, in the same order."""
        if not names:
            return []
        shown = await self._systemctl(occasion, "show", f"--property={','.join(_PROPERTIES)}", "--", *names)
        units = [_Unit.read(block) for block in shown.strip().split("\n\n")]
        if len(units) != len(names):
            msg = f"systemctl told of {len(units)} units, expected {len(names)}"
            raise HookFailed(msg)
        return units

    async def _stopped_along(self, occasion: Occasion, units: Sequence[_Unit]) -> list[str]:
        """Return running units that are not ours but stop with ours; each after those that it needs."""
        known = {unit.name for unit in units}
        found = []
        while units:
            names = sorted({name for unit in units for name in unit.stops if name not in known})
            known.update(names)
            units = [unit for unit in await self._look(occasion, names) if unit.is_running]
            # Starting a target would start everything that it wants, even what was not running.
            found += [unit.name for unit in units if unit.can_start and not unit.name.endswith(".target")]
        return found

    async def _systemctl(self, occasion: Occasion, verb: str, *arguments: str) -> str:
        """Run systemctl and return its output; its job is done when this returns."""
        whose = ("--user",) if self.is_user else ()
        command = ("systemctl", *whose, "--no-pager", "--no-ask-password", verb, *arguments)
        ran = await occasion.run(*command, is_checked=False)
        said = " ".join(ran.errors.split())
        if ran.status:
            msg = f"systemctl {verb} {arguments[-1]} ended with status {ran.status}{': ' if said else ''}{said}"
            raise HookFailed(msg)
        if said:
            occasion.log(said)
        return ran.output


def _full(unit: str) -> str:
    return unit if unit.endswith(_SUFFIXES) else f"{unit}.service"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unit:
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
    def read(cls, block: str) -> _Unit:
        """Parse the lines ``Name=value``."""
        told = dict.fromkeys(_PROPERTIES, "") | dict(line.partition("=")[::2] for line in block.splitlines())
        return cls(
            name=told["Id"],
            load=told["LoadState"],
            state=told["ActiveState"],
            can_start=told["CanStart"] == "yes",
            triggered_by=tuple(told["TriggeredBy"].split()),
            stops=tuple(name for key in _STOPS for name in told[key].split()),
        )

    @property
    def is_running(self) -> bool:
        return self.state in _RUNNING

    def check(self) -> None:
        """Check that the unit can be stopped and started again.

        Raises:
            HookFailed: It cannot.
        """
        if self.load == "not-found":
            msg = f"there is no unit {self.name}"
            raise HookFailed(msg)
        if self.is_running and not self.can_start:
            msg = f"{self.name} runs but could not be started again: it is {self.load}"
            raise HookFailed(msg)

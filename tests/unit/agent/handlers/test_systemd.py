"""The handler for systemd's units, on a stage: a systemctl that keeps units in memory.

The real systemd is asked in tests/integration/test_handler_systemd.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from forewarn.agent.codec import Duration
from forewarn.agent.configuration import parse_configuration
from forewarn.agent.handlers import CommandResult, SystemdHandler
from forewarn.errors import HookFailed
from tests.support.documents import ROOT, files_in
from tests.support.interrupted import Crash, Fuse, Staged, crash_everywhere

pytestmark = pytest.mark.anyio

HOW_TO = ROOT / "docs/how-to/agent-systemd.md"
OK = CommandResult(status=0, output="", errors="")


@dataclass
class Unit:
    """What systemd knows of one.

    Attributes:
        needs: Units without which it stops.
        upheld_by: What starts it whenever it is stopped.
    """

    state: str = "active"
    load: str = "loaded"
    can_start: bool = True
    needs: tuple[str, ...] = ()
    upheld_by: str = ""


@dataclass
class Systemctl:
    """Stands in for the command.

    Attributes:
        units: By name.
        done: Verbs and units of jobs, in order.
    """

    units: dict[str, Unit]
    done: list[str] = field(default_factory=list)

    def __call__(self, command: Sequence[str]) -> CommandResult:
        words = [word for word in command if not word.startswith("--") or word.startswith("--property=")]
        assert words[0] == "systemctl"
        verb, *names = words[1:]
        if verb == "show":
            properties, *names = names
            assert properties.startswith("--property=")
            return CommandResult(status=0, output="\n\n".join(map(self._show, names)) + "\n", errors="")
        (name,) = names
        self.done.append(f"{verb} {name}")
        if name not in self.units:
            return CommandResult(status=5, output="", errors=f"Failed to {verb} {name}: Unit {name} not loaded.\n")
        return self._start(name) if verb == "start" else self._stop(name)

    def _show(self, name: str) -> str:
        name = name if "." in name else f"{name}.service"
        unit = self.units.get(name, Unit(state="inactive", load="not-found", can_start=False))
        lines = [f"Id={name}", f"LoadState={unit.load}", f"ActiveState={unit.state}"]
        lines += [f"CanStart={'yes' if unit.can_start else 'no'}", f"TriggeredBy={unit.upheld_by}", "BoundBy="]
        lines.append(f"RequiredBy={' '.join(other for other, each in self.units.items() if name in each.needs)}")
        return "\n".join(lines)

    def _stop(self, name: str) -> CommandResult:
        for other, each in self.units.items():
            if name in each.needs:
                self._stop(other)
        unit = self.units[name]
        if unit.state != "failed" and not unit.upheld_by:
            unit.state = "inactive"
        warning = f"Warning: Stopping {name}, but it can still be\n  activated.\n" if unit.upheld_by else ""
        return CommandResult(status=0, output="", errors=warning)

    def _start(self, name: str) -> CommandResult:
        unit = self.units[name]
        if not unit.can_start:
            return CommandResult(status=1, output="", errors=f"Job for {name} failed.\nSee the journal.\n")
        for other in unit.needs:
            self._start(other)
        unit.state = "active"
        return OK

    def states(self) -> dict[str, str]:
        return {name: unit.state for name, unit in self.units.items()}


@pytest.mark.parametrize(
    ("units", "complaint"),
    [
        ((), "at least one unit"),
        (("",), "is not a valid unit name"),
        (("--force",), "is not a valid unit name"),
        (("web service",), "is not a valid unit name"),
        (("web*.service",), "is not a valid unit name"),
        (("web.service\nreboot",), "is not a valid unit name"),
        (("worker@",), "is not a valid unit name"),
        (("worker@.service",), "is not a valid unit name"),
        (("web", "web.service"), "lists a unit twice"),
    ],
)
def test_settings_that_make_no_sense_are_refused(units: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        SystemdHandler(units=units)


def test_it_says_what_it_does() -> None:
    assert SystemdHandler(units=("web", "my.app", "db.socket")).describe_actions() == [
        "stop web.service, then my.app.service, then db.socket"
    ]
    assert SystemdHandler(units=("web",), is_user=True).describe_actions() == ["stop the user's web.service"]


async def test_units_stop_in_order_and_start_in_reverse() -> None:
    systemctl = Systemctl({"web.service": Unit(), "worker@1.service": Unit(), "db.service": Unit()})
    handler, occasion = SystemdHandler(units=("web", "worker@1.service", "db.service")), Staged(systemctl)
    await handler.prepare(occasion)
    assert systemctl.done == ["stop web.service", "stop worker@1.service", "stop db.service"]
    assert set(systemctl.states().values()) == {"inactive"}
    systemctl.done.clear()
    await handler.undo(occasion)
    assert systemctl.done == ["start db.service", "start worker@1.service", "start web.service"]


async def test_commands_go_to_the_users_systemd_when_told() -> None:
    systemctl = Systemctl({"web.service": Unit()})
    for is_user in (False, True):
        occasion = Staged(systemctl)
        await SystemdHandler(units=("web",), is_user=is_user).prepare(occasion)
        assert [("--user" in command) for command in occasion.commands] == [is_user] * 3


@pytest.mark.parametrize("state", ["inactive", "failed", "deactivating"])
async def test_a_unit_that_did_not_run_is_not_started(state: str) -> None:
    systemctl = Systemctl({"web.service": Unit(), "idle.service": Unit(state=state)})
    handler, occasion = SystemdHandler(units=("idle", "web")), Staged(systemctl)
    await handler.prepare(occasion)
    systemctl.done.clear()
    await handler.undo(occasion)
    assert systemctl.done == ["start web.service"]


@pytest.mark.parametrize("state", ["active", "activating", "reloading", "refreshing"])
async def test_a_unit_that_was_meant_to_run_is_started(state: str) -> None:
    systemctl = Systemctl({"web.service": Unit(state=state)})
    handler, occasion = SystemdHandler(units=("web",)), Staged(systemctl)
    await handler.prepare(occasion)
    await handler.undo(occasion)
    assert systemctl.states() == {"web.service": "active"}


async def test_what_stops_along_starts_again_after_what_it_needs() -> None:
    systemctl = Systemctl(
        {
            "page.service": Unit(needs=("web.service",)),
            "web.service": Unit(needs=("db.service",)),
            "report.service": Unit(state="inactive", needs=("db.service",)),
            "db.service": Unit(),
        }
    )
    before = systemctl.states()
    handler, occasion = SystemdHandler(units=("db",)), Staged(systemctl)
    await handler.prepare(occasion)
    assert set(systemctl.states().values()) == {"inactive"}
    systemctl.done.clear()
    await handler.undo(occasion)
    assert systemctl.done == ["start db.service", "start web.service", "start page.service"]
    assert systemctl.states() == before


async def test_a_target_that_stops_along_is_left_but_not_what_needs_it() -> None:
    systemctl = Systemctl(
        {
            "db.service": Unit(),
            "all.target": Unit(needs=("db.service",)),
            "session.scope": Unit(needs=("db.service",), can_start=False),
            "web.service": Unit(needs=("all.target",)),
        }
    )
    occasion = Staged(systemctl)
    await SystemdHandler(units=("db",)).prepare(occasion)
    assert occasion.memory == {"running": ["db.service"], "along": ["web.service"]}


async def test_a_unit_that_does_not_exist_is_named_and_nothing_is_stopped() -> None:
    systemctl = Systemctl({"web.service": Unit()})
    occasion = Staged(systemctl)
    with pytest.raises(HookFailed, match=r"there is no unit nope\.service"):
        await SystemdHandler(units=("web", "nope")).prepare(occasion)
    assert (systemctl.done, occasion.memory) == ([], {})


async def test_a_unit_that_could_not_be_started_again_is_not_stopped() -> None:
    systemctl = Systemctl({"web.service": Unit(load="masked", can_start=False)})
    with pytest.raises(HookFailed, match="could not be started again: it is masked"):
        await SystemdHandler(units=("web",)).prepare(Staged(systemctl))
    assert systemctl.done == []
    systemctl.units["web.service"].state = "inactive"
    await SystemdHandler(units=("web",)).prepare(Staged(systemctl))


async def test_a_unit_that_something_starts_again_is_a_failure_with_the_reason() -> None:
    systemctl = Systemctl({"web.service": Unit(upheld_by="web.socket")})
    occasion = Staged(systemctl)
    with pytest.raises(HookFailed, match=r"web\.service was stopped and is active again: web\.socket starts it"):
        await SystemdHandler(units=("web",)).prepare(occasion)
    assert occasion.said == ["Warning: Stopping web.service, but it can still be activated."]


async def test_one_that_does_not_start_keeps_no_other_from_it() -> None:
    systemctl = Systemctl({"web.service": Unit(), "db.service": Unit(), "cache.service": Unit()})
    handler, occasion = SystemdHandler(units=("web", "db", "cache")), Staged(systemctl)
    await handler.prepare(occasion)
    systemctl.units["cache.service"].can_start = False
    del systemctl.units["db.service"]
    with pytest.raises(HookFailed) as raised:
        await handler.undo(occasion)
    assert raised.value.message == (
        "systemctl start cache.service ended with status 1: Job for cache.service failed. See the journal.; "
        "systemctl start db.service ended with status 5: Failed to start db.service: Unit db.service not loaded."
    )
    assert systemctl.states()["web.service"] == "active"


async def test_a_systemctl_that_fails_without_a_word_is_told_by_its_status() -> None:
    with pytest.raises(HookFailed, match=r"systemctl show web ended with status 1$"):
        await SystemdHandler(units=("web",)).prepare(Staged(lambda _: CommandResult(status=1, output="", errors="")))
    with pytest.raises(HookFailed, match="reported 1 units, expected 2"):
        await SystemdHandler(units=("web", "db")).prepare(Staged(lambda _: OK))


async def test_undo_without_memory_does_nothing() -> None:
    occasion = Staged(Systemctl({"web.service": Unit(state="inactive")}))
    await SystemdHandler(units=("web",)).undo(occasion)
    assert occasion.commands == []


async def test_it_is_remembered_before_anything_stops() -> None:
    systemctl = Systemctl({"web.service": Unit()})
    occasion = Staged(systemctl)
    for lasts in range(20):
        occasion = Staged(systemctl, Fuse(lasts))
        with pytest.raises(Crash):
            await SystemdHandler(units=("web",)).prepare(occasion)
        if systemctl.done:
            break
    assert occasion.memory["running"] == ["web.service"]


async def test_a_crash_at_any_moment_is_made_up_for() -> None:
    systemctl = Systemctl(
        {
            "web.service": Unit(needs=("db.service",)),
            "page.service": Unit(needs=("db.service",)),
            "idle.service": Unit(state="inactive"),
            "broken.service": Unit(state="failed"),
            "db.service": Unit(),
        }
    )

    def occasion(fuse: Fuse, memory: dict[str, Any]) -> Staged:
        return Staged(systemctl, fuse, memory)

    moments = await crash_everywhere(
        SystemdHandler(units=("web", "idle", "broken", "db")),
        occasion,
        systemctl.states,
        lambda: "active" not in systemctl.states().values(),
    )
    assert moments == 22


async def test_one_that_was_started_between_two_tries_is_stopped_and_started_again() -> None:
    systemctl = Systemctl({"web.service": Unit(), "db.service": Unit(state="inactive")})
    handler, occasion = SystemdHandler(units=("web", "db")), Staged(systemctl)
    await handler.prepare(occasion)
    systemctl.units["db.service"].state = "active"
    await handler.prepare(occasion)
    assert systemctl.states() == {"web.service": "inactive", "db.service": "inactive"}
    await handler.undo(occasion)
    assert systemctl.states() == {"web.service": "active", "db.service": "active"}


def test_the_how_to_shows_a_configuration_that_is_one() -> None:
    (rule,) = parse_configuration(files_in(HOW_TO)["agent.toml"]).rules
    units = ("web.service", "worker@1.service", "postgresql.service")
    assert rule.handlers == (SystemdHandler(timeout=Duration(minutes=10), units=units),)

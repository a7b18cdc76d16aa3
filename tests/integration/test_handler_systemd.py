"""The handler for systemd's units against a real systemd, PID 1 of namespaces of its own, and root's own systemd in it.

No stand-in: `systemctl` and `systemd` are Debian's, and so are the jobs, dependencies and messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.handlers import SystemdHandler
from forewarn.errors import HookFailed
from tests.support.booted import Booted, booted, missing
from tests.support.interrupted import Fragile, Fuse, crash_everywhere

_MISSING = missing()

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(_MISSING is not None, reason=f"a systemd of one's own needs {_MISSING}"),
]


def unit(*lines: str, run: str = "/bin/sleep infinity") -> str:
    """A unit file of a service that takes a while to stop, and writes down when it has begun and ended."""
    return "\n".join(
        [
            "[Unit]",
            "DefaultDependencies=no",
            *(line for line in lines if line.partition("=")[0] in {"Requires", "PartOf", "After"}),
            "[Service]",
            "Type=exec",
            "StandardOutput=null",
            "StandardError=null",
            f"ExecStart={run}",
            "ExecStartPost=/bin/sh -c 'echo start %p >> /run/jobs'",
            "ExecStop=/bin/sh -c 'echo stop %p >> /run/jobs; sleep 0.2'",
            "ExecStopPost=/bin/sh -c 'echo ended %p >> /run/jobs'",
            *(line for line in lines if line.partition("=")[0] not in {"Requires", "PartOf", "After"}),
            "",
        ]
    )


SYSTEM = {
    "web.service": unit(),
    "worker@.service": unit(),
    "db.service": unit(),
    "page.service": unit("Requires=db.service", "After=db.service"),
    "report.service": unit("PartOf=page.service"),
    "idle.service": unit("Requires=db.service"),
    "stubborn.service": unit("TimeoutStopSec=300ms", run="/bin/sh -c 'trap \"\" TERM; while :; do sleep 1; done'"),
    "broken.service": unit(run="/bin/false").replace("Type=exec", "Type=oneshot"),
    "flapping.service": unit("Restart=always", "RestartSec=100", run="/bin/false"),
    "once.service": unit("ExecStartPre=/bin/sh -c 'mkdir /run/once'"),
    "listening.socket": "[Unit]\nDefaultDependencies=no\n[Socket]\nListenStream=/run/listening\n",
    "listening.service": unit(),
}
USER = {"mine.service": unit(), "web.service": unit()}


@pytest.fixture
def system(tmp_path: Path) -> Iterator[Booted]:
    with booted(tmp_path, SYSTEM, USER) as made:
        yield made


def begin(system: Booted, *units: str) -> dict[str, str]:
    """Start units, and say in what state they and all others are."""
    system.systemctl("start", *units)
    return states(system)


def states(system: Booted) -> dict[str, str]:
    return system.states(*(name.replace("@", "@1") for name in SYSTEM))


def mask(system: Booted, name: str) -> None:
    file = Path(f"/proc/{system.pid}/root/run/systemd/system/{name}")
    file.unlink()
    file.symlink_to("/dev/null")
    system.systemctl("daemon-reload")


def jobs(system: Booted, since: int = 0) -> list[str]:
    """What units have written down."""
    return system.read("/run/jobs").splitlines()[since:]


async def test_units_stop_one_after_the_other_and_start_in_reverse(system: Booted) -> None:
    before = begin(system, "web", "worker@1", "db")
    handler = SystemdHandler(units=("web", "worker@1.service", "db.service", "idle"))
    occasion, count = Fragile(environment=system.environment), len(jobs(system))
    await handler.prepare(occasion)
    assert set(states(system).values()) == {"inactive"}
    assert jobs(system, count) == ["stop web", "ended web", "stop worker", "ended worker", "stop db", "ended db"]
    count = len(jobs(system))
    await handler.undo(occasion)
    assert jobs(system, count) == ["start db", "start worker", "start web"]
    assert states(system) == before


async def test_what_requires_a_unit_stops_with_it_and_comes_back(system: Booted) -> None:
    before = begin(system, "db", "page", "report")
    assert before["report.service"] == "active"
    handler, occasion = SystemdHandler(units=("db",)), Fragile(environment=system.environment)
    await handler.prepare(occasion)
    assert set(states(system).values()) == {"inactive"}
    assert occasion.memory == {"running": ["db.service"], "along": ["page.service", "report.service"]}
    await handler.undo(occasion)
    assert states(system) == before


async def test_a_failed_unit_is_not_started(system: Booted) -> None:
    system.systemctl("start", "broken", is_checked=False)
    before = begin(system, "web")
    assert before["broken.service"] == "failed"
    handler, occasion = SystemdHandler(units=("broken", "web")), Fragile(environment=system.environment)
    await handler.prepare(occasion)
    await handler.undo(occasion)
    assert states(system) == before


async def test_a_unit_that_is_tried_again_and_again_goes_on_being_tried(system: Booted) -> None:
    system.systemctl("start", "flapping", is_checked=False)
    assert states(system)["flapping.service"] == "activating"
    handler, occasion = SystemdHandler(units=("flapping",)), Fragile(environment=system.environment)
    await handler.prepare(occasion)
    assert states(system)["flapping.service"] in {"inactive", "failed"}
    assert occasion.memory["running"] == ["flapping.service"]


async def test_a_unit_that_has_to_be_killed_is_stopped_and_started_again(system: Booted) -> None:
    begin(system, "stubborn")
    handler, occasion = SystemdHandler(units=("stubborn",)), Fragile(environment=system.environment)
    await handler.prepare(occasion)
    assert states(system)["stubborn.service"] == "failed"
    await handler.undo(occasion)
    assert states(system)["stubborn.service"] == "active"


async def test_a_unit_that_does_not_exist_is_named_and_nothing_stops(system: Booted) -> None:
    before = begin(system, "web")
    occasion = Fragile(environment=system.environment)
    with pytest.raises(HookFailed, match=r"^there is no unit nope\.service$"):
        await SystemdHandler(units=("web", "nope")).prepare(occasion)
    assert (states(system), occasion.memory) == (before, {})


async def test_a_masked_unit_that_runs_is_not_stopped_because_it_could_not_come_back(system: Booted) -> None:
    before = begin(system, "web", "db")
    mask(system, "web.service")
    with pytest.raises(HookFailed, match=r"^web\.service runs but could not be started again: it is masked$"):
        await SystemdHandler(units=("db", "web")).prepare(Fragile(environment=system.environment))
    assert states(system) == before


async def test_a_unit_that_does_not_start_is_told_in_systemds_words_and_the_others_start(system: Booted) -> None:
    begin(system, "web", "once")
    handler, occasion = SystemdHandler(units=("web", "once")), Fragile(environment=system.environment)
    await handler.prepare(occasion)
    with pytest.raises(HookFailed, match=r"systemctl start once\.service ended with status 1: Job for once\.service"):
        await handler.undo(occasion)
    assert states(system)["web.service"] == "active"


async def test_a_socket_that_would_start_the_service_is_told_of(system: Booted) -> None:
    begin(system, "listening.socket", "listening.service")
    occasion = Fragile(environment=system.environment)
    await SystemdHandler(units=("listening.service",)).prepare(occasion)
    (said,) = occasion.said
    assert "listening.service" in said
    assert "listening.socket" in said
    occasion = Fragile(environment=system.environment)
    await SystemdHandler(units=("listening.socket", "listening.service")).prepare(occasion)
    assert occasion.said == []


async def test_units_of_the_user_are_others_than_those_of_the_system(system: Booted) -> None:
    before = begin(system, "web")
    system.systemctl("--user", "start", "web", "mine")
    handler = SystemdHandler(units=("mine", "web"), is_user=True)
    occasion = Fragile(environment=system.environment)
    await handler.prepare(occasion)
    assert system.states("mine", "web", whose="--user") == {"mine": "inactive", "web": "inactive"}
    assert states(system) == before
    await handler.undo(occasion)
    assert system.states("mine", "web", whose="--user") == {"mine": "active", "web": "active"}


@pytest.mark.timeout(600)
async def test_a_crash_at_any_moment_is_made_up_for(system: Booted) -> None:
    system.systemctl("start", "broken", is_checked=False)
    begin(system, "web", "db", "page", "report")

    def occasion(fuse: Fuse, memory: dict[str, Any]) -> Fragile:
        return Fragile(fuse, memory, system.environment)

    moments = await crash_everywhere(
        SystemdHandler(units=("web", "idle", "broken", "db")),
        occasion,
        lambda: states(system),
        lambda: "active" not in states(system).values(),
    )
    assert moments == 26

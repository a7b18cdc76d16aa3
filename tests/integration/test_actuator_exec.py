"""The actuator `exec`: commands that hang, fork, flood, fail, and outlive the service that began them."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import pytest

from forewarn.actuators import Progress
from forewarn.actuators.exec import VARIABLES, CommandLimits, Exec, build_environment
from forewarn.actuators.exec_run import CommandRun, CommandRunState, prune_runs
from forewarn.clock import RealClock
from forewarn.core.maintenance.actuator_result import RetryPolicy
from forewarn.core.model import EventType, Maintenance, MaintenanceState
from forewarn.errors import ActuatorBusy, ActuatorError, ConfigError
from forewarn.scheduling.scheduler import SchedulerSettings
from tests.support.actuated import started, until
from tests.support.documents import ROOT
from tests.support.processes import is_written
from tests.support.simulated import inventory, simulated
from tests.support.simulated_world import SCOPES, VMS, seconds
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.anyio

NOW = RealClock().now()
QUICK = timedelta(milliseconds=250)


def exec_of(folder: Path, script: str, deadline: timedelta = timedelta(seconds=60), **options: Any) -> Exec:  # noqa: ANN401 - options of `Exec`
    kept = options.pop("output_size_bytes_max", 64 << 10)
    limits = CommandLimits(check_every=timedelta(milliseconds=10), deadline=deadline, output_size_bytes_max=kept)
    return Exec(["bash", "-c", script], folder / "runs", limits=limits, **options)


async def ended(actuator: Exec, maintenance: Maintenance) -> Progress:
    """Execute it and wait for its end."""
    progress = await actuator.execute(maintenance, NOW)
    while not progress.is_complete:
        await asyncio.sleep(0.01)
        seen = await actuator.observe(maintenance, NOW)
        assert seen is not None
        progress = seen
    return progress


async def failure(actuator: Exec, maintenance: Maintenance) -> str:
    with pytest.raises(ActuatorError) as caught:
        await ended(actuator, maintenance)
    assert caught.value.message.isprintable()
    return caught.value.message


def has_said_something(message: str) -> bool:
    return ": " in message


async def late(
    folder: Path,
    script: str,
    is_soon_enough: Callable[[str], bool] = has_said_something,
    **options: Any,  # noqa: ANN401 - as `exec_of`
) -> str:
    """What is said of a command that is ended at its deadline, with ``{}`` for the deadline.

    A slow machine may need longer than the deadline to begin the command. Then it is tried with a longer one.
    """
    message, deadline_s = "", 0.0
    for number in range(4):
        deadline_s = 0.25 * 4**number
        folder_of_try = folder / f"try-{number}"
        folder_of_try.mkdir()
        actuator = exec_of(folder_of_try, script, timedelta(seconds=deadline_s), **options)
        message = await failure(actuator, started("web-0"))
        if is_soon_enough(message):
            break
    return message.replace(f"{deadline_s:g} s", "{} s")


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def is_there(pid: str) -> bool:
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# What a command gets


async def test_a_command_is_told_everything_in_its_environment_and_on_standard_input(tmp_path: Path) -> None:
    maintenance = replace(
        started("web-0", "web-1", host="host-7", type=EventType.REBOOT),
        impact=EventType.FREEZE,
        description='patching, "quoted" $HOME',
        not_before=NOW,
        hosts=("host-7",),
        duration_s=9,
    )
    script = f"env -0 > {tmp_path}/environment; cat > {tmp_path}/input"
    await ended(exec_of(tmp_path, script), maintenance)
    lines = (tmp_path / "environment").read_text().split("\0")
    said = dict(line.split("=", 1) for line in lines if line.startswith("FOREWARN_"))
    assert said == {
        "FOREWARN_MAINTENANCE_ID": "k3m9",
        "FOREWARN_TYPE": "Reboot",
        "FOREWARN_IMPACT": "Freeze",
        "FOREWARN_VMS": "web-0 web-1",
        "FOREWARN_HOSTS": "host-7",
        "FOREWARN_DURATION_S": "9",
        "FOREWARN_DESCRIPTION": 'patching, "quoted" $HOME',
        "FOREWARN_CAUSE": "host-maintenance",
        "FOREWARN_NOT_BEFORE": NOW.isoformat().replace("+00:00", "Z"),
        "FOREWARN_STARTED_AT": "2026-11-21T10:00:00Z",
    }
    assert set(said) == set(VARIABLES)
    given = json.loads((tmp_path / "input").read_text())
    assert given["id"] == "k3m9"
    assert given["state"] == "started"
    assert given["placements"] == [{"vm": "web-0", "host": "host-7"}, {"vm": "web-1", "host": "host-7"}]


def test_settings_of_the_service_are_not_for_commands() -> None:
    inherited = {"PATH": "/bin", "FOREWARN_DATABASE_URL": "postgresql://forewarn:password@db/forewarn"}
    environment = build_environment(started("web-0"), inherited)
    assert environment["PATH"] == "/bin"
    assert "FOREWARN_DATABASE_URL" not in environment


def test_half_a_list_of_vms_is_worse_than_none() -> None:
    many = started(*(f"a-vm-with-a-long-name-{number}" for number in range(2000)))
    environment = build_environment(many, {})
    assert "FOREWARN_VMS" not in environment
    assert environment["FOREWARN_HOSTS"] == "host-1"


async def test_a_command_inherits_no_socket_and_no_lock(tmp_path: Path) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.set_inheritable(True)
        await ended(exec_of(tmp_path, f"ls -l /proc/$$/fd > {tmp_path}/open"), started("web-0"))
    descriptors = (tmp_path / "open").read_text()
    assert "socket:" not in descriptors
    assert "lock" not in descriptors


# How it ends


async def test_success_is_impact_completion_and_its_measured_seconds(tmp_path: Path) -> None:
    progress = await ended(exec_of(tmp_path, "sleep 0.2"), started("web-0"))
    assert (progress.is_impacted, progress.is_complete, progress.check_at) == (True, True, None)
    assert progress.impact_s is not None
    assert progress.impact_s >= 0.2


async def test_execute_does_not_wait_for_a_command_that_takes_long(tmp_path: Path) -> None:
    actuator = exec_of(tmp_path, "sleep 600", timedelta(hours=1))
    progress = await actuator.execute(started("web-0"), NOW)
    assert (progress.is_complete, progress.is_impacted) == (False, False)
    assert progress.check_at == NOW + timedelta(milliseconds=10)
    await actuator.abort(started("web-0"), NOW)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo first; echo 'no such host' >&2; exit 3", "bash ended with exit status 3: no such host"),
        ("exit 1", "bash ended with exit status 1"),
        ("printf 'a\\033[31m\\tb\\r\\n\\n  \\n'; exit 1", "bash ended with exit status 1: a [31m b"),
        ("kill -SEGV $$", "bash ended with SIGSEGV"),
        ("printf '\\377\\376'; exit 1", "bash ended with exit status 1: ��"),
    ],
)
async def test_a_failure_tells_its_exit_status_and_its_last_line(tmp_path: Path, script: str, reason: str) -> None:
    said = await failure(exec_of(tmp_path, script), started("web-0"))
    assert said.replace("was ended by", "ended with") == reason


async def test_a_failed_command_is_not_run_again(tmp_path: Path) -> None:
    actuator = exec_of(tmp_path, f"echo x >> {tmp_path}/begun; exit 1")
    reasons = {await failure(actuator, started("web-0")) for _ in range(3)}
    assert len(reasons) == 1
    assert (tmp_path / "begun").read_text() == "x\n"


async def test_exit_status_75_has_it_run_again(tmp_path: Path) -> None:
    actuator = exec_of(tmp_path, f"echo x >> {tmp_path}/begun; [ -e {tmp_path}/free ] || {{ echo busy; exit 75; }}")
    maintenance = started("web-0")
    assert await failure(actuator, maintenance) == "bash ended with exit status 75: busy"
    maintenance = replace(maintenance, begun_at=NOW)
    assert await actuator.observe(maintenance, NOW) is None
    assert await failure(actuator, maintenance) == "bash ended with exit status 75: busy"
    (tmp_path / "free").touch()
    assert await actuator.observe(maintenance, NOW) is None
    assert (await ended(actuator, maintenance)).is_complete
    assert (tmp_path / "begun").read_text() == "x\nx\nx\n"


async def test_each_run_that_ends_so_says_how_many_there_were(tmp_path: Path) -> None:
    actuator = exec_of(tmp_path, "exit 75")
    tries = []
    for _ in range(3):
        with pytest.raises(ActuatorBusy) as caught:
            await ended(actuator, started("web-0"))
        tries.append(caught.value.tries)
    assert tries == [1, 2, 3]


async def test_one_that_hangs_is_ended_with_all_its_group_at_its_deadline(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/child; echo working; sleep 600"
    assert await late(tmp_path, script) == "bash took longer than {} s and was ended: working"
    await until(lambda: not is_there((tmp_path / "child").read_text()))


@pytest.mark.slow
async def test_one_that_will_not_end_is_killed(tmp_path: Path) -> None:
    script = f"trap '' TERM; echo $$ > {tmp_path}/pid; while :; do sleep 0.1; done"
    assert "took longer" in await late(tmp_path, script, lambda _: is_written(tmp_path / "pid"))
    assert not is_there((tmp_path / "pid").read_text())


async def test_a_child_left_in_the_background_that_holds_the_output_is_not_waited_for(tmp_path: Path) -> None:
    script = f"(while :; do echo noise; sleep 0.01; done) & echo $! > {tmp_path}/child; sleep 0.1; exit 0"
    progress = await ended(exec_of(tmp_path, script), started("web-0"))
    assert progress.is_complete
    await until(lambda: not is_there((tmp_path / "child").read_text()))  # nobody reads what it writes


async def test_a_flood_of_output_is_read_and_only_its_end_is_kept(tmp_path: Path) -> None:
    script = "head -c 50000000 /dev/zero | tr '\\0' x; echo; echo the end; exit 1"
    actuator = exec_of(tmp_path, script, output_size_bytes_max=1000)
    assert await failure(actuator, started("web-0")) == "bash ended with exit status 1: the end"
    assert len(CommandRun(tmp_path / "runs" / "k3m9").read_outcome().output) == 1000


async def test_a_flood_without_end_is_ended_at_the_deadline(tmp_path: Path) -> None:
    said = await late(tmp_path, "exec yes", output_size_bytes_max=100)
    assert said == "bash took longer than {} s and was ended: y"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("/no/such/program", "No such file or directory"),
        ("/etc/passwd", "Permission denied"),
        ("/", "Permission denied"),
    ],
)
async def test_what_cannot_be_run_is_said_and_nothing_was_begun(tmp_path: Path, command: str, reason: str) -> None:
    actuator = Exec([command], tmp_path / "runs")
    for _ in range(2):
        with pytest.raises(ActuatorError, match=f"cannot run {command}: {reason}"):
            await actuator.execute(started("web-0"), NOW)
    assert await actuator.observe(started("web-0"), NOW) is None
    with pytest.raises(ActuatorError, match=command):
        await actuator.check()


async def test_a_folder_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs").touch()
    actuator = exec_of(tmp_path, "true")
    for call in (actuator.check(), actuator.execute(started("web-0"), NOW)):
        with pytest.raises(ActuatorError, match="cannot create the folder"):
            await call


def test_without_a_command_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="exec_command"):
        Exec([], tmp_path)


# Once


def test_of_many_that_begin_at_the_same_time_one_does(tmp_path: Path) -> None:
    barrier = threading.Barrier(8)

    def begin() -> None:
        barrier.wait()
        CommandRun(tmp_path / "run").begin(
            ["bash", "-c", f"echo x >> {tmp_path}/begun"],
            environment=dict(os.environ),
            stdin=b"",
            deadline_s=GUARD_S,
            output_size_bytes_max=100,
        )

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while CommandRun(tmp_path / "run").read_state() is not CommandRunState.ENDED:
        time.sleep(0.01)
    assert (tmp_path / "begun").read_text() == "x\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("script", ["", "sleep 0.05", "sleep 0.3"])
async def test_of_many_calls_at_the_same_time_one_runs_the_command_however_quick_it_is(
    tmp_path: Path, script: str
) -> None:
    actuators = [exec_of(tmp_path, f"echo x >> {tmp_path}/begun; {script}") for _ in range(4)]
    tasks = [
        asyncio.create_task(actuators[number % 4].execute(started("web-0"), NOW), name=str(number))
        for number in range(16)
    ]
    await asyncio.sleep(0)
    for task in tasks[::3]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await ended(actuators[0], started("web-0"))
    await until(lambda: names_in(tmp_path / "runs") == ["k3m9"])  # those that were cancelled go on to their end
    assert (tmp_path / "begun").read_text() == "x\n"


async def test_a_call_cut_off_by_the_schedulers_time_out_has_begun_it_and_it_comes_to_its_end(tmp_path: Path) -> None:
    """Invariant 3."""
    actuator = exec_of(tmp_path, f"echo x >> {tmp_path}/begun; sleep 0.2")
    pace = SchedulerSettings(call_timeout=timedelta(0), retry=RetryPolicy(attempts_max=100, pause=seconds(5)))
    made = await simulated(inventory(*VMS, scopes=SCOPES), actuator=actuator, pace=pace)
    maintenance = await made.schedule_one("host-maintenance", "db")
    await made.approve_all("db")
    while made.state(maintenance) == MaintenanceState.STARTED:
        await made.advance(seconds(5))
        await asyncio.sleep(0.02)
    assert made.state(maintenance) == MaintenanceState.COMPLETED
    assert (tmp_path / "begun").read_text() == "x\n"


# Services that end


SERVICE = """
import asyncio, os, pathlib, signal, sys
sys.path.insert(0, {root!r})
from forewarn.actuators.exec import Exec
from forewarn.clock import RealClock
from tests.unit.core.builders import maintenance, vm

async def main():
    begun = maintenance(vm("web-0"), id="k3m9")
    await Exec(["bash", "-c", {script!r}], pathlib.Path({folder!r})).execute(begun, RealClock().now())
    os.kill(os.getpid(), signal.{number})

asyncio.run(main())
"""


@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM", "SIGINT"])
async def test_a_command_outlives_the_service_and_its_end_is_known_to_the_next(tmp_path: Path, number: str) -> None:
    script = f"echo x >> {tmp_path}/begun; for i in 1 2 3 4 5; do echo line $i; sleep 0.05; done; exit 4"
    code = SERVICE.format(root=str(ROOT), script=script, folder=str(tmp_path / "runs"), number=number)
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", code], check=False, timeout=GUARD_S, stderr=subprocess.DEVNULL
    )
    assert ran.returncode == -signal.Signals[number]
    maintenance = replace(started("web-0"), begun_at=NOW)
    assert await failure(exec_of(tmp_path, script), maintenance) == "bash ended with exit status 4: line 5"
    assert (tmp_path / "begun").read_text() == "x\n"


async def test_a_service_that_died_before_anything_ran_has_begun_nothing(tmp_path: Path) -> None:
    (tmp_path / "runs" / "k3m9").mkdir(parents=True)
    (tmp_path / "runs" / "k3m9" / "lock").touch()
    actuator = exec_of(tmp_path, "true")
    assert await actuator.observe(replace(started("web-0"), begun_at=NOW), NOW) is None
    assert (await ended(actuator, started("web-0"))).is_complete


async def lost(tmp_path: Path, on_lost: Literal["fail", "repeat"], **options: Any) -> tuple[Exec, Maintenance]:  # noqa: ANN401 - options of `Exec`
    """One that was begun, and whose keeper was killed."""
    script = f"echo $$ >> {tmp_path}/begun; while [ ! -e {tmp_path}/go ]; do sleep 0.01; done"
    actuator = exec_of(tmp_path, script, on_lost=on_lost, **options)
    maintenance = replace(started("web-0"), begun_at=NOW)
    await actuator.execute(maintenance, NOW)
    await until(lambda: is_written(tmp_path / "begun"))
    os.kill(int((tmp_path / "runs" / "k3m9" / "keeper").read_text()), signal.SIGKILL)
    await until(lambda: CommandRun(tmp_path / "runs" / "k3m9").read_state() is CommandRunState.LOST)
    (tmp_path / "go").touch()
    return actuator, maintenance


async def test_what_nobody_has_seen_the_end_of_fails(tmp_path: Path) -> None:
    actuator, maintenance = await lost(tmp_path, "fail")
    for call in (actuator.observe, actuator.execute):
        with pytest.raises(ActuatorError, match="outcome is unknown"):
            await call(maintenance, NOW)
    assert len((tmp_path / "begun").read_text().split()) == 1


async def test_or_is_run_again_where_the_operator_says_that_it_may_be(tmp_path: Path) -> None:
    actuator, maintenance = await lost(tmp_path, "repeat")
    assert await actuator.observe(maintenance, NOW) is None
    assert (await ended(actuator, maintenance)).is_complete
    assert len((tmp_path / "begun").read_text().split()) == 2


async def test_what_was_begun_elsewhere_fails_or_is_run_again_as_well(tmp_path: Path) -> None:
    elsewhere = replace(started("web-0"), begun_at=NOW)
    with pytest.raises(ActuatorError, match="outcome is unknown"):
        await exec_of(tmp_path, "true").observe(elsewhere, NOW)
    repeating = exec_of(tmp_path, "true", on_lost="repeat")
    assert await repeating.observe(elsewhere, NOW) is None
    assert (await ended(repeating, elsewhere)).is_complete


# The observe command


OBSERVED = {
    "exit 0": "complete",
    "exit 3": "running",
    "exit 4": "never begun",
    '[ "$FOREWARN_MAINTENANCE_ID" = k3m9 ] && grep -q \'"id": "k3m9"\'': "complete",
}


def word(progress: Progress | None) -> str:
    if progress is None:
        return "never begun"
    assert (progress.check_at is None) == progress.is_complete
    return "complete" if progress.is_complete else "running"


@pytest.mark.parametrize(("script", "said"), OBSERVED.items())
async def test_an_observe_command_knows_what_nobody_here_does(tmp_path: Path, script: str, said: str) -> None:
    actuator = exec_of(tmp_path, "exit 1", observe_command=["bash", "-c", script])
    assert actuator.is_observable
    assert [word(await actuator.observe(started("web-0"), NOW)) for _ in range(2)] == [said, said]


async def test_without_one_nothing_can_be_observed_everywhere(tmp_path: Path) -> None:
    assert not exec_of(tmp_path, "true").is_observable


@pytest.mark.parametrize("script", ["echo 'no idea'; exit 9", "sleep 60"])
async def test_an_observe_command_that_fails_or_hangs_is_an_error(tmp_path: Path, script: str) -> None:
    limits = CommandLimits(observe_deadline=QUICK)
    actuator = Exec(["true"], tmp_path / "runs", observe_command=["bash", "-c", script], limits=limits)
    with pytest.raises(ActuatorError, match=r"no idea|took longer than"):
        await actuator.observe(started("web-0"), NOW)


async def test_what_was_lost_and_is_denied_is_begun_anew(tmp_path: Path) -> None:
    actuator, maintenance = await lost(tmp_path, "fail", observe_command=["bash", "-c", "exit 4"])
    assert await actuator.observe(maintenance, NOW) is None
    assert (await ended(actuator, maintenance)).is_complete


# Aborting


async def test_an_abort_ends_the_command_and_its_children(tmp_path: Path) -> None:
    actuator = exec_of(tmp_path, f"sleep 60 & echo $! $$ > {tmp_path}/pids; wait")
    maintenance = started("web-0")
    await actuator.execute(maintenance, NOW)
    await until(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
    await actuator.abort(maintenance, NOW)
    assert [pid for pid in (tmp_path / "pids").read_text().split() if is_there(pid)] == []
    assert await failure(actuator, maintenance) == "bash was ended on request"


async def test_an_abort_command_runs_once_and_only_where_something_was_begun(tmp_path: Path) -> None:
    aborting = ["bash", "-c", f"echo $FOREWARN_MAINTENANCE_ID >> {tmp_path}/aborted"]
    actuator = exec_of(tmp_path, "sleep 60", abort_command=aborting)
    maintenance = started("web-0")
    await actuator.abort(maintenance, NOW)
    assert not (tmp_path / "aborted").exists()
    await actuator.execute(maintenance, NOW)
    for _ in range(2):
        await actuator.abort(maintenance, NOW)
    assert (tmp_path / "aborted").read_text() == "k3m9\n"


async def test_an_abort_command_that_fails_says_why_and_is_run_again_the_next_time(tmp_path: Path) -> None:
    script = f"[ -e {tmp_path}/free ] || {{ echo 'cannot yet'; exit 1; }}"
    actuator = exec_of(tmp_path, "sleep 60", abort_command=["bash", "-c", script])
    maintenance = started("web-0")
    await actuator.execute(maintenance, NOW)
    with pytest.raises(ActuatorError, match="exit status 1: cannot yet"):
        await actuator.abort(maintenance, NOW)
    (tmp_path / "free").touch()
    await actuator.abort(maintenance, NOW)
    assert await failure(actuator, maintenance) == "bash was ended on request"


async def test_an_abort_asks_whether_it_was_begun_elsewhere(tmp_path: Path) -> None:
    aborting = ["bash", "-c", f"touch {tmp_path}/aborted"]
    denying = exec_of(tmp_path, "true", observe_command=["bash", "-c", "exit 4"], abort_command=aborting)
    await denying.abort(started("web-0"), NOW)
    assert not (tmp_path / "aborted").exists()
    knowing = exec_of(tmp_path, "true", observe_command=["bash", "-c", "exit 3"], abort_command=aborting)
    await knowing.abort(started("web-0"), NOW)
    assert (tmp_path / "aborted").exists()


# What grows


async def test_only_so_many_runs_are_remembered_and_never_is_one_forgotten_that_runs(tmp_path: Path) -> None:
    running = exec_of(tmp_path, "sleep 60")
    await running.execute(started("web-0", id="running"), NOW)
    actuator = exec_of(tmp_path, "true")
    for number in range(4):
        await ended(actuator, started("web-0", id=f"run-{number}"))
    prune_runs(tmp_path / "runs", 3)
    assert names_in(tmp_path / "runs") == ["run-2", "run-3", "running"]
    await running.abort(started("web-0", id="running"), NOW)


async def test_an_id_is_no_path(tmp_path: Path) -> None:
    for id_ in ("../../escaped", ".hidden", "a/b", "k3m9.abort"):
        assert (await ended(exec_of(tmp_path, "true"), started("web-0", id=id_))).is_complete
    assert names_in(tmp_path) == ["runs"]
    assert names_in(tmp_path / "runs") == ["%2E%2E%2F%2E%2E%2Fescaped", "%2Ehidden", "a%2Fb", "k3m9%2Eabort"]


def test_a_plan_shows_the_command_as_a_shell_would_take_it(tmp_path: Path) -> None:
    actuator = Exec(["drain", "a b", "$x"], tmp_path)
    (line,) = actuator.plan(started("web-0", "web-1"))
    assert line == f"run {shlex.join(['drain', 'a b', '$x'])} for web-0, web-1, at most 1h"

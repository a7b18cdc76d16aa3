"""Entry point of the demo: starts everything, plays both acts, and cleans up however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from forewarn.clock import Clock, RealClock
from forewarn.demo.act_player import ActPlayer
from forewarn.demo.act_record import ActRecord, DemoFailed
from forewarn.demo.acts import FAILURE, MIGRATION
from forewarn.demo.agent_process import DemoAgent
from forewarn.demo.operator_client import follow_audit_log, open_client
from forewarn.demo.service_process import RunningService, start_service
from forewarn.demo.style import make_console
from forewarn.demo.summary import print_summary
from forewarn.demo.timeline import Timeline
from forewarn.demo.vms import CAST, HOST, PLATFORM

__all__ = ["play_demo", "run_demo"]

_TOTAL_S = 300.0
_FAILED, _BROKEN_PIPE, _SIGNALLED = 1, 141, 128
# SIGHUP too: a closed terminal must not leave the service and the agents running.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_demo() -> int:
    """Play the demo on standard output.

    Returns:
        The exit status: 0; 1 if something did not go as promised (one line on stderr gives the reason); 130 after
        Ctrl-C.
    """
    try:
        return asyncio.run(_play_until_signal(make_console()))
    except Exception as error:  # noqa: BLE001 - the user gets one line, not a traceback
        cause = _find_leaf(error)
        if isinstance(cause, BrokenPipeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _BROKEN_PIPE
        message = cause.message if isinstance(cause, DemoFailed) else f"{type(cause).__name__}: {cause}"
        sys.stderr.write(f"forewarn demo: {' '.join(message.split())}\n")
        return _FAILED


def _find_leaf(error: BaseException) -> BaseException:
    """Return the first leaf of an exception group, or the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


async def _play_until_signal(console: Console) -> int:
    """Play until the first signal; further signals do not disturb the cleanup."""
    loop = asyncio.get_running_loop()
    playing = asyncio.create_task(play_demo(console))
    caught: list[signal.Signals] = []

    def interrupt(number: signal.Signals) -> None:
        # A second cancellation would interrupt the cleanup that the first one started.
        if not caught:
            playing.cancel()
        caught.append(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, interrupt, number)
    try:
        await playing
    except asyncio.CancelledError:
        if not caught:
            raise
        sys.stderr.write("\nforewarn demo: stopped\n")
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return _SIGNALLED + caught[0] if caught else 0


async def play_demo(console: Console) -> None:
    """Play the demo on that console.

    Raises:
        DemoFailed: Something did not go as promised. May be inside an exception group.
    """
    _check_addresses()
    console.print(Text("Forewarn", style="title") + Text(": warns VMs of maintenance, and waits for their approval\n"))
    try:
        async with asyncio.timeout(_TOTAL_S):
            with tempfile.TemporaryDirectory(prefix="forewarn-demo-") as folder:
                async with start_service(Path(folder)) as served:
                    await _play_with_service(console, served, Path(folder))
    except TimeoutError as error:
        raise DemoFailed(f"the demo did not end within {_TOTAL_S:g} s") from error


async def _play_with_service(console: Console, served: RunningService, folder: Path) -> None:
    clock = RealClock()
    timeline = Timeline(console, clock, began_at=clock.now())
    _introduce_actors(timeline, served)
    try:
        migration, failure = await _play_acts(timeline, clock, served, folder)
    except Exception:
        timeline.flush()  # the lines that led to the error
        raise
    timeline.flush()
    print_summary(console, migration, failure)


async def _play_acts(
    timeline: Timeline, clock: Clock, served: RunningService, folder: Path
) -> tuple[ActRecord, ActRecord]:
    authorization = {"Authorization": f"Bearer {served.token}"}
    async with open_client(served.control_url, authorization) as client, asyncio.TaskGroup() as group:
        story = ActPlayer(client, timeline, clock)
        handlers = [
            DemoAgent(vm, served.metadata_url, folder, timeline.queue_line, lambda: story.record) for vm in CAST
        ]
        watching = follow_audit_log(client, story.record_entry)
        background = [group.create_task(work) for work in (timeline.run(), watching, *(h.run() for h in handlers))]
        try:
            await story.wait_for_first_polls()
            return await story.play_act(MIGRATION), await story.play_act(FAILURE)
        finally:
            # The task group would wait for these forever: they end only when cancelled.
            for task in background:
                task.cancel()


def _introduce_actors(timeline: Timeline, served: RunningService) -> None:
    about = f"{HOST}: a real `forewarn serve`, process {served.pid}, {served.metadata_url}"
    vms = {vm.name: f"{vm.tenant}; a real `forewarn agent`: {vm.poll_method}, {vm.reaction}" for vm in CAST}
    timeline.print_introduction({PLATFORM: about} | vms)


def _check_addresses() -> None:
    """Check that this machine has the source address of each VM.

    Raises:
        DemoFailed: It lacks one.
    """
    for vm in CAST:
        try:
            with socket.socket() as sock:
                sock.bind((vm.address, 0))
        except OSError as error:
            msg = (
                f"the VMs need {', '.join(v.address for v in CAST)}, and this system lacks {vm.address}: "
                "run the demo on Linux, which has all of 127.0.0.0/8, or in a Linux container"
            )
            raise DemoFailed(msg) from error

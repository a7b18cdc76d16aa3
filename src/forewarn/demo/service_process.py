"""The service as a separate process: the real `forewarn serve`, with its files in a temporary folder."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from forewarn.demo.act_record import DemoFailed
from forewarn.demo.vms import encode_inventory
from forewarn.util.secrets import TOKEN_FILE, read_token

__all__ = ["RunningService", "make_child_environment", "parse_ready_line", "start_service", "stop_process"]

_READY_S = 60.0
_STOP_S = 15.0
_DYING_S = 0.5
_READY = re.compile(r"forewarn is ready: metadata (?P<metadata>[^\s,]+).*, control (?P<control>\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningService:
    """A service that is ready.

    Attributes:
        token: The operator's token.
        pid: Process ID of the service.
    """

    metadata_url: str
    control_url: str
    token: str
    pid: int


@asynccontextmanager
async def start_service(folder: Path) -> AsyncIterator[RunningService]:
    """Run `forewarn serve` on free ports until the block ends.

    Raises:
        DemoFailed: It does not start, ends on its own, or does not stop in time.
    """
    inventory = folder / "inventory.json"
    inventory.write_text(encode_inventory())
    log = folder / "serve.log"
    process = await _spawn_service(folder, inventory, log)
    try:
        try:
            yield await _wait_until_ready(process, folder, log)
        except Exception as error:
            # If the service has died meanwhile, its death is the cause of this error.
            if await _has_ended(process, _DYING_S):
                raise DemoFailed(_describe_exit(process, log)) from error
            raise
    finally:
        status = await stop_process(process)
    if status != 0:
        raise DemoFailed(f"the service did not stop cleanly: exit status {status}")


async def _spawn_service(folder: Path, inventory: Path, log: Path) -> asyncio.subprocess.Process:
    with log.open("wb") as errors:
        return await asyncio.create_subprocess_exec(
            # -P: a folder named `forewarn` in the working directory must not be imported.
            *(sys.executable, "-P", "-m", "forewarn", "serve"),
            *("--inventory", str(inventory)),
            *("--database-url", f"sqlite:///{folder}/forewarn.db"),
            *("--state-dir", str(folder)),
            *("--metadata-listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"),
            *("--set", "simulate_impact_after=1s", "--set", "simulate_complete_after=3s"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=make_child_environment(os.environ),
            process_group=0,  # Ctrl-C reaches only the demo, which then stops the service in order
        )


def make_child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without Forewarn settings, which are meant for another service."""
    return {name: value for name, value in environment.items() if not name.upper().startswith("FOREWARN_")}


async def _wait_until_ready(process: asyncio.subprocess.Process, folder: Path, log: Path) -> RunningService:
    if process.stdout is None:
        raise DemoFailed("the service has no output")
    try:
        async with asyncio.timeout(_READY_S):
            row = await process.stdout.readline()
    except TimeoutError as error:
        raise DemoFailed(f"the service was not ready within {_READY_S:g} s") from error
    urls = parse_ready_line(row.decode())
    if urls is None:
        # Its output closes before it has ended; the status and the last line of the log are complete only then.
        await _has_ended(process, _DYING_S)
        raise DemoFailed(_describe_exit(process, log))
    metadata_url, control_url = urls
    token = read_token(folder / TOKEN_FILE)
    return RunningService(metadata_url=metadata_url, control_url=control_url, token=token, pid=process.pid)


def parse_ready_line(row: str) -> tuple[str, str] | None:
    """Return the metadata and control URLs from the ready line of `serve`; None for any other line."""
    match = _READY.match(row)
    return None if match is None else (match["metadata"], match["control"])


async def _has_ended(process: asyncio.subprocess.Process, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await process.wait()
    except TimeoutError:
        return False
    return True


def _describe_exit(process: asyncio.subprocess.Process, log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"the service ended unexpectedly with status {process.returncode}" + (f": {lines[-1]}" if lines else "")


async def stop_process(process: asyncio.subprocess.Process) -> int:
    """Terminate the process, kill it after a grace period, and return its exit status."""
    try:
        if process.returncode is None:
            process.terminate()
            await _has_ended(process, _STOP_S)
    finally:
        # Also reached when this task is cancelled during the grace period.
        if process.returncode is None:
            process.kill()
    return await process.wait()

"""`forewarn agent run`: assembles the parts of the agent, and closes them at the end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from forewarn.agent.agent import Agent
from forewarn.agent.configuration import Configuration, load_configuration
from forewarn.agent.listener import Listener
from forewarn.agent.logs import configure_logging
from forewarn.agent.state import Memory, State, StateFile
from forewarn.agent.steps import DryRun, StepRunner
from forewarn.agent.supervisor import Supervisor
from forewarn.agent.web import Web
from forewarn.client import AsyncClient, Pace
from forewarn.clock import RealClock
from forewarn.errors import ConfigError, ForewarnError
from forewarn.util.secrets import kept_token

if TYPE_CHECKING:
    from forewarn.agent.peers import Peers

__all__ = ["run_agent", "token_path"]

_log = logging.getLogger("forewarn.agent")

_FAILED = 1

T = TypeVar("T")


def run_agent(config: Path, *, is_dry_run: bool = False) -> int:
    """Run the agent until it is stopped; SIGHUP makes it reload its configuration.

    Args:
        config: Path of its configuration file.
        is_dry_run: True to do everything but approvals and hooks, regardless of the file.

    Returns:
        The exit status: 0 after SIGTERM or Ctrl-C; 1 if it cannot run, with the reason in a line on stderr.
    """
    status = 0

    def read() -> Configuration:
        configuration = load_configuration(config)
        return msgspec.structs.replace(configuration, dry_run=True) if is_dry_run else configuration

    try:
        configuration = read()
        configure_logging(configuration.log_level, configuration.log_file)
        asyncio.run(_serve(configuration, Supervisor(), read))
    except* ForewarnError as group:
        sys.stderr.write(f"forewarn: {_first(group).message}\n")
        status = _FAILED
    except* KeyboardInterrupt:
        pass
    return status


def _first(group: BaseExceptionGroup[ForewarnError]) -> ForewarnError:
    """Return the first of the errors with which tasks ended."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ForewarnError)  # noqa: S101 - the group holds no other kind
    return error


def token_path(configuration: Configuration) -> Path:
    """Return the path of the token that `agent status` and `agent approve` need, beside the state."""
    return configuration.state_path.with_suffix(".token")


class _Forgetful:
    """A `Memory` for dry runs: simulated results must not be found later."""

    def load(self) -> State:
        return State()

    def save(self, state: State) -> None:
        pass


async def _serve(configuration: Configuration, supervisor: Supervisor, read: Callable[[], Configuration]) -> None:
    """Run until SIGTERM or SIGINT."""
    stop, hangup = asyncio.Event(), asyncio.Event()
    _on_signals(stop.set, hangup.set)
    async with AsyncExitStack() as stack:
        memory = _memory(configuration, stack)
        url = await _unless(stop, _endpoint(configuration))
        if url is None:
            return
        client = await stack.enter_async_context(
            AsyncClient(url, source_address=configuration.source_address or None, pace=_pace(configuration))
        )
        peers = _peers(configuration)
        agent = Agent(
            configuration,
            client=client,
            clock=RealClock(),
            steps=DryRun() if configuration.dry_run else StepRunner(configuration.output_size_bytes_max),
            memory=memory,
            fallback_name=_fallback_name(configuration),
            reports=peers,
        )
        if configuration.listen:
            web = Web(agent, _token(configuration))
            listener = Listener(configuration.listen, web.answer)
            await listener.open()
            stack.push_async_callback(listener.close)
            _log.info("status, metrics and health at %s", listener.url)
        if peers is not None:
            stack.push_async_callback(peers.close)
            await peers.open(agent)
            _log.info("peers are answered at %s", peers.url)
        _log.info("watching %s", url)
        supervisor.ready()
        agent.listeners.append(lambda: supervisor.status(_summary(agent)))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(agent.run()),
                group.create_task(_show_life(supervisor)),
                group.create_task(_keep_reloading(hangup, agent, read)),
            ]
            if peers is not None:
                tasks.append(group.create_task(peers.run()))
            await stop.wait()
            supervisor.stopping()
            _log.info("stopping")
            for task in tasks:
                task.cancel()


def _memory(configuration: Configuration, stack: AsyncExitStack) -> Memory:
    if configuration.dry_run:
        return _Forgetful()
    file = StateFile(configuration.state_path)
    file.acquire()
    stack.callback(file.release)
    return file


def _peers(configuration: Configuration) -> Peers | None:
    """Return the exchange with the agents of other VMs; None unless the mode needs it."""
    together = configuration.together
    if together.mode != "all-prepared":
        return None
    from forewarn.agent.peers import Peers, read_secret

    return Peers(together, read_secret(Path(together.secret_file)), is_mute=configuration.dry_run)


async def _endpoint(configuration: Configuration) -> str:
    if configuration.endpoint != "discover":
        return configuration.endpoint
    from forewarn.client.discovery import discover_async, endpoint_url

    _log.info("looking for the endpoint by DHCP")
    return endpoint_url(await discover_async())


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of the work; None if the agent is stopped meanwhile."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return await task
    task.cancel()
    await asyncio.wait({task})
    return None


def _pace(configuration: Configuration) -> Pace:
    return Pace(poll_interval_s=configuration.poll_interval.total_seconds(), wait_s=configuration.wait.total_seconds())


def _fallback_name(configuration: Configuration) -> str:
    """Return this VM's name derived from its host name, for when no other is known (R106)."""
    host = socket.gethostname()
    if not configuration.scale_set:
        return host
    from forewarn.client.naming import scale_set_name

    try:
        return scale_set_name(host, configuration.scale_set)
    except ValueError as error:
        msg = f"scale_set is set, but {error}"
        raise ConfigError(msg) from error


def _token(configuration: Configuration) -> str:
    path = token_path(configuration)
    try:
        return kept_token(path)
    except OSError as error:
        msg = f"cannot keep the agent's token in {path}: {error.strerror}"
        raise ConfigError(msg) from error


def _on_signals(stop: Callable[[], None], hang_up: Callable[[], None]) -> None:
    """Stop at SIGTERM and Ctrl-C; on Windows Ctrl-C ends the event loop anyway, and there is no SIGHUP."""
    if sys.platform != "win32":
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, hang_up)


async def _keep_reloading(hangup: asyncio.Event, agent: Agent, read: Callable[[], Configuration]) -> None:
    """Reload the configuration at each SIGHUP; a wrong one changes nothing."""
    while True:
        await hangup.wait()
        hangup.clear()
        try:
            configuration = await asyncio.to_thread(read)
        except ConfigError as error:
            agent.keep_configuration(error)
        else:
            agent.reconfigure(configuration)
            logging.getLogger("forewarn").setLevel(configuration.log_level.upper())


async def _show_life(supervisor: Supervisor) -> None:
    """Send the watchdog messages, from the loop that could be stuck."""
    while supervisor.watchdog_s is not None:
        supervisor.alive()
        await asyncio.sleep(supervisor.watchdog_s)


def _summary(agent: Agent) -> str:
    """Return the line that `systemctl status` shows."""
    count = len(agent.records)
    state = "out of service" if agent.is_drained else "in service"
    return f"{agent.vm or 'unnamed'}: {state}, {count} event{'' if count == 1 else 's'}"

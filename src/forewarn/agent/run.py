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
from forewarn.agent.routes import AgentRoutes
from forewarn.agent.state import AgentState, StateFile, StateStorage
from forewarn.agent.steps import DryRunExecutor, LiveStepExecutor
from forewarn.agent.systemd_notifier import SystemdNotifier
from forewarn.client import AsyncClient, Pace
from forewarn.clock import RealClock
from forewarn.errors import ConfigError, ForewarnError
from forewarn.util.secrets import load_or_create_token

if TYPE_CHECKING:
    from forewarn.agent.peer_exchange import PeerExchange

__all__ = ["get_token_path", "run_agent"]

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
        # Also at each reload; otherwise `--dry-run` would be reported as a setting that waits for a restart.
        return msgspec.structs.replace(configuration, dry_run=True) if is_dry_run else configuration

    try:
        configuration = read()
        configure_logging(configuration.log_level, configuration.log_file)
        asyncio.run(_run_until_stopped(configuration, SystemdNotifier(), read))
    # Errors of tasks arrive in groups, which may be nested; errors before that are single. except* handles both.
    except* ForewarnError as group:
        sys.stderr.write(f"forewarn: {_extract_first_error(group).message}\n")
        status = _FAILED
    except* KeyboardInterrupt:
        pass
    return status


def _extract_first_error(group: BaseExceptionGroup[ForewarnError]) -> ForewarnError:
    """Return the first of the errors with which tasks ended."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, ForewarnError)  # noqa: S101 - the group holds no other kind
    return error


def get_token_path(configuration: Configuration) -> Path:
    """Return the path of the token that `agent status` and `agent approve` need, beside the state."""
    return configuration.state_path.with_suffix(".token")


class _NullStorage:
    """A `StateStorage` for dry runs: simulated results must not be found later."""

    def load(self) -> AgentState:
        return AgentState()

    def save(self, state: AgentState) -> None:
        pass


async def _run_until_stopped(
    configuration: Configuration, supervisor: SystemdNotifier, load: Callable[[], Configuration]
) -> None:
    """Run until SIGTERM or SIGINT."""
    stop, hangup = asyncio.Event(), asyncio.Event()
    _install_signal_handlers(stop.set, hangup.set)
    async with AsyncExitStack() as stack:
        # First of all, lock the state, so that a second agent never asks the endpoint or approves anything.
        # It is unlocked last, because the stack unwinds in reverse order.
        memory = _open_storage(configuration, stack)
        # Discovery may take minutes, and a stop must not wait for it.
        url = await _run_unless_stopped(stop, _find_endpoint(configuration))
        if url is None:
            return
        pace = Pace(
            poll_interval_s=configuration.poll_interval.total_seconds(), wait_s=configuration.wait.total_seconds()
        )
        client = await stack.enter_async_context(
            AsyncClient(url, source_address=configuration.source_address or None, pace=pace)
        )
        peers = _create_peer_exchange(configuration)
        clock = RealClock()
        agent = Agent(
            configuration,
            client=client,
            clock=clock,
            steps=DryRunExecutor()
            if configuration.dry_run
            else LiveStepExecutor(clock, configuration.output_size_bytes_max),
            storage=memory,
            fallback_name=_derive_fallback_name(configuration),
            reports=peers,
        )
        if configuration.listen:
            web = AgentRoutes(agent, _load_token(configuration))
            listener = Listener(configuration.listen, web.answer_request)
            await listener.open()
            stack.push_async_callback(listener.close)
            _log.info("status, metrics and health at %s", listener.url)
        if peers is not None:
            # Pushed before `open`, so that the connections are closed even if the address is in use.
            stack.push_async_callback(peers.close)
            await peers.open(agent)
            _log.info("answering peers at %s", peers.url)
        _log.info("watching %s", url)
        # Only after the ports are bound, so that systemd sees a failure to bind as a failed start.
        supervisor.notify_ready()
        agent.listeners.append(lambda: supervisor.set_status(_summarize_state(agent)))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(agent.run()),
                group.create_task(_send_watchdog_messages(supervisor)),
                group.create_task(_keep_reloading(hangup, agent, load)),
            ]
            if peers is not None:
                tasks.append(group.create_task(peers.run()))
            # If a task fails, the group cancels this wait.
            await stop.wait()
            supervisor.notify_stopping()
            _log.info("stopping")
            for task in tasks:
                task.cancel()


def _open_storage(configuration: Configuration, stack: AsyncExitStack) -> StateStorage:
    if configuration.dry_run:
        return _NullStorage()
    file = StateFile(configuration.state_path)
    file.acquire()
    stack.callback(file.release)
    return file


def _create_peer_exchange(configuration: Configuration) -> PeerExchange | None:
    """Return the exchange with the agents of other VMs; None unless the mode needs it."""
    together = configuration.together
    if together.mode != "all-prepared":
        return None
    # Imported only for this mode: an agent without peers saves the memory (ADR 9).
    from forewarn.agent.peer_exchange import PeerExchange, read_secret

    return PeerExchange(together, read_secret(Path(together.secret_file)), is_mute=configuration.dry_run)


async def _find_endpoint(configuration: Configuration) -> str:
    if configuration.endpoint != "discover":
        return configuration.endpoint
    from forewarn.client.discovery import discover_async, endpoint_url

    _log.info("discovering the endpoint by DHCP")
    return endpoint_url(await discover_async())


async def _run_unless_stopped(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of the work; None if the agent is stopped meanwhile."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return await task
    task.cancel()
    await asyncio.wait({task})
    return None


def _derive_fallback_name(configuration: Configuration) -> str:
    """Return this VM's name derived from its host name, for when no other is known (R106)."""
    host = socket.gethostname()
    if not configuration.scale_set:
        return host
    from forewarn.client.naming import scale_set_name

    try:
        return scale_set_name(host, configuration.scale_set)
    except ValueError as error:
        raise ConfigError(f"scale_set is set, but {error}") from error


def _load_token(configuration: Configuration) -> str:
    path = get_token_path(configuration)
    try:
        return load_or_create_token(path)
    except OSError as error:
        raise ConfigError(f"cannot read or create the agent's token {path}: {error.strerror}") from error


def _install_signal_handlers(stop: Callable[[], None], hang_up: Callable[[], None]) -> None:
    """Stop at SIGTERM and Ctrl-C; on Windows Ctrl-C ends the event loop anyway, and there is no SIGHUP."""
    if sys.platform != "win32":
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, hang_up)


async def _keep_reloading(hangup: asyncio.Event, agent: Agent, load: Callable[[], Configuration]) -> None:
    """Reload the configuration at each SIGHUP; a wrong one changes nothing."""
    while True:
        await hangup.wait()
        hangup.clear()
        try:
            # In a thread, because a slow disk must not delay the watchdog message.
            configuration = await asyncio.to_thread(load)
        except ConfigError as error:
            agent.reject_reload(error)
        else:
            agent.reconfigure(configuration)
            logging.getLogger("forewarn").setLevel(configuration.log_level.upper())


async def _send_watchdog_messages(supervisor: SystemdNotifier) -> None:
    """Send the watchdog messages, from the loop that could be stuck."""
    while supervisor.watchdog_s is not None:
        supervisor.notify_watchdog()
        await asyncio.sleep(supervisor.watchdog_s)


def _summarize_state(agent: Agent) -> str:
    """Return the line that `systemctl status` shows."""
    count = len(agent.records)
    state = "out of service" if agent.is_drained else "in service"
    return f"{agent.vm or 'unnamed'}: {state}, {count} event{'' if count == 1 else 's'}"

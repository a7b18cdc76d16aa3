"""Drain servers behind HAProxy, through its runtime socket."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
from collections.abc import Sequence
from typing import Literal

from forewarn.agent.codec import Duration
from forewarn.agent.handlers.contract import BuiltInHandler, HandlerContext
from forewarn.errors import HookFailed

__all__ = ["HAProxyHandler"]

# The characters that HAProxy allows in names: none of them ends a command or begins another.
_SERVER = re.compile(r"[A-Za-z0-9_.:-]+/[A-Za-z0-9_.:-]+")
_ADDRESS = re.compile(r"(\[[^\s/\[\]]+\]|[^\s:/\[\]]+):([0-9]{1,5})")
_PORT_MAX = 65_535

_FORCED_MAINT, _FORCED_DRAIN = 0x01, 0x08
"""Bits of srv_admin_state that an operator sets; the others come from configuration, DNS or a tracked server."""

_LOOK_AGAIN_S = 0.25
_ANSWER_WITHIN_S = 10.0
_ANSWER_SIZE_BYTES_MAX = 16 << 20

_State = Literal["ready", "drain", "maint"]


class HAProxyHandler(BuiltInHandler, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="haproxy"):
    """Takes servers out of service: they get no new work, and their current sessions get time to end.

    Attributes:
        socket: Path of HAProxy's runtime socket, or ``host:port``; the socket must have the level admin.
        servers: Servers to take out of service, each as ``backend/server``.
        state: Final state of the servers: ``drain`` still accepts clients bound to the server by a cookie or a stick
            table, ``maint`` accepts no clients.
        drain_timeout: Maximum time to wait until the sessions of the servers end.
        on_timeout: What happens to servers with sessions after `drain_timeout`: ``maint`` forces them into maintenance,
            ``keep`` leaves them draining.
        others_up: Number of the backend's other servers (those not in `servers`) that must be up before a server is
            drained. If the backend has fewer other servers, all of them must be up. The handler waits for at most
            `drain_timeout` or half of the notice, whichever is shorter. Then it drains the server anyway.
    """

    socket: str
    servers: tuple[str, ...]
    state: Literal["drain", "maint"] = "maint"
    drain_timeout: Duration = Duration(minutes=1)
    on_timeout: Literal["maint", "keep"] = "maint"
    others_up: int = 1

    def __post_init__(self) -> None:
        """Refuse, by a ValueError, invalid names and addresses, and a time that is too short."""
        _check_socket(self.socket)
        if not self.servers:
            raise ValueError("the handler haproxy needs at least one server")
        for server in self.servers:
            if not _SERVER.fullmatch(server):
                raise ValueError(f"{server!r} is not a valid server: expected backend/server")
        if len(set(self.servers)) != len(self.servers):
            raise ValueError("the handler haproxy lists a server twice")
        if self.others_up < 0:
            raise ValueError("others_up must be 0 or more")
        if self.drain_timeout >= self.timeout:
            raise ValueError("timeout of the handler haproxy must be longer than drain_timeout, which it includes")

    async def prepare(self, context: HandlerContext) -> None:
        now = {server: await self._read_state(server) for server in self.servers}
        remembered: dict[str, _State] = context.memory.get("states", {})
        # We never make a server ready before `undo`, so the state ready is never our own work.
        before = {s: now[s] if now[s] == "ready" else remembered.get(s, now[s]) for s in self.servers}
        await context.remember(states=before)
        # A server that was already in maintenance stays as its operator left it.
        ours = [server for server in self.servers if before[server] != "maint"]
        await self._wait_for_others(context, [server for server in ours if now[server] == "ready"])
        for server in ours:
            if now[server] == "ready":
                await self._set_state(server, "drain")
        busy = await self._wait_until_empty(context, ours)
        for server, sessions in busy.items():
            end = "putting it into maintenance anyway" if self.on_timeout == "maint" else "leaving it draining"
            context.log(f"{server} still has {sessions} sessions after {_format_seconds(self.drain_timeout)}; {end}")
        for server in ours:
            # A server that is still busy follows `on_timeout`, all others `state`.
            is_due = self.on_timeout == "maint" if server in busy else self.state == "maint"
            if is_due and now[server] != "maint":
                await self._set_state(server, "maint")

    async def undo(self, context: HandlerContext) -> None:
        before: dict[str, _State] = context.memory.get("states", {})
        if not before:
            return
        failures = []
        for server, state in before.items():
            try:
                # HAProxy may have restarted meanwhile and lost the state that was set.
                now = await self._read_state(server)
                if (state == "ready" and now != "ready") or (state == "drain" and now == "maint"):
                    await self._set_state(server, state)
            except HookFailed as error:
                failures.append(error.message)
        if failures:
            raise HookFailed("; ".join(dict.fromkeys(failures)))

    def describe_actions(self) -> Sequence[str]:
        what = "drain and then put into maintenance" if self.state == "maint" else "drain"
        where = f"in the HAProxy at {self.socket}"
        return [f"{what} {', '.join(self.servers)} {where}, waiting {_format_seconds(self.drain_timeout)} at most"]

    async def _read_state(self, server: str) -> _State:
        """Return the state of a server as set by an operator, or by us."""
        backend, _, name = server.partition("/")
        said = await _send_command(self.socket, f"show servers state {backend}")
        lines = [line for line in said.splitlines() if line]
        columns = next((line.removeprefix("# ").split() for line in lines if line.startswith("# ")), None)
        if columns is None:
            raise HookFailed(_describe_refusal(server, said))
        for line in lines:
            row = dict(zip(columns, line.split(), strict=False))
            if (row.get("be_name"), row.get("srv_name")) == (backend, name):
                admin = int(row["srv_admin_state"])
                return "maint" if admin & _FORCED_MAINT else "drain" if admin & _FORCED_DRAIN else "ready"
        raise HookFailed(_describe_refusal(server, "No such server."))

    async def _set_state(self, server: str, state: _State) -> None:
        said = await _send_command(self.socket, f"set server {server} state {state}")
        # HAProxy answers a command that succeeds with an empty line.
        if said.strip():
            raise HookFailed(_describe_refusal(server, said))

    async def _wait_for_others(self, context: HandlerContext, servers: Sequence[str]) -> None:
        """Wait while a backend would lose its last server; at the limit, go on, because the event comes anyway."""
        if not self.others_up:
            return
        left_s = self.drain_timeout.total_seconds()
        not_before = context.event.not_before
        if not_before is not None:
            # At most half of the notice, so that time is left to drain.
            left_s = min(left_s, (not_before - context.now).total_seconds() / 2)
        while lonely := [server for server in servers if await self._has_too_few_others(server)]:
            if left_s <= 0:
                context.log(f"too few other servers are up; draining {', '.join(lonely)} anyway")
                return
            left_s -= _LOOK_AGAIN_S
            await context.pause(_LOOK_AGAIN_S)

    async def _has_too_few_others(self, server: str) -> bool:
        """Return True if fewer other servers are up than required."""
        backend, _, _ = server.partition("/")
        # Our own servers do not count: they are drained together.
        others = [
            row for row in await self._read_statistics(server) if f"{backend}/{row.get('svname')}" not in self.servers
        ]
        # Without health checks, HAProxy sends requests to a server in any case.
        up = sum(row.get("status", "").startswith(("UP", "no check")) for row in others)
        return up < min(self.others_up, len(others))

    async def _wait_until_empty(self, context: HandlerContext, servers: Sequence[str]) -> dict[str, int]:
        """Return the session counts of the servers that still have sessions when the time is over."""
        left_s = self.drain_timeout.total_seconds()
        while busy := {server: count for server in servers if (count := await self._count_sessions(server))}:
            if left_s <= 0:
                break
            pause_s = min(_LOOK_AGAIN_S, left_s)
            left_s -= pause_s
            await context.pause(pause_s)
        return busy

    async def _count_sessions(self, server: str) -> int:
        """Return the number of sessions of a server, including queued ones."""
        _, _, name = server.partition("/")
        for row in await self._read_statistics(server):
            if row.get("svname") == name:
                return int(row.get("scur") or 0) + int(row.get("qcur") or 0)
        raise HookFailed(_describe_refusal(server, "No such server."))

    async def _read_statistics(self, server: str) -> list[dict[str, str]]:
        """Return HAProxy's statistics for each server of that server's backend."""
        backend, _, _ = server.partition("/")
        # 4 selects servers, -1 all of them.
        said = await _send_command(self.socket, f"show stat {backend} 4 -1")
        if not said.startswith("# "):
            raise HookFailed(_describe_refusal(server, said))
        head, *lines = said.removeprefix("# ").splitlines()
        # Some later columns are quoted and may hold commas.
        rows = [dict(zip(head.split(","), line.split(","), strict=False)) for line in lines if line]
        return [row for row in rows if row.get("pxname") == backend]


def _format_seconds(span: Duration) -> str:
    return f"{span.total_seconds():g} s"


def _describe_refusal(server: str, answer: str) -> str:
    return f"HAProxy reports for {server}: {' '.join(answer.split())[:200]}"


def _check_socket(socket: str) -> None:
    """Check that the socket can be reached in principle.

    Raises:
        ValueError: It is neither a path nor an address, or it is a path on a system without such sockets.
    """
    if "/" in socket:
        if sys.platform == "win32":
            raise ValueError(f"{socket} is a path: expected host:port on Windows")
    elif not ((match := _ADDRESS.fullmatch(socket)) and 0 < int(match[2]) <= _PORT_MAX):
        raise ValueError(f"{socket!r} is not a valid HAProxy socket: expected a path with a /, or host:port")


# One command for each connection: HAProxy answers, ends the answer with an empty line, and closes


async def _send_command(socket: str, command: str) -> str:
    """Send a command to HAProxy and return its answer.

    Raises:
        HookFailed: HAProxy cannot be reached, takes too long, or breaks off.
    """
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            reader, writer = await _open_connection(socket)
            try:
                writer.write(f"{command}\n".encode())
                answer = await _read_answer(reader)
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError as error:
        raise HookFailed(f"HAProxy at {socket} did not answer {command!r} in {_ANSWER_WITHIN_S:g} s") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise HookFailed(f"cannot talk to HAProxy at {socket}: {reason}") from error
    # An empty answer is not success, and half a table is not a table.
    if answer != b"\n" and not answer.endswith(b"\n\n"):
        raise HookFailed(f"HAProxy at {socket} aborted its answer to {command!r}")
    return answer.decode("utf-8", "replace")


async def _open_connection(socket: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if sys.platform != "win32" and "/" in socket:
        return await asyncio.open_unix_connection(socket)
    host, _, port = socket.rpartition(":")
    return await asyncio.open_connection(host.strip("[]"), int(port))


async def _read_answer(reader: asyncio.StreamReader) -> bytes:
    """Read everything up to the end.

    Raises:
        ValueError: The answer is too long.
    """
    answer = bytearray()
    while chunk := await reader.read(1 << 16):
        answer += chunk
        if len(answer) > _ANSWER_SIZE_BYTES_MAX:
            raise ValueError(f"it answered more than {_ANSWER_SIZE_BYTES_MAX} bytes")
    return bytes(answer)

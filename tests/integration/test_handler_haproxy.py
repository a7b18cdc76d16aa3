"""The handler for HAProxy against the HAProxy of Debian, with HTTP going through it."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.codec import Duration
from forewarn.agent.handlers import HAProxyHandler, haproxy
from forewarn.errors import HookFailed
from tests.support.balanced import Backend, Place, ask, backend, clients
from tests.support.interrupted import Fragile, crash_everywhere
from tests.support.processes import wait_for
from tests.support.spans import GUARD_S

_HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
_needs_haproxy = pytest.mark.skipif(_HAPROXY is None, reason="needs haproxy")

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CONFIGURATION = """\
global
    stats socket {folder}/admin.sock mode 600 level admin
    stats socket {folder}/operator.sock mode 600 level operator
    stats socket fd@{stats} level admin
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
frontend front
    bind fd@{front}
    default_backend web
backend web
    option redispatch
    cookie SERVER insert
    server a {a} cookie a check inter 100
    server b {b} cookie b check inter 100
backend spare
    server off {b} disabled
"""


@dataclass
class Proxy:
    """A HAProxy in front of two servers, and of a third that its configuration disables.

    Attributes:
        place: Where clients ask.
        stats: Its runtime socket at an address.
        folder: Holds its other runtime sockets.
    """

    place: Place
    stats: str
    folder: Path
    a: Backend
    b: Backend
    restart: Callable[[], None]

    @property
    def socket(self) -> str:
        """Its runtime socket of level admin."""
        return str(self.folder / "admin.sock")

    def say(self, command: str) -> str:
        """Tell it something as an operator would, without the handler."""
        with socket.socket(socket.AF_UNIX) as told:
            told.settimeout(GUARD_S)
            told.connect(self.socket)
            told.sendall(f"{command}\n".encode())
            answer = b""
            while chunk := told.recv(1 << 16):
                answer += chunk
        return answer.decode()

    def admin(self) -> dict[str, str]:
        """The number in srv_admin_state of each server."""
        rows = [line.split() for line in self.say("show servers state").splitlines()[2:] if line]
        return {f"{row[1]}/{row[3]}": row[6] for row in rows}

    def sessions(self, server: str) -> int:
        """How many a server of the backend web has."""
        head, *rows = [line.split(",") for line in self.say("show stat web 4 -1").splitlines() if line]
        return next(int(row[head.index("scur")]) for row in rows if row[1] == server)


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    running: list[subprocess.Popen[bytes]] = []
    with (
        backend("a") as a,
        backend("b") as b,
        socket.create_server(("127.0.0.1", 0)) as front,
        socket.create_server(("127.0.0.1", 0)) as stats,
        (tmp_path / "haproxy.log").open("wb") as log,
    ):
        configuration = tmp_path / "haproxy.cfg"
        configuration.write_text(
            CONFIGURATION.format(folder=tmp_path, front=front.fileno(), stats=stats.fileno(), a=a.address, b=b.address)
        )

        def stop() -> None:
            while running:
                process = running.pop()
                process.kill()
                process.wait(GUARD_S)

        def restart() -> None:
            stop()
            # Both sockets are ours, and it inherits them: the ports stay the same, and nothing is refused meanwhile.
            passed = (front.fileno(), stats.fileno())
            command = [str(_HAPROXY), "-db", "-f", str(configuration)]
            running.append(subprocess.Popen(command, pass_fds=passed, stdout=log, stderr=log))
            assert wait_for(lambda: ask(made.place).status == 200)

        host, port = stats.getsockname()
        made = Proxy(front.getsockname(), f"{host}:{port}", tmp_path, a, b, restart)
        try:
            restart()
            yield made
        finally:
            a.gate.set()
            b.gate.set()
            stop()


def handler_of(proxy: Proxy, **members: Any) -> HAProxyHandler:  # noqa: ANN401 - members of the handler
    return HAProxyHandler(**({"socket": proxy.socket, "servers": ("web/a",)} | members))


@asynccontextmanager
async def held_by_a(proxy: Proxy) -> AsyncIterator[asyncio.Task[Any]]:
    """A request that server a is answering."""
    before = proxy.a.held
    task = asyncio.create_task(asyncio.to_thread(ask, proxy.place, "/hold", "SERVER=a"))
    await asyncio.to_thread(wait_for, lambda: proxy.a.held > before)
    try:
        yield task
    finally:
        proxy.a.gate.set()
        await task


async def _until(condition: Callable[[], Any]) -> None:
    await asyncio.to_thread(wait_for, condition)


@_needs_haproxy
@pytest.mark.parametrize("is_unix", [True, False], ids=["path", "address"])
async def test_requests_in_flight_finish_no_new_one_comes_and_none_is_lost(proxy: Proxy, is_unix: bool) -> None:
    occasion = Fragile()
    handler = handler_of(proxy, socket=proxy.socket if is_unix else proxy.stats)
    with clients(proxy.place, kept=3, new=3) as asking:
        await _until(lambda: asking.count > 50 and proxy.a.requests and proxy.b.requests)
        async with held_by_a(proxy) as held:
            preparing = asyncio.create_task(handler.prepare(occasion))
            await _until(lambda: proxy.admin()["web/a"] == "8")
            # What was on its way to the server when it began to drain is over before one can say that nothing comes.
            await _until(lambda: proxy.sessions("a") == 1)
            arrived, answered = proxy.a.requests, asking.count
            await _until(lambda: asking.count > answered + 100)
            assert proxy.a.requests == arrived
            assert not preparing.done(), "it waits for the request in flight"
            proxy.a.gate.set()
            assert (await held).server == "a"
            await preparing
        assert proxy.admin() == {"web/a": "1", "web/b": "0", "spare/off": "5"}
        answered = asking.count
        await _until(lambda: asking.count > answered + 100)
        assert proxy.a.requests == arrived

        await handler.undo(occasion)
        assert proxy.admin() == {"web/a": "0", "web/b": "0", "spare/off": "5"}
        await _until(lambda: proxy.a.requests > arrived + 20)
    assert asking.lost == []
    assert occasion.said == []


@_needs_haproxy
@pytest.mark.parametrize(("on_timeout", "admin"), [("maint", "1"), ("keep", "8")])
async def test_a_request_that_does_not_end_holds_it_up_only_for_so_long(
    proxy: Proxy, on_timeout: str, admin: str
) -> None:
    occasion = Fragile()
    handler = handler_of(proxy, drain_timeout=Duration(milliseconds=600), on_timeout=on_timeout)
    async with held_by_a(proxy) as held:
        await handler.prepare(occasion)
        assert proxy.admin()["web/a"] == admin
        assert [line.partition(";")[0] for line in occasion.said] == ["web/a still has 1 sessions after 0.6 s"]
        proxy.a.gate.set()
        assert (await held).status == 200, "neither state cuts off what is in flight"


@_needs_haproxy
async def test_a_client_with_a_cookie_gets_into_a_draining_server_but_not_into_one_in_maintenance(
    proxy: Proxy,
) -> None:
    """Why `maint` is what we end up in by default."""
    for state, server in (("drain", "a"), ("maint", "b")):
        occasion = Fragile()
        await handler_of(proxy, state=state).prepare(occasion)
        assert ask(proxy.place, cookie="SERVER=a").server == server
        assert {ask(proxy.place).server for _ in range(10)} == {"b"}
        await handler_of(proxy, state=state).undo(occasion)
        assert ask(proxy.place, cookie="SERVER=a").server == "a"


@_needs_haproxy
@pytest.mark.parametrize(("told", "admin"), [("maint", "1"), ("drain", "8")])
async def test_what_an_operator_took_out_stays_out(proxy: Proxy, told: str, admin: str) -> None:
    proxy.say(f"set server web/a state {told}")
    handler, occasion = handler_of(proxy, servers=("web/a", "spare/off")), Fragile()
    await handler.prepare(occasion)
    assert proxy.admin() == {"web/a": "1", "web/b": "0", "spare/off": "5"}
    await handler.undo(occasion)
    assert proxy.admin() == {"web/a": admin, "web/b": "0", "spare/off": "5"}


@_needs_haproxy
async def test_a_crash_at_any_moment_is_made_up_for(proxy: Proxy) -> None:
    handler = handler_of(proxy, servers=("web/a", "spare/off"))
    with clients(proxy.place, kept=1, new=1) as asking:
        moments = await crash_everywhere(
            handler, Fragile, proxy.admin, lambda: proxy.admin() == {"web/a": "1", "web/b": "0", "spare/off": "5"}
        )
    assert moments >= 2
    assert asking.lost == []


@_needs_haproxy
async def test_a_haproxy_started_anew_has_forgotten_and_is_told_again(proxy: Proxy) -> None:
    handler, occasion = handler_of(proxy), Fragile()
    await handler.prepare(occasion)
    proxy.restart()
    assert proxy.admin()["web/a"] == "0"
    await handler.prepare(occasion)
    assert proxy.admin()["web/a"] == "1"
    proxy.restart()
    await handler.undo(occasion)
    assert proxy.admin()["web/a"] == "0"


@_needs_haproxy
@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"servers": ("web/nope",)}, r"^HAProxy reports for web/nope: No such server\.$"),
        ({"servers": ("nope/a",)}, r"^HAProxy reports for nope/a: Can't find backend\.$"),
        ({"socket": "operator.sock"}, r"^HAProxy reports for web/a: Permission denied$"),
        ({"socket": "nope.sock"}, r"^cannot talk to HAProxy at .*nope\.sock: No such file or directory$"),
    ],
)
async def test_what_haproxy_refuses_is_told_in_its_words(proxy: Proxy, members: dict[str, Any], complaint: str) -> None:
    if "socket" in members:
        members = {"socket": str(proxy.folder / members["socket"])}
    before = proxy.admin()
    with pytest.raises(HookFailed, match=complaint):
        await handler_of(proxy, **members).prepare(Fragile())
    assert proxy.admin() == before


@_needs_haproxy
async def test_a_server_that_is_gone_is_told_and_the_others_are_counted(proxy: Proxy) -> None:
    for server, complaint in (("web/nope", r"No such server\."), ("nope/a", r"No such proxy\.")):
        with pytest.raises(HookFailed, match=complaint):
            await handler_of(proxy)._count_sessions(server)
    assert await handler_of(proxy)._count_sessions("web/a") == 0


# Sockets that misbehave; these need no HAProxy


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[str]:
    """The address of a socket that answers so, and closes; None never answers."""
    is_over = asyncio.Event()

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        if answer is None:
            await is_over.wait()
        else:
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(answer_once, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
        is_over.set()


@pytest.mark.parametrize("answer", [b"", b"1\n# be_id be_name\n3 web 1 a", b"1\n# be_id be_name\n"])
async def test_an_answer_that_breaks_off_is_a_failure(answer: bytes) -> None:
    async with answering(answer) as address:
        handler = HAProxyHandler(socket=address, servers=("web/a",))
        with pytest.raises(HookFailed, match="aborted its answer to 'show servers state web'"):
            await handler.prepare(Fragile())
        with pytest.raises(HookFailed, match="aborted its answer to 'set server web/a state drain'"):
            await handler._set_state("web/a", "drain")


async def test_an_answer_without_end_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "_ANSWER_SIZE_BYTES_MAX", 100)
    async with answering(b"x" * 1000) as address:
        with pytest.raises(HookFailed, match="it answered more than 100 bytes"):
            await HAProxyHandler(socket=address, servers=("web/a",)).prepare(Fragile())


async def test_no_answer_is_a_failure_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(haproxy, "_ANSWER_WITHIN_S", 0.2)
    async with answering(None) as address:
        with pytest.raises(HookFailed, match=r"did not answer 'show servers state web' in 0\.2 s"):
            await HAProxyHandler(socket=address, servers=("web/a",)).prepare(Fragile())


async def test_nobody_there_is_a_failure() -> None:
    async with answering(b"") as address:
        pass
    with pytest.raises(HookFailed, match=f"cannot talk to HAProxy at {address}: "):
        await HAProxyHandler(socket=address, servers=("web/a",)).prepare(Fragile())

"""The handler for HAProxy, on a stage: a HAProxy that keeps its servers in memory, reached without a socket.

The real HAProxy, and sockets that misbehave, are in tests/integration/test_handler_haproxy.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from forewarn.agent.codec import Duration
from forewarn.agent.configuration import parse_configuration
from forewarn.agent.handlers import CommandResult, HAProxyHandler, haproxy
from forewarn.errors import ConfigError, HookFailed
from tests.support.documents import ROOT, files_in
from tests.support.interrupted import Crash, Fuse, Staged, crash_everywhere

pytestmark = pytest.mark.anyio

HOW_TO = ROOT / "docs/how-to/agent-haproxy.md"
ADDRESS = "127.0.0.1:9999"
ADMIN = {"ready": 0, "drain": 8, "maint": 1}


def settings(**members: Any) -> HAProxyHandler:  # noqa: ANN401 - members of the handler
    return HAProxyHandler(**({"socket": ADDRESS, "servers": ("web/a",)} | members))


@dataclass
class Proxy:
    """Stands in for HAProxy.

    Attributes:
        admin: The number in srv_admin_state, by server.
        sessions: How many each server has at each look; none when there is no more.
        commands: What it was told to change.
        fuse: Burns before and after each change.
    """

    admin: dict[str, int]
    sessions: dict[str, list[int]] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    fuse: Fuse = field(default_factory=Fuse)
    level: str = "admin"

    async def ask(self, socket: str, command: str) -> str:
        assert socket == ADDRESS
        match command.split():
            case ["show", "servers", "state", backend]:
                return self._states(backend)
            case ["show", "stat", backend, "4", "-1"]:
                return self._stat(backend)
            case ["set", "server", server, "state", state]:
                self.fuse.burn()
                answer = self._set(server, state)
                self.fuse.burn()
                return answer
        raise AssertionError(command)

    def _of(self, backend: str) -> dict[str, str]:
        return {server: server.partition("/")[2] for server in self.admin if server.startswith(f"{backend}/")}

    def _states(self, backend: str) -> str:
        if not self._of(backend):
            return "Can't find backend.\n\n"
        rows = [f"3 {backend} 1 {name} 127.0.0.1 2 {self.admin[s]} 1 1" for s, name in self._of(backend).items()]
        head = "# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight"
        return "\n".join(["1", head, *rows, "", ""])

    def _stat(self, backend: str) -> str:
        if not self._of(backend):
            return "No such proxy.\n\n"
        rows = []
        for server, name in self._of(backend).items():
            left = self.sessions.get(server, [])
            rows.append(f"{backend},{name},0,0,{left.pop(0) if left else 0},7,")
        return "\n".join(["# pxname,svname,qcur,qmax,scur,smax,", *rows, "", ""])

    def _set(self, server: str, state: str) -> str:
        if self.level != "admin":
            return "Permission denied\n\n"
        if server not in self.admin:
            return "No such server.\n\n"
        self.commands.append(f"{server} {state}")
        self.admin[server] = self.admin[server] & ~9 | ADMIN[state]
        return "\n"


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Proxy]:
    """Puts a HAProxy with these servers in the place of the socket."""

    def make(**admin: int) -> Proxy:
        proxy = Proxy({f"web/{name}": number for name, number in admin.items()})
        monkeypatch.setattr(haproxy, "_send_command", proxy.ask)
        return proxy

    return make


def occasion(fuse: Fuse | None = None, memory: dict[str, Any] | None = None) -> Staged:
    return Staged(lambda _: CommandResult(status=1, output="", errors="no command is expected"), fuse, memory)


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"servers": ()}, "at least one server"),
        ({"servers": ("a",)}, "expected backend/server"),
        ({"servers": ("web/a/b",)}, "expected backend/server"),
        ({"servers": ("web/",)}, "expected backend/server"),
        ({"servers": ("web/a;disable server web/b",)}, "expected backend/server"),
        ({"servers": ("web/a\nshow info",)}, "expected backend/server"),
        ({"servers": ("web/a\n",)}, "expected backend/server"),
        ({"servers": ("web/#1",)}, "expected backend/server"),
        ({"servers": ("web/a", "web/a")}, "lists a server twice"),
        ({"socket": ""}, "expected a path with a /, or host:port"),
        ({"socket": "haproxy.sock"}, "expected a path with a /, or host:port"),
        ({"socket": "lb:"}, "expected a path with a /, or host:port"),
        ({"socket": "lb:0"}, "expected a path with a /, or host:port"),
        ({"socket": "lb:65536"}, "expected a path with a /, or host:port"),
        ({"socket": "::1:9999"}, "expected a path with a /, or host:port"),
        ({"drain_timeout": Duration(minutes=5)}, "must be longer than drain_timeout"),
    ],
)
def test_settings_that_make_no_sense_are_refused(members: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        settings(**members)


@pytest.mark.parametrize("socket", ["lb.example:9999", "127.0.0.1:1", "[::1]:9999", "[fe80::1%eth0]:9999"])
def test_an_address_may_be_a_name_or_of_either_protocol(socket: str) -> None:
    assert settings(socket=socket).socket == socket


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such sockets")
def test_a_path_is_a_socket() -> None:
    assert settings(socket="/run/haproxy/admin.sock").socket == "/run/haproxy/admin.sock"


def test_a_state_that_is_none_is_refused_with_its_key() -> None:
    text = '[[rule]]\n[[rule.handlers]]\nuse = "haproxy"\nsocket = "lb:1"\nservers = ["web/a"]\nstate = "ready"\n'
    with pytest.raises(ConfigError, match=r"state: .*'ready'"):
        parse_configuration(text)


def test_it_says_what_it_does() -> None:
    assert settings(servers=("web/a", "api/a")).describe_actions() == [
        "drain and then put into maintenance web/a, api/a in the HAProxy at 127.0.0.1:9999, waiting 60 s at most"
    ]
    assert settings(state="drain").describe_actions() == [
        "drain web/a in the HAProxy at 127.0.0.1:9999, waiting 60 s at most"
    ]


async def test_a_server_is_drained_until_it_is_empty_and_then_put_into_maintenance(stage: Callable[..., Proxy]) -> None:
    proxy, there = stage(a=0, b=0), occasion()
    proxy.sessions["web/a"] = [3, 1, 0]
    await settings(others_up=0).prepare(there)
    assert proxy.commands == ["web/a drain", "web/a maint"]
    assert there.paused_s == [0.25, 0.25]
    await settings().undo(there)
    assert proxy.commands[2:] == ["web/a ready"]
    assert proxy.admin == {"web/a": 0, "web/b": 0}


async def test_a_server_may_be_left_draining(stage: Callable[..., Proxy]) -> None:
    proxy, there = stage(a=0), occasion()
    await settings(state="drain").prepare(there)
    assert proxy.commands == ["web/a drain"]
    await settings(state="drain").undo(there)
    assert proxy.commands == ["web/a drain", "web/a ready"]


@pytest.mark.parametrize(
    ("state", "on_timeout", "commands"),
    [
        ("maint", "maint", ["web/a drain", "web/b drain", "web/a maint", "web/b maint"]),
        ("maint", "keep", ["web/a drain", "web/b drain", "web/b maint"]),
        ("drain", "maint", ["web/a drain", "web/b drain", "web/a maint"]),
        ("drain", "keep", ["web/a drain", "web/b drain"]),
    ],
)
async def test_what_becomes_of_sessions_that_do_not_end_is_a_choice(
    stage: Callable[..., Proxy], state: str, on_timeout: str, commands: list[str]
) -> None:
    proxy, there = stage(a=0, b=0), occasion()
    proxy.sessions["web/a"] = [2] * 100
    handler = settings(
        servers=("web/a", "web/b"), state=state, on_timeout=on_timeout, drain_timeout=Duration(milliseconds=600)
    )
    await handler.prepare(there)
    assert proxy.commands == commands
    assert there.paused_s == pytest.approx([0.25, 0.25, 0.1])
    end = "putting it into maintenance anyway" if on_timeout == "maint" else "leaving it draining"
    assert there.said == [f"web/a still has 2 sessions after 0.6 s; {end}"]
    await handler.undo(there)
    assert proxy.admin == {"web/a": 0, "web/b": 0}


async def test_a_request_that_waits_for_the_server_counts(stage: Callable[..., Proxy]) -> None:
    proxy, there = stage(a=0), occasion()
    table = "# pxname,svname,qcur,qmax,scur,smax,\nweb,a,{},0,0,7,\n\n"
    waiting = [1, 1, 0]
    told = proxy.ask

    async def ask(socket: str, command: str) -> str:
        return table.format(waiting.pop(0)) if command.startswith("show stat") else await told(socket, command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(haproxy, "_send_command", ask)
        await settings(others_up=0).prepare(there)
    assert there.paused_s == [0.25, 0.25]


TWO = "# pxname,svname,qcur,qmax,scur,smax,status,\nweb,a,0,0,0,7,UP,\nweb,b,0,0,0,7,{},\n\n"


async def prepared_beside(stage: Callable[..., Proxy], others: list[str]) -> list[float]:
    """Prepare server a while b is said to be in these states, the last of them for ever; hands back the pauses."""
    proxy, there = stage(a=0), occasion()
    told = proxy.ask

    async def ask(socket: str, command: str) -> str:
        if command.startswith("show stat"):
            return TWO.format(others.pop(0) if len(others) > 1 else others[0])
        return await told(socket, command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(haproxy, "_send_command", ask)
        await settings().prepare(there)
    assert proxy.commands[0] == "web/a drain"
    return there.paused_s


async def test_the_last_server_that_is_up_waits_until_another_one_is(stage: Callable[..., Proxy]) -> None:
    """Maintenance that goes from VM to VM announces the next when the last is gone, and perhaps not back yet."""
    assert await prepared_beside(stage, ["MAINT", "DOWN 1/2", "UP"]) == [0.25, 0.25]
    assert await prepared_beside(stage, ["no check"]) == []


async def test_where_no_other_server_comes_up_it_is_drained_all_the_same(stage: Callable[..., Proxy]) -> None:
    assert sum(await prepared_beside(stage, ["MAINT"])) == settings().drain_timeout.total_seconds()


@pytest.mark.parametrize("admin", [1, 5, 9], ids=["forced", "by configuration", "forced and draining"])
async def test_what_an_operator_has_in_maintenance_is_left_alone(stage: Callable[..., Proxy], admin: int) -> None:
    proxy, there = stage(a=admin), occasion()
    proxy.sessions["web/a"] = [4] * 100
    await settings().prepare(there)
    await settings().undo(there)
    assert (proxy.commands, proxy.admin, there.paused_s) == ([], {"web/a": admin}, [])


async def test_what_an_operator_drains_goes_on_draining(stage: Callable[..., Proxy]) -> None:
    proxy, there = stage(a=8), occasion()
    await settings().prepare(there)
    assert proxy.admin == {"web/a": 1}
    await settings().undo(there)
    assert proxy.commands == ["web/a maint", "web/a drain"]


@pytest.mark.parametrize("inherited", [0x02, 0x04, 0x10, 0x20], ids=["tracked", "was disabled", "drained", "DNS"])
async def test_only_what_operators_set_counts_as_their_word(stage: Callable[..., Proxy], inherited: int) -> None:
    proxy, there = stage(a=inherited), occasion()
    await settings().prepare(there)
    assert there.memory == {"states": {"web/a": "ready"}}
    await settings().undo(there)
    assert proxy.admin == {"web/a": inherited}


async def test_a_haproxy_that_was_started_anew_is_told_again(stage: Callable[..., Proxy]) -> None:
    proxy, there = stage(a=0), occasion()
    await settings().prepare(there)
    proxy.admin["web/a"] = 0
    await settings().prepare(there)
    assert proxy.admin == {"web/a": 1}
    proxy.admin["web/a"] = 0
    proxy.commands.clear()
    await settings().undo(there)
    assert proxy.commands == []


async def test_a_server_that_became_ready_between_two_tries_is_drained_and_made_ready(
    stage: Callable[..., Proxy],
) -> None:
    proxy, there = stage(a=1), occasion()
    await settings().prepare(there)
    proxy.admin["web/a"] = 0
    await settings().prepare(there)
    assert proxy.admin == {"web/a": 1}
    await settings().undo(there)
    assert proxy.admin == {"web/a": 0}


@pytest.mark.parametrize(
    ("server", "said"), [("web/nope", "No such server."), ("nope/a", "Can't find backend.")], ids=["server", "backend"]
)
async def test_what_haproxy_does_not_know_is_named_and_nothing_is_drained(
    stage: Callable[..., Proxy], server: str, said: str
) -> None:
    proxy, there = stage(a=0), occasion()
    with pytest.raises(HookFailed) as raised:
        await settings(servers=("web/a", server)).prepare(there)
    assert raised.value.message == f"HAProxy reports for {server}: {said}"
    assert (proxy.commands, there.memory) == ([], {})


async def test_a_refusal_of_haproxy_is_a_failure(stage: Callable[..., Proxy]) -> None:
    proxy = stage(a=0)
    proxy.level = "operator"
    with pytest.raises(HookFailed, match="HAProxy reports for web/a: Permission denied"):
        await settings().prepare(occasion())


async def test_a_server_that_goes_while_it_drains_is_a_failure(stage: Callable[..., Proxy]) -> None:
    proxy, there = stage(a=0, b=0), occasion()
    told = proxy.ask

    async def ask(socket: str, command: str) -> str:
        if command.startswith("show stat"):
            proxy.admin.pop("web/a", None)
        return await told(socket, command)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(haproxy, "_send_command", ask)
        with pytest.raises(HookFailed, match=r"for web/a: No such server\."):
            await settings().prepare(there)
        del proxy.admin["web/b"]
        with pytest.raises(HookFailed, match=r"No such proxy\."):
            await settings()._count_sessions("web/b")


async def test_undo_goes_on_with_the_others_when_one_is_gone(stage: Callable[..., Proxy]) -> None:
    proxy, there = stage(a=0, b=0, c=0), occasion()
    handler = settings(servers=("web/a", "web/b", "web/c"))
    await handler.prepare(there)
    del proxy.admin["web/b"]
    with pytest.raises(HookFailed, match=r"^HAProxy reports for web/b: No such server\.$"):
        await handler.undo(there)
    assert proxy.admin == {"web/a": 0, "web/c": 0}


async def test_undo_without_memory_does_nothing(stage: Callable[..., Proxy]) -> None:
    proxy = stage(a=1)
    await settings().undo(occasion())
    assert proxy.admin == {"web/a": 1}


async def test_it_is_remembered_before_anything_is_drained(stage: Callable[..., Proxy]) -> None:
    proxy, there = stage(a=0), occasion()
    proxy.fuse = Fuse(0)
    with pytest.raises(Crash):
        await settings().prepare(there)
    assert (proxy.commands, there.memory) == ([], {"states": {"web/a": "ready"}})


@pytest.mark.parametrize("state", ["drain", "maint"])
@pytest.mark.parametrize("on_timeout", ["maint", "keep"])
async def test_a_crash_at_any_moment_is_made_up_for(stage: Callable[..., Proxy], state: str, on_timeout: str) -> None:
    proxy = stage(ready=0, draining=8, off=1, busy=0, other=0)

    def there(fuse: Fuse, memory: dict[str, Any]) -> Staged:
        proxy.fuse = fuse
        proxy.sessions = {"web/ready": [2, 1], "web/busy": [1] * 100}
        return occasion(fuse, memory)

    handler = settings(
        servers=("web/ready", "web/draining", "web/off", "web/busy"),
        state=state,
        on_timeout=on_timeout,
        drain_timeout=Duration(milliseconds=600),
    )
    moments = await crash_everywhere(
        handler,
        there,
        lambda: dict(proxy.admin),
        lambda: all(proxy.admin[server] for server in handler.servers) and proxy.admin["web/other"] == 0,
    )
    assert moments > 10


def test_the_how_to_shows_a_configuration_that_is_one() -> None:
    (rule,) = parse_configuration(files_in(HOW_TO)["agent.toml"]).rules
    assert rule.handlers == (
        HAProxyHandler(socket="10.0.0.2:9999", servers=("web/vm-1", "api/vm-1"), drain_timeout=Duration(minutes=2)),
    )

"""The handler for nginx, with a real file, but on a stage: an nginx that loads what the file holds.

The real nginx is reloaded in tests/integration/test_handler_nginx.py.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forewarn.agent.codec import Duration
from forewarn.agent.configuration import parse_configuration
from forewarn.agent.handlers import CommandResult, NginxHandler
from forewarn.errors import HookFailed
from tests.support.documents import ROOT, files_in
from tests.support.interrupted import Crash, Fuse, Staged, crash_everywhere

pytestmark = pytest.mark.anyio

HOW_TO = ROOT / "docs/how-to/agent-nginx.md"
SERVER = "10.0.0.5:8080"
UPSTREAM = b"""\
# server 10.0.0.5:8080; is what this is about
server 10.0.0.4:8080 weight=2;
\tserver   10.0.0.5:8080  weight=5\r
    max_fails=3 ;  # server 10.0.0.5:8080;
server 10.0.0.5:80;
server 10.0.0.55:8080;
server "10.0.0.5:8080 x";
server unix:/run/10.0.0.5:8080;
keepalive 16; # caf\xe9
"""
MARKED = UPSTREAM.replace(b"max_fails=3 ;", b"max_fails=3  down;")


class Loaded:
    """Stands in for nginx.

    Attributes:
        path: The include file.
        content: What it has loaded.
        broken: What it says against its configuration.
        is_running: Whether there is a process to be told.
    """

    def __init__(self, path: Path, content: bytes = UPSTREAM) -> None:
        path.write_bytes(content)
        self.path = path
        self.content = content
        self.broken = ""
        self.is_running = True

    def __call__(self, command: Sequence[str]) -> CommandResult:
        match command:
            case ("nginx", "-t"):
                failed = "nginx: configuration file /etc/nginx/nginx.conf test failed\n"
                return CommandResult(
                    status=int(bool(self.broken)), output="", errors=self.broken and self.broken + failed
                )
            case ("nginx", "-s", "reload"):
                if not self.is_running:
                    return CommandResult(status=1, output="", errors='nginx: [error] invalid PID number ""\n')
                self.content = self.path.read_bytes()
                return CommandResult(status=0, output="", errors="")
        return CommandResult(status=127, output="no such command", errors="")

    def both(self) -> tuple[bytes, bytes]:
        """What the file holds and what is loaded."""
        return self.path.read_bytes(), self.content


@pytest.fixture
def nginx(tmp_path: Path) -> Loaded:
    return Loaded(tmp_path / "upstream.conf")


def handler_of(nginx: Loaded, **members: Any) -> NginxHandler:  # noqa: ANN401 - members of the handler
    return NginxHandler(**({"file": str(nginx.path), "server": SERVER} | members))


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ({"file": ""}, "needs a file"),
        ({"server": ""}, "is not a valid server address"),
        ({"server": "10.0.0.5:8080 weight=3"}, "is not a valid server address"),
        ({"server": "10.0.0.5:8080;"}, "is not a valid server address"),
        ({"server": "10.0.0.5\n"}, "is not a valid server address"),
        ({"test": ()}, "must begin with the name of a program"),
        ({"reload": ("",)}, "must begin with the name of a program"),
        ({"settle": Duration(minutes=5)}, "must be longer than settle"),
    ],
)
def test_settings_that_make_no_sense_are_refused(members: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        NginxHandler(**({"file": "/etc/nginx/upstream.conf", "server": SERVER} | members))


def test_it_says_what_it_does() -> None:
    handler = NginxHandler(file="/etc/nginx/upstream.conf", server=SERVER)
    said = "mark 10.0.0.5:8080 as down in /etc/nginx/upstream.conf and reload with 'nginx -s reload'"
    assert handler.describe_actions() == [said]
    assert msgspec.structs.replace(handler, vm="web-1").describe_actions() == [
        f"{said}, only for events that name web-1"
    ]


async def test_one_line_is_marked_and_put_back_to_the_byte(nginx: Loaded) -> None:
    handler, occasion = handler_of(nginx, settle=Duration(seconds=3)), Staged(nginx)
    await handler.prepare(occasion)
    assert nginx.both() == (MARKED, MARKED)
    assert occasion.paused_s == [3]
    await handler.undo(occasion)
    assert nginx.both() == (UPSTREAM, UPSTREAM)
    assert occasion.commands == [("nginx", "-t"), ("nginx", "-s", "reload")] * 2


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"server a;", b"server a down;"),
        (b"upstream u{server a;server b;}", b"upstream u{server a down;server b;}"),
        (b"server b;server\na\n;", b"server b;server\na\n down;"),
        (b"server a down;", b"server a down;"),
        (b"server a backup\tdown weight=1;", b"server a backup\tdown weight=1;"),
        (b"server a route=down;", b"server a route=down down;"),
        (b"server a; server a down; server a;", b"server a down; server a down; server a down;"),
        (b"log_format x 'server a;'; server a;", b"log_format x 'server a;'; server a down;"),
        (b'set $x "\\"server a;"; server a;', b'set $x "\\"server a;"; server a down;'),
        (b"server { server_name a; } server a;", b"server { server_name a; } server a down;"),
    ],
)
async def test_a_line_may_be_written_in_any_way_that_nginx_reads(tmp_path: Path, before: bytes, after: bytes) -> None:
    nginx = Loaded(tmp_path / "upstream.conf", before)
    handler, occasion = handler_of(nginx, server="a"), Staged(nginx)
    await handler.prepare(occasion)
    assert nginx.both() == (after, after)
    await handler.prepare(occasion)
    assert nginx.both() == (after, after)
    await handler.undo(occasion)
    assert nginx.both() == (before, before)


@pytest.mark.parametrize("content", [b"", b"server 10.0.0.4:80;", b"# server a;", b"xserver a;", b"server a"])
async def test_a_file_without_the_server_is_a_failure(tmp_path: Path, content: bytes) -> None:
    nginx = Loaded(tmp_path / "upstream.conf", content)
    occasion = Staged(nginx)
    with pytest.raises(HookFailed, match="has no line for the server a"):
        await handler_of(nginx, server="a").prepare(occasion)
    assert (occasion.commands, occasion.memory) == ([], {})


async def test_a_server_that_is_down_already_is_left_alone(tmp_path: Path) -> None:
    nginx = Loaded(tmp_path / "upstream.conf", b"server a down;")
    handler, occasion = handler_of(nginx, server="a"), Staged(nginx)
    await handler.prepare(occasion)
    await handler.undo(occasion)
    assert nginx.both() == (b"server a down;", b"server a down;")
    assert occasion.commands == []


@pytest.mark.parametrize(
    ("before", "edited", "end"),
    [
        # Other lines may change; ours is put back.
        (b"server a;\n", b"# new\nserver a down;\nserver b;\n", b"# new\nserver a;\nserver b;\n"),
        # Ours was changed: only the mark goes.
        (b"server a;", b"server a weight=3 down;", b"server a weight=3;"),
        (b"server a;", b"server a down weight=3;", b"server a weight=3;"),
        # Somebody made it ready already, or took it out.
        (b"server a;", b"server a;", b"server a;"),
        (b"server a;", b"server a weight=3;", b"server a weight=3;"),
        (b"server a;", b"server b;", b"server b;"),
        # One of several was down before, and stays so.
        (b"server a; server a down;", b"server a down; server a down;", b"server a; server a down;"),
        (b"server a down; server a;", b"server a down; server a x down;", b"server a down; server a x;"),
        (b"server a x; server a down;", b"server a down;", b"server a down;"),
        (b"server a x; server a;", b"server a x down;", b"server a x;"),
        (b"server a x; server a y;", b"server a z down;", b"server a z;"),
        # One more than there were: what cannot be ours stays.
        (b"server a;", b"server a x down; server a down;", b"server a x down; server a;"),
    ],
)
async def test_undo_leaves_what_somebody_else_wrote(tmp_path: Path, before: bytes, edited: bytes, end: bytes) -> None:
    nginx = Loaded(tmp_path / "upstream.conf", before)
    handler, occasion = handler_of(nginx, server="a"), Staged(nginx)
    await handler.prepare(occasion)
    nginx.path.write_bytes(edited)
    await handler.undo(occasion)
    assert nginx.both() == (end, end)


async def test_a_file_that_was_written_anew_meanwhile_is_marked_again(tmp_path: Path) -> None:
    nginx = Loaded(tmp_path / "upstream.conf", b"server a;")
    handler, occasion = handler_of(nginx, server="a"), Staged(nginx)
    await handler.prepare(occasion)
    nginx.path.write_bytes(b"server a weight=2;")
    await handler.prepare(occasion)
    assert nginx.both() == (b"server a weight=2 down;",) * 2
    await handler.undo(occasion)
    assert nginx.both() == (b"server a weight=2;",) * 2


async def test_only_events_that_name_its_vm_count_where_there_is_one(nginx: Loaded) -> None:
    for vm, content in (("web-1", UPSTREAM), ("db", MARKED)):
        handler, occasion = handler_of(nginx, vm=vm), Staged(nginx)
        await handler.prepare(occasion)
        assert nginx.both() == (content, content)
        await handler.undo(occasion)
        assert nginx.both() == (UPSTREAM, UPSTREAM)


async def test_two_events_mark_and_restore_two_lines_of_one_file_at_the_same_time(tmp_path: Path) -> None:
    before = b"server a;\nserver b;\nserver c;\n"
    nginx = Loaded(tmp_path / "upstream.conf", before)
    handlers = [handler_of(nginx, server=name) for name in ("a", "b", "c")]
    occasions = [Staged(nginx) for _ in handlers]
    for _ in range(20):
        await asyncio.gather(*(h.prepare(o) for h, o in zip(handlers, occasions, strict=True)))
        assert nginx.both() == (b"server a down;\nserver b down;\nserver c down;\n",) * 2
        await asyncio.gather(*(h.undo(o) for h, o in zip(handlers, occasions, strict=True)))
        assert nginx.both() == (before, before)


async def test_a_change_between_reading_and_writing_is_not_lost(tmp_path: Path) -> None:
    nginx = Loaded(tmp_path / "upstream.conf", b"server a;\n")

    class Edited(Staged):
        async def remember(self, **facts: Any) -> None:  # noqa: ANN401 - as in the handler context
            await super().remember(**facts)
            if nginx.path.read_bytes() == b"server a;\n":
                nginx.path.write_bytes(b"server a;\nserver b;\n")

    occasion = Edited(nginx)
    await handler_of(nginx, server="a").prepare(occasion)
    assert nginx.both() == (b"server a down;\nserver b;\n",) * 2
    await handler_of(nginx, server="a").undo(occasion)
    assert nginx.both() == (b"server a;\nserver b;\n",) * 2


async def test_a_configuration_that_fails_its_test_is_not_loaded_and_the_file_is_as_before(nginx: Loaded) -> None:
    nginx.broken = 'nginx: [emerg] unknown directive "bad" in /etc/nginx/nginx.conf:3\n'
    handler, occasion = handler_of(nginx), Staged(nginx)
    with pytest.raises(HookFailed) as raised:
        await handler.prepare(occasion)
    assert raised.value.message == (
        'nginx -t ended with status 1: nginx: [emerg] unknown directive "bad" in /etc/nginx/nginx.conf:3; '
        "nginx: configuration file /etc/nginx/nginx.conf test failed"
    )
    assert nginx.both() == (UPSTREAM, UPSTREAM)
    await handler.undo(occasion)
    assert occasion.commands == [("nginx", "-t")]
    nginx.broken = ""
    await handler.prepare(occasion)
    assert nginx.both() == (MARKED, MARKED)


async def test_once_it_is_loaded_another_try_only_waits_again(nginx: Loaded) -> None:
    handler, occasion = handler_of(nginx), Staged(nginx)
    await handler.prepare(occasion)
    nginx.broken = "nginx: [emerg] somebody else's mistake\n"
    await handler.prepare(occasion)
    assert nginx.both() == (MARKED, MARKED)
    assert occasion.paused_s == [10, 10]


async def test_a_reload_that_fails_is_tried_again_with_the_next_try(nginx: Loaded) -> None:
    nginx.is_running = False
    handler, occasion = handler_of(nginx), Staged(nginx)
    with pytest.raises(HookFailed, match=r'reload ended with status 1: nginx: .* invalid PID number ""'):
        await handler.prepare(occasion)
    assert nginx.both() == (MARKED, UPSTREAM)
    nginx.is_running = True
    await handler.prepare(occasion)
    assert nginx.both() == (MARKED, MARKED)


async def test_undo_restores_the_file_even_when_it_cannot_be_loaded(nginx: Loaded) -> None:
    handler, occasion = handler_of(nginx), Staged(nginx)
    await handler.prepare(occasion)
    nginx.broken = "nginx: [emerg] somebody else's mistake\n"
    with pytest.raises(HookFailed, match="somebody else's mistake"):
        await handler.undo(occasion)
    assert nginx.both() == (UPSTREAM, MARKED)
    nginx.broken = ""
    await handler.undo(occasion)
    assert nginx.both() == (UPSTREAM, UPSTREAM)


async def test_commands_may_be_others_and_what_they_print_is_told(nginx: Loaded) -> None:
    with pytest.raises(HookFailed, match=r"^sudo nginx -t ended with status 127: no such command$"):
        await handler_of(nginx, test=("sudo", "nginx", "-t")).prepare(Staged(nginx))
    with pytest.raises(HookFailed, match=r"^quiet ended with status 2$"):
        await handler_of(nginx, test=("quiet",)).prepare(
            Staged(lambda _: CommandResult(status=2, output="", errors=""))
        )


async def test_undo_without_memory_does_nothing(nginx: Loaded) -> None:
    nginx.path.write_bytes(MARKED)
    occasion = Staged(nginx)
    await handler_of(nginx).undo(occasion)
    assert (nginx.path.read_bytes(), occasion.commands) == (MARKED, [])


async def test_it_is_remembered_before_anything_is_written(nginx: Loaded) -> None:
    occasion = Staged(nginx, Fuse(1))
    with pytest.raises(Crash):
        await handler_of(nginx).prepare(occasion)
    assert nginx.path.read_bytes() == UPSTREAM
    assert occasion.memory["lines"]


async def test_a_crash_at_any_moment_is_made_up_for(nginx: Loaded) -> None:
    def occasion(fuse: Fuse, memory: dict[str, Any]) -> Staged:
        return Staged(nginx, fuse, memory)

    moments = await crash_everywhere(handler_of(nginx), occasion, nginx.both, lambda: nginx.both() == (MARKED, MARKED))
    assert moments == 14
    assert names_below(nginx.path.parent) == ["upstream.conf"]


# The file itself


def names_below(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.rglob("*"))


@pytest.mark.skipif(sys.platform == "win32", reason="modes are those of POSIX")
async def test_mode_and_owner_stay_and_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    nginx = Loaded(tmp_path / "real" / "upstream.conf")
    nginx.path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(nginx.path, 12, 34)
    before = nginx.path.stat()
    link = tmp_path / "link.conf"
    link.symlink_to("real/upstream.conf")
    handler, occasion = handler_of(nginx, file=str(link)), Staged(nginx)
    for method in (handler.prepare, handler.undo):
        await method(occasion)
        now = nginx.path.stat()
        assert stat.S_IMODE(now.st_mode) == 0o640
        assert (now.st_uid, now.st_gid) == (before.st_uid, before.st_gid)
        assert link.readlink() == Path("real/upstream.conf")
        assert names_below(tmp_path) == ["link.conf", "real", "upstream.conf"]


async def test_what_a_crash_left_beside_the_file_does_no_harm(nginx: Loaded) -> None:
    left = nginx.path.with_name(".upstream.conf.forewarn")
    left.write_bytes(b"half of it")
    await handler_of(nginx).prepare(Staged(nginx))
    assert nginx.path.read_bytes() == MARKED
    assert not left.exists()


async def test_what_the_system_refuses_is_told_with_its_reason(tmp_path: Path, nginx: Loaded) -> None:
    with pytest.raises(HookFailed, match=r"cannot read .*nope\.conf: No such file"):
        await handler_of(nginx, file=str(tmp_path / "nope.conf")).prepare(Staged(nginx))
    nginx.path.write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(HookFailed, match="larger than 1048576 bytes"):
        await handler_of(nginx).prepare(Staged(nginx))
    nginx.path.write_bytes(UPSTREAM)
    nginx.path.with_name(".upstream.conf.forewarn").mkdir()
    with pytest.raises(HookFailed, match=r"cannot write .*upstream\.conf: "):
        await handler_of(nginx).prepare(Staged(nginx))
    assert nginx.path.read_bytes() == UPSTREAM


async def test_a_disk_that_is_full_leaves_the_file_as_it_was(nginx: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HookFailed, match=r"cannot write .*upstream\.conf: No space left"):
        await handler_of(nginx).prepare(Staged(nginx))
    assert nginx.both() == (UPSTREAM, UPSTREAM)
    assert names_below(nginx.path.parent) == ["upstream.conf"]


def test_the_how_to_shows_a_configuration_that_is_one() -> None:
    (rule,) = parse_configuration(files_in(HOW_TO)["agent.toml"]).rules
    path = "/etc/nginx/upstreams/web.conf"
    assert rule.handlers == (
        NginxHandler(vm="web-1", file=path, server="10.0.0.5:8080", settle=Duration(seconds=30)),
        NginxHandler(vm="web-2", file=path, server="10.0.0.6:8080", settle=Duration(seconds=30)),
    )
    (own,) = parse_configuration(files_in(HOW_TO)["web-1.toml"]).rules
    assert own.has_preparation

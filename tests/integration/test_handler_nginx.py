"""The handler for nginx against the nginx of Debian, with HTTP going through it."""

from __future__ import annotations

import asyncio
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from forewarn.agent.codec import Duration
from forewarn.agent.handlers import NginxHandler
from forewarn.errors import HookFailed
from tests.support.balanced import Backend, ask, backend, clients
from tests.support.interrupted import Fragile, crash_everywhere
from tests.support.processes import wait_for
from tests.support.spans import GUARD_S

_NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.skipif(_NGINX is None, reason="needs nginx")]

CONFIGURATION = """\
daemon off;
worker_processes 2;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream web {{
        include {folder}/upstreams/*;
    }}
    server {{
        listen unix:{folder}/front.sock;
        location / {{ proxy_pass http://web; proxy_next_upstream off; }}
    }}
}}
"""


@dataclass
class Proxy:
    """An nginx in front of two servers."""

    folder: Path
    a: Backend
    b: Backend
    process: subprocess.Popen[bytes]

    @property
    def place(self) -> Path:
        """Where clients ask."""
        return self.folder / "front.sock"

    @property
    def upstream(self) -> Path:
        """The include file."""
        return self.folder / "upstreams" / "web.conf"

    @property
    def configuration(self) -> Path:
        return self.folder / "nginx.conf"

    @property
    def command(self) -> tuple[str, ...]:
        return (str(_NGINX), "-e", "stderr", "-c", str(self.configuration))

    def servers(self) -> set[str]:
        """Which servers answer."""
        return {ask(self.place).server for _ in range(8)}


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    with backend("a") as a, backend("b") as b, (tmp_path / "nginx.log").open("wb") as log:
        (tmp_path / "upstreams").mkdir()
        (tmp_path / "nginx.conf").write_text(CONFIGURATION.format(folder=tmp_path))
        (tmp_path / "upstreams" / "web.conf").write_text(
            f"# server {a.address};\nserver {a.address}  weight=1\n    max_fails=0; # first\nserver {b.address};\n"
        )
        command = [str(_NGINX), "-e", "stderr", "-c", str(tmp_path / "nginx.conf")]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        made = Proxy(tmp_path, a, b, process)
        try:
            wait_for(lambda: _is_up(made))
            yield made
        finally:
            a.gate.set()
            b.gate.set()
            process.terminate()
            process.wait(GUARD_S)


def _is_up(proxy: Proxy) -> bool:
    with suppress(OSError):
        return ask(proxy.place).status == 200
    return False


def handler_of(proxy: Proxy, **members: Any) -> NginxHandler:  # noqa: ANN401 - members of the handler
    given: dict[str, Any] = {
        "file": str(proxy.upstream),
        "server": proxy.a.address,
        "test": (*proxy.command, "-t"),
        "reload": (*proxy.command, "-s", "reload"),
        "settle": Duration(seconds=1),
    }
    return NginxHandler(**(given | members))


async def _until(condition: Callable[[], Any]) -> None:
    await asyncio.to_thread(wait_for, condition)


async def test_requests_in_flight_finish_no_new_one_comes_and_none_is_lost(proxy: Proxy) -> None:
    """New connections only: those that nginx closes when its old processes end are told in the how-to."""
    before = proxy.upstream.read_bytes()
    handler, occasion = handler_of(proxy, settle=Duration(seconds=2)), Fragile()
    with ThreadPoolExecutor(6) as pool, clients(proxy.place, kept=0, new=5) as asking:
        await _until(lambda: asking.count > 50 and proxy.a.requests and proxy.b.requests)
        held = [pool.submit(ask, proxy.place, "/hold") for _ in range(6)]
        await _until(lambda: proxy.a.held + proxy.b.held == 6)
        in_flight = proxy.a.held
        assert in_flight > 0

        await handler.prepare(occasion)
        assert b"max_fails=0 down; # first" in proxy.upstream.read_bytes()
        arrived, answered = proxy.a.requests, asking.count
        await _until(lambda: asking.count > answered + 200)
        assert proxy.a.requests == arrived
        assert not any(future.done() for future in held), "the old processes have not given them up"
        proxy.a.gate.set()
        proxy.b.gate.set()
        answers = [await asyncio.wrap_future(future) for future in held]
        assert [answer.status for answer in answers] == [200] * 6
        assert [answer.server for answer in answers].count("a") == in_flight

        await handler.undo(occasion)
        await _until(lambda: proxy.a.requests > arrived + 20)
    assert asking.lost == []
    assert proxy.upstream.read_bytes() == before


async def test_a_configuration_that_is_broken_elsewhere_is_never_loaded(proxy: Proxy) -> None:
    before = proxy.upstream.read_bytes()
    intact = proxy.configuration.read_text()
    proxy.configuration.write_text(intact + "nonsense;\n")
    handler, occasion = handler_of(proxy), Fragile()
    with pytest.raises(HookFailed, match=r'unknown directive "nonsense" in .*nginx\.conf:\d+; .* test failed'):
        await handler.prepare(occasion)
    assert proxy.upstream.read_bytes() == before
    assert proxy.servers() == {"a", "b"}
    assert [command[-1] for command in occasion.commands] == ["-t"]

    proxy.configuration.write_text(intact)
    await handler.prepare(occasion)
    assert proxy.servers() == {"b"}
    await handler.undo(occasion)
    await _until(lambda: proxy.servers() == {"a", "b"})


async def test_a_server_that_is_down_already_stays_down(proxy: Proxy) -> None:
    proxy.upstream.write_text(f"server {proxy.a.address} down;\nserver {proxy.b.address};\n")
    before = proxy.upstream.read_bytes()
    handler, occasion = handler_of(proxy), Fragile()
    await handler.prepare(occasion)
    await handler.undo(occasion)
    assert proxy.upstream.read_bytes() == before


async def test_an_nginx_that_does_not_run_is_told_in_its_words(proxy: Proxy) -> None:
    proxy.process.terminate()
    proxy.process.wait(GUARD_S)
    before = proxy.upstream.read_bytes()
    handler, occasion = handler_of(proxy), Fragile()
    with pytest.raises(HookFailed, match=r"nginx\.pid"):
        await handler.prepare(occasion)
    with pytest.raises(HookFailed, match=r"nginx\.pid"):
        await handler.undo(occasion)
    assert proxy.upstream.read_bytes() == before


async def test_a_program_that_is_not_there_is_named(proxy: Proxy) -> None:
    before = proxy.upstream.read_bytes()
    with pytest.raises(HookFailed, match="cannot run /no/nginx"):
        await handler_of(proxy, test=("/no/nginx", "-t")).prepare(Fragile())
    assert proxy.upstream.read_bytes() == before


async def test_a_link_in_a_folder_of_links_stays_one_and_its_target_keeps_its_mode(proxy: Proxy) -> None:
    target = proxy.folder / "available.conf"
    proxy.upstream.rename(target)
    target.chmod(0o604)
    proxy.upstream.symlink_to(target)
    handler, occasion = handler_of(proxy), Fragile()
    await handler.prepare(occasion)
    assert proxy.servers() == {"b"}
    assert proxy.upstream.is_symlink()
    assert stat.S_IMODE(target.stat().st_mode) == 0o604
    await handler.undo(occasion)
    await _until(lambda: proxy.servers() == {"a", "b"})


@pytest.mark.timeout(600)
async def test_a_crash_at_any_moment_is_made_up_for(proxy: Proxy) -> None:
    def state() -> bytes:
        # nginx reloads in the background.
        wait_for(lambda: proxy.servers() == {"a", "b"})
        return proxy.upstream.read_bytes()

    with clients(proxy.place, kept=0, new=2) as asking:
        moments = await crash_everywhere(handler_of(proxy), Fragile, state, lambda: proxy.servers() == {"b"})
    assert moments == 14
    assert asking.lost == []

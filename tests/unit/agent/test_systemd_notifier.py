"""What is said to systemd; a socket in a folder plays it."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.agent import systemd_notifier
from forewarn.agent.systemd_notifier import SystemdNotifier
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="systemd is where AF_UNIX is")


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(GUARD_S)
        yield sock


@pytest.fixture
def environment(tmp_path: Path, heard: socket.socket) -> dict[str, str]:
    return {"NOTIFY_SOCKET": str(tmp_path / "notify")}


def words(heard: socket.socket) -> list[str]:
    """Everything that was said so far."""
    heard.setblocking(False)
    said = []
    try:
        while True:
            said.append(heard.recv(1000).decode())
    except BlockingIOError:
        return said


def has_sent(address: str) -> bool:
    """Whether there was room for another word."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        try:
            sock.sendto(b"X=1", address)
        except BlockingIOError:
            return False
        return True


def test_its_words_are_those_of_systemds_protocol(heard: socket.socket, environment: dict[str, str]) -> None:
    supervisor = SystemdNotifier(environment)
    supervisor.notify_ready()
    supervisor.notify_watchdog()
    supervisor.set_status("vm-1: in service,\n0 events")
    supervisor.notify_stopping()
    assert words(heard) == ["READY=1", "WATCHDOG=1", "STATUS=vm-1: in service, 0 events", "STOPPING=1"]


def test_a_status_is_told_when_it_changes(heard: socket.socket, environment: dict[str, str]) -> None:
    supervisor = SystemdNotifier(environment)
    for text in ("a", "a", "b", "b", "a"):
        supervisor.set_status(text)
    assert words(heard) == ["STATUS=a", "STATUS=b", "STATUS=a"]


def test_an_address_without_a_file_is_understood() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        name = f"forewarn-test-{os.getpid()}"
        sock.bind(f"\0{name}")
        SystemdNotifier({"NOTIFY_SOCKET": f"@{name}"}).notify_ready()
        assert words(sock) == ["READY=1"]


@pytest.mark.parametrize("address", [None, "", "/nowhere/notify", "x" * 200, "vsock:2:1"])
def test_where_nobody_listens_nothing_happens(address: str | None) -> None:
    supervisor = SystemdNotifier({} if address is None else {"NOTIFY_SOCKET": address})
    supervisor.notify_ready()
    supervisor.notify_watchdog()
    supervisor.set_status("x")
    supervisor.notify_stopping()
    assert supervisor._status == "", "it would not be sent again"


def test_ready_waits_for_room_and_a_sign_of_life_does_not(heard: socket.socket, environment: dict[str, str]) -> None:
    while has_sent(environment["NOTIFY_SOCKET"]):
        pass
    supervisor = SystemdNotifier(environment)
    supervisor.notify_watchdog()
    supervisor.set_status("full")
    speaking = threading.Thread(target=supervisor.notify_ready)
    speaking.start()
    speaking.join(0.1)
    assert speaking.is_alive()
    while (word := heard.recv(1000)) != b"READY=1":
        assert word == b"X=1"
    speaking.join()
    supervisor.set_status("full")
    assert words(heard) == ["STATUS=full"]


def test_a_start_does_not_wait_for_ever_for_room(
    heard: socket.socket, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd_notifier, "_PATIENCE_S", 0.01)
    while has_sent(environment["NOTIFY_SOCKET"]):
        pass
    supervisor = SystemdNotifier(environment)

    def speak() -> None:
        supervisor.notify_ready()
        supervisor.notify_stopping()

    speaking = threading.Thread(target=speak, daemon=True)
    speaking.start()
    speaking.join(GUARD_S)
    assert not speaking.is_alive()
    assert set(words(heard)) == {"X=1"}


@pytest.mark.parametrize(
    ("told", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "180000000"}, 90.0),
        ({"WATCHDOG_USEC": "180000000", "WATCHDOG_PID": str(os.getpid())}, 90.0),
        ({"WATCHDOG_USEC": "180000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_a_sign_of_life_is_wanted_twice_in_the_time(told: dict[str, str], watchdog_s: float | None) -> None:
    assert SystemdNotifier({"NOTIFY_SOCKET": "/run/notify"} | told).watchdog_s == watchdog_s


def test_no_sign_of_life_is_wanted_where_nobody_listens() -> None:
    assert SystemdNotifier({"WATCHDOG_USEC": "180000000"}).watchdog_s is None


def test_hooks_do_not_inherit_what_systemd_told_the_agent() -> None:
    environment = {"NOTIFY_SOCKET": "/run/notify", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "PATH": "/bin"}
    SystemdNotifier(environment)
    assert environment == {"PATH": "/bin"}

"""Run a command in its own network, where 169.254.169.254 port 80 is a socket of the process that started this one.

``python -m forewarn.testing.trial.network_namespace FD COMMAND...`` creates a network namespace that holds only
loopback, listens there, passes the listening socket out over the Unix socket ``FD``, and runs the command in its own
process namespace: when the command or this process ends, all its descendants end too.

Exit status: that of the command; 125 if the namespaces cannot be created, 126 if the command cannot be run.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence

__all__ = ["ADDRESS", "NO_COMMAND", "NO_NAMESPACE", "main"]

ADDRESS = ("169.254.169.254", 80)
NO_NAMESPACE = 125
NO_COMMAND = 126

_CLONE_NEWUSER, _CLONE_NEWPID, _CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFFLAGS = 0x8916, 0x891C, 0x8914
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
# Shells report a signal as 128 plus its number.
_SIGNALLED = 128


def main(arguments: Sequence[str]) -> int:
    """Run the command in its namespaces; return the exit status."""
    out = socket.socket(fileno=int(arguments[0]))
    libc = ctypes.CDLL(None, use_errno=True)
    # If the trial is killed, the kernel kills this process too, and the handler with it.
    _request_death_signal(libc)
    if not _enter_namespaces(libc):
        return NO_NAMESPACE
    try:
        listening = _listen_on_loopback()
    except OSError:
        return NO_NAMESPACE
    socket.send_fds(out, [b"listening"], [listening.fileno()])
    # The parent accepts the connections; a second copy here would keep the port open after the parent has closed it.
    listening.close()
    child = os.fork()  # unshare puts only children into the new process namespace
    if child == 0:
        _request_death_signal(libc)  # fork has cleared the setting
        out.close()
        # Without Python's cleanup, which would flush buffers inherited from the parent a second time.
        os._exit(_run_as_init(arguments[1:]))
    _forward_signals(child)
    return _get_exit_status(os.waitpid(child, 0)[1])


def _request_death_signal(libc: ctypes.CDLL) -> None:
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _enter_namespaces(libc: ctypes.CDLL) -> bool:
    """Leave the shared network and process namespaces, as root or as root of a user namespace; False if not allowed."""
    if libc.unshare(_CLONE_NEWNET | _CLONE_NEWPID) == 0:
        return True
    user, group = os.getuid(), os.getgid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET | _CLONE_NEWPID) != 0:
        return False
    try:
        # The kernel allows an unprivileged process to write gid_map only after setgroups is denied.
        for name, content in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:  # noqa: PTH123 - the kernel expects one write
                file.write(content)
    except OSError:
        return False
    return True


def _listen_on_loopback() -> socket.socket:
    """Give loopback the address, and listen on it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        # In a new namespace loopback is down. An interface label holds one address, so the endpoint's is an alias.
        for name, address, mask in ((b"lo", "127.0.0.1", "255.0.0.0"), (b"lo:1", ADDRESS[0], "255.255.255.255")):
            fcntl.ioctl(control, _SIOCSIFADDR, _encode_ifreq(name, address))
            fcntl.ioctl(control, _SIOCSIFNETMASK, _encode_ifreq(name, mask))
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", name, _IFF_UP | _IFF_RUNNING))
    return socket.create_server(ADDRESS, backlog=128)


def _encode_ifreq(name: bytes, address: str) -> bytes:
    """Return an ``ifreq`` with an IPv4 address."""
    return struct.pack("16sH2s4s8x", name, socket.AF_INET, b"", socket.inet_aton(address))


def _run_as_init(command: Sequence[str]) -> int:
    """Act as the first process of the namespace: run the command, reap its orphans, and end with it."""
    worker = os.fork()
    if worker == 0:
        try:
            os.execvp(command[0], list(command))  # noqa: S606 - the user's own command, without a shell
        except OSError as error:
            sys.stderr.write(f"cannot run {command[0]}: {error.strerror}\n")
            os._exit(NO_COMMAND)
    _forward_signals(worker)
    # As the first process of its namespace it inherits every orphan, and has to reap them all.
    while True:
        ended, status = os.wait()
        if ended == worker:
            return _get_exit_status(status)


def _forward_signals(child: int) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: os.kill(child, received))


def _get_exit_status(status: int) -> int:
    return os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else _SIGNALLED + os.WTERMSIG(status)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

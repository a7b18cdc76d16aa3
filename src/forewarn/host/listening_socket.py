"""One listening socket for VMs, over TCP or as a Unix socket."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PATH_BYTES_MAX", "ListenAddress", "identify_file", "open_socket"]

PATH_BYTES_MAX = 107
"""Maximum length of a Unix socket's path, set by Linux."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenAddress:
    """Address of one listening socket.

    Attributes:
        vm: VM assumed for every connection; empty to find it by the source address.
        host, port: IP address and port; empty and 0 for a Unix socket.
        interface, index: Interface that it is bound to; empty and 0 for none.
        path: Path of a Unix socket; None for others.
    """

    vm: str = ""
    host: str = ""
    port: int = 0
    interface: str = ""
    index: int = 0
    path: Path | None = None


def open_socket(place: ListenAddress, gid: int | None) -> socket.socket:
    """Open a listening socket.

    Args:
        place: Address of the socket.
        gid: Id of the group that may connect to a Unix socket; None if there is none.

    Raises:
        OSError: It cannot be opened; ENODEV if the interface is gone, or another one has its name; EADDRINUSE if a
            process is listening there; ENOTSOCK if the path is no socket.
    """
    family = socket.AF_UNIX if place.path is not None else socket.AF_INET6 if ":" in place.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        if place.path is None:
            _listen_on_tcp(sock, place)
        else:
            _listen_on_path(sock, place.path, gid)
    except BaseException:
        sock.close()
        raise
    return sock


def _listen_on_tcp(sock: socket.socket, place: ListenAddress) -> None:
    """Listen on an address; the errors are those of `open_socket`."""
    is_v6 = ":" in place.host
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_v6:
        # Otherwise `[::]` would take the port of an IPv4 listener as well.
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    if place.interface:
        # Before `bind`, which would fail for the second VM: all of them use the same address and port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, os.fsencode(place.interface) + b"\0")
        # The name may have passed to another interface since the interfaces were listed.
        if _find_index(place.interface) != place.index:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    # A link-local IPv6 address may exist on every interface; the index selects one of them.
    sock.bind((place.host, place.port, 0, place.index) if is_v6 else (place.host, place.port))
    sock.listen()


def _find_index(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        return 0


def _listen_on_path(sock: socket.socket, path: Path, gid: int | None) -> None:
    """Listen on a path, replacing a socket left there by a dead process; the errors are those of `open_socket`."""
    # Python reports this without an errno, on which the advice depends.
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with _lock_folder(path.parent):  # else two processes could each remove the other's socket before it listens
        _remove_stale(path)
        # The mode is set before `listen`, until which no one can connect.
        sock.bind(str(path))
        path.chmod(0o600 if gid is None else 0o660)
        if gid is not None:
            os.chown(path, -1, gid)
        sock.listen()


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock on a folder while the block runs, against other processes of this program."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Not waited for, which would block the event loop; the next check tries again.
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(number)


def _remove_stale(path: Path) -> None:
    """Remove the socket of a dead process."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise OSError(errno.ENOTSOCK, "not a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # noqa: FBT003 - the signature is the socket's
            probe.connect(str(path))
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        path.unlink(missing_ok=True)
        return
    except BlockingIOError:  # its backlog is full, so it is alive
        pass
    raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def identify_file(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of a file, to notice a replacement; None if it does not exist."""
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino

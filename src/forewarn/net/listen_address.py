"""Listening addresses: parsing, binding, and forming URLs."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from forewarn.errors import ConfigError

__all__ = [
    "bind_listener",
    "build_socket_url",
    "is_loopback",
    "is_loopback_name",
    "is_own_host",
    "parse_host_names",
    "parse_listen",
]

_HOST = re.compile(r"(?P<name>\[[^\]]+\]|[^:\[\]]+)(?::\d{0,5})?")
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_NAME_LENGTH_MAX = 253
_HOST_LENGTH_MAX = _NAME_LENGTH_MAX + len(":65535")


def parse_listen(text: str) -> tuple[str, int]:
    """Return host and port of ``127.0.0.1:8169`` or ``[::1]:8169``.

    Raises:
        ConfigError: The text is not an IP address with a port.
    """
    host, separator, port = text.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        number = -1
    # Port 0 is valid: the kernel then chooses one, which tests rely on.
    if not separator or not 0 <= number <= 65535:  # noqa: PLR2004 - the largest port
        msg = f"cannot listen on {text!r}: expected an address and a port, for example 127.0.0.1:8169 or [::1]:8169"
        raise ConfigError(msg)
    return host, number


def is_loopback(host: str) -> bool:
    """Return True if only this machine can reach the address."""
    return ipaddress.ip_address(host).is_loopback


def is_loopback_name(host: str) -> bool:
    """Return True if the host of a URL, an address or a name, is this machine."""
    try:
        return is_loopback(host)
    except ValueError:
        return host == "localhost"


def parse_host_names(text: str) -> frozenset[str]:
    """Return the names in ``forewarn, metadata.internal``, in lower case.

    Raises:
        ValueError: An item is not a host name.
    """
    names = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
    for name in sorted(names):
        if not _NAME.fullmatch(name) or len(name) > _NAME_LENGTH_MAX:
            raise ValueError(f"{name!r} is not a host name: expected names without a port, separated by commas")
    return names


def is_own_host(header: str, names: frozenset[str] = frozenset()) -> bool:
    """Return True if a ``Host`` header is an address, ``localhost``, or one of `names`, with any port.

    A web page can make its own name resolve to our address (DNS rebinding). It cannot make a browser send an address
    or another site's name.
    """
    # The length is checked outside the cache, which long headers could otherwise fill.
    return len(header) <= _HOST_LENGTH_MAX and _is_own_host(header, names)


@lru_cache(maxsize=1024)
def _is_own_host(header: str, names: frozenset[str]) -> bool:
    match = _HOST.fullmatch(header)
    if match is None:
        return False
    name = match["name"].lower()
    if name == "localhost" or name in names:
        return True
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    # Only IPv6 has brackets; any other form is no address that a client would send.
    return name.startswith("[") == (address.version == 6)  # noqa: PLR2004 - of the Internet Protocol


@contextmanager
def bind_listener(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket that listens on this address; it is closed at the end of the block.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Otherwise a restart would have to wait until connections of the previous process have timed out.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)  # noqa: FBT003 - the signature is the socket's
        try:
            sock.bind((host, port))
            # Clients that connect while the service still loads wait in this queue instead of being refused.
            sock.listen(4096)
        except OSError as error:
            msg = f"cannot listen on {host}:{port}: {error.strerror}; choose another address, or free this one"
            raise ConfigError(msg) from error
        yield sock
    finally:
        sock.close()


def build_socket_url(scheme: str, sock: socket.socket) -> str:
    """Return the URL of the server that listens on this socket."""
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"

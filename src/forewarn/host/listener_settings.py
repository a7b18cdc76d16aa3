"""Settings for listening to the VMs of a host, and for identifying them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from forewarn.errors import ConfigError
from forewarn.net.listen_address import parse_listen

__all__ = ["INTERFACE_NAME_MAX", "VM_PLACEHOLDER", "IdentificationMethod", "ListenerSettings"]

INTERFACE_NAME_MAX = 15
"""Maximum length of an interface's name, set by Linux."""

VM_PLACEHOLDER = "{vm}"
"""Part of an interface pattern that stands for the VM's name."""

POLL_INTERVAL_MIN_S, POLL_INTERVAL_MAX_S = 0.1, 3600.0
"""Range of the poll interval, in seconds."""


class IdentificationMethod(StrEnum):
    """Method of identifying VMs."""

    ADDRESS = "address"
    INTERFACE = "interface"
    SOCKET = "socket"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerSettings:
    """Settings for identifying the VMs of a host.

    Attributes:
        identify_by: One way or two; not both address and interface.
        listen: Addresses with ports, as ``169.254.169.254:80``; for address and interface.
        interface_pattern: Pattern for the name of a VM's interface, as ``tap-{vm}``; empty for none.
        interface_file: YAML file that assigns interfaces to VMs, as ``interfaces: {vnet0: web-0}``; takes precedence
            over the pattern; None if there is none.
        by_mac: True if a tap belongs to the VM with the same MAC except for the first byte ``fe``, as in libvirt; the
            file and the pattern take precedence.
        socket_folder: Folder for the Unix socket ``{vm}.sock`` of each VM, created if missing; None if there is none.
        socket_group: Group that may connect to the Unix sockets besides our own user; empty for none.
        poll_interval_s: Interval between checks without a hint, 0.1 to 3600 s.

    Raises:
        ConfigError: The settings contradict each other, or a value is invalid.
    """

    identify_by: tuple[IdentificationMethod, ...]
    listen: tuple[str, ...] = ("169.254.169.254:80",)
    interface_pattern: str = ""
    interface_file: Path | None = None
    by_mac: bool = False
    socket_folder: Path | None = None
    socket_group: str = ""
    poll_interval_s: float = 5.0

    def __post_init__(self) -> None:
        msg = next((words for is_wrong, words in self._list_rules() if is_wrong), None)
        if msg is not None:
            raise ConfigError(msg)
        _ = self.addresses, self.gid  # raise ConfigError for an invalid address or group

    def _list_rules(self) -> Iterator[tuple[bool, str]]:
        """Yield each condition that is an error, with its message."""
        names_interfaces = bool(self.interface_pattern or self.interface_file or self.by_mac)
        fixed = self.interface_pattern.replace(VM_PLACEHOLDER, "", 1)
        yield not self.identify_by, "no way to identify VMs is set: choose address, interface or socket"
        yield (
            {IdentificationMethod.ADDRESS, IdentificationMethod.INTERFACE} <= set(self.identify_by),
            "cannot identify VMs by both address and interface: choose one",
        )
        yield (
            self.identify_by != (IdentificationMethod.SOCKET,) and not self.listen,
            "no address to listen on is set: expected for example 169.254.169.254:80",
        )
        yield (
            IdentificationMethod.INTERFACE in self.identify_by and not names_interfaces,
            "cannot assign interfaces to VMs: set a pattern such as tap-{vm}, a file, or matching by MAC",
        )
        yield (
            IdentificationMethod.INTERFACE not in self.identify_by and names_interfaces,
            "an interface pattern, an interface file and matching by MAC require identification by interface",
        )
        yield (
            bool(self.interface_pattern)
            and (VM_PLACEHOLDER not in self.interface_pattern or re.search(r"[{}/:\s]", fixed) is not None),
            (
                f"interface pattern {self.interface_pattern!r}: "
                f"expected {VM_PLACEHOLDER} once in an interface name, as in tap-{VM_PLACEHOLDER}"
            ),
        )
        yield (
            len(fixed) >= INTERFACE_NAME_MAX,
            f"interface pattern {self.interface_pattern!r}: a name has at most {INTERFACE_NAME_MAX} characters",
        )
        yield (
            IdentificationMethod.SOCKET in self.identify_by and self.socket_folder is None,
            "no folder is set for the Unix sockets of the VMs",
        )
        yield (
            IdentificationMethod.SOCKET not in self.identify_by
            and (self.socket_folder is not None or bool(self.socket_group)),
            "a folder and a group for sockets require identification by socket",
        )
        yield (
            not POLL_INTERVAL_MIN_S <= self.poll_interval_s <= POLL_INTERVAL_MAX_S,
            (
                f"poll interval is {self.poll_interval_s:g} s: "
                f"expected {POLL_INTERVAL_MIN_S:g} to {POLL_INTERVAL_MAX_S:g} s"
            ),
        )

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Addresses and ports to listen on."""
        return [parse_listen(text) for text in self.listen]

    @property
    def gid(self) -> int | None:
        """Id of the group that may connect to the Unix sockets; None if there is none."""
        if not self.socket_group:
            return None
        import grp  # noqa: PLC0415 - Windows has none, and the command line imports this module there

        try:
            return grp.getgrnam(self.socket_group).gr_gid
        except KeyError as error:
            msg = f"group {self.socket_group!r} for the Unix sockets does not exist on this host"
            raise ConfigError(msg) from error

"""File in which the operator assigns network interfaces to VMs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from forewarn.errors import ConfigError
from forewarn.host.listener_problem import describe_os_error
from forewarn.host.listener_settings import INTERFACE_NAME_MAX
from forewarn.util.files import read_limited
from forewarn.wire.yaml_source import YamlSource

__all__ = ["InterfaceFile", "read_interface_file"]

INTERFACES_FILE_BYTES_MAX = 1 << 20
"""Maximum size of the file that assigns interfaces to VMs."""


class _InterfacesIn(BaseModel):
    model_config = ConfigDict(extra="forbid")

    interfaces: dict[Annotated[str, Field(min_length=1, max_length=INTERFACE_NAME_MAX)], str]


def read_interface_file(path: Path) -> dict[str, str]:
    """Read the file that assigns interfaces to VMs; return the VM by the interface's name.

    Raises:
        ConfigError: The file cannot be read, or its content is invalid.
    """
    source = YamlSource(str(path), size_bytes_max=INTERFACES_FILE_BYTES_MAX, kind="mapping", error_class=ConfigError)
    try:
        with path.open("rb") as file:
            content = read_limited(file, INTERFACES_FILE_BYTES_MAX)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {describe_os_error(error)}") from error
    said = source.read(content)
    if not isinstance(said, dict):
        raise source.build_error((), "expected a VM for each interface, as in 'interfaces: {vnet0: web-0}'")
    return source.validate(_InterfacesIn, said).interfaces


class InterfaceFile:
    """Content of the file, which may change at any time.

    Args:
        path: Path of the file; None if there is none.

    Attributes:
        named_vms: Name of the VM by the interface's name, as the file last gave it while it was valid.
    """

    def __init__(self, path: Path | None) -> None:
        self.named_vms: Mapping[str, str] = {}
        self._path = path
        self._version: tuple[int, ...] | None = None

    def refresh(self) -> None:
        """Read the file if it has changed since the last successful read.

        Raises:
            ConfigError: The file cannot be read, or its content is invalid; `named_vms` stays as it was.
        """
        if self._path is None:
            return
        # Before the read, so that a change in between is noticed at the next check.
        version = _get_version(self._path)
        if version is not None and version == self._version:
            return
        self._version = None
        self.named_vms = read_interface_file(self._path)
        self._version = version


def _get_version(path: Path) -> tuple[int, ...] | None:
    """Return numbers that differ after a change of the file; None if it cannot be found."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

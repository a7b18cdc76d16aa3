"""libvirt with a power cut in it: the n-th change is the last thing that happens, or does not happen any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forewarn.actuators.libvirt_connection import LibvirtSession

__all__ = ["Cut", "PowerCut", "stubborn"]

_CHANGES = frozenset(
    {
        "suspend",
        "resume",
        "shutdown",
        "destroy",
        "create",
        "setMetadata",
        "undefine",
        "defineXML",
    }
)


class Cut(Exception):
    """The service is dead."""


class PowerCut:
    """Counts what changes something, and ends it all at one of these.

    Attributes:
        left: Changes until then; below 0: it does not come any more.
        is_before: It comes before that change, not after it.
    """

    def __init__(self, left: int = -1, *, is_before: bool = False) -> None:
        self.left = left
        self.is_before = is_before
        self.has_come = False

    def install(self, monkeypatch: pytest.MonkeyPatch) -> PowerCut:
        """Put it between the actuator and libvirt."""
        _wrap_connections(monkeypatch, self.change)
        return self

    def change(self, _name: str, change: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - libvirt's answer
        """One change."""
        self.left -= 1
        is_now = self.left == 0
        if is_now:
            self.has_come = True
        if is_now and self.is_before:
            raise Cut
        result = change(*arguments)
        if is_now:
            raise Cut
        return result


def stubborn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guest that does not care about being asked to shut down."""

    def change(name: str, change: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401 - libvirt's answer
        return 0 if name == "shutdown" else change(*arguments)

    _wrap_connections(monkeypatch, change)


_Change = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]


class _Wrapped:
    def __init__(self, inner: Any, change: _Change) -> None:  # noqa: ANN401 - libvirt has no types
        self._inner = inner
        self._change = change

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - libvirt has no types
        found = getattr(self._inner, name)
        if name in _CHANGES:
            return lambda *arguments: self._change(name, found, arguments)
        if name == "lookupByName":
            return lambda *arguments: _Wrapped(found(*arguments), self._change)
        return found


def _wrap_connections(monkeypatch: pytest.MonkeyPatch, change: _Change) -> None:
    begin = LibvirtSession.__init__

    def begin_wrapped(self: LibvirtSession, connect: Any, *arguments: Any) -> None:  # noqa: ANN401 - libvirt has no types
        begin(self, _Wrapped(connect, change), *arguments)

    monkeypatch.setattr(LibvirtSession, "__init__", begin_wrapped)

"""Completion of names and ids: those that the service knows, or that come with Forewarn.

Completion fails silently: on any error there are no candidates, and a request takes at most one second.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import typer

from forewarn.cli.connection import DEFAULT_URL, ControlConnection
from forewarn.cli.output import format_names
from forewarn.errors import ForewarnError

__all__ = [
    "Completer",
    "cause_names",
    "event_ids",
    "fault_names",
    "host_names",
    "maintenance_ids",
    "rollout_ids",
    "scenario_names",
    "scope_names",
    "vm_names",
]

Completer = Callable[[typer.Context, str], list[tuple[str, str]]]
"""Type of Typer's `autocompletion`: context and typed text, to values with a description each."""

_TIMEOUT_S = 1.0
_ANSWER_BYTES_MAX = 4 << 20
_OFFERED_MAX = 1000
_NAMES_MAX = 3
_SAFE_NAMES = re.compile(r"[A-Za-z0-9][A-Za-z0-9._,-]*")
"""Names that a shell takes unquoted. Other names are not offered; the user types and quotes them."""
_SAFE_DESCRIPTION = re.compile(r"[A-Za-z0-9 .:,_-]*")
"""Descriptions that are safe in zsh, where Typer's script evaluates them with insufficient quoting."""


def _make_completer(path: str, key: str, describe: Callable[[dict[str, Any]], str]) -> Completer:
    def complete(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        """Return matching names or ids that the service knows."""
        # Several names may be given with commas: the last one is being typed.
        before, comma, typed = incomplete.rpartition(",")
        try:
            # Only lists by name can be searched by it; Typer itself leaves out what does not begin like that.
            query = {"prefix": typed} if key == "name" and typed else {}
            found = {str(item[key]): describe(item) for item in _fetch_items(ctx, path, query)}
        except (ForewarnError, HTTPException, OSError, ValueError, LookupError, TypeError):
            return []
        return [
            (f"{before}{comma}{name}", about if _SAFE_DESCRIPTION.fullmatch(about) else "")
            for name, about in found.items()
            if _SAFE_NAMES.fullmatch(f"{before}{comma}{name}") and name not in before.split(",")
        ]

    return complete


def _describe_maintenance(item: dict[str, Any]) -> str:
    return f"{item['state']}: {item['type']} of {format_names(item['hosts'] or item['vms'], _NAMES_MAX)}"


vm_names = _make_completer("/v1/vms", "name", lambda vm: f"on {vm['host']}" if vm["host"] else "")
host_names = _make_completer("/v1/hosts", "name", lambda host: format_names(host["vms"], _NAMES_MAX))
scope_names = _make_completer("/v1/scopes", "name", lambda scope: str(scope["kind"]))
maintenance_ids = _make_completer("/v1/maintenance", "id", _describe_maintenance)
event_ids = _make_completer(
    "/v1/events", "id", lambda event: f"{event['status']}: {format_names(event['resources'], _NAMES_MAX)}"
)
rollout_ids = _make_completer("/v1/rollouts", "id", lambda rollout: str(rollout["state"]))


def cause_names(_ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """Return causes of maintenance, with the type of their events."""
    from forewarn.core.causes import CAUSES

    return [(cause.name, str(cause.type)) for cause in CAUSES.values()]


def fault_names(_ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """Return kinds of faults, with their effect on a client."""
    from forewarn.core.fault import FAULTS

    return [(kind.name, kind.what) for kind in FAULTS.values()]


def scenario_names(_ctx: typer.Context, _incomplete: str) -> list[tuple[str, str]]:
    """Return the scenarios that come with Forewarn."""
    folder = Path(__file__).parents[1] / "testing" / "scenarios"
    return [(file.stem, "") for file in sorted(folder.glob("*.yaml"))]


def _fetch_items(ctx: typer.Context, path: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the first items of a list of the control API, with these query parameters."""
    url = ctx.params.get("control_url") or DEFAULT_URL
    token_file = ctx.params.get("token_file")
    with ControlConnection(url, Path(token_file) if token_file else None) as connection, _limit_time():
        query = {"limit": str(_OFFERED_MAX), **query}
        items: list[dict[str, Any]] = _get_json(connection, f"{path}?{urlencode(query)}")["items"]
        return items


def _get_json(connection: ControlConnection, path: str) -> Any:  # noqa: ANN401 - JSON
    """Send a GET with the standard library: importing httpx alone takes longer than an answer."""
    parts = urlsplit(connection.url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    line = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_S)
    try:
        line.request("GET", parts.path + path, headers=connection.build_headers())
        return json.loads(line.getresponse().read(_ANSWER_BYTES_MAX))
    finally:
        line.close()


@contextmanager
def _limit_time() -> Iterator[None]:
    """Interrupt the block after one second, even if each byte arrives in time.

    Raises:
        TimeoutError: It took longer.
    """
    # Windows has no timers; there, only the time-out of the socket holds.
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(_number: int, _frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _TIMEOUT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

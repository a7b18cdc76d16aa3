"""What goes out about a maintenance, and what comes back: for commands and webhooks."""

from __future__ import annotations

import json
from typing import Any

from forewarn.core.model import Maintenance
from forewarn.wire.control import MaintenanceOut

__all__ = ["REASON_LENGTH_MAX", "as_reason", "describe", "encode"]

REASON_LENGTH_MAX = 300
"""Characters that are kept of what somebody else gives as a reason."""


def describe(maintenance: Maintenance) -> dict[str, Any]:
    """The maintenance as the control API shows it, with where each VM runs.

    Its events, and who has none, are left out: whoever carries it out has no part in those.
    """
    shown = MaintenanceOut.of(maintenance, []).model_dump(mode="json", exclude={"events", "unwarned_vms"})
    return shown | {"placements": [{"vm": claim.vm, "host": claim.host} for claim in maintenance.claims]}


def encode(maintenance: Maintenance) -> bytes:
    """`describe` as one line of JSON in UTF-8, ended."""
    return json.dumps(describe(maintenance), ensure_ascii=False).encode() + b"\n"


def as_reason(text: str) -> str:
    """One line that is safe to print, of whatever was said; ``""`` when nothing was."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= REASON_LENGTH_MAX else f"{line[: REASON_LENGTH_MAX - 1]}…"

"""Outgoing and incoming texts of commands and webhooks."""

from __future__ import annotations

import json
from typing import Any

from forewarn.core.model import Maintenance
from forewarn.wire.control_response import MaintenanceOut

__all__ = ["REASON_LENGTH_MAX", "describe_maintenance", "encode_maintenance", "make_printable"]

REASON_LENGTH_MAX = 300
"""Maximum number of characters kept of a reason given by the other side."""


def describe_maintenance(maintenance: Maintenance) -> dict[str, Any]:
    """Return the maintenance as the control API shows it, with the host of each VM.

    Its events and unwarned VMs are left out; they do not concern an actuator.
    """
    shown = MaintenanceOut.from_model(maintenance, []).model_dump(mode="json", exclude={"events", "unwarned_vms"})
    return shown | {"placements": [{"vm": claim.vm, "host": claim.host} for claim in maintenance.claims]}


def encode_maintenance(maintenance: Maintenance) -> bytes:
    """Encode `describe_maintenance` as one line of JSON in UTF-8, with a line feed."""
    return json.dumps(describe_maintenance(maintenance), ensure_ascii=False).encode() + b"\n"


def make_printable(text: str) -> str:
    """Return any text as one line that is safe to print; ``""`` for a blank text."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= REASON_LENGTH_MAX else f"{line[: REASON_LENGTH_MAX - 1]}…"

"""A jump of the clock, as a row of `meta` keeps it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from forewarn.core.clock_jump import Jump

__all__ = ["CLOCK_JUMP", "decode_jump", "encode_jump"]

CLOCK_JUMP = "clock_jump"
"""The key in `meta`; there is a row while no operator has confirmed the clock."""


def encode_jump(jump: Jump) -> str:
    """The text that is kept."""
    return json.dumps({"by_s": jump.by.total_seconds(), "at": jump.at.isoformat()})


def decode_jump(text: str | None) -> Jump | None:
    """The jump that is kept, if there is one."""
    if text is None:
        return None
    said = json.loads(text)
    return Jump(by=timedelta(seconds=said["by_s"]), at=datetime.fromisoformat(said["at"]))

"""A jump of the clock, as stored in a row of `meta`."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

from forewarn.core.clock_jump import ClockJump

__all__ = ["CLOCK_JUMP", "decode_jump", "encode_jump"]

CLOCK_JUMP = "clock_jump"
"""Key in `meta`; its row exists until an operator has confirmed the clock."""


def encode_jump(jump: ClockJump) -> str:
    """Encode a jump as the text to store."""
    return json.dumps({"by_s": jump.by.total_seconds(), "at": jump.at.isoformat()})


def decode_jump(text: str | None) -> ClockJump | None:
    """Decode a stored jump; None if there is none."""
    if text is None:
        return None
    said = json.loads(text)
    return ClockJump(by=timedelta(seconds=said["by_s"]), at=datetime.fromisoformat(said["at"]))

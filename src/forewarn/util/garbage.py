"""Garbage collection of a process that answers VMs: each collection delays every answer."""

from __future__ import annotations

import gc

__all__ = ["begin_rare_collections"]

_THRESHOLDS = (50_000, 20, 50)
"""Answers create few reference cycles, so collections may be rare."""


def begin_rare_collections() -> None:
    """Turn garbage collection on after the start, exempting all objects made until now, which are never garbage.

    During the start it is turned off: each collection would scan the growing inventory again.
    """
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    gc.enable()

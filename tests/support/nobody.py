"""A block of code that runs without the rights of root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["as_nobody"]

_NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Run the block without the rights of root, for whom no file is read-only."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)

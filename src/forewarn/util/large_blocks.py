"""Large blocks of memory: mapped alone, so that only the pages that are used take memory."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["map_large_blocks"]

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 256 << 10


def map_large_blocks(libc: Any = None) -> bool:  # noqa: ANN401 - ctypes has no type for the functions of a library
    """Have the C library map each block of 256 KiB or more alone; return False if it cannot.

    uvloop reserves a block of that size for each TLS connection, and uses a small part of it. By default, glibc maps
    such blocks alone only until the first one is freed. From then on it takes them from the heap, out of memory that
    was used before and so takes up pages. Thousands of watches over TLS would hold a third more.

    Args:
        libc: C library; None for the one of this process.
    """
    try:
        libc = ctypes.CDLL(None) if libc is None else libc
        return bool(libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES) == 1)
    except (AttributeError, OSError, TypeError):  # another C library
        return False

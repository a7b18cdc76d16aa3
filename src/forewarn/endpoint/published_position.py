"""Position up to which updates are published, in memory that all metadata processes read.

The service numbers its updates. A process shows VMs exactly the updates up to the published position: none beyond it,
and none fewer. So a VM never sees an older document from one process than it has seen from another.
"""

from __future__ import annotations

import fcntl
import mmap
import os

__all__ = ["PublishedPosition", "map_published_position"]

_BYTES = 8
_SEAL_FUTURE_WRITE = 0x10
"""Only the mapping that exists may change the memory. From Linux' `fcntl.h`; Python has no name for it."""


class PublishedPosition:
    """Position as the service sets it.

    Attributes:
        descriptor: File descriptor of the memory, which a metadata process inherits and can only read.
    """

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("forewarn-position", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, _BYTES)
        self._memory = memoryview(mmap.mmap(self.descriptor, _BYTES)).cast("Q")
        # A process that was taken over must not be able to stop the others.
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)

    def set(self, position: int) -> None:
        """Set the position; every process sees it from its next look on."""
        self._memory[0] = position

    def close(self) -> None:
        """Close the descriptor; processes that have inherited it keep theirs."""
        os.close(self.descriptor)


def map_published_position(descriptor: int) -> memoryview:
    """Return the memory of a `PublishedPosition` as a view whose item 0 is the current position."""
    with os.fdopen(descriptor, "rb", buffering=0):
        return memoryview(mmap.mmap(descriptor, _BYTES, access=mmap.ACCESS_READ)).cast("Q")

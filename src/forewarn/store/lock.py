"""One process for one SQLite file.

Two servers on the same file would both carry out every maintenance. SQLite's own locks last only as long as a
transaction, so a file beside the database is locked for as long as the store is open. The kernel lets go of it when
the process dies, however.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from forewarn.errors import StoreUnavailable

__all__ = ["FileLock"]


class FileLock:
    """An exclusive lock on a file.

    Args:
        path: The lock file; made when it is not there, and left in place.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or fail at once.

        Raises:
            StoreUnavailable: Another process has it, or the folder cannot be written.
        """
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            msg = f"cannot write {self.path}: {error.strerror}; choose another folder with --database-url"
            raise StoreUnavailable(msg) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            name = str(self.path).removesuffix(".lock")
            msg = f"database {name} is in use by another forewarn: stop it, or choose another --database-url"
            raise StoreUnavailable(msg) from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Let go; doing it twice is fine."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

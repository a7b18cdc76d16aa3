"""One process per SQLite file.

Two servers on the same file would both carry out every maintenance. SQLite's own locks last only as long as a
transaction, so the database file is locked with flock(2) for as long as the store is open. That lock belongs to the
inode: a hard link or another name of the file leads to the same one. On local file systems it does not affect SQLite's
own locks, which are those of fcntl(2). A file beside the database is locked as well: it keeps a second process from the
path while the first one still uses a file that was removed or replaced. The kernel releases both when the process dies,
however that happens.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from forewarn.errors import StoreUnavailable
from forewarn.util.secrets import open_private, restrict_to_owner

__all__ = ["FileLock"]

_BESIDE = ("-wal", "-shm", "-journal")
"""Suffixes of the files that SQLite creates with the mode of the database; an existing file may have another mode."""


class FileLock:
    """An exclusive lock on a SQLite database.

    Taking it closes the files to all but their owner.

    Args:
        path: Path of the database, without symbolic links; an empty file is made if there is none.

    Attributes:
        path: Path of the database.
        has_made_file: True if there was no database before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.has_made_file = False
        self._descriptors: list[int] = []

    def acquire(self) -> None:
        """Take the lock, or fail at once.

        Raises:
            StoreUnavailable: Another process has it, or a file cannot be written.
        """
        try:
            # First: while this file is locked, no other Forewarn can create the database between the next two lines.
            self._lock_file(Path(f"{self.path}.lock"))
            self.has_made_file = not self.path.exists()  # before `_lock_file` creates it
            self._lock_file(self.path)
            # Only under the lock: these files belong to the process that has the database open.
            for ending in _BESIDE:
                restrict_to_owner(Path(f"{self.path}{ending}"))
        except BlockingIOError as error:
            self.release()
            msg = f"database {self.path} is in use by another forewarn: stop it, or choose another --database-url"
            raise StoreUnavailable(msg) from error
        except OSError as error:
            self.release()
            path = error.filename or self.path
            msg = f"cannot write {path}: {error.strerror}; choose another folder with --database-url"
            raise StoreUnavailable(msg) from error

    def _lock_file(self, path: Path) -> None:
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        # Before the attempt, so that `release` closes the file even if another process has the lock.
        self._descriptors.append(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(self) -> None:
        """Release the lock; repeating this is harmless.

        Call it only after SQLite has closed the database: closing a descriptor of a file drops its locks of fcntl(2).
        """
        while self._descriptors:
            os.close(self._descriptors.pop())

"""Reading files up to a limit, and replacing them atomically and durably."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path
from typing import BinaryIO

__all__ = ["read_limited", "replace_file", "sync_folder"]

_PRIVATE = 0o600


def read_limited(file: BinaryIO, size_bytes_max: int) -> bytes:
    """Return the rest of an open file.

    At most one byte more than the limit is read, because a device or a pipe may have no end.

    Args:
        file: File opened for reading bytes.
        size_bytes_max: Maximum size of the result, 0 or more.

    Raises:
        OSError: It cannot be read, or is too large; `strerror` says so.
    """
    content = file.read(size_bytes_max + 1)
    if len(content) > size_bytes_max:
        raise OSError(errno.EFBIG, f"larger than {size_bytes_max} bytes")
    return content


def replace_file(path: Path, content: bytes, *, mode: int = _PRIVATE, owner: tuple[int, int] | None = None) -> None:
    """Replace a file, or create it, atomically and durably, even if the machine crashes.

    Only one process at a time may call this for a file. A symbolic link is replaced, not followed.

    Args:
        path: Path of the file.
        content: New content.
        mode: Mode of the new file, whatever the umask; by default, only the owner can read it.
        owner: User and group of the new file; None for those of this process.

    Raises:
        OSError: It cannot be written.
    """
    # Programs that read all files of a folder, such as nginx by an include pattern, ignore names with a leading dot.
    new = path.with_name(f".{path.name}.forewarn")
    # A crash during an earlier replacement may have left it.
    new.unlink(missing_ok=True)
    try:
        # Private at first: until it has its owner and mode, no one else may open it.
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), "wb") as file:
            if sys.platform != "win32":
                made = os.fstat(file.fileno())
                # Only root may change the owner, and often need not.
                if owner is not None and owner != (made.st_uid, made.st_gid):
                    os.fchown(file.fileno(), *owner)
                os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            # Before the rename, which could reach the disk first and leave an empty file after a power cut.
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, also those of new files and folders; Windows does so automatically.

    Raises:
        OSError: The disk failed.
    """
    if sys.platform == "win32":
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        # Some network file systems cannot do it, and not everyone who may write to a folder may read it.
        if error.errno not in {errno.EACCES, errno.EBADF, errno.EINVAL, errno.ENOTSUP}:
            raise

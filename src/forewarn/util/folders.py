"""Durability of changes in folders."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["sync_folder"]


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable; Windows does so automatically.

    Raises:
        OSError: The folder cannot be opened, or the disk reports an error.
    """
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

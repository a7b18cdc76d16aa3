"""Handler that creates or removes a file, for health checks that test if it exists."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forewarn.agent.handlers.contract import BuiltInHandler, HandlerContext
from forewarn.errors import HookFailed
from forewarn.util.files import read_limited

__all__ = ["FileHandler"]


class FileHandler(BuiltInHandler, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="file"):
    """Creates or removes a file, for health checks that test whether the file exists.

    Attributes:
        touch: Path of a file that the handler creates. After the event, the handler removes the file, unless the file
            existed before.
        remove: Path of a file that the handler removes. If the file existed, the handler restores its content and mode
            after the event.
    """

    touch: str = ""
    remove: str = ""

    def __post_init__(self) -> None:
        """Refuse, by a ValueError, no file or two."""
        if bool(self.touch) == bool(self.remove):
            raise ValueError("the handler file needs exactly one of touch and remove")

    async def prepare(self, context: HandlerContext) -> None:
        # Read only once: on a repeated run, the file is in the state that `prepare` gave it.
        if "existed" not in context.memory:
            held = await asyncio.to_thread(_read_for_restore, self._path)
            await context.remember(existed=held is not None, **(held or {}))
        await asyncio.to_thread(_write_file if self.touch else _remove_file, self._path)

    async def undo(self, context: HandlerContext) -> None:
        existed = context.memory.get("existed")
        if self.touch and existed is False:
            await asyncio.to_thread(_remove_file, self._path)
        elif self.remove and existed:
            memory = context.memory
            await asyncio.to_thread(_write_file, self._path, memory.get("content", ""), memory.get("mode"))

    def describe_actions(self) -> Sequence[str]:
        return [f"create the file {self.touch}" if self.touch else f"remove the file {self.remove}"]

    @property
    def _path(self) -> Path:
        return Path(self.touch or self.remove)


# The content is kept in the state file, which every change of any event rewrites.
_SIZE_BYTES_MAX = 64 << 10


def _read_for_restore(path: Path) -> dict[str, Any] | None:
    """Return the content and mode needed to restore the file; None if it does not exist."""
    try:
        with path.open("rb") as file:
            content = read_limited(file, _SIZE_BYTES_MAX)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HookFailed(f"cannot read {path}, to restore it later: {error.strerror}") from error
    # Latin-1 maps each byte to one character, so any content can be stored as JSON.
    return {"content": content.decode("latin-1"), "mode": mode}


def _write_file(path: Path, content: str | None = None, mode: int | None = None) -> None:
    try:
        # The folder may be gone: a reboot empties /run.
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.touch()
        else:
            path.write_bytes(content.encode("latin-1"))
            if mode is not None:
                path.chmod(mode)
    except OSError as error:
        raise HookFailed(f"cannot write {path}: {error.strerror}") from error


def _remove_file(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise HookFailed(f"cannot remove {path}: {error.strerror}") from error

"""Handler that creates or removes a file, for health checks that test if it exists."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from forewarn.agent.handlers.contract import Handler, Occasion
from forewarn.errors import HookFailed

__all__ = ["File"]


class File(Handler, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="file"):
    """A file that exists while the VM should get no work, or one that exists while it should.

    Attributes:
        touch: Path of a file that `prepare` creates and `undo` removes, unless it existed before.
        remove: Path of a file that `prepare` removes; `undo` restores its content and mode if it existed.
    """

    touch: str = ""
    remove: str = ""

    def __post_init__(self) -> None:
        """Check what types cannot express.

        Raises:
            ValueError: No file is named, or two are.
        """
        if bool(self.touch) == bool(self.remove):
            msg = "the handler file has exactly one of touch and remove"
            raise ValueError(msg)

    async def prepare(self, occasion: Occasion) -> None:
        if "existed" not in occasion.memory:
            held = await asyncio.to_thread(_held, self._path)
            await occasion.remember(existed=held is not None, **(held or {}))
        await asyncio.to_thread(_write if self.touch else _remove, self._path)

    async def undo(self, occasion: Occasion) -> None:
        existed = occasion.memory.get("existed")
        if self.touch and existed is False:
            await asyncio.to_thread(_remove, self._path)
        elif self.remove and existed:
            memory = occasion.memory
            await asyncio.to_thread(_write, self._path, memory.get("content", ""), memory.get("mode"))

    def explain(self) -> Sequence[str]:
        return [f"make the file {self.touch}" if self.touch else f"remove the file {self.remove}"]

    @property
    def _path(self) -> Path:
        return Path(self.touch or self.remove)


_SIZE_BYTES_MAX = 64 << 10


def _held(path: Path) -> dict[str, Any] | None:
    """Return the content and mode needed to restore the file; None if it does not exist."""
    try:
        with path.open("rb") as file:
            content = file.read(_SIZE_BYTES_MAX + 1)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except FileNotFoundError:
        return None
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise HookFailed(msg) from error
    if len(content) > _SIZE_BYTES_MAX:
        msg = f"{path} is larger than the {_SIZE_BYTES_MAX} bytes that could be put back"
        raise HookFailed(msg)
    return {"content": content.decode("latin-1"), "mode": mode}


def _write(path: Path, content: str | None = None, mode: int | None = None) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            path.touch()
        else:
            path.write_bytes(content.encode("latin-1"))
            if mode is not None:
                path.chmod(mode)
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}"
        raise HookFailed(msg) from error


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        msg = f"cannot remove {path}: {error.strerror}"
        raise HookFailed(msg) from error

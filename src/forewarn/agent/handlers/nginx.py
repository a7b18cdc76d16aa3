"""Mark a server as down in an include file of nginx, and reload.

nginx without subscription cannot be told at run time who gets no work: it reads its configuration anew, its old
processes finish what they have begun, and new ones take over.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from forewarn.agent.codec import Span
from forewarn.agent.handlers.contract import Handler, Occasion
from forewarn.errors import HookFailed

__all__ = ["Nginx"]

_ADDRESS = re.compile(r"[!-~]+")
_SPECIAL = frozenset(";{}#\"'")

# Comments and quoted texts are matched only to be passed over.
_DIRECTIVE = re.compile(
    r"""\#[^\n]* | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' |
        (?<![^\s;{}]) server \s+ (?P<address>[^\s;{}\#"']+) (?P<parameters>[^;{}\#]*) ;""",
    re.VERBOSE | re.DOTALL,
)
_DOWN = re.compile(r"\s+down(?=[\s;])")

_SIZE_BYTES_MAX = 1 << 20

_Line: TypeAlias = Sequence[str]
"""A ``server`` directive before and after; the same text twice when it was down already."""


class Nginx(Handler, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="nginx"):
    """A server of an upstream that gets no new requests.

    Attributes:
        file: Holds the ``server`` lines of the upstream; nginx includes it, or it is the configuration itself.
        server: Address of the line to mark, as it is written there.
        test: Finds out whether nginx could load the configuration.
        reload: Makes nginx load it.
        settle: How long to wait after that for its old processes to finish.
    """

    file: str
    server: str
    test: tuple[str, ...] = ("nginx", "-t")
    reload: tuple[str, ...] = ("nginx", "-s", "reload")
    settle: Span = Span(seconds=10)

    def __post_init__(self) -> None:
        """Check what types cannot say.

        Raises:
            ValueError: Something is missing, cannot be an address, or the time is too short.
        """
        if not self.file:
            msg = "the handler nginx has a file"
            raise ValueError(msg)
        if not _ADDRESS.fullmatch(self.server) or _SPECIAL & set(self.server):
            msg = f"{self.server!r} is not the address of a server: expected for example 10.0.0.5:8080"
            raise ValueError(msg)
        for command in (self.test, self.reload):
            if not command or not command[0]:
                msg = "test and reload of the handler nginx begin with the name of a program"
                raise ValueError(msg)
        if self.settle >= self.timeout:
            msg = "timeout of the handler nginx is for everything: expected more than settle"
            raise ValueError(msg)

    async def prepare(self, occasion: Occasion) -> None:
        content = await asyncio.to_thread(_read, self._path)
        # Done once more, it sees its own mark: what counts is how the file read without it.
        original = self._unmarked(content, occasion.memory.get("lines", []))
        marked, lines = self._marked(original)
        if not lines:
            msg = f"{self.file} has no line for the server {self.server}"
            raise HookFailed(msg)
        is_ours = content == marked and occasion.memory.get("is_loaded", False)
        await occasion.remember(lines=lines, is_loaded=is_ours)
        if not _is_changed(lines):
            return
        if content != marked:
            await asyncio.to_thread(_replace, self._path, marked)
        try:
            await _run(occasion, self.test)
        except HookFailed:
            if not is_ours:
                await asyncio.to_thread(_replace, self._path, original)
                await occasion.remember(lines=[])
            raise
        await _run(occasion, self.reload)
        await occasion.remember(is_loaded=True)
        await occasion.pause(self.settle.total_seconds())

    async def undo(self, occasion: Occasion) -> None:
        lines = occasion.memory.get("lines", [])
        if not _is_changed(lines):
            return
        content = await asyncio.to_thread(_read, self._path)
        original = self._unmarked(content, lines)
        if content != original:
            await asyncio.to_thread(_replace, self._path, original)
        # The file stays restored when somebody else's mistake fails the test: whoever mends that loads this with it.
        await _run(occasion, self.test)
        await _run(occasion, self.reload)

    def explain(self) -> Sequence[str]:
        return [
            f"mark {self.server} as down in {self.file}",
            f"test with {' '.join(self.test)!r}, load with {' '.join(self.reload)!r}",
            f"wait {self.settle.total_seconds():g} s for requests to finish",
        ]

    @property
    def _path(self) -> Path:
        return Path(self.file)

    def _marked(self, content: str) -> tuple[str, list[_Line]]:
        """The content with our server down, and what was done to each of its lines."""
        lines: list[_Line] = []

        def mark(before: str) -> str:
            after = before if _DOWN.search(before) else f"{before[:-1]} down;"
            lines.append((before, after))
            return after

        return self._changed(content, mark), lines

    def _unmarked(self, content: str, lines: Sequence[_Line]) -> str:
        """The content as it was before those lines were marked, whatever else has happened to it since."""
        found: list[str] = []
        self._changed(content, lambda text: found.append(text) or text)
        # As many as there were: they are the same ones. Otherwise somebody has been here, and the text has to tell.
        is_same = len(found) == len(lines)
        rest = list(lines)

        def unmark(text: str) -> str:
            line = rest[0] if is_same else next((line for line in rest if text in line), None)
            if line is not None:
                rest.remove(line)
                if text in line:
                    return line[0]
            return _DOWN.sub("", text, count=1) if _is_changed(lines) else text

        return self._changed(content, unmark)

    def _changed(self, content: str, change: Callable[[str], str]) -> str:
        """The content with each directive of our server passed through `change`."""

        def passed(match: re.Match[str]) -> str:
            return change(match[0]) if match["address"] == self.server else match[0]

        return _DIRECTIVE.sub(passed, content)


def _is_changed(lines: Sequence[_Line]) -> bool:
    return any(before != after for before, after in lines)


async def _run(occasion: Occasion, command: Sequence[str]) -> None:
    """Run a command, and say all that it said when it fails: nginx tells the reason first, and last that it failed."""
    ran = await occasion.run(*command, is_checked=False)
    if ran.status:
        said = "; ".join(line.strip() for line in (ran.errors.strip() or ran.output.strip()).splitlines())
        msg = f"{' '.join(command)} ended with status {ran.status}{': ' if said else ''}{said[:1000]}"
        raise HookFailed(msg)


def _read(path: Path) -> str:
    """What the file holds, one character to a byte."""
    try:
        with path.open("rb") as file:
            content = file.read(_SIZE_BYTES_MAX + 1)
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise HookFailed(msg) from error
    if len(content) > _SIZE_BYTES_MAX:
        msg = f"{path} is larger than {_SIZE_BYTES_MAX} bytes"
        raise HookFailed(msg)
    return content.decode("latin-1")


def _replace(path: Path, content: str) -> None:
    """Put a file in the place of that one: the old or the new is there at every moment. A link stays a link."""
    try:
        target = Path(os.path.realpath(path))
        # nginx includes by pattern, and no pattern of it matches a dot in front.
        scratch = target.with_name(f".{target.name}.forewarn")
        scratch.unlink(missing_ok=True)
        try:
            _write(scratch, content.encode("latin-1"), target.stat())
            scratch.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                scratch.unlink()
            raise
        _sync_folder(target.parent)
    except OSError as error:
        msg = f"cannot write {path}: {error.strerror}"
        raise HookFailed(msg) from error


def _write(path: Path, content: bytes, like: os.stat_result) -> None:
    """A new file with the owner and mode of another, flushed to disk."""
    with path.open("xb") as file:
        if sys.platform != "win32":
            made = os.fstat(file.fileno())
            if (made.st_uid, made.st_gid) != (like.st_uid, like.st_gid):
                os.fchown(file.fileno(), like.st_uid, like.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(like.st_mode))
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """Make a rename last; Windows does so by itself."""
    if sys.platform != "win32":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

"""Mark a server as down in an include file of nginx, and reload.

nginx without a subscription cannot take a server out of service at run time: it reloads its configuration, its old
worker processes finish their requests, and new ones take over.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from forewarn.agent.codec import Duration
from forewarn.agent.handlers.contract import BuiltInHandler, HandlerContext
from forewarn.errors import HookFailed
from forewarn.util.files import read_limited, replace_file

__all__ = ["NginxHandler"]

_ADDRESS = re.compile(r"[!-~]+")
_SPECIAL = frozenset(";{}#\"'")

# Comments and quoted texts are matched only to be skipped.
_DIRECTIVE = re.compile(
    r"""\#[^\n]* | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' |
        (?<![^\s;{}]) server \s+ (?P<address>[^\s;{}\#"']+) (?P<parameters>[^;{}\#]*) ;""",
    re.VERBOSE | re.DOTALL,
)
_DOWN = re.compile(r"\s+down(?=[\s;])")

_SIZE_BYTES_MAX = 1 << 20

_Line: TypeAlias = Sequence[str]
"""A ``server`` directive before and after the change; the same text twice if it was down already."""


class NginxHandler(BuiltInHandler, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="nginx"):
    """Marks a server of an upstream as down, so that it gets no new requests.

    Attributes:
        file: File with the ``server`` lines of the upstream: a file that nginx includes, or nginx's main
            configuration file.
        server: Address in the line to mark, exactly as the file has it.
        vm: The VM behind this server. The handler acts only on events with this VM in `Resources`; if not set, on all
            events of the rule.
        test: Command that tests the configuration.
        reload: Command that makes nginx load the configuration.
        settle: Time to wait after the reload, so that nginx's old worker processes can finish their requests.
    """

    file: str
    server: str
    vm: str = ""
    test: tuple[str, ...] = ("nginx", "-t")
    reload: tuple[str, ...] = ("nginx", "-s", "reload")
    settle: Duration = Duration(seconds=10)

    def __post_init__(self) -> None:
        """Refuse, by a ValueError, missing settings, an invalid address, and a time that is too short."""
        if not self.file:
            raise ValueError("the handler nginx needs a file")
        if not _ADDRESS.fullmatch(self.server) or _SPECIAL & set(self.server):
            raise ValueError(f"{self.server!r} is not a valid server address: expected for example 10.0.0.5:8080")
        for command in (self.test, self.reload):
            if not command or not command[0]:
                raise ValueError("test and reload of the handler nginx must begin with the name of a program")
        if self.settle >= self.timeout:
            raise ValueError("timeout of the handler nginx must be longer than settle, which it includes")

    async def prepare(self, context: HandlerContext) -> None:
        if self.vm and not context.event.affects(self.vm):
            return
        while True:
            content = await asyncio.to_thread(_read_file, self._path)
            # On a repeated run the file holds our own mark, so the content without it is what counts.
            original = self._remove_marks(content, context.memory.get("lines", []))
            marked, lines = self._mark_down(original)
            if not lines:
                raise HookFailed(f"{self.file} has no line for the server {self.server}")
            # A run that was interrupted while it waited for `settle` repeats the wait, but not the reload.
            is_loaded = content == marked and context.memory.get("is_loaded", False)
            # Remember before the change, so that a crash in between can still be undone.
            await context.remember(lines=lines, is_loaded=is_loaded)
            if not _has_changes(lines):
                return
            # If another event has changed the file meanwhile, start again from its new content.
            if await asyncio.to_thread(_replace_if_unchanged, self._path, content, marked):
                break
        if not is_loaded:
            await self._test_configuration(context)
            await _run_command(context, self.reload)
            await context.remember(is_loaded=True)
        await context.pause(self.settle.total_seconds())

    async def undo(self, context: HandlerContext) -> None:
        lines = context.memory.get("lines", [])
        if not _has_changes(lines):
            return
        await self._restore_lines(lines)
        # Keep the file restored even if an unrelated mistake fails the test: the next good reload then loads both.
        await _run_command(context, self.test)
        await _run_command(context, self.reload)

    def describe_actions(self) -> Sequence[str]:
        when = f", only for events that name {self.vm}" if self.vm else ""
        return [f"mark {self.server} as down in {self.file} and reload with {' '.join(self.reload)!r}{when}"]

    async def _test_configuration(self, context: HandlerContext) -> None:
        """Test the changed file; if the test fails, restore the previous content."""
        try:
            await _run_command(context, self.test)
        except HookFailed:
            await self._restore_lines(context.memory["lines"])
            # Otherwise `undo` would reload nginx for a change that never took effect.
            await context.remember(lines=[])
            raise

    async def _restore_lines(self, lines: Sequence[_Line]) -> None:
        while True:
            content = await asyncio.to_thread(_read_file, self._path)
            if await asyncio.to_thread(_replace_if_unchanged, self._path, content, self._remove_marks(content, lines)):
                return

    @property
    def _path(self) -> Path:
        return Path(self.file)

    def _mark_down(self, content: str) -> tuple[str, list[_Line]]:
        """Return the content with our server down, and each of its lines before and after."""
        lines: list[_Line] = []

        def mark(before: str) -> str:
            after = before if _DOWN.search(before) else f"{before[:-1]} down;"
            lines.append((before, after))
            return after

        return self._rewrite_directives(content, mark), lines

    def _remove_marks(self, content: str, lines: Sequence[_Line]) -> str:
        """Return the content with the marks on those lines undone, keeping all other changes made since."""
        found = [match[0] for match in _DIRECTIVE.finditer(content) if match["address"] == self.server]
        restored = iter(_restore_directives(found, lines))
        return self._rewrite_directives(content, lambda _: next(restored))

    def _rewrite_directives(self, content: str, change: Callable[[str], str]) -> str:
        """Return the content with each directive of our server passed through `change`."""

        def passed(match: re.Match[str]) -> str:
            return change(match[0]) if match["address"] == self.server else match[0]

        return _DIRECTIVE.sub(passed, content)


def _has_changes(lines: Sequence[_Line]) -> bool:
    return any(before != after for before, after in lines)


def _restore_directives(found: Sequence[str], lines: Sequence[_Line]) -> list[str]:
    """Return the directives with those lines restored.

    If their number is unchanged, they are matched by position. Otherwise the file was edited: they are matched by text.
    """
    partners: list[_Line | None] = list(lines)
    if len(found) != len(lines):
        rest = list(lines)
        partners = []
        for text in found:
            partner = next((line for line in rest if text in line), None)
            partners.append(partner)
            if partner is not None:
                rest.remove(partner)
        edited = iter([line for line in rest if line[0] != line[1]])
        partners = [next(edited, None) if partner is None else partner for partner in partners]
    return [_restore_directive(text, line) for text, line in zip(found, partners, strict=True)]


def _restore_directive(text: str, line: _Line | None) -> str:
    if line is None or line[0] == line[1]:
        return text
    return line[0] if text in line else _DOWN.sub("", text, count=1)


async def _run_command(context: HandlerContext, command: Sequence[str]) -> None:
    """Run a command; a failure reports all of its output, because nginx prints the reason first."""
    ran = await context.run(*command, is_checked=False)
    if ran.status:
        said = "; ".join(line.strip() for line in (ran.errors.strip() or ran.output.strip()).splitlines())
        raise HookFailed(f"{' '.join(command)} ended with status {ran.status}{': ' if said else ''}{said[:1000]}")


def _read_file(path: Path) -> str:
    """Return the content of the file, one character for each byte."""
    try:
        with path.open("rb") as file:
            content = read_limited(file, _SIZE_BYTES_MAX)
    except OSError as error:
        raise HookFailed(f"cannot read {path}: {error.strerror}") from error
    return content.decode("latin-1")


# Not an asyncio lock, because files are read and written in threads.
_SWAPPING = threading.Lock()


def _replace_if_unchanged(path: Path, expected: str, content: str) -> bool:
    """Replace the content if it is still the expected one; return False if it has changed.

    Two events may change two lines of one file at the same time, and neither change may be lost.
    """
    with _SWAPPING:
        if _read_file(path) != expected:
            return False
        if content != expected:
            _replace_file(path, content)
        return True


def _replace_file(path: Path, content: str) -> None:
    """Replace a file, keeping its owner and mode; a link stays a link."""
    try:
        target = Path(os.path.realpath(path))
        found = target.stat()
        owner = found.st_uid, found.st_gid
        replace_file(target, content.encode("latin-1"), mode=stat.S_IMODE(found.st_mode), owner=owner)
    except OSError as error:
        raise HookFailed(f"cannot write {path}: {error.strerror}") from error

"""Check that this machine can run the commands of a configuration, before an event needs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forewarn.agent.configuration import Configuration
from forewarn.agent.rule import Hook, Step

__all__ = ["BrokenCommand", "broken_commands"]

_BEGINNING_BYTES = 256


@dataclass(frozen=True, slots=True)
class BrokenCommand:
    """A command that cannot be run.

    Attributes:
        keys: Path of the command in the configuration.
        message: Rule and step of the command, and the reason why it cannot be run.
    """

    keys: tuple[str | int, ...]
    message: str


def broken_commands(configuration: Configuration) -> tuple[BrokenCommand, ...]:
    """Return the hooks' commands whose program this process could not start, in the order of the rules.

    Lines for the shell are not checked: only the shell knows which programs they run.
    """
    return tuple(
        BrokenCommand(keys, f"{rule}, {keys[2]}: {why}")
        for rule, keys, command in _commands(configuration)
        if (why := _why_broken(command))
    )


def _commands(configuration: Configuration) -> Iterator[tuple[str, tuple[str | int, ...], str]]:
    """Yield the program of each hook that is a command, with its rule's name and its path."""
    for place, rule in enumerate(configuration.rules):
        for step in Step:
            key = step.name.lower()
            for number, given in enumerate(getattr(rule, key)):
                command = given.command if isinstance(given, Hook) else given
                if command:
                    yield rule.name, ("rule", place, key, number), command[0]


def _why_broken(program: str) -> str:
    """Return the reason why a program cannot be started; empty if none is known."""
    found = shutil.which(program)
    if found is not None:
        return "" if os.name == "nt" else _why_no_script(Path(found))
    if os.path.dirname(program):  # noqa: PTH120 - the test by which shutil.which skips PATH
        return _why_no_program(Path(program))
    there = shutil.which(program, os.F_OK)
    return f"{there} is not executable" if there else f"{program!r} is not on the PATH"


def _why_no_program(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder"
    return f"{path} is not executable" if path.exists() else f"{path} does not exist"


def _why_no_script(path: Path) -> str:
    """Return the reason why the kernel would not start an executable file; empty for programs and good scripts."""
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
    except OSError:
        return ""  # A file can be executable but not readable.
    if not beginning.startswith(b"#!"):
        is_text = b"\0" not in beginning and beginning.isascii()
        return f"{path} does not begin with #! and the program that is to run it" if is_text else ""
    words = beginning[2:].partition(b"\n")[0].split()
    interpreter = Path(os.fsdecode(words[0])) if words else None
    if interpreter is None or not interpreter.exists():
        return f"{path} is to be run by {interpreter or 'nothing'}, which does not exist"
    return ""

"""Check that this machine can run the commands of a configuration, before an event needs them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from forewarn.agent.configuration import Configuration
from forewarn.agent.rule import EventStep, Hook

__all__ = ["find_broken_commands"]

# As much as Linux reads to find the interpreter (BINPRM_BUF_SIZE).
_BEGINNING_BYTES = 256


def find_broken_commands(configuration: Configuration) -> list[str]:
    """Describe the hooks' commands whose program this process could not start, in the order of the rules.

    Lines for the shell are not checked: only the shell knows which programs they run.
    """
    return [
        f"{rule}, {step}: {why}"
        for rule, step, program in _iterate_programs(configuration)
        if (why := _diagnose_program(program))
    ]


def _iterate_programs(configuration: Configuration) -> Iterator[tuple[str, str, str]]:
    """Yield the rule, the step and the program of each hook that is a command."""
    for rule in configuration.rules:
        for step in EventStep:
            key = step.name.lower()
            for given in getattr(rule, key):
                command = given.command if isinstance(given, Hook) else given
                if command:
                    yield rule.name, key, command[0]


def _diagnose_program(program: str) -> str:
    """Return the reason why a program cannot be started; empty if none is known."""
    found = shutil.which(program)
    if found is not None:
        return "" if os.name == "nt" else _diagnose_script(Path(found))
    if os.path.dirname(program):  # noqa: PTH120 - the test by which shutil.which skips PATH
        path = Path(program)
        state = "is a folder" if path.is_dir() else "is not executable" if path.exists() else "does not exist"
        return f"{path} {state}"
    there = shutil.which(program, os.F_OK)
    return f"{there} is not executable" if there else f"{program!r} is not on the PATH"


def _diagnose_script(path: Path) -> str:
    """Return the reason why the kernel would not start an executable file; empty for programs and good scripts."""
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
    except OSError:
        return ""  # A file can be executable but not readable.
    if not beginning.startswith(b"#!"):
        # The kernel does not run a text without this line; only a shell would.
        is_text = b"\0" not in beginning and beginning.isascii()
        return f"{path} has no #! line that names its interpreter" if is_text else ""
    words = beginning[2:].partition(b"\n")[0].split()
    interpreter = Path(os.fsdecode(words[0])) if words else None
    if interpreter is None:
        return f"the #! line of {path} names no interpreter"
    return "" if interpreter.exists() else f"the interpreter of {path}, {interpreter}, does not exist"

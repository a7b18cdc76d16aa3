"""Walks the commands of `forewarn`, for the reference page and the manual pages."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import typer.main

from forewarn.cli.main import make_app

__all__ = ["leaves", "names_of", "nouns", "said_of", "words_of"]


@functools.cache
def nouns() -> tuple[tuple[str, Any], ...]:
    """Return the commands and groups directly below `forewarn`, in the order of its help."""
    root: Any = typer.main.get_command(make_app())
    context = root.context_class(root, info_name="forewarn")
    return tuple((n, root.commands[n]) for n in root.list_commands(context) if not root.commands[n].hidden)


def leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401 - Typer's
    """Yield a single command, or all commands of a group, each with the words that call it."""
    children = getattr(command, "commands", {})
    if not children or command.invoke_without_command:
        yield words, command
    for name, child in children.items():
        if not child.hidden:
            yield from leaves(child, (*words, name))


def words_of(command: Any) -> list[Any]:  # noqa: ANN401 - as above
    """Return the arguments and options of a command without `--help`, in the order of its help."""
    return [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]


def names_of(parameter: Any) -> tuple[list[str], str]:  # noqa: ANN401 - as above
    """Return all names of an option, and the placeholder of its value; an argument has no names."""
    metavar = (parameter.metavar or (parameter.name or "").upper()).strip("[]")
    if parameter.param_type_name == "argument":
        return [], metavar
    return [*parameter.opts, *parameter.secondary_opts], "" if parameter.is_flag else metavar


def said_of(parameter: Any) -> str:  # noqa: ANN401 - as above
    """Return the help of a parameter, plus its variable, and its default unless the help contains it."""
    said = (parameter.help or "").strip()
    default = parameter.default
    if "(default" not in said and isinstance(default, str | int | float) and not isinstance(default, bool) and default:
        said += f" (default: {default})"
    return said + (f" (variable: {parameter.envvar})" if parameter.envvar else "")

"""Completion of the last word of a command line.

The words are not parsed as a command would be: nothing is converted, checked or called except the completer of the last
word's parameter. That takes half of Typer's time, and a key press should have no noticeable delay.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import typer

__all__ = ["CompletionCandidates", "find_candidates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionCandidates:
    """Candidates for the last word.

    Attributes:
        kind: ``words``; or ``files`` or ``folders``, which the shell completes itself.
        words: Words, each with a description, which may be empty.
    """

    kind: str = "words"
    words: tuple[tuple[str, str], ...] = ()

    def encode(self) -> str:
        """Return the text for the shells' scripts: the kind, then a line per word, a tab before its description."""
        rows = [f"{value}\t{' '.join(about.split())}" if about else value for value, about in self.words]
        return "\n".join([self.kind, *rows]) + "\n"


@dataclass(slots=True)
class _ParsedLine:
    """A command line as far as it has been read."""

    context: Any
    options: dict[str, Any]
    given: set[str] = field(default_factory=set)
    arguments: list[str] = field(default_factory=list)
    pending_option: Any = None
    """Option whose value comes next."""
    is_literal: bool = False
    """True after ``--``, where no word is an option."""


def find_candidates(root: Any, words: Sequence[str]) -> CompletionCandidates:  # noqa: ANN401 - Typer's command
    """Return the candidates for the last word.

    Args:
        root: The command `forewarn`.
        words: Words after it, up to the cursor; the last is being typed and may be empty.
    """
    *before, incomplete = _drop_equals_signs(words) or [""]
    context = root.context_class(root, info_name="forewarn")
    while before and hasattr(context.command, "commands"):
        name = before.pop(0)
        # `audit-log` is a command and also the first word of `audit-log verify`, so both readings are tried.
        verbs = _find_second_words(context, name)
        if before and before[0] in verbs:
            name = f"{name} {before.pop(0)}"
        elif verbs and not before and not incomplete.startswith("-"):
            return CompletionCandidates(words=tuple(item for item in verbs.items() if item[0].startswith(incomplete)))
        command = context.command.get_command(context, name)
        if command is not None:
            context = command.context_class(command, info_name=name, parent=context)
        elif not name.startswith("-"):
            return CompletionCandidates()
    if hasattr(context.command, "commands"):
        return _complete_group(context, incomplete)
    return _complete_command(_parse_words(context, before), incomplete)


def _find_second_words(context: Any, name: str) -> dict[str, str]:  # noqa: ANN401 - Typer's own
    """Return second words of two-word commands whose first word is a command too, each with its summary."""
    children = context.command.commands
    found = {each.partition(" ")[2]: child for each, child in children.items() if each.startswith(f"{name} ")}
    return {verb: child.get_short_help_str(80) for verb, child in found.items()}


def _drop_equals_signs(words: Sequence[str]) -> list[str]:
    """Return the words without the equals signs at which bash splits them: ``--vm = db`` is ``--vm db``."""
    kept = [word for word in words[:-1] if word != "="]
    return [*kept, "" if words[-1] == "=" else words[-1]] if words else []


def _complete_group(context: Any, incomplete: str) -> CompletionCandidates:  # noqa: ANN401 - Typer's own
    if incomplete.startswith("-"):
        return _list_option_names(context.command.get_params(context), set(), incomplete)
    children = [(name, context.command.get_command(context, name)) for name in context.command.list_commands(context)]
    return CompletionCandidates(
        words=tuple(
            (name, child.get_short_help_str(80))
            for name, child in children
            if name.startswith(incomplete) and " " not in name and not child.hidden
        )
    )


def _parse_words(context: Any, words: Sequence[str]) -> _ParsedLine:  # noqa: ANN401 - as above
    """Read the words before the last one; values are stored in ``context.params`` as typed."""
    parameters = context.command.get_params(context)
    options = {name: p for p in parameters if p.param_type_name == "option" for name in (*p.opts, *p.secondary_opts)}
    line = _ParsedLine(context, options)
    # Names must come from the service that the finished command will use, which a variable may select.
    context.params |= {p.name: os.environ[p.envvar] for p in options.values() if str(p.envvar) in os.environ}
    for word in words:
        if line.pending_option is not None:
            context.params[line.pending_option.name] = word
            line.pending_option = None
        elif word == "--" and not line.is_literal:
            line.is_literal = True
        elif word.startswith("-") and len(word) > 1 and not line.is_literal:
            name, equals, value = word.partition("=")
            option = options.get(name)
            if option is None:
                continue
            line.given.add(option.name)
            if equals:
                context.params[option.name] = value
            elif not option.is_flag:
                line.pending_option = option
        else:
            line.arguments.append(word)
    return line


def _complete_command(line: _ParsedLine, incomplete: str) -> CompletionCandidates:
    if line.pending_option is not None:
        return _list_values(line.context, line.pending_option, incomplete)
    if incomplete.startswith("-") and not line.is_literal:
        name, equals, value = incomplete.partition("=")
        if not equals:
            return _list_option_names(line.context.command.get_params(line.context), line.given, incomplete)
        option = line.options.get(name)
        found = CompletionCandidates() if option is None else _list_values(line.context, option, value)
        return CompletionCandidates(words=tuple((f"{name}={word}", about) for word, about in found.words))
    arguments = [p for p in line.context.command.get_params(line.context) if p.param_type_name == "argument"]
    place = len(line.arguments)
    if place < len(arguments):
        return _list_values(line.context, arguments[place], incomplete)
    if arguments and arguments[-1].nargs == -1:
        return _list_values(line.context, arguments[-1], incomplete)
    return CompletionCandidates()


def _list_option_names(parameters: Sequence[Any], given: set[str], incomplete: str) -> CompletionCandidates:
    """Return the options that may still be given."""
    return CompletionCandidates(
        words=tuple(
            (name, (option.help or "").partition(". ")[0])
            for option in parameters
            if option.param_type_name == "option"
            and not option.hidden
            and (option.multiple or option.name not in given)
            for name in (*option.opts, *option.secondary_opts)
            if name.startswith(incomplete) and name.startswith("--")
        )
    )


def _list_values(context: typer.Context, parameter: Any, incomplete: str) -> CompletionCandidates:  # noqa: ANN401 - as above
    """Return candidates for a parameter, from its completer, its type, or its metavar."""
    metavar = (parameter.metavar or "").strip("[]").removesuffix("...")
    words = [(item.value, item.help or "") for item in parameter.shell_complete(context, incomplete)]
    if not words and "|" in metavar:
        words = [(word, "") for word in metavar.split("|")]
    words = [(value, about) for value, about in words if value.lower().startswith(incomplete.lower())]
    if not words and metavar == "FOLDER":
        return CompletionCandidates(kind="folders")
    if not words and metavar in {"FILE", "NAME_OR_FILE", "COMMAND"}:
        return CompletionCandidates(kind="files")
    return CompletionCandidates(words=tuple(words))

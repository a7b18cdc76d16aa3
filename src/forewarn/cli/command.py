"""Common parts of all commands: help with examples, the connection, `--json` and `--debug`.

A command is a function that requests a `ControlConnection`, an `Output` or an `OptionGroup` by annotating a parameter
with it. `command` replaces that parameter with the options from which the object is made, so that no command repeats
them.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from forewarn.cli.connection import DEFAULT_URL, ControlConnection
from forewarn.cli.output import Output
from forewarn.errors import ConfigError
from forewarn.util.garbage import pause_collections

__all__ = [
    "BROKEN_PIPE",
    "OptionGroup",
    "command",
    "default_command",
    "make_group",
    "require_extra",
]

BROKEN_PIPE = 141
"""Exit status if the reader of the output has gone, as if SIGPIPE had ended the process."""

_CONNECTION = "Connection"
_EXTRA_LIBRARIES = frozenset(
    {
        "alembic",
        "cloudevents",
        "fastapi",
        "httptools",
        "itsdangerous",
        "jinja2",
        "sqlalchemy",
        "standardwebhooks",
        "starlette",
        "structlog",
        "uvicorn",
        "uvloop",
    }
)

_ControlUrl = Annotated[
    str,
    typer.Option(
        "--control-url",
        metavar="URL",
        envvar="FOREWARN_CONTROL_URL",
        help="URL of the control API.",
        rich_help_panel=_CONNECTION,
    ),
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="FOREWARN_TOKEN_FILE",
        help="File with the access token. (default: operator.token in your state folder, unless the variable "
        "FOREWARN_TOKEN holds the token)",
        rich_help_panel=_CONNECTION,
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


class OptionGroup:
    """Base of a dataclass whose fields are options of a command, for options that are many or shared."""

    __slots__ = ()


def make_group(name: str, summary: str, panel: str) -> typer.Typer:
    """Return a new group of commands for a noun, listed under the heading `panel`."""
    return typer.Typer(name=name, help=summary, no_args_is_help=True, rich_help_panel=panel)


def command(
    app: typer.Typer, name: str, *examples: str, panel: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command.

    Args:
        app: Group that gets the command.
        name: Verb of the command.
        examples: Command lines to show in its help; at least one.
        panel: Heading for the command in the list of commands.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        epilog = _format_examples(examples)
        return app.command(name, epilog=epilog, rich_help_panel=panel)(_add_common_options(function))

    return register


def default_command(noun: typer.Typer, *examples: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as the command of a group's name alone; it must return if `ctx.invoked_subcommand` is set.

    Args:
        noun: Group of commands.
        examples: Command lines to show in its help; at least one.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        callback = noun.callback(invoke_without_command=True, no_args_is_help=False, epilog=_format_examples(examples))
        return callback(_add_common_options(function))

    return register


def _format_examples(examples: tuple[str, ...]) -> str:
    lines = "\n".join(f"    $ {line}" for line in examples)
    return f"Example{'' if len(examples) == 1 else 's'}:\n\n{lines}"


def _add_common_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with options in place of the requested objects."""
    signature = inspect.signature(function, eval_str=True)
    wants_connection = _find_parameter(signature, ControlConnection)
    wants_output = _find_parameter(signature, Output)
    groups = [p for p in signature.parameters.values() if _is_option_group(p.annotation)]
    grouped = {group.name: inspect.signature(group.annotation, eval_str=True).parameters for group in groups}

    @functools.wraps(function)
    def run(**given: Any) -> None:  # noqa: ANN401 - whatever Typer parsed
        given.pop("debug")
        if wants_output is not None:
            given[wants_output] = Output(is_json=given.pop("as_json"))
        for group in groups:
            given[group.name] = group.annotation(**{name: given.pop(name) for name in grouped[group.name]})
        try:
            if wants_connection is None:
                function(**given)
                return
            with ControlConnection(given.pop("control_url"), given.pop("token_file")) as connection:
                function(**given, **{wants_connection: connection})
        except BrokenPipeError:
            # The reader of the output has closed the pipe. Typer would exit with status 1.
            raise typer.Exit(BROKEN_PIPE) from None

    # Help lists options in this order: the command's own first, those that every command has last.
    kept = [
        p for p in signature.parameters.values() if p.annotation not in {ControlConnection, Output} and p not in groups
    ]
    kept += [p for parameters in grouped.values() for p in parameters.values()]
    if wants_output is not None:
        kept.append(_make_option_parameter("as_json", _Json, default=False))
    kept.append(_make_option_parameter("debug", _Debug, default=False))
    if wants_connection is not None:
        kept.append(_make_option_parameter("control_url", _ControlUrl, default=DEFAULT_URL))
        kept.append(_make_option_parameter("token_file", _TokenFile, default=None))
    run.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in kept])  # type: ignore[attr-defined] # Typer reads it
    run.__annotations__ = {p.name: p.annotation for p in kept}
    del run.__wrapped__  # its annotations are not those of `run`
    run.__doc__ = _join_lines(function.__doc__ or "")
    return run


def _join_lines(text: str) -> str:
    """Return a docstring with one line for each paragraph; lists and indented lines keep their line breaks.

    Typer wraps help to the width of the terminal, but keeps the line breaks of the source after the first paragraph.
    """
    return re.sub(r"(?<!\n)\n(?!\n| |- )", " ", inspect.cleandoc(text))


def _find_parameter(signature: inspect.Signature, kind: type) -> str | None:
    return next((p.name for p in signature.parameters.values() if p.annotation is kind), None)


def _is_option_group(annotation: Any) -> bool:  # noqa: ANN401 - any annotation
    return isinstance(annotation, type) and issubclass(annotation, OptionGroup)


def _make_option_parameter(name: str, annotation: Any, *, default: object) -> inspect.Parameter:  # noqa: ANN401 - any annotation
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@contextmanager
def require_extra(name: Literal["server", "testing"]) -> Iterator[None]:
    """Import modules of the service or of the testing kit inside this block.

    Raises:
        ConfigError: A library of this extra is not installed.
    """
    try:
        with pause_collections():
            yield
    except ModuleNotFoundError as error:
        # Any other missing module is a defect of this installation, which an extra would not cure.
        if (error.name or "").partition(".")[0] not in _EXTRA_LIBRARIES:
            raise
        raise ConfigError(f"missing library {error.name}: run pip install 'forewarn[{name}]'") from error

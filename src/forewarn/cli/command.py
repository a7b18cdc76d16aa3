"""Common parts of all commands: help with examples, the connection, `--json` and `--debug`.

A command is a function that requests a `Connection`, an `Output` or a `Choice` by annotating a parameter with it.
`command` replaces that parameter with the options from which the object is made, so that no command repeats them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from forewarn.cli.choosing import Choice, choice_options
from forewarn.cli.connection import DEFAULT_URL, Connection
from forewarn.cli.output import Output
from forewarn.errors import ConfigError

__all__ = ["BROKEN_PIPE", "command", "group", "server_extra", "testing_extra"]

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
        help="Control API of the service.",
        rich_help_panel=_CONNECTION,
    ),
]
_TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        envvar="FOREWARN_TOKEN_FILE",
        help="The operator's token; FOREWARN_TOKEN holds the token itself. (default: the one in the state folder)",
        rich_help_panel=_CONNECTION,
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_Debug = Annotated[bool, typer.Option("--debug", help="Show the trace of an error.")]


def group(app: typer.Typer, name: str, summary: str, panel: str) -> typer.Typer:
    """Return a new group of commands for a noun."""
    noun = typer.Typer(name=name, help=summary, no_args_is_help=True)
    app.add_typer(noun, rich_help_panel=panel)
    return noun


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
        lines = "\n".join(f"    $ {line}" for line in examples)
        epilog = f"Example{'' if len(examples) == 1 else 's'}:\n\n{lines}"
        return app.command(name, epilog=epilog, rich_help_panel=panel)(_completed(function))

    return register


def _completed(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with options in place of the requested objects."""
    signature = inspect.signature(function, eval_str=True)
    wants_connection = _asked(signature, Connection)
    wants_output = _asked(signature, Output)
    wants_choice = _asked(signature, Choice)
    choices = [] if wants_choice is None else choice_options()

    @functools.wraps(function)
    def run(**given: Any) -> None:  # noqa: ANN401 - whatever Typer parsed
        given.pop("debug")
        if wants_output is not None:
            given[wants_output] = Output(is_json=given.pop("as_json"))
        if wants_choice is not None:
            given[wants_choice] = Choice(**{option.name: given.pop(option.name) for option in choices})
        try:
            if wants_connection is None:
                function(**given)
                return
            with Connection(given.pop("control_url"), given.pop("token_file")) as connection:
                function(**given, **{wants_connection: connection})
        except BrokenPipeError:
            # The reader of the output has closed the pipe. Typer would exit with status 1.
            raise typer.Exit(BROKEN_PIPE) from None

    kept = [p for p in signature.parameters.values() if p.annotation not in {Connection, Output, Choice}]
    kept += choices
    if wants_output is not None:
        kept.append(_option("as_json", _Json, default=False))
    kept.append(_option("debug", _Debug, default=False))
    if wants_connection is not None:
        kept.append(_option("control_url", _ControlUrl, default=DEFAULT_URL))
        kept.append(_option("token_file", _TokenFile, default=None))
    run.__signature__ = inspect.Signature([p.replace(kind=p.KEYWORD_ONLY) for p in kept])  # type: ignore[attr-defined] # Typer reads it
    run.__annotations__ = {p.name: p.annotation for p in kept}
    del run.__wrapped__  # its annotations are not those of `run`
    return run


def _asked(signature: inspect.Signature, kind: type) -> str | None:
    return next((p.name for p in signature.parameters.values() if p.annotation is kind), None)


def _option(name: str, annotation: Any, *, default: object) -> inspect.Parameter:  # noqa: ANN401 - any annotation
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


@contextmanager
def server_extra() -> Iterator[None]:
    """Import modules of the service inside this block.

    Raises:
        ConfigError: A library of the extra `server` is not installed.
    """
    with _extra("server"):
        yield


@contextmanager
def testing_extra() -> Iterator[None]:
    """Import modules of the testing kit inside this block.

    Raises:
        ConfigError: A library of the extra `testing` is not installed.
    """
    with _extra("testing"):
        yield


@contextmanager
def _extra(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA_LIBRARIES:
            raise
        msg = f"this command needs a library that is missing ({error.name}): pip install 'forewarn[{name}]'"
        raise ConfigError(msg) from error

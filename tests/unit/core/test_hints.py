"""Errors name what to do apart from what is wrong, so that each surface can say it in its own way."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from forewarn.core import hints
from forewarn.core.hints import suggest_recovery
from forewarn.errors import Hint, NotFound

SOURCE = Path(hints.__file__).parents[1]
ROOMS = ("core", "engine", "publishing", "control", "auth", "endpoint", "dashboard", "scheduling")
"""What runs in the service, and raises errors that a browser may show."""

ONLY_COMMAND = {"control/status.py", "dashboard/login.py"}
"""The status is for the API and its command; a link for logging in is made by a command, and by nothing else."""


def test_a_hint_ends_the_message_of_the_api_and_is_not_in_the_summary() -> None:
    error = NotFound("host 'x' does not exist", hint=hints.SEE_HOSTS, host="x")
    assert error.message == str(error) == "host 'x' does not exist: see 'forewarn host list'"
    assert (error.summary, error.details) == ("host 'x' does not exist", {"host": "x"})
    assert NotFound("gone").message == NotFound("gone").summary == "gone"


def test_the_path_of_a_hint_is_quoted() -> None:
    assert suggest_recovery("a/b?c").path == "/hosts/a%2Fb%3Fc"


@pytest.mark.parametrize("hint", [hints.SEE_HOSTS, hints.SEE_VMS, hints.SEE_MAINTENANCES, suggest_recovery("h")])
def test_a_hint_of_the_dashboard_names_no_command(hint: Hint) -> None:
    assert "forewarn" not in hint.page
    assert hint.page[0].isupper()


def test_no_message_of_an_error_names_a_command_but_by_a_hint() -> None:
    found = []
    for room in ROOMS:
        for file in sorted((SOURCE / room).rglob("*.py")):
            name = file.relative_to(SOURCE).as_posix()
            if name not in ONLY_COMMAND:
                found += [f"{name}:{line}" for line in _find_commands(ast.parse(file.read_text()))]
    assert found == []


def _find_commands(tree: ast.Module) -> list[int]:
    """Return the lines of messages that name a command, unless a `Hint` or the log has them."""
    allowed: set[int] = set()
    for node in ast.walk(tree):
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_call = isinstance(node, ast.Call) and _name_of(node.func) in {"Hint", "warning", "error", "info"}
        if is_docstring or is_call or _is_command_of_hint(node):
            allowed |= {id(inner) for inner in ast.walk(node)}
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and ("'forewarn " in node.value or "--token-file" in node.value)
        and id(node) not in allowed
    ]


def _is_command_of_hint(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and [_name_of(target) for target in node.targets] == ["command"]


def _name_of(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""

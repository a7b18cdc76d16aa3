"""Each module logs under its own name, or that of a package around it, in words: operators search the log for both."""

from __future__ import annotations

import ast
from pathlib import Path

import forewarn

PACKAGE = Path(forewarn.__file__).parent
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}


def test_a_module_logs_under_its_name_or_that_of_a_package_around_it() -> None:
    wrong, count = [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(("forewarn", *path.relative_to(PACKAGE).with_suffix("").parts))
        for statement in ast.parse(path.read_text(encoding="utf-8")).body:
            match statement:
                case ast.Assign(targets=[ast.Name(id="_log")], value=ast.Call(args=[ast.Constant(value=name)])):
                    count += 1
                    if not (isinstance(name, str) and name and f"{module}.".startswith(f"{name}.")):
                        wrong.append(f"{module}: {name!r}")
    assert wrong == []
    assert count > 20


def test_a_line_is_a_sentence_with_a_value_for_each_placeholder() -> None:
    wrong, count = [], 0
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="_log"), attr=level), args=[text, *values]):
                    if level not in LEVELS:
                        continue
                    count += 1
                    if not _is_sentence(text, len(values)):
                        wrong.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []
    assert count > 100


def _is_sentence(text: ast.expr, values: int) -> bool:
    match text:
        case ast.Constant(value="%s"):
            return values == 1
        case ast.Constant(value=str(words)):
            is_word = words.isalpha()  # such as "stopping"
            return (is_word or " " in words) and words.replace("%%", "").count("%") == values
        case ast.JoinedStr(values=[ast.Constant(value=str(words)), *_]):
            return " " in words and values == 0
        case ast.Name(id="message" | "words"):  # chosen by the caller, or beside the call
            return values == 0
    return False

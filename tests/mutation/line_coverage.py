"""Which tests run a line of the package: only these can find a mutant of it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from coverage import CoverageData

__all__ = ["LineCoverage"]


class LineCoverage:
    """Lines of the package, and the tests that run them.

    Args:
        data: Data file of a run of pytest with ``--cov-context=test``.
    """

    def __init__(self, data: Path) -> None:
        self._data = CoverageData(basename=str(data))
        self._data.read()

    def find_tests(self, file: Path, line: int) -> list[str] | None:
        """Return the tests that run the statement on a line, without their parameters, in the order of their names.

        If the import of the module runs it, as with the head of a function, return those of the function instead; None
        if there is no function: then any test may depend on it. Which test imports a module first is chance.
        """
        by_line = self._data.contexts_by_lineno(str(file))
        for first, last in _list_spans(file.read_text(encoding="utf-8"), line):
            contexts = {context for number in range(first, last + 1) for context in by_line.get(number, ())}
            if contexts != {""}:
                return _list_names(contexts)
        return None

    def find_users(self, file: Path) -> list[str]:
        """Return the tests that run any line of a module, also those that import it first."""
        return _list_names(
            {each for contexts in self._data.contexts_by_lineno(str(file)).values() for each in contexts}
        )


def _list_names(contexts: Iterable[str]) -> list[str]:
    return sorted({context.partition("|")[0].partition("[")[0] for context in contexts if context})


def _list_spans(source: str, line: int) -> Iterator[tuple[int, int]]:
    """Yield first and last lines: of the statement, unless the import runs it, then of each function around it."""
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and _get_first_line(node) <= line <= (node.end_lineno or 0)
    ]
    around.sort(key=lambda node: (node.end_lineno or 0) - _get_first_line(node))
    functions = [node for node in around if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    if any(function is not around[0] for function in functions):
        inner = around[0]
        body: list[ast.stmt] = getattr(inner, "body", [])
        yield _get_first_line(inner), body[0].lineno - 1 if body else inner.end_lineno or 0
    for function in functions:
        yield function.body[0].lineno, function.end_lineno or 0


def _get_first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])

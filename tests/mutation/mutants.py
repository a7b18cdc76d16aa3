"""Mutants of the package's code, made by mutmut: each is one file with one change."""

from __future__ import annotations

import ast
import difflib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.mutants import make_mutations

__all__ = ["SOURCE", "Mutant", "make_mutants"]

SOURCE = Path(__file__).parents[2] / "src" / "forewarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A file of the package with one change.

    Attributes:
        file: Path of the file below the package.
        source: Complete source of the mutant.
        line: Number of the first line that differs.
        was: Lines before the change.
        now: Lines after the change.
    """

    file: str
    source: str
    line: int
    was: str
    now: str

    def __str__(self) -> str:
        """Return the place and the change."""
        return f"{self.file}:{self.line}\n  - {self.was}\n  + {self.now}"


def make_mutants(files: Sequence[Path], rng: random.Random) -> Iterator[Mutant]:
    """Yield the mutants of files, in random order, without those that only change a message or ``__all__``.

    Args:
        files: Files below `SOURCE`.
        rng: Source of the order.
    """
    sources = {file.relative_to(SOURCE).as_posix(): file.read_text(encoding="utf-8") for file in files}
    for file, changed in make_mutations(sources, _without_messages, rng):
        yield _describe(file, sources[file], changed)


class _MessagesRemoved(ast.NodeTransformer):
    """Replaces all strings with a space in them, which are sentences, and removes ``__all__``."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        is_all = isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
        return ast.Pass() if is_all else self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        return ast.Constant("") if isinstance(node.value, str) and " " in node.value else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.expr:
        is_sentence = any(isinstance(part, ast.Constant) and " " in str(part.value) for part in node.values)
        return ast.Constant("") if is_sentence else node


def _without_messages(source: str) -> str:
    return ast.dump(_MessagesRemoved().visit(ast.parse(source)))


def _describe(file: str, before: str, after: str) -> Mutant:
    diff = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))
    line = int(diff[2].split()[1].lstrip("-").partition(",")[0])
    was, now = (" ".join(each[1:].strip() for each in diff[3:] if each[0] == sign) for sign in "-+")
    return Mutant(file=file, source=after, line=line, was=was, now=now)

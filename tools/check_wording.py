"""Check docs, docstrings and comments for words that the project does not use; `make lint` runs it.

    python tools/check_wording.py [FILE ...]

Code blocks, inline code and quotations in pages are not checked, because they show the output of programs.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

PLAIN_WORDS = {
    "told": "is sent, is informed, is notified",
    "tells": "reports, shows, sends",
    "somebody": "someone else, another process",
    "nobody": "no one, none",
    "whoever": "anyone who, or name the actor",
    "hands back": "returns",
    "by itself": "automatically, alone",
    "stands in": "is in, is recorded in",
    "of its own": "its own, separate",
    "ledger": "audit log",
}
"""Words to avoid, with their replacements."""

_WORDS = re.compile(rf"\b({'|'.join(PLAIN_WORDS)})\b", re.IGNORECASE)
_BLOCK = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`|\"[^\"\n]*\"|\]\([^)\n]*\)|<!--.*?-->")


def main(arguments: list[str]) -> int:
    """Print each offence as ``file:line: …``; return 1 if there are any."""
    files = [Path(name) for name in arguments] or list(checked_files())
    offences = [line for file in files for line in check_file(file)]
    print("\n".join(offences) if offences else f"{len(files)} files: nothing found")
    return 1 if offences else 0


def checked_files() -> Iterator[Path]:
    """Yield the pages and modules that are in git, or new and not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md", "src/*.py", "tools/*.py"]
    listed = subprocess.run(command, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    for name in sorted(set(listed.split())):
        file = ROOT / name
        if file.exists() and file.name != "CHANGELOG.md" and file != Path(__file__):
            yield file


def check_file(file: Path) -> Iterator[str]:
    """Yield the offences of one file."""
    text = file.read_text()
    place = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
    for line, prose in _read_page(text) if file.suffix == ".md" else _read_module(text):
        for word in _WORDS.finditer(prose):
            at = line + prose.count("\n", 0, word.start())
            yield f"{place}:{at}: {word[0]!r}: write {PLAIN_WORDS[word[0].lower()]}"


def _read_page(text: str) -> Iterator[tuple[int, str]]:
    """Yield the prose of a page with blanks in place of code, so that lines keep their numbers."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    yield 1, _CODE.sub(blank, _BLOCK.sub(blank, text))


def _read_module(text: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings and comments of a module."""
    for node in ast.walk(ast.parse(text)):
        for child in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                prose = re.sub(r"``.*?``|`[^`\n]*`|\"[^\"\n]*\"", lambda m: " " * len(m[0]), child.value.value)
                yield child.lineno, prose
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], re.sub(r"`[^`\n]*`|\"[^\"\n]*\"", "", token.string)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""What `pip install 'forewarn[EXTRA]'` brings, and virtual environments that hold it and nothing else.

The libraries come out of the environment that runs the tests, so nothing is downloaded. What Forewarn asks for is read
from pyproject.toml: the metadata of an editable installation may be older.
"""

from __future__ import annotations

import os
import tomllib
import venv
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.documents import ROOT

__all__ = ["installed_bytes", "libraries_of", "make_venv"]


def libraries_of(*requirements: str) -> dict[str, Distribution]:
    """Return every package that these requirements install, themselves included, by its normalized name."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        each = waiting.pop()
        name = canonicalize_name(each.name)
        if (name, frozenset(each.extras)) not in seen:
            seen.add((name, frozenset(each.extras)))
            found[name] = distribution(name)
            waiting += _asked_by(each)
    return found


def _asked_by(requirement: Requirement) -> Iterator[Requirement]:
    if canonicalize_name(requirement.name) == "forewarn":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = (project["optional-dependencies"][extra] for extra in requirement.extras)
        lines = [*project["dependencies"], *(line for extra in extras for line in extra)]
    else:
        lines = distribution(requirement.name).requires or []
    for each in map(Requirement, lines):
        extras_or_none = [*requirement.extras, ""]
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras_or_none):
            yield each


def installed_bytes(*requirements: str) -> int:
    """Return the size of what these requirements install, without compiled bytecode."""
    return sum(path.stat().st_size for each in libraries_of(*requirements).values() for path in _files(each))


def _files(package: Distribution) -> Iterator[Path]:
    if canonicalize_name(package.name) == "forewarn":
        yield from (path for path in (ROOT / "src").rglob("*") if path.is_file() and path.suffix != ".pyc")
    else:
        located = (Path(str(package.locate_file(file))) for file in package.files or ())
        yield from (path for path in located if path.is_file() and path.suffix != ".pyc")


def make_venv(folder: Path, *requirements: str) -> Path:
    """Make a virtual environment that holds links to what these requirements install; return its interpreter."""
    venv.create(folder, symlinks=True, with_pip=False)
    (place,) = folder.glob("lib/python3*/site-packages")
    for package in libraries_of(*requirements).values():
        for top in {file.parts[0] for file in package.files or ()} - {os.pardir, "__pycache__"}:
            (place / top).symlink_to(str(package.locate_file(top)))
    return folder / "bin" / "python"

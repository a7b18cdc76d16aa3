"""The reference pages say what the code says, and what is public is what they name."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import forewarn
from tools import build_docs


def test_no_reference_page_is_stale() -> None:
    assert list(build_docs.stale()) == [], "run make reference"


def _modules() -> list[str]:
    found = pkgutil.walk_packages(forewarn.__path__, "forewarn.")
    return [m.name for m in found if ".migrations" not in m.name and not m.name.endswith("__main__")]


def test_every_module_says_what_is_public() -> None:
    without = [name for name in _modules() if not _is_package_without_names(name) and not _names(name)]
    assert without == []


def test_every_public_name_exists_and_has_a_docstring() -> None:
    faults = []
    for module_name in _modules():
        module = importlib.import_module(module_name)
        for name in _names(module_name):
            value = getattr(module, name, None)
            if value is None:
                faults.append(f"{module_name}.{name} does not exist")
            elif (inspect.isroutine(value) or inspect.isclass(value)) and not getattr(value, "__doc__", None):
                faults.append(f"{module_name}.{name} has no docstring")
    assert faults == []


def _names(module_name: str) -> list[str]:
    names: list[str] = getattr(importlib.import_module(module_name), "__all__", [])
    return names


def _is_package_without_names(module_name: str) -> bool:
    return hasattr(importlib.import_module(module_name), "__path__")

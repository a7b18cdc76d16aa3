"""Generates the page of the Python library: a list of all public names. The site adds the complete docstrings."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Literal, get_args, get_origin

from tools.reference.plain import row, table

__all__ = ["PAGE", "autodoc", "library"]

PAGE = "docs/reference/python.md"
MODULES = ("forewarn.client", "forewarn.testing", "forewarn.testing.simulation")
FIXTURES = ("scheduled_events", "async_scheduled_events")


def library() -> str:
    """Return the page without the additions of the site."""
    text = (
        "# Python library\n\n[Use the client](../how-to/use-the-client.md) and [test a handler]"
        "(../how-to/test-a-handler.md) show how to use the library. Names that\nare not listed "
        "here may change at any time.\n"
    )
    for module in map(importlib.import_module, MODULES):
        text += f"\n## {module.__name__}\n\n{_summary(module)}\n\n" + table("name", "what it is")
        for name in _public(module):
            text += row(f"`{name}`", _summary(getattr(module, name)))
    plugin = importlib.import_module("forewarn.pytest_plugin")
    text += "\n## pytest fixtures\n\nThe fixtures come with the package and need no import.\n\n" + table(
        "name", "what it is"
    )
    for name in FIXTURES:
        text += row(f"`{name}`", _summary(getattr(plugin, name)))
    return text + f"\n```python\n{_example(plugin)}\n```\n"


def autodoc() -> str:
    """Return what the site adds to the page: all docstrings, as MyST."""
    text = ""
    described: list[object] = []
    for module in map(importlib.import_module, MODULES):
        text += f"\n## Everything in {module.__name__}\n\n```{{eval-rst}}\n.. currentmodule:: {module.__name__}\n\n"
        for name in _public(module):
            value = getattr(module, name)
            kind = "autoclass" if inspect.isclass(value) else "autofunction" if inspect.isroutine(value) else "autodata"
            again = "   :no-index:\n" if value in described else ""  # Sphinx accepts only one target per object
            text += f".. {kind}:: {name}\n{again}"
            described.append(value)
        text += "```\n"
    return text


def _public(module: ModuleType) -> list[str]:
    """Return the public names of a module: classes, functions, then values."""
    kinds = {name: getattr(module, name) for name in module.__all__}
    return sorted(kinds, key=lambda name: (not inspect.isclass(kinds[name]), not inspect.isroutine(kinds[name])))


def _summary(value: object) -> str:
    if get_origin(value) is Literal:
        return "For annotations: one of " + ", ".join(f"`{word}`" for word in get_args(value)) + "."
    if isinstance(value, str | tuple | list):
        return f"`{value!r}`"
    return (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")


def _example(module: ModuleType) -> str:
    _, _, code = (inspect.getdoc(module) or "").partition("::\n\n")
    return inspect.cleandoc(code)

"""The tree of errors."""

from __future__ import annotations

import inspect
import re

from forewarn import errors
from forewarn.errors import ForewarnError

_LINE = re.compile(r"^ {4}([ |]*)\+ (\w+) +(\d{3})?", re.MULTILINE)
CLASSES = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, ForewarnError) and kind.__module__ == errors.__name__
}


def test_every_error_is_public() -> None:
    assert sorted(errors.__all__) == sorted([*CLASSES, "Hint"])


def test_the_tree_in_the_docstring_is_that_of_the_classes() -> None:
    path = ["ForewarnError"]
    drawn = {}
    for indent, name, status in _LINE.findall(errors.__doc__ or ""):
        path[len(indent) // 2 :] = [name]
        drawn[name] = (path[-2], status or str(CLASSES[name].status))
    kinds = [kind for kind in CLASSES.values() if kind is not ForewarnError]
    assert drawn == {kind.__name__: (kind.__bases__[0].__name__, str(kind.status)) for kind in kinds}

"""Each module logs under its own name, or that of a package around it: operators filter the log by it."""

from __future__ import annotations

import ast
from pathlib import Path

import forewarn

PACKAGE = Path(forewarn.__file__).parent


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

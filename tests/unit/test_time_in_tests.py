"""No test measures the machine: none reads a clock to see how long something took, none waits with a short guard."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CLOCKS = {
    f"{clock}{unit}" for clock in ("monotonic", "perf_counter", "process_time", "thread_time") for unit in ("", "_ns")
} | {"getrusage", "cpu_times", "clock_gettime"}
GUARD_S_MIN = 30.0
TEST_TIMEOUT_S_MIN = 60.0
MEASURED = ("took_s", "elapsed_s", "impact_s", "longest_s", "slowest_s", "waited_s")

MAY_READ_CLOCKS = {
    "support/spans.py": "the shortest time something takes, and times measured side by side",
    "support/processes.py": "a guard against hanging",
    "support/terminal.py": "a guard against hanging",
    "support/faulty.py": "the order in which requests came, and the shortest time between them",
    "integration/test_completion.py": "a guard against hanging",
    "integration/test_host_listeners.py": "a limit for each second is compared with the seconds that it lasted",
}


@cache
def sources() -> dict[str, str]:
    return {path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")}


def findings(source: str, *, may_read_clocks: bool = False) -> list[str]:
    """What measures the machine in that file."""
    tree = ast.parse(source)
    constants = dict(constants_of(tree))
    meant = {id(inner) for node in ast.walk(tree) if expects_time_out(node) for inner in ast.walk(node)}
    found = []
    for node in ast.walk(tree):
        if id(node) in meant:
            continue
        reasons = [*reads_clock(node)] if not may_read_clocks else []
        reasons += [*short_guard(node, constants), *upper_bound(node)]
        found += [f"{node.lineno}: {reason}" for reason in reasons]  # type: ignore[attr-defined] # all of these have one
    return found


def expects_time_out(node: ast.AST) -> bool:
    """Whether the time may pass in there: `pytest.raises(TimeoutError)`, or a TimeoutError that is handled."""
    if isinstance(node, ast.With | ast.AsyncWith):
        return any("TimeoutError" in ast.unparse(item) for item in node.items)
    return isinstance(node, ast.Try) and any(
        handler.type is not None and "TimeoutError" in ast.unparse(handler.type) for handler in node.handlers
    )


def constants_of(tree: ast.Module) -> Iterator[tuple[str, float]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                yield node.targets[0].id, float(value.value)


def last_name(node: ast.AST) -> str:
    """The `c` of `a.b.c`; nothing for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def reads_clock(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and node.attr in CLOCKS and last_name(node.value) in {"time", "resource"}:
        yield f"{ast.unparse(node)} reads a clock"


def short_guard(node: ast.AST, constants: dict[str, float]) -> Iterator[str]:
    """A wait that fails where the machine is slow: in the call of a function that waits, and in a test's time-out."""
    if not isinstance(node, ast.Call) or last_name(node.func) not in {"wait_for", "timeout"}:
        return
    called = ast.unparse(node.func)
    given: list[ast.expr] = []
    if called in {"wait_for", "asyncio.wait_for"}:
        given = node.args[1:2] + [each.value for each in node.keywords if each.arg in {"timeout", "timeout_s"}]
    elif called == "asyncio.timeout":
        given = node.args[:1]
    least = TEST_TIMEOUT_S_MIN if called == "pytest.mark.timeout" else GUARD_S_MIN
    if called == "pytest.mark.timeout":
        given = node.args[:1]
    for value in given:
        seconds = value.value if isinstance(value, ast.Constant) else constants.get(ast.unparse(value))
        if isinstance(seconds, int | float) and seconds < least:
            yield f"{called} waits for {seconds:g} s only, and a slow machine needs longer"


def upper_bound(node: ast.AST) -> Iterator[str]:
    """A comparison that says how long something may take at most."""
    if not isinstance(node, ast.Compare):
        return
    sides = [node.left, *node.comparators]
    for lower, operator, upper in zip(sides, node.ops, sides[1:], strict=False):
        smaller = {ast.Lt: lower, ast.LtE: lower, ast.Gt: upper, ast.GtE: upper}.get(type(operator))
        if smaller is not None and last_name(smaller) in MEASURED:
            yield f"{ast.unparse(node)} says how long something may take"


def test_no_test_depends_on_how_fast_the_machine_is() -> None:
    """See tests/support/spans.py for what a test may do instead."""
    found = [
        f"{name}:{finding}"
        for name, source in sources().items()
        for finding in findings(source, may_read_clocks=name in MAY_READ_CLOCKS)
    ]
    assert found == []


def test_every_file_that_may_read_clocks_does() -> None:
    assert set(MAY_READ_CLOCKS) <= set(sources())
    assert [name for name in MAY_READ_CLOCKS if not findings(sources()[name])] == []


@pytest.mark.parametrize(
    "source",
    [
        "began = time.monotonic()",
        "assert time.perf_counter() - began < 2",
        "resource.getrusage(resource.RUSAGE_SELF)",
        "wait_for(ready, 5)",
        "wait_for(ready, timeout_s=2.5)",
        "START_S = 20\nwait_for(ready, START_S)",
        "async def test():\n    async with asyncio.timeout(6):\n        pass",
        "async def test():\n    await asyncio.wait_for(done, 1)",
        "@pytest.mark.timeout(5)\ndef test(): pass",
        "assert took_s < 2",
        "assert 0.5 <= done.impact_s < 5",
        "assert 5 > done.impact_s",
    ],
)
def test_what_measures_the_machine_is_found(source: str) -> None:
    assert len(findings(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "wait_for(ready)",
        "wait_for(ready, 60)",
        "assert done.impact_s >= 0.5",
        "with pytest.raises(TimeoutError):\n    wait_for(never, 0.2)",
        "assert now - began < limit",
    ],
)
def test_what_does_not_is_left_alone(source: str) -> None:
    assert findings(source) == []

"""No test measures the machine: none reads a clock to see how long something took, none waits with a short guard."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.spans import GUARD_S

TESTS = Path(__file__).parents[1]
CLOCKS = {
    f"{clock}{unit}" for clock in ("monotonic", "perf_counter", "process_time", "thread_time") for unit in ("", "_ns")
} | {"getrusage", "cpu_times", "clock_gettime"}
MEASURED = ("took_s", "elapsed_s", "impact_s", "longest_s", "slowest_s", "waited_s")

TIME_OUT = re.compile(r"TimeoutError|TimeoutExpired|TimeoutException|(Connect|Read|Write)Timeout|\bEmpty\b")

# The place of the argument that says how long a call waits, where it may be given without its name.
GUARD_PLACES = {
    "asyncio.timeout": 0,
    "pytest.mark.timeout": 0,
    "select.select": 3,
    "socket.create_connection": 1,
    "wait_for": 1,
    ".fail_after": 0,
    ".join": 0,
    ".poll": 0,
    ".result": 0,
    ".select": 0,
    ".settimeout": 0,
    ".wait": 0,
    ".wait_for": 1,
}
GUARD_NAMES = {"wait_for": {"timeout", "timeout_s"}}
HTTPX_CALLS = {
    "httpx.AsyncClient",
    "httpx.Client",
    "httpx.delete",
    "httpx.get",
    "httpx.head",
    "httpx.options",
    "httpx.patch",
    "httpx.post",
    "httpx.put",
    "httpx.request",
    "httpx.stream",
}

MAY_READ_CLOCKS = {
    "support/spans.py": "the shortest time something takes, and times measured side by side",
    "support/processes.py": "a guard against hanging",
    "support/terminal.py": "a guard against hanging",
    "support/faulty.py": "the order in which requests came, and the shortest time between them",
    "integration/test_completion.py": "a guard against hanging",
    "integration/test_host_listeners.py": "a limit for each second is compared with the seconds that it lasted",
}

# Waits that are meant to end by their time-out, which is expected or handled elsewhere.
MAY_PASS = {
    "conformance/test_store_trouble.py": ("thread.join(0.2)",),
    "integration/test_conformance.py": ("listener.settimeout(0.05)",),
    "integration/test_endpoint_faults.py": ("wire.sock.settimeout(0.3)",),
    "integration/test_record_commands.py": ("sock.settimeout(0.2)",),
    "integration/test_record_replay.py": ("wire.sock.settimeout(0.3)",),
    "support/faulty.py": ("self.sock.settimeout(_STEP_S)", "listener.settimeout(_STEP_S)"),
    "unit/agent/test_systemd_notifier.py": ("speaking.join(0.1)",),
    "unit/store/test_memory.py": ("thread.join(0.05)",),
}

LOOKED_AT = (ast.With, ast.AsyncWith, ast.Try, ast.If, ast.While, ast.UnaryOp)


@cache
def sources() -> dict[str, str]:
    return {path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8") for path in TESTS.rglob("*.py")}


def findings(source: str, *, may_read_clocks: bool = False, may_end: tuple[str, ...] = ()) -> list[str]:
    """What measures the machine in that file, but for the waits that may end by their time-out."""
    tree = ast.parse(source)
    constants = dict(constants_of(tree))
    nodes = list(ast.walk(tree))
    meant = {id(inner) for node in nodes if isinstance(node, LOOKED_AT) for inner in may_pass(node)}
    found = []
    for node in nodes:
        if not isinstance(node, ast.Attribute | ast.Call | ast.Compare):
            continue
        if id(node) in meant or (may_end and isinstance(node, ast.Call) and ast.unparse(node) in may_end):
            continue
        reasons = [*reads_clock(node)] if not may_read_clocks else []
        reasons += [*short_guard(node, constants), *upper_bound(node)]
        found += [f"{node.lineno}: {reason}" for reason in reasons]
    return found


def may_pass(node: ast.AST) -> Iterator[ast.AST]:
    """Where the time may pass: where a time-out is expected or handled, and where the answer of a wait is looked at."""
    named: list[ast.AST | None] = []
    if isinstance(node, ast.With | ast.AsyncWith):
        named += node.items
    if isinstance(node, ast.Try):
        named += [handler.type for handler in node.handlers]
    if any(each is not None and TIME_OUT.search(ast.unparse(each)) for each in named):
        yield from ast.walk(node)
    if isinstance(node, ast.If | ast.While | ast.UnaryOp):
        looked_at = node.operand if isinstance(node, ast.UnaryOp) else node.test
        calls = (each for each in ast.walk(looked_at) if isinstance(each, ast.Call))
        yield from (each for each in calls if last_name(each.func) in {"wait", "select", "poll"})


def constants_of(tree: ast.Module) -> Iterator[tuple[str, float]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            value = node.value
            if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
                yield node.targets[0].id, float(value.value)


def last_name(node: ast.AST) -> str:
    """The `c` of `a.b.c`; nothing for what is no name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def full_name(node: ast.AST) -> str:
    """The whole `a.b.c`; it begins with a dot where `a` is no name."""
    return f"{full_name(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else last_name(node)


def reads_clock(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) and node.attr in CLOCKS and last_name(node.value) in {"time", "resource"}:
        yield f"{ast.unparse(node)} reads a clock"


def short_guard(node: ast.AST, constants: dict[str, float]) -> Iterator[str]:
    """A call that fails where the machine is slow: with a short time-out, or with none where httpx has a short one."""
    if not isinstance(node, ast.Call):
        return
    called = full_name(node.func)
    method = f".{node.func.attr}" if isinstance(node.func, ast.Attribute) else ""
    place = GUARD_PLACES.get(called, GUARD_PLACES.get(method))
    given = [each.value for each in node.keywords if each.arg in GUARD_NAMES.get(called, {"timeout"})]
    given += node.args[place : place + 1] if place is not None else []
    for value in given:
        seconds = value.value if isinstance(value, ast.Constant) else constants.get(ast.unparse(value))
        if isinstance(seconds, int | float) and 0 < seconds < GUARD_S:
            yield f"{called} waits for {seconds:g} s only, and a slow machine needs longer"
    if called in HTTPX_CALLS and not {"timeout", "transport"} & {each.arg for each in node.keywords}:
        yield f"{called} without a time-out waits for 5 s only, and a slow machine needs longer"


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
        for finding in findings(source, may_read_clocks=name in MAY_READ_CLOCKS, may_end=MAY_PASS.get(name, ()))
    ]
    assert found == []


def test_every_file_that_may_read_clocks_does() -> None:
    assert set(MAY_READ_CLOCKS) <= set(sources())
    assert [name for name in MAY_READ_CLOCKS if not findings(sources()[name])] == []


def test_every_wait_that_may_end_by_its_time_out_is_there_and_would_be_found() -> None:
    found = {name: findings(sources()[name], may_read_clocks=True) for name in MAY_PASS}
    assert {name: len(found[name]) for name in MAY_PASS} == {name: len(calls) for name, calls in MAY_PASS.items()}


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
        "with OPENER.open(url, timeout=10) as answer: pass",
        "SHORT_S = 5\nclient.get(url, timeout=SHORT_S)",
        "subprocess.run(command, check=True, timeout=10)",
        "process.communicate(timeout=10)",
        "queue.get(timeout=2)",
        "http.client.HTTPConnection(host, port, timeout=10)",
        "socket.create_connection(address, 5)",
        "sock.settimeout(10)",
        "selector.select(5)",
        "select.select([sock], [], [], 5)",
        "assert process.wait(5) == 0",
        "assert done.wait(5)",
        "thread.join(10)",
        "future.result(10)",
        "if subprocess.run(command, timeout=10).returncode: pass",
        "httpx.get(url)",
        "with httpx.Client(base_url=url, trust_env=False) as client: pass",
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
        "subprocess.run(command, check=True, timeout=GUARD_S)",
        "with pytest.raises(httpx.ReadTimeout):\n    httpx.get(url, timeout=0.1)",
        "with suppress(subprocess.TimeoutExpired):\n    process.wait(1)",
        "try:\n    found = queue.get(timeout=1)\nexcept Empty:\n    found = None",
        "while not stop.wait(0.2): pass",
        "if not select.select([sock], [], [], 0)[0]: pass",
        "assert not done.wait(0.3)",
        "sock.settimeout(0)",
        "thread.join()",
        "', '.join(NAMES)",
        "httpx.AsyncClient(transport=httpx.MockTransport(answer))",
        "check_endpoint(url, timeout_s=0.1)",
    ],
)
def test_what_does_not_is_left_alone(source: str) -> None:
    assert findings(source) == []

"""What every test shares: the event loop's backend, hypothesis profiles, and the check that nothing was skipped."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog
from hypothesis import settings

from tests.support.earlier import EARLIER, has_earlier
from tests.support.schema import copied_schema

# CI draws the same examples every time, so that a failure is the change's fault; "dev" goes on looking for new ones.
# Machines differ in speed: a test is stopped by its timeout, never by hypothesis's deadline.
settings.register_profile("ci", derandomize=True, print_blob=True, deadline=None, max_examples=60)
settings.register_profile("dev", print_blob=True, deadline=None, max_examples=60)
settings.load_profile(os.environ.get("FOREWARN_HYPOTHESIS_PROFILE", "dev"))

# A shell has what it starts in the background ignore SIGINT, and so would every command that tests start here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Workers have the width of a terminal, to which the commands under test would wrap their lines.
os.environ.pop("COLUMNS", None)

# At the level at which tests log, each loop would say which selector it uses, and each client what it sends.
for _name in ("asyncio", "httpcore", "httpx"):
    logging.getLogger(_name).setLevel(logging.INFO)


# An error where something is logged may end in a task that no one awaits, so it is the test that fails, at its end.
_wordless_lines: list[str] = []


def _check_event(_logger: object, _level: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if not isinstance(line["event"], str):
        _wordless_lines.append(f"a log line without words: {line}")
    return line


structlog.configure(processors=[_check_event, *structlog.get_config()["processors"]])

_NO_SKIP = os.environ.get("FOREWARN_NO_SKIP", "") not in {"", "0"}

# A checkout without its history has no earlier version to upgrade from. CI's workflow fetches the history.
collect_ignore = [] if has_earlier() else ["integration/test_upgrade.py"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Tests marked `anyio` run on asyncio, the only loop Forewarn runs on."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _schema_is_copied() -> Iterator[None]:
    with copied_schema():
        yield


@pytest.fixture(autouse=True)
def _logger_as_before() -> Iterator[None]:
    """Commands that a test runs in this process say where the log goes; the next test has it as it was."""
    logger = logging.getLogger("forewarn")
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    for handler in logger.handlers:
        if handler not in before[0]:
            handler.close()
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])  # not assigned: loggers below remember whether they are enabled until this is called


@pytest.fixture(autouse=True)
def _log_lines_have_words() -> Iterator[None]:
    _wordless_lines.clear()
    yield
    assert not _wordless_lines


class _SkipWatch:
    """Fails the session when a test was skipped, and names it: where everything is installed, a skip is a failure."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.skipped and not hasattr(report, "wasxfail"):
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._reasons[report.nodeid] = reason.removeprefix("Skipped: ")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._reasons and session.exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._reasons:
            terminalreporter.section("skipped, which FOREWARN_NO_SKIP forbids", red=True)
            for nodeid, reason in sorted(self._reasons.items()):
                terminalreporter.line(f"{nodeid}: {reason}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """Watch for skips where that was asked for, in the process that hears of all tests."""
    if _NO_SKIP and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_SkipWatch(), "forewarn-skip-watch")


def pytest_report_header() -> list[str]:
    """Say what this checkout lacks."""
    return [f"the history is cut off before {EARLIER}: upgrades are not tested"] if collect_ignore else []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest; pytest-xdist hands out files in the order of their tests."""
    items.sort(key=_read_duration_s, reverse=True)


def _read_duration_s(item: pytest.Item) -> int:
    marker = item.get_closest_marker("begins_first")
    return 0 if marker is None else int(marker.args[0])

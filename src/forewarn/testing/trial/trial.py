"""Trial of a handler: run it beside a scenario, and examine its requests to the endpoint."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from forewarn.clock import RealClock, VirtualClock
from forewarn.errors import InvalidRequest
from forewarn.testing.lab import Lab
from forewarn.testing.scenario.scenario_loader import Scenario
from forewarn.testing.trial.finding import Finding, Findings
from forewarn.testing.trial.handler import TrialHandler
from forewarn.testing.trial.handler_coordinator import HandlerCoordinator, select_answered_gets
from forewarn.testing.trial.player import ScenarioPlayer, StepOutcome, create_lab
from forewarn.testing.trial.preparation import PreparationMonitor, StateCommand
from forewarn.testing.trial.report import TrialReport
from forewarn.wire.advice import RATE_MAX, find_advice_for_all
from forewarn.wire.document import event_key
from forewarn.wire.exchange import Exchange

__all__ = ["judge_first_timeout", "try_all_scenarios", "try_handler"]

_WRONG_HERE = frozenset({"version-preview"})
"""Advice that fails a trial: endpoints answer such a request, but the VM never sees its Preempt."""
_OUTPUT_SHOWN = 4000


async def try_handler(  # noqa: PLR0913 - the parts of a trial
    scenario: Scenario,
    command: Sequence[str],
    *,
    patience_s: float = 5.0,
    prepared: str = "",
    recovered: str = "",
    reboots: bool = False,
    is_alone: bool = True,
    folder: Path | None = None,
    on_step: Callable[[StepOutcome], None] = lambda _outcome: None,
    on_wait: Callable[[int, str], None] = lambda _number, _text: None,
) -> TrialReport:
    """Run the handler of the scenario's VM while the scenario is played on virtual time, and report its behaviour.

    Time advances as soon as the handler has reacted to a change, or when the patience is used up.

    Args:
        scenario: Scenario to play.
        command: The handler, with its arguments.
        patience_s: Real seconds that the handler has to react to each change.
        prepared: Shell command that succeeds while the VM is prepared, and fails while it is not; empty for none.
        recovered: Shell command that succeeds while the VM is as it was before any event; run when no event affects it
            any more; empty for none.
        reboots: True if a Reboot or Redeploy of its VM kills and restarts the handler, in any scenario.
        is_alone: True to give it its own network, with the endpoint at 169.254.169.254, where possible.
        folder: Working directory of the handler and the commands; None for that of this process.
        on_step: Called after each step with its outcome.
        on_wait: Called before each step, with its number and description.

    Raises:
        InvalidRequest: The scenario is not for handlers.
    """
    if scenario.only == "play":
        msg = f"{scenario.name} has 'only: play', so no handler can be tried in it: use 'forewarn scenario play'"
        raise InvalidRequest(msg)
    report, findings = TrialReport(scenario.name), Findings()
    # Handlers compare NotBefore with their own clock, so virtual time begins at the real one, in whole seconds.
    async with create_lab(scenario, VirtualClock(RealClock().now().replace(microsecond=0))).running() as lab:
        vm = scenario.handler
        times = _RequestTimes(lab, vm)
        preparation = PreparationMonitor(lab, vm, StateCommand(prepared, folder), findings)
        handler = TrialHandler(
            lab, vm, command, wants_own_network=is_alone, environment=scenario.environment, folder=folder
        )
        coordinator = HandlerCoordinator(
            lab,
            vm,
            patience_s=patience_s,
            handler=handler,
            findings=findings,
            preparation=preparation,
            is_recovered=StateCommand(recovered, folder).is_satisfied,
        )
        async with AsyncExitStack() as stack:
            # Before the handler starts: the first check shows the VM without a handler.
            await stack.enter_async_context(preparation.checking_repeatedly())
            await stack.enter_async_context(handler.running())
            if reboots or scenario.restarts_handler:
                await stack.enter_async_context(coordinator.following_reboots())
            report.outcomes = await ScenarioPlayer(
                scenario, lab, on_step, on_wait=on_wait, coordinator=coordinator
            ).play()
            report.status = handler.process.status
        _complete_report(report, lab, times, handler, findings)
    return report


async def try_all_scenarios(
    scenarios: Sequence[Scenario],
    command: Sequence[str],
    *,
    jobs: int,
    on_report: Callable[[TrialReport], None] = lambda _report: None,
    **how: Any,  # noqa: ANN401 - any argument of `try_handler`
) -> list[TrialReport]:
    """Run the handler in several scenarios at a time, each in its own empty folder.

    Handlers mostly wait, so more of them than there are processors can run at once. The longest begin first.

    Args:
        scenarios: Those that are for playing only are skipped.
        command: The handler. Arguments that name files are made absolute.
        jobs: Number of handlers that run at once.
        on_report: Called with each report when it is ready.
        how: Keyword arguments of `try_handler`.

    Returns:
        Reports in the order of the scenarios.
    """
    wanted = [scenario for scenario in scenarios if scenario.only != "play"]
    # A long scenario that begins last would keep the run waiting for it alone.
    begun = sorted(wanted, key=lambda scenario: -len(scenario.steps))
    # Each handler runs in an empty folder, where a relative path of a script would not be found.
    words = [_make_absolute(word) for word in command]
    room = asyncio.Semaphore(jobs)
    reports: dict[str, TrialReport] = {}

    async def try_one(scenario: Scenario) -> None:
        async with room:
            with TemporaryDirectory(prefix="forewarn-try-") as folder:
                reports[scenario.name] = await try_handler(scenario, words, folder=Path(folder), **how)
        on_report(reports[scenario.name])

    async with asyncio.TaskGroup() as group:
        for scenario in begun:
            group.create_task(try_one(scenario))
    return [reports[scenario.name] for scenario in wanted]


def _make_absolute(argument: str) -> str:
    """Return an argument for use in another folder: a file as its absolute path, anything else unchanged."""
    path = Path(argument)
    return str(path.absolute()) if path.is_file() else argument


class _RequestTimes:
    """Records the real times of requests and announcements."""

    def __init__(self, lab: Lab, vm: str) -> None:
        self.began_s = asyncio.get_running_loop().time()
        self.requested_s: dict[int, float] = {}
        self.announced_s: dict[str, float] = {}
        self.vm = vm
        self._lab = lab
        self._last_exchange_number = 0
        # The journal has virtual times, in which a handler's polling rate and reactions cannot be seen.
        lab.backend.journal.listeners.append(self._record_request)
        lab.backend.engine.listeners.append(lambda _changes: self._record_announcements())

    def _record_request(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for exchange in self._lab.backend.journal.list_exchanges(after=self._last_exchange_number, vm=self.vm):
            self._last_exchange_number = exchange.number
            self.requested_s[exchange.number] = now_s

    def _record_announcements(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for event in self._lab.get_document(self.vm).events:
            self.announced_s.setdefault(event.id, now_s)


def _complete_report(
    report: TrialReport, lab: Lab, times: _RequestTimes, handler: TrialHandler, findings: Findings
) -> None:
    exchanges = [exchange for exchange in lab.list_requests(times.vm) if exchange.number in times.requested_s]
    moments = [times.requested_s[exchange.number] for exchange in exchanges]
    gets = [times.requested_s[exchange.number] for exchange in exchanges if exchange.method == "GET"]
    report.has_own_network = handler.process.has_own_network
    report.took_s = round(asyncio.get_running_loop().time() - times.began_s, 3)
    report.reboots = handler.reboots
    report.requests = len(exchanges)
    report.first_request_s = round(moments[0] - times.began_s, 3) if moments else None
    pauses = [later - earlier for earlier, later in pairwise(gets)]
    report.interval_s = round(statistics.median(pauses), 3) if pauses else None
    report.approvals = _measure_approvals(exchanges, times)
    report.output = handler.output.decode("utf-8", "replace")[-_OUTPUT_SHOWN:]
    if len(handler.output) > _OUTPUT_SHOWN:
        report.output = report.output.partition("\n")[2] or report.output  # drop the first, incomplete line
    report.findings = [
        *_judge_process(report, handler),
        *findings,
        *judge_first_timeout(exchanges, times.requested_s),
        *_judge_requests(exchanges),
        *_judge_polling_rate(
            [times.requested_s[exchange.number] for exchange in exchanges if not _is_long_poll(exchange)]
        ),
    ]


def _measure_approvals(exchanges: Sequence[Exchange], times: _RequestTimes) -> list[tuple[str, float]]:
    """Return the seconds from announcement to accepted approval, for each approved event."""
    found: dict[str, float] = {}
    for exchange in exchanges:
        if exchange.method == "POST" and exchange.status == HTTPStatus.OK:  # accepted (R49)
            body = exchange.body.decode("utf-8", "replace").upper()
            for event_id, announced_s in times.announced_s.items():
                # A search for the text is enough: the body was accepted, so it is valid, and ids are GUIDs.
                if event_key(event_id) in body:
                    found.setdefault(event_id, round(times.requested_s[exchange.number] - announced_s, 3))
    return list(found.items())


def _judge_requests(exchanges: Sequence[Exchange]) -> list[Finding]:
    """Return the findings about requests that real endpoints refuse, or that rely on more than they promise."""
    found = Findings()
    for _, advice in find_advice_for_all(exchanges):
        for row in advice:
            if row.code != "rate":  # judged in real time by `_judge_polling_rate`
                found.add(row.code, f"it {row.text} ({row.spec})", is_failure=row.is_wrong or row.code in _WRONG_HERE)
    return list(found)


def judge_first_timeout(exchanges: Sequence[Exchange], requested_s: Mapping[int, float]) -> list[Finding]:
    """Return the finding about a time-out too short for a late first answer, if there is one (R67, R104).

    The first answer is the one to the earliest GET for events that was not refused: others may be answered while it is
    held. Whether the client left is not a matter of seconds: on a busy machine, its leaving may be noticed late.
    """
    answered = select_answered_gets(exchanges)
    first = min(answered, key=lambda each: requested_s[each.number] - each.took_s, default=None)
    if first is None or first.fault or not first.is_client_gone:
        return []
    text = (
        f"it gave up its first request after {first.took_s:.1f} s: the first answer may take 120 s, so give that "
        "request a time-out of 130 s (R67, R104)"
    )
    return [Finding("time-out-short", text, is_failure=True)]


def _is_long_poll(exchange: Exchange) -> bool:
    """Return True if the request was a long poll: then the endpoint decides when it is answered (X1)."""
    return "wait=" in (exchange.get_header("prefer") or "").replace(" ", "").lower()


def _judge_polling_rate(request_times: list[float]) -> list[Finding]:
    """Return the finding about polling too often, in real time, if there is one (R9, R97)."""
    # From each request to the one RATE_MAX later: less than a second between them is too many.
    seconds = [later - earlier for earlier, later in zip(request_times, request_times[RATE_MAX:], strict=False)]
    count = sum(span_s < 1.0 for span_s in seconds)
    text = f"it polls more than {RATE_MAX} times per second: other endpoints return 429 (R9, R97)"
    return [Finding("rate", text, is_failure=False, count=count)] if count else []


def _judge_process(report: TrialReport, handler: TrialHandler) -> list[Finding]:
    """Return the findings about the process."""
    findings = []
    if report.status is not None:
        findings.append(Finding("ended", f"it exited with status {report.status}", is_failure=True))
    if not report.requests:
        findings.append(Finding("never-asked", "it sent no request to the endpoint", is_failure=True))
    if handler.process.was_killed:
        findings.append(Finding("ignored-sigterm", "it did not exit within 5 s of SIGTERM", is_failure=False))
    if handler.leftover_processes:
        findings.append(
            Finding("left-behind", "it left processes behind", is_failure=False, count=handler.leftover_processes)
        )
    if handler.output_bytes > len(handler.output):
        text = f"it printed {handler.output_bytes} bytes, of which the last {len(handler.output)} were kept"
        findings.append(Finding("output", text, is_failure=False))
    return findings

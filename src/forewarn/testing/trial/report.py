"""Results of a trial of a handler, for people, programs and CI systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree as ET

from forewarn.testing.trial.finding import Finding
from forewarn.testing.trial.player import StepOutcome

__all__ = ["TrialReport", "encode_junit"]


@dataclass(slots=True)
class TrialReport:
    """Result of one trial.

    Attributes:
        findings: Observations about the handler, wrong or not.
        first_request_s: Seconds from the handler's start to its first request; None if it sent none.
        interval_s: Median interval between its GETs; None without one.
        approvals: EventId of each accepted approval, and the seconds from the announcement to it.
        has_own_network: True if it had its own network.
        status: Exit status if it ended before the trial; None if it ran to the end.
        output: End of its output.
        took_s: Duration of the trial, in real seconds.
    """

    scenario: str
    outcomes: list[StepOutcome] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    first_request_s: float | None = None
    requests: int = 0
    interval_s: float | None = None
    approvals: list[tuple[str, float]] = field(default_factory=list)
    has_own_network: bool = False
    reboots: int = 0
    status: int | None = None
    output: str = ""
    took_s: float = 0.0

    @property
    def has_passed(self) -> bool:
        """True if every step came as expected and nothing was wrong."""
        return not self.faults

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values, for programs."""
        return {
            "scenario": self.scenario,
            "passed": self.has_passed,
            "first_look_s": self.first_request_s,
            "requests": self.requests,
            "interval_s": self.interval_s,
            "approvals": [{"event_id": event_id, "after_s": after_s} for event_id, after_s in self.approvals],
            "own_network": self.has_own_network,
            "reboots": self.reboots,
            "status": self.status,
            "took_s": self.took_s,
            "steps": [
                {
                    "number": o.number,
                    "line": o.line,
                    "at_s": o.at.total_seconds(),
                    "step": o.verb,
                    "text": o.text,
                    "fault": o.failure or None,
                }
                for o in self.outcomes
            ],
            "findings": [
                {"code": f.code, "text": f.text, "is_wrong": f.is_failure, "count": f.count} for f in self.findings
            ],
            "output": self.output,
        }

    @property
    def faults(self) -> list[str]:
        """Reasons why the trial failed, findings before steps; empty if it passed."""
        wrong = [finding.text for finding in self.findings if finding.is_failure]
        return wrong + [f"step {outcome.number}: {outcome.failure}" for outcome in self.outcomes if outcome.failure]


def encode_junit(reports: Sequence[TrialReport]) -> bytes:
    """Return JUnit XML: a suite for each scenario, with a test case for each step and each finding."""
    suites = ET.Element("testsuites", name="forewarn try")
    for report in reports:
        suites.append(_build_suite(report))
    for name in ("tests", "failures"):
        suites.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    suites.set("time", f"{sum(report.took_s for report in reports):.3f}")
    content: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return content


def _build_suite(report: TrialReport) -> ET.Element:
    suite = ET.Element("testsuite", name=f"forewarn try {report.scenario}", time=f"{report.took_s:.3f}")
    cases = [(f"{o.number}. {o.text}", o.failure) for o in report.outcomes]
    cases += [(f.code, f.text if f.is_failure else "") for f in report.findings]
    for name, fault in cases:
        case = ET.SubElement(suite, "testcase", classname=report.scenario, name=_remove_control_characters(name))
        if fault:
            ET.SubElement(case, "failure", message=_remove_control_characters(fault))
    ET.SubElement(suite, "system-out").text = _remove_control_characters(report.output)
    suite.set("tests", str(len(cases)))
    suite.set("failures", str(sum(bool(fault) for _, fault in cases)))
    return suite


def _remove_control_characters(text: str) -> str:
    """Return the text without characters that XML cannot hold."""
    return "".join(c for c in text if c in "\t\n" or c.isprintable())

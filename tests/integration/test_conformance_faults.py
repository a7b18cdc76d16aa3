"""Each check of `forewarn conformance` can fail: it finds out an endpoint with one fault."""

from __future__ import annotations

import pytest

from forewarn.testing.conformance import CHECKS, CheckVerdict, ConformanceReport, check_endpoint, select_checks
from tests.support.wrong_endpoint import FAULTS, Fault, wrong_endpoint

pytestmark = pytest.mark.slow


def outcomes(report: ConformanceReport) -> dict[str, CheckVerdict]:
    return {finding.check.code: finding.outcome.verdict for finding in report.findings}


def told(report: ConformanceReport) -> str:
    return "\n".join(f"{f.check.code}: {f.outcome.verdict}, {f.outcome.seen}" for f in report.findings)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.check}: {fault.name}")
def test_a_fault_is_found_by_its_check(fault: Fault) -> None:
    checks = select_checks([fault.check])
    if fault.check in {"incarnation-growth", "event-id-constant", "life"}:
        checks = select_checks(["approve", fault.check])
    with wrong_endpoint(fault) as url:
        report = check_endpoint(url, checks=checks, allow_approve=True, timeout_s=2.0)
    assert outcomes(report)[fault.check] is CheckVerdict(fault.verdict), told(report)
    assert report.is_conformant == (fault.verdict != "breaks")


def test_there_is_a_fault_for_every_check() -> None:
    assert {fault.check for fault in FAULTS} == {check.code for check in CHECKS}

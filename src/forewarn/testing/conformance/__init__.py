"""Conformance suite: checks from outside, as a client, that any endpoint keeps to the protocol.

`check_endpoint` runs the rows of `CHECKS` and returns a `ConformanceReport`; `forewarn conformance` is its command.
"""

from forewarn.testing.conformance.catalogue import CHECKS, SUITE_VERSION, list_requirements, select_checks
from forewarn.testing.conformance.check import CheckPhase, ConformanceCheck
from forewarn.testing.conformance.outcome import CheckOutcome, CheckVerdict
from forewarn.testing.conformance.report import CheckResult, ConformanceReport
from forewarn.testing.conformance.run import check_endpoint

__all__ = [
    "CHECKS",
    "SUITE_VERSION",
    "CheckOutcome",
    "CheckPhase",
    "CheckResult",
    "CheckVerdict",
    "ConformanceCheck",
    "ConformanceReport",
    "check_endpoint",
    "list_requirements",
    "select_checks",
]

"""Conformance suite: checks from outside, as a client, that any endpoint keeps to the protocol.

`check_endpoint` runs the rows of `CHECKS` and returns a `Report`; `forewarn conformance` is its command.
"""

from forewarn.testing.conformance.catalogue import CHECKS, SUITE_VERSION, choose, numbers
from forewarn.testing.conformance.check import Check, Phase
from forewarn.testing.conformance.outcome import Outcome, Verdict
from forewarn.testing.conformance.report import Finding, Report
from forewarn.testing.conformance.run import check_endpoint

__all__ = [
    "CHECKS",
    "SUITE_VERSION",
    "Check",
    "Finding",
    "Outcome",
    "Phase",
    "Report",
    "Verdict",
    "check_endpoint",
    "choose",
    "numbers",
]

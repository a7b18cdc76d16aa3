"""Results of a conformance run, for people, programs and CI."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from forewarn.testing.conformance.catalogue import SUITE_VERSION, list_requirements
from forewarn.testing.conformance.check import ConformanceCheck
from forewarn.testing.conformance.outcome import CheckOutcome, CheckVerdict

__all__ = ["CheckResult", "ConformanceReport"]

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


_RANKS = (CheckVerdict.BREAKS, CheckVerdict.NOTE, CheckVerdict.HOLDS, CheckVerdict.INCONCLUSIVE)
"""Order of precedence: the verdict on a requirement is the first of these among its checks."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One check with its outcome."""

    check: ConformanceCheck
    outcome: CheckOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceReport:
    """All findings about one endpoint.

    Attributes:
        findings: Findings in the order of the catalogue.
        allow_approve: True if events could be approved.
    """

    url: str
    findings: tuple[CheckResult, ...]
    allow_approve: bool

    @property
    def broken(self) -> list[CheckResult]:
        """Findings of broken requirements."""
        return [finding for finding in self.findings if finding.outcome.verdict is CheckVerdict.BREAKS]

    @property
    def is_conformant(self) -> bool:
        """True if nothing is broken."""
        return not self.broken

    def count_verdicts(self) -> Counter[CheckVerdict]:
        """Return the number of checks with each verdict."""
        return Counter(finding.outcome.verdict for finding in self.findings)

    def judge_requirements(self) -> dict[str, CheckVerdict]:
        """Return the verdict on each requirement: broken if one of its checks says so, then noted, then held.

        The outcome of a check that covers several requirements counts for each of them.
        """
        found: dict[str, CheckVerdict] = {}
        for number in list_requirements(finding.check for finding in self.findings):
            if number.startswith("A"):
                continue  # an open question of the sources is not a requirement
            verdicts = {f.outcome.verdict for f in self.findings if number in f.check.numbers}
            found[number] = next(v for v in _RANKS if v in verdicts)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        requirements = self.judge_requirements()
        return {
            "suite_version": SUITE_VERSION,
            "url": self.url,
            "allow_approve": self.allow_approve,
            "conformant": self.is_conformant,
            **{str(v): [number for number, found in requirements.items() if found is v] for v in CheckVerdict},
            "checks": [
                {
                    "code": finding.check.code,
                    "requirements": list(finding.check.numbers),
                    "title": finding.check.title,
                    "extension": finding.check.is_extension,
                    "outcome": str(finding.outcome.verdict),
                    "seen": finding.outcome.seen,
                }
                for finding in self.findings
            ],
        }

    def as_junit(self) -> bytes:
        """Return the report as a JUnit XML test suite: broken is a failure, inconclusive is skipped."""
        counted = self.count_verdicts()
        suite = ET.Element(
            "testsuite",
            name="forewarn conformance",
            tests=str(len(self.findings)),
            failures=str(counted[CheckVerdict.BREAKS]),
            errors="0",
            skipped=str(counted[CheckVerdict.INCONCLUSIVE]),
        )
        properties = ET.SubElement(suite, "properties")
        ET.SubElement(properties, "property", name="url", value=_replace_invalid_xml(self.url))
        ET.SubElement(properties, "property", name="suite_version", value=SUITE_VERSION)
        for finding in self.findings:
            name = f"{finding.check.code} ({', '.join(finding.check.numbers)}): {finding.check.title}"
            case = ET.SubElement(suite, "testcase", classname="forewarn.conformance", name=name, time="0")
            seen = _replace_invalid_xml(finding.outcome.seen)
            if finding.outcome.verdict is CheckVerdict.BREAKS:
                ET.SubElement(case, "failure", message=seen)
            elif finding.outcome.verdict is CheckVerdict.INCONCLUSIVE:
                ET.SubElement(case, "skipped", message=seen)
            else:
                ET.SubElement(case, "system-out").text = f"{finding.outcome.verdict}: {seen}"
        ET.indent(suite)
        return bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"


def _replace_invalid_xml(text: str) -> str:
    """Return the text with question marks for characters that XML cannot hold."""
    return _NOT_XML.sub("?", text)

"""Results of a conformance run, for people, programs and CI."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree as ET

from forewarn.testing.conformance.catalogue import SUITE_VERSION, numbers
from forewarn.testing.conformance.check import Check
from forewarn.testing.conformance.outcome import Outcome, Verdict

__all__ = ["Finding", "Report"]

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


_RANKS = (Verdict.BREAKS, Verdict.NOTE, Verdict.HOLDS, Verdict.INCONCLUSIVE)
"""Order of precedence: the verdict on a requirement is the first of these among its checks."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check with its outcome."""

    check: Check
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings about one endpoint.

    Attributes:
        findings: Findings in the order of the catalogue.
        allow_approve: True if events could be approved.
    """

    url: str
    findings: tuple[Finding, ...]
    allow_approve: bool

    @property
    def broken(self) -> list[Finding]:
        """Findings of broken requirements."""
        return [finding for finding in self.findings if finding.outcome.verdict is Verdict.BREAKS]

    @property
    def is_conformant(self) -> bool:
        """True if nothing is broken."""
        return not self.broken

    def count(self) -> Counter[Verdict]:
        """Return the number of checks with each verdict."""
        return Counter(finding.outcome.verdict for finding in self.findings)

    def requirements(self) -> dict[str, Verdict]:
        """Return the verdict on each requirement: broken if one of its checks says so, then noted, then held.

        The outcome of a check that covers several requirements counts for each of them.
        """
        found: dict[str, Verdict] = {}
        for number in numbers(finding.check for finding in self.findings):
            if number.startswith("A"):
                continue  # an open question of the sources is not a requirement
            verdicts = {f.outcome.verdict for f in self.findings if number in f.check.numbers}
            found[number] = next(v for v in _RANKS if v in verdicts)
        return found

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        requirements = self.requirements()
        return {
            "suite_version": SUITE_VERSION,
            "url": self.url,
            "allow_approve": self.allow_approve,
            "conformant": self.is_conformant,
            **{str(v): [number for number, found in requirements.items() if found is v] for v in Verdict},
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
        counted = self.count()
        suite = ET.Element(
            "testsuite",
            name="forewarn conformance",
            tests=str(len(self.findings)),
            failures=str(counted[Verdict.BREAKS]),
            errors="0",
            skipped=str(counted[Verdict.INCONCLUSIVE]),
        )
        properties = ET.SubElement(suite, "properties")
        ET.SubElement(properties, "property", name="url", value=_xml(self.url))
        ET.SubElement(properties, "property", name="suite_version", value=SUITE_VERSION)
        for finding in self.findings:
            name = f"{finding.check.code} ({', '.join(finding.check.numbers)}): {finding.check.title}"
            case = ET.SubElement(suite, "testcase", classname="forewarn.conformance", name=name, time="0")
            seen = _xml(finding.outcome.seen)
            if finding.outcome.verdict is Verdict.BREAKS:
                ET.SubElement(case, "failure", message=seen)
            elif finding.outcome.verdict is Verdict.INCONCLUSIVE:
                ET.SubElement(case, "skipped", message=seen)
            else:
                ET.SubElement(case, "system-out").text = f"{finding.outcome.verdict}: {seen}"
        ET.indent(suite)
        return bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True)) + b"\n"


def _xml(text: str) -> str:
    """Return the text with question marks for characters that XML cannot hold."""
    return _NOT_XML.sub("?", text)

"""Every requirement of the protocol's specification is named by a test that holds it, or stands here with the reason
why not.

Numbers are those of the specification: R1 to R106 what the sources say, W1 to W10 what deployed clients depend on, X1
to X6 Forewarn's extensions, A1 to A25 the questions that the sources leave open.
"""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent

REQUIREMENTS = frozenset(
    {f"R{n}" for n in range(1, 107)}
    | {"R57a"}
    | {f"W{n}" for n in range(1, 11)}
    | {f"X{n}" for n in range(1, 7)}
    | {f"A{n}" for n in range(1, 26)}
)

WITHOUT_A_TEST = {
    "R99": "says that no output is required",
    "A17": "says that the limiter is off by default; the test of R9 holds it",
    "A22": "says which of two contradicting sources is right; the golden transcripts hold the example",
    "A25": "has no effect",
}

_NUMBER = re.compile(r"\b([RWXA]\d{1,3}a?)\b(?:\s*(?:to|-|\u2013)\s*([RWXA]?)(\d{1,3}))?")


def _named() -> set[str]:
    names: set[str] = set()
    for path in TESTS.rglob("*.py"):
        if path == Path(__file__):
            continue
        for first, letter, last in _NUMBER.findall(path.read_text()):
            names.add(first)
            if last and letter in {"", first[0]} and first[1:].isdecimal():
                names.update(f"{first[0]}{n}" for n in range(int(first[1:]), int(last) + 1))
    return names & REQUIREMENTS


def test_every_requirement_is_named_by_a_test_or_has_a_reason_why_not() -> None:
    unnamed = sorted(REQUIREMENTS - _named() - WITHOUT_A_TEST.keys(), key=lambda r: (r[0], int(r[1:].rstrip("a"))))
    assert unnamed == [], f"no test names {', '.join(unnamed)}"


def test_no_reason_is_left_for_a_requirement_that_a_test_names() -> None:
    assert sorted(WITHOUT_A_TEST.keys() & _named()) == []

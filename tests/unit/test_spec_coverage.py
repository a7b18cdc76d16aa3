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
    "R66": "answers by fault injection belong to the testing kit, which is not part of this version",
    "R94": "endpoint discovery without a virtual network belongs to the client, which is not part of this version",
    "R95": "as R94: the responder is needed once there is a client to discover it",
    "R96": "as R94",
    "R97": "advice to clients; that the server carries it is what the benchmark measures",
    "R99": "says that no output is required",
    "R100": "client side",
    "R101": "client side",
    "R102": "client side",
    "R103": "client side",
    "R104": "client side",
    "R105": "client side",
    "A17": "says that the limiter is off by default; the test of R9 holds it",
    "A19": "client side",
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

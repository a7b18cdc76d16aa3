"""Every check, in the order of the report."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from forewarn.errors import ConfigError
from forewarn.testing.conformance.check import Check
from forewarn.testing.conformance.checks import (
    approval,
    approve,
    document,
    error,
    event,
    extension,
    header,
    transport,
    version,
)

__all__ = ["CHECKS", "SUITE_VERSION", "choose", "numbers"]

SUITE_VERSION = "1.0"
"""Version of the checks and golden transcripts. The first number grows when an endpoint that held may now break."""

CHECKS: tuple[Check, ...] = (
    *transport.CHECKS,
    *header.CHECKS,
    *version.CHECKS,
    *document.CHECKS,
    *event.CHECKS,
    *approval.CHECKS,
    *approve.CHECKS,
    *error.CHECKS,
    *extension.CHECKS,
)
"""All rows."""

_NUMBER = re.compile(r"([A-Z])(\d+)(.*)")


def numbers(checks: Iterable[Check]) -> list[str]:
    """Return the requirements that these checks cover, in order."""
    return sorted({number for check in checks for number in check.numbers}, key=_rank)


def _rank(number: str) -> tuple[int, int, str]:
    match = _NUMBER.fullmatch(number)
    assert match is not None  # noqa: S101 - numbers come from our own rows
    return ("RWXA".index(match[1]), int(match[2]), match[3])


def choose(wanted: Collection[str]) -> tuple[Check, ...]:
    """Return the checks of these requirements or codes; all if none are given.

    Raises:
        ConfigError: One of them is neither.
    """
    known = {number.lower() for number in numbers(CHECKS)} | {check.code for check in CHECKS}
    for each in wanted:
        if each.lower() not in known:
            msg = f"{each!r} is neither a requirement nor a check here: expected for example R10 or {CHECKS[0].code}"
            raise ConfigError(msg)
    names = {each.lower() for each in wanted}
    return tuple(check for check in CHECKS if not names or names & {check.code, *(n.lower() for n in check.numbers)})

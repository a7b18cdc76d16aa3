"""Every check, in the order of the report."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from forewarn.errors import ConfigError
from forewarn.testing.conformance.check import ConformanceCheck
from forewarn.testing.conformance.checks import (
    approval_effect,
    approval_format,
    document,
    error,
    event,
    extension,
    header,
    transport,
    version,
)

__all__ = ["CHECKS", "SUITE_VERSION", "list_requirements", "select_checks"]

SUITE_VERSION = "1.0"
"""Version of the checks and golden transcripts. The first number grows when an endpoint that held may now break."""

CHECKS: tuple[ConformanceCheck, ...] = (
    *transport.CHECKS,
    *header.CHECKS,
    *version.CHECKS,
    *document.CHECKS,
    *event.CHECKS,
    *approval_format.CHECKS,
    *approval_effect.CHECKS,
    *error.CHECKS,
    *extension.CHECKS,
)
"""All rows."""

_NUMBER = re.compile(r"([A-Z])(\d+)(.*)")


def list_requirements(checks: Iterable[ConformanceCheck]) -> list[str]:
    """Return the requirements that these checks cover, in order."""
    return sorted({number for check in checks for number in check.numbers}, key=_parse_requirement)


def _parse_requirement(number: str) -> tuple[int, int, str]:
    match = _NUMBER.fullmatch(number)
    assert match is not None  # noqa: S101 - numbers come from our own rows
    # Requirements first, then observations of clients, extensions and open questions, each by number: R9 before R10.
    return ("RWXA".index(match[1]), int(match[2]), match[3])


def select_checks(wanted: Collection[str]) -> tuple[ConformanceCheck, ...]:
    """Return the checks of these requirements or codes; all if none are given.

    Raises:
        ConfigError: One of them is neither.
    """
    known = {number.lower() for number in list_requirements(CHECKS)} | {check.code for check in CHECKS}
    for each in wanted:
        if each.lower() not in known:
            msg = f"{each!r} is neither a requirement nor a check: expected for example R10 or {CHECKS[0].code}"
            raise ConfigError(msg)
    names = {each.lower() for each in wanted}
    return tuple(check for check in CHECKS if not names or names & {check.code, *(n.lower() for n in check.numbers)})

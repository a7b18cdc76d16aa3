"""Approvals in several forms, each beside one that must be refused.

A 200 alone does not show that a body was read: an endpoint that discards every POST sends one as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeAlias

from forewarn.testing.conformance.outcome import Outcome, judge
from forewarn.testing.conformance.probe import Probe
from forewarn.testing.conformance.request import Request, post

__all__ = ["Form", "body_forms", "judge_approvals", "judge_harmless", "send"]

Form: TypeAlias = Callable[[dict[str, Any]], Request]
"""Function that returns the request for a body, given as a value."""

_NONSENSE = {"StartRequests": "none"}


def send(version: str | None, **more: object) -> Form:
    """Return the plain form: compact JSON with these members before those of the body."""
    return lambda content: post(json.dumps({**more, **content}).encode(), version)


def body_forms(version: str) -> dict[str, Form]:
    """Return the forms of the same JSON that R6 names."""
    plain = send(version)
    return {
        "in chunks": lambda content: replace(plain(content), is_chunked=True),
        "with a byte order mark": lambda content: post(b"\xef\xbb\xbf" + json.dumps(content).encode(), version),
        "over several lines with CRLF": lambda content: post(_pretty(content), version),
    }


def _pretty(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2).replace("\n", "\r\n").encode()


def judge_harmless(probe: Probe, forms: Mapping[str, Form], right: str) -> Outcome:
    """Judge whether the endpoint understands an approval of nothing in each form, but not nonsense in the same form.

    Raises:
        Inconclusive: The endpoint does not distinguish the two in any form.
    """
    harmless = probe.harmless
    wrong, blind = [], []
    for name, form in forms.items():
        reply = probe.ask(form(harmless.content))
        if not harmless.is_taken(reply):
            wrong.append(f"{name}, an approval is answered {reply.status}")
        elif harmless.is_taken(probe.ask(form(_NONSENSE))):
            blind.append(f"{name}, an approval and nonsense are both answered {reply.status}")
    return judge(wrong, right, blind)


def judge_approvals(probe: Probe, forms: Mapping[str, Form], right: str) -> Outcome:
    """Judge whether the approval of the target is answered 200 in each form, and one that must be refused is not."""
    wrong, blind = [], []
    for name, form in forms.items():
        reply = probe.approve(form({"StartRequests": [{"EventId": probe.target}]}))
        if reply.status != HTTPStatus.OK:
            wrong.append(f"{name}, an approval is answered {reply.status}")
        elif probe.refused is None:
            blind.append("every approval is answered 200, whatever it says")
        elif probe.ask(form(probe.refused)).status == HTTPStatus.OK:
            blind.append(f"{name}, what has to be refused is answered 200 as well")
    return judge(wrong, right, blind)

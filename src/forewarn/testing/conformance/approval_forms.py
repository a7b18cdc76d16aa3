"""Approvals in several forms, each beside one that must be refused.

A 200 alone does not show that a body was read: an endpoint that discards every POST sends one as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from http import HTTPStatus
from typing import Any, TypeAlias

from forewarn.testing.conformance.outcome import CheckOutcome, judge
from forewarn.testing.conformance.probe import EndpointProbe
from forewarn.testing.conformance.raw_request import RawRequest, build_post

__all__ = ["Form", "body_forms", "header_form", "judge_approvals", "judge_harmless_approvals", "plain_form"]

Form: TypeAlias = Callable[[dict[str, Any]], RawRequest]
"""Function that returns the request for a body, given as a value."""

_NONSENSE = {"StartRequests": "none"}


def plain_form(version: str | None, **other_members: object) -> Form:
    """Return the plain form: compact JSON with these members before those of the body."""
    return lambda content: build_post(json.dumps({**other_members, **content}).encode(), version)


def header_form(version: str, name: str, value: str | None) -> Form:
    """Return the plain form with a header of this value; None for without the header."""
    plain = plain_form(version)
    if value is None:
        return lambda content: plain(content).without_header(name)
    return lambda content: plain(content).with_headers((name, value))


def body_forms(version: str) -> dict[str, Form]:
    """Return the forms of the same JSON that R6 names."""
    plain = plain_form(version)
    return {
        "in chunks": lambda content: replace(plain(content), is_chunked=True),
        "with a byte order mark": lambda content: build_post(b"\xef\xbb\xbf" + json.dumps(content).encode(), version),
        "over several lines with CRLF": lambda content: build_post(_encode_with_crlf(content), version),
    }


def _encode_with_crlf(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2).replace("\n", "\r\n").encode()


def judge_harmless_approvals(probe: EndpointProbe, forms: Mapping[str, Form], right: str) -> CheckOutcome:
    """Judge whether the endpoint understands an approval of nothing in each form, but not nonsense in the same form.

    Raises:
        Inconclusive: The endpoint does not distinguish the two in any form.
    """
    harmless = probe.harmless_approval
    wrong, blind = [], []
    for name, form in forms.items():
        reply = probe.send_request(form(harmless.content))
        if not harmless.is_understood(reply):
            wrong.append(f"{name}, an approval returns {reply.status}")
        elif harmless.is_understood(probe.send_request(form(_NONSENSE))):
            blind.append(f"{name}, an approval and nonsense both return {reply.status}")
    return judge(wrong, right, blind)


def judge_approvals(probe: EndpointProbe, forms: Mapping[str, Form], right: str) -> CheckOutcome:
    """Judge whether the approval of the target returns 200 in each form, and one that must be refused is not."""
    wrong, blind = [], []
    for name, form in forms.items():
        reply = probe.approve_target(form({"StartRequests": [{"EventId": probe.target_event_id}]}))
        if reply.status != HTTPStatus.OK:
            wrong.append(f"{name}, an approval returns {reply.status}")
        elif probe.refused_approval is None:
            blind.append("every approval returns 200, whatever its content")
        elif probe.send_request(form(probe.refused_approval)).status == HTTPStatus.OK:
            blind.append(f"{name}, an approval that must be refused returns 200 as well")
    return judge(wrong, right, blind)

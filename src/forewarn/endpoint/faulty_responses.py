"""Faulty responses: distortions of the status, the document and the bytes on the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from forewarn.core.fault import InjectedFault
from forewarn.endpoint.fastpath import VmConnection
from forewarn.endpoint.responses import encode_json_response
from forewarn.wire import imds

__all__ = ["WHOLE", "build_status_response", "distort_document", "send_malformed"]

_RETRY_AFTER_S = 2
_STATUS_TEXTS = {
    HTTPStatus.NOT_FOUND: "Not found",
    HTTPStatus.GONE: "Gone",
    HTTPStatus.TOO_MANY_REQUESTS: "Too many requests",
    HTTPStatus.INTERNAL_SERVER_ERROR: "Internal server error",
    HTTPStatus.SERVICE_UNAVAILABLE: "Service unavailable",
}
# More than 64 KiB, so that a client with a fixed buffer of that size fails.
_LONG = "Host server is undergoing maintenance. " * (1 + (64 << 10) // 39)
_RETRIED = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})


# Status


def build_status_response(fault: InjectedFault) -> Response:
    """Return the response of a fault that is a status."""
    status = HTTPStatus(int(fault.kind.name))
    headers = {"retry-after": str(_RETRY_AFTER_S)} if status in _RETRIED else None
    return encode_json_response(status, imds.encode_error(_STATUS_TEXTS[status]), headers)


# Documents


def distort_document(fault: InjectedFault, answer: Response, before: Response | None) -> Response:
    """Return the correct response distorted by a fault; `before` has the previous document, if there was one."""
    if fault.kind.name == "stale":
        # The first document of an audience cannot be outdated, so it is sent as it is.
        return before or answer
    return _DISTORTIONS[fault.kind.name](answer)


def _replace_body(answer: Response, body: bytes) -> Response:
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return Response(body, status_code=answer.status_code, headers=headers)


def _relabel_as_text(answer: Response) -> Response:
    answer.headers["content-type"] = "text/plain; charset=utf-8"
    return answer


def _rewrite_document(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Response], Response]:
    def apply(answer: Response) -> Response:
        content = json.dumps(change(json.loads(bytes(answer.body))), separators=(",", ":"), ensure_ascii=False)
        return _replace_body(answer, content.encode())

    return apply


def _rewrite_events(**members: str) -> Callable[[Response], Response]:
    """Return a distortion that sets these members of every event."""
    return _rewrite_document(lambda document: document | {"Events": [each | members for each in document["Events"]]})


def _add_unknown_members(document: dict[str, Any]) -> dict[str, Any]:
    events = [event | {"Urgency": {"Level": 3, "Reasons": ["unheard-of"]}} for event in document["Events"]]
    return {"Schema": "2035-01-01", **document, "Events": events, "Maintenance": None}


_DISTORTIONS: dict[str, Callable[[Response], Response]] = {
    "empty": lambda answer: _replace_body(answer, b""),
    "truncated": lambda answer: _replace_body(answer, bytes(answer.body[: len(answer.body) // 2])),
    "text-plain": _relabel_as_text,
    "no-events": _rewrite_document(lambda document: {k: v for k, v in document.items() if k != "Events"}),
    "unknown-members": _rewrite_document(_add_unknown_members),
    "unknown-type": _rewrite_events(EventType="Transmogrify"),
    "large-document": _rewrite_events(Description=_LONG),
    "repeated-event": _rewrite_document(lambda document: document | {"Events": document["Events"] * 2}),
}


# Bytes

WHOLE = frozenset({"answered-twice", "slow-body", "slow-headers"})
"""Faults of the bytes that still let a patient client receive the whole response."""


async def send_malformed(connection: VmConnection, fault: InjectedFault, answer: Response, stamp: bytes) -> None:
    """Write the correct response with this fault, end the connection, and wait until it has ended.

    No part of a response has been written to the connection. `stamp` is the header lines with the date and the server.
    """
    # Written past uvicorn, which sends no malformed response; as its state no longer fits, the connection has to end.
    status, body = HTTPStatus(answer.status_code), bytes(answer.body)
    lines = [f"{name}: {value}" for name, value in answer.headers.items() if name != "content-length"]
    lines += [f"content-length: {len(body)}", "connection: close"]
    head = (
        f"HTTP/1.1 {status} {status.phrase}\r\n".encode() + stamp + "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    )
    match fault.kind.name:
        case "reset":
            connection.write(head + body[: len(body) // 2])
            # Let the event loop send these bytes: a reset drops what is still buffered.
            await asyncio.sleep(0)
            connection.reset()
        case "answered-twice":
            connection.write((head + body) * 2)
            connection.close_when_written()
        case "slow-headers":
            await _write_slowly(connection, head, fault.delay.total_seconds())
            connection.write(body)
            connection.close_when_written()
        case _:
            connection.write(head)
            await _write_slowly(connection, body, fault.delay.total_seconds())
            connection.close_when_written()
    await connection.wait_until_lost()


async def _write_slowly(connection: VmConnection, content: bytes, span_s: float) -> None:
    """Write the content byte by byte over `span_s` seconds, the last byte at the end."""
    loop = asyncio.get_running_loop()
    began_s, written = loop.time(), 0
    # Most clients give up before the end. Their requests must not keep a task for the rest of the time.
    while written < len(content) and not connection.is_lost:
        await asyncio.sleep(span_s / len(content))
        # A busy event loop wakes late, so it writes all bytes that are due: the whole must not take longer.
        share = (loop.time() - began_s) / span_s if span_s > 0 else 1.0
        due = max(written + 1, int(share * len(content)))
        connection.write(content[written:due])
        written = due

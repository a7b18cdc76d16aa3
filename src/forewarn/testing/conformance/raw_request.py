"""Requests, byte for byte: a check states exactly what is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

__all__ = ["EVENTS", "UNKNOWN_ID", "RawRequest", "build_get", "build_post", "encode_approval"]

EVENTS = "/metadata/scheduledevents"
"""Path of the events (R1)."""

UNKNOWN_ID = "0F0E0D0C-0B0A-4908-8706-050403020100"
"""Well-formed EventId that no endpoint has assigned: approving it approves nothing."""

_CHUNK_BYTES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class RawRequest:
    """One HTTP/1.1 request.

    Attributes:
        target: Path and query, below the URL of the endpoint.
        headers: Headers in this order; Host and the framing of the body are added.
        body: Body; None for a request without one.
        is_chunked: True to send the body in small chunks rather than with its length.
    """

    method: str = "GET"
    target: str = EVENTS
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    is_chunked: bool = False

    def with_headers(self, *headers: tuple[str, str]) -> RawRequest:
        """Return the request with more headers; they replace existing ones of the same name."""
        names = {name.lower() for name, _ in headers}
        kept = tuple(pair for pair in self.headers if pair[0].lower() not in names)
        return replace(self, headers=kept + headers)

    def without_header(self, name: str) -> RawRequest:
        """Return the request without that header."""
        return replace(self, headers=tuple(pair for pair in self.headers if pair[0].lower() != name.lower()))

    def encode_head(self, host: str, prefix: str) -> bytes:
        """Return the request line and headers."""
        framing: list[tuple[str, str]] = []
        if self.body is not None:
            framing = [("Transfer-Encoding", "chunked") if self.is_chunked else ("Content-Length", str(len(self.body)))]
        lines = [f"{name}: {value}" for name, value in (("Host", host), *self.headers, *framing)]
        return "\r\n".join([f"{self.method} {prefix}{self.target} HTTP/1.1", *lines, "", ""]).encode("latin-1")

    def encode_body(self) -> bytes:
        """Return the body with its framing."""
        if self.body is None or not self.is_chunked:
            return self.body or b""
        pieces = [self.body[at : at + _CHUNK_BYTES] for at in range(0, len(self.body), _CHUNK_BYTES)]
        return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def build_get(version: str | None, *, path: str = EVENTS, method: str = "GET", query: str = "") -> RawRequest:
    """Return a GET with `Metadata: true`, or another method without a body.

    Args:
        version: The api-version; None for no such parameter.
        path: Path in place of that of the events.
        method: Method in place of GET.
        query: Further parameters, starting with ``&``.
    """
    target = path if version is None else f"{path}?api-version={version}{query}"
    return RawRequest(method=method, target=target, headers=(("Metadata", "true"),))


def build_post(body: bytes, version: str | None) -> RawRequest:
    """Return a POST with `Metadata: true` of a body declared as JSON."""
    asked = build_get(version, method="POST")
    return replace(asked.with_headers(("Content-Type", "application/json")), body=body)


def encode_approval(event_ids: Iterable[str]) -> bytes:
    """Return the body that approves these events (R47)."""
    return json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()

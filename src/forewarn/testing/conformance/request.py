"""Requests as they go out, byte for byte: a check says exactly what is sent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

__all__ = ["EVENTS", "UNKNOWN_ID", "Request", "approval", "get", "post"]

EVENTS = "/metadata/scheduledevents"
"""The path (R1)."""

UNKNOWN_ID = "0F0E0D0C-0B0A-4908-8706-050403020100"
"""A well-formed EventId that no endpoint has given out: whoever approves it approves nothing."""

_CHUNK_BYTES = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP/1.1 request.

    Attributes:
        target: Path and query, below the URL of the endpoint.
        headers: In this order; Host and what frames the body are added.
        body: None for a request without any.
        is_chunked: Whether the body goes out in small chunks rather than with its length.
    """

    method: str = "GET"
    target: str = EVENTS
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    is_chunked: bool = False

    def having(self, *headers: tuple[str, str]) -> Request:
        """The same with more headers; one of a name that is there already takes its place."""
        names = {name.lower() for name, _ in headers}
        kept = tuple(pair for pair in self.headers if pair[0].lower() not in names)
        return replace(self, headers=kept + headers)

    def without(self, name: str) -> Request:
        """The same without that header."""
        return replace(self, headers=tuple(pair for pair in self.headers if pair[0].lower() != name.lower()))

    def encode_head(self, host: str, prefix: str) -> bytes:
        """Request line and headers."""
        framing: list[tuple[str, str]] = []
        if self.body is not None:
            framing = [("Transfer-Encoding", "chunked") if self.is_chunked else ("Content-Length", str(len(self.body)))]
        lines = [f"{name}: {value}" for name, value in (("Host", host), *self.headers, *framing)]
        return "\r\n".join([f"{self.method} {prefix}{self.target} HTTP/1.1", *lines, "", ""]).encode("latin-1")

    def encode_body(self) -> bytes:
        """The body as it is framed."""
        if self.body is None or not self.is_chunked:
            return self.body or b""
        pieces = [self.body[at : at + _CHUNK_BYTES] for at in range(0, len(self.body), _CHUNK_BYTES)]
        return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def get(version: str | None, *, path: str = EVENTS, method: str = "GET", query: str = "") -> Request:
    """A GET with `Metadata: true`, or another method without a body.

    Args:
        version: Its api-version; None for none at all.
        path: Instead of that of the events.
        method: Instead of GET.
        query: More of a query, from its ``&`` on.
    """
    target = path if version is None else f"{path}?api-version={version}{query}"
    return Request(method=method, target=target, headers=(("Metadata", "true"),))


def post(body: bytes, version: str | None) -> Request:
    """A POST with `Metadata: true` of what calls itself JSON."""
    asked = get(version, method="POST")
    return replace(asked.having(("Content-Type", "application/json")), body=body)


def approval(event_ids: Iterable[str], **more: object) -> bytes:
    """The body that approves these events (R47); other members come first."""
    return json.dumps({**more, "StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()

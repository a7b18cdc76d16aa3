"""Messages between the flow and its driver: requests, answers, pauses.

The flow is a generator. It yields a `HttpRequest` and is sent the `HttpAnswer`, or is thrown an `EndpointUnreachable`;
it yields a `FlowPause` and is sent None once the time is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["FlowPause", "HttpAnswer", "HttpRequest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """An HTTP request to send.

    Attributes:
        path: Path and query; the driver knows the address.
        timeout_s: Time limit for the answer, once connected.
    """

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """The response to a request.

    Attributes:
        headers: Headers, with names in lower case.
        elapsed_s: Time from the request to the last byte of the answer.
    """

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowPause:
    """A pause before the next request."""

    seconds: float

"""A request of a VM and its answer, as recorded in the journal."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qsl, urlsplit

__all__ = ["BODY_BYTES_MAX", "Exchange"]

BODY_BYTES_MAX = 64 << 10
"""Maximum size of the stored part of a body."""

_EVENT_PATHS = frozenset({"/metadata/scheduledevents", "/metadata/latest/scheduledevents"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its answer.

    Attributes:
        number: Number of the exchange, counting from 1, without gaps.
        at: Time of the answer, on the service's clock.
        vm: Name of the calling VM; empty for an unknown caller.
        source_address: Address of the caller.
        method: Method in upper case as sent; empty if the request could not be read.
        target: Path and query as sent.
        headers: Headers as sent, with names in lower case.
        body: Body as sent; truncated after 64 KiB.
        status: Status of the answer; 0 if none was given.
        answer: Body of the answer; truncated after 64 KiB.
        took_s: Seconds from the request to the answer.
        fault: The injected fault; empty: none.
        is_client_gone: True if the client had closed the connection, or its sending side, before the answer.
    """

    number: int
    at: datetime
    vm: str
    source_address: str
    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    status: int
    answer: bytes = b""
    took_s: float = 0.0
    fault: str = ""
    is_client_gone: bool = False

    @property
    def path(self) -> str:
        """Path in lower case, without a slash at its end."""
        return _split_target(self.target)[0].lower().removesuffix("/")

    @property
    def is_about_events(self) -> bool:
        """True if it is for scheduled events, rather than for `/metadata/instance` or anything else."""
        return self.path in _EVENT_PATHS

    @property
    def parameters(self) -> dict[str, str]:
        """Parameters of the query; the last value if one is given twice."""
        return dict(parse_qsl(_split_target(self.target)[1], keep_blank_values=True))

    @property
    def api_version(self) -> str:
        """The requested api-version; empty if there is none."""
        return self.parameters.get("api-version", "")

    def get_header(self, name: str) -> str | None:
        """Return the value of a header; None if it was not sent. Several values are joined with commas."""
        values = [value for each, value in self.headers if each == name.lower()]
        return ", ".join(values) if values else None


def _split_target(target: str) -> tuple[str, str]:
    try:
        parts = urlsplit(target)
    except ValueError:
        return target, ""
    return parts.path, parts.query

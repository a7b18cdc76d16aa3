"""A request of a VM and its answer, as they are written down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qsl, urlsplit

__all__ = ["BODY_BYTES_MAX", "Exchange"]

BODY_BYTES_MAX = 64 << 10
"""Of a body, so much is kept."""

_EVENT_PATHS = frozenset({"/metadata/scheduledevents", "/metadata/latest/scheduledevents"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its answer.

    Attributes:
        number: Counts from 1, without gaps.
        at: When it was answered, on the service's clock.
        vm: Who asked; empty for an unknown caller.
        source_address: Where from.
        method: In upper case as sent; empty where the request could not be read.
        target: Path and query as sent.
        headers: As sent, names in lower case.
        body: As sent; cut after 64 KiB.
        status: Of the answer; 0 where none was given.
        answer: Its body; cut after 64 KiB.
        took_s: From the request to the answer.
        fault: The fault that was injected; empty: none.
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

    @property
    def path(self) -> str:
        """The path, in lower case, without a slash at its end."""
        return _split(self.target)[0].lower().removesuffix("/")

    @property
    def is_about_events(self) -> bool:
        """Whether it is for scheduled events, rather than for `/metadata/instance` or anything else."""
        return self.path in _EVENT_PATHS

    @property
    def parameters(self) -> dict[str, str]:
        """The query's parameters; of one that is given twice, the last."""
        return dict(parse_qsl(_split(self.target)[1], keep_blank_values=True))

    @property
    def api_version(self) -> str:
        """What it asked for; empty without."""
        return self.parameters.get("api-version", "")

    def header(self, name: str) -> str | None:
        """The value of a header; None: it was not sent. Of several, all, with commas in between."""
        values = [value for each, value in self.headers if each == name.lower()]
        return ", ".join(values) if values else None


def _split(target: str) -> tuple[str, str]:
    try:
        parts = urlsplit(target)
    except ValueError:
        return target, ""
    return parts.path, parts.query

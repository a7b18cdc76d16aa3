"""Rendering of pages: the templates, and the functions and filters they may use."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from forewarn.dashboard import wording

__all__ = ["STATIC", "render_template", "static_path"]

STATIC = resources.files("forewarn.dashboard") / "static"
"""Folder of the static files that pages load."""


def format_time(at: datetime | None) -> str:
    """Format a time for people: to the second, in UTC; empty for None."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_timestamp(at: datetime) -> str:
    """Format a time for scripts: ISO 8601 in UTC."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def format_duration(length: timedelta | float | None) -> str:
    """Format a duration in its two largest units: ``2 d 3 h``, ``14 min 30 s``, ``5 s``; a number is in seconds."""
    if length is None:
        return ""
    total = length.total_seconds() if isinstance(length, timedelta) else float(length)
    sign, seconds = ("-" if total < 0 else ""), abs(total)
    if seconds < 10 and seconds != int(seconds):  # noqa: PLR2004 - below ten seconds the tenths matter
        return f"{sign}{seconds:.1f} s"
    parts, rest = [], round(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        amount, rest = divmod(rest, size)
        if amount:
            parts.append(f"{amount} {unit}")
    return sign + (" ".join(parts[:2]) or "0 s")


def _encode_json(value: Any) -> Markup:  # noqa: ANN401 - any JSON value
    """Encode a value as JSON that cannot close the HTML element around it."""
    text = json.dumps(value, separators=(",", ":"))
    # Inside a script element HTML entities are not decoded, so JSON's own escapes are used.
    escaped = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(escaped)  # noqa: S704 - the markup characters are escaped


def _quote_segment(name: object) -> str:
    return quote(str(name), safe="")


def _encode_query(**values: object) -> str:
    given = {key: str(value) for key, value in values.items() if value not in (None, "", False)}
    return f"?{urlencode(given)}" if given else ""


@cache
def static_path(name: str) -> str:
    """Return the path of a static file; it contains a hash of the content, so browsers may cache it forever."""
    mark = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{mark}/{name}"


@cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("forewarn.dashboard"),
        autoescape=True,
        # A misspelt name must fail instead of leaving a gap in the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "format_time": format_time,
        "format_timestamp": format_timestamp,
        "format_duration": format_duration,
        "data": _encode_json,
        "segment": _quote_segment,
    }
    environment.globals |= {"words": wording, "static": static_path, "query": _encode_query}
    return environment


def render_template(template: str, values: Mapping[str, Any], *, is_whole: bool = True) -> bytes:
    """Render a page or, if not `is_whole`, only its live part, without the layout around it."""
    layout = "layout.html" if is_whole else "bare.html"
    return _make_environment().get_template(template).render(**values, layout=layout).encode()

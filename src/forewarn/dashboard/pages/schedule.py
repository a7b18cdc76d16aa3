"""Schedule page: the form for a maintenance, and a preview of what it would announce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from forewarn.core.causes import CAUSES
from forewarn.core.model import EventType
from forewarn.dashboard.page import PageModel, PageView
from forewarn.engine.maintenances import MaintenancePreview
from forewarn.errors import ForewarnError, InvalidRequest, LimitExceeded
from forewarn.store.contract import Reader
from forewarn.util.duration import parse_duration
from forewarn.util.secrets import new_token
from forewarn.wire.control_request import MaintenanceIn

__all__ = ["make_schedule_page", "make_schedule_preview", "read_request"]

_SPAN_LENGTH_MAX = 40
FIELDS = (
    "hosts",
    "vms",
    "type",
    "source",
    "description",
    "duration",
    "notice",
    "not_before",
    "latest_start",
    "now",
    "force",
    "reason",
    "key",
)
OPT_IN = frozenset(name for name, cause in CAUSES.items() if cause.profile is not None)
"""Causes that create events only if the scope has opted in."""


def make_schedule_page(_reader: Reader, view: PageView) -> PageModel:
    """Make the form, prefilled from the query."""
    form = {name: view.query_params.get(name, "") for name in FIELDS}
    return PageModel(template="schedule.html", title="Schedule", values=_make_values(form, None, None), is_live=False)


def make_schedule_preview(
    form: Mapping[str, str], rehearsed: Sequence[MaintenancePreview] | None, error: ForewarnError | None
) -> PageModel:
    """Make the form again, with a preview or an error."""
    return PageModel(
        template="schedule.html", title="Schedule", values=_make_values(form, rehearsed, error), is_live=False
    )


def _make_values(
    form: Mapping[str, str], rehearsed: Sequence[MaintenancePreview] | None, error: ForewarnError | None
) -> dict[str, object]:
    filled = {name: form.get(name, "") for name in FIELDS}
    filled["key"] = filled["key"] or new_token()
    return {
        "form": filled,
        "types": list(EventType),
        "rehearsed": rehearsed,
        "error": error,
        "causes": list(CAUSES),
        "opt_in": OPT_IN,
    }


def read_request(form: Mapping[str, str], names_max: int) -> MaintenanceIn:
    """Return the maintenance that the form requests.

    Raises:
        InvalidRequest: A field cannot be read.
        LimitExceeded: The form names too many hosts and VMs.
    """
    hosts, vms = _split_names(form.get("hosts", "")), _split_names(form.get("vms", ""))
    if len(hosts) + len(vms) > names_max:
        msg = f"{len(hosts) + len(vms)} hosts and VMs are named: the limit is {names_max} (request_vms_max)"
        raise LimitExceeded(msg)
    content: dict[str, object] = {"hosts": hosts, "vms": vms}
    content |= {name: form.get(name, "") == "on" for name in ("force", "now")}
    content |= {name: form[name] for name in ("type", "source", "description", "reason") if form.get(name, "").strip()}
    for name in ("not_before", "latest_start"):
        text = form.get(name, "").strip()
        if text:
            # Browsers send no time zone with `datetime-local`; the label of the field says UTC.
            content[name] = text if text[-1:] in "Zz" or "+" in text else f"{text}Z"
    notice, duration = _parse_duration(form, "notice"), _parse_duration(form, "duration")
    if notice is not None:
        content["notice_s"] = notice
    if duration is not None:
        content["duration_s"] = round(duration)
    try:
        return MaintenanceIn.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        msg = ": ".join(part for part in (where, first["msg"].removeprefix("Value error, ")) if part)
        raise InvalidRequest(msg) from error


def _split_names(text: str) -> list[str]:
    """Split names separated by commas, blanks or line breaks; drop duplicates."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def _parse_duration(form: Mapping[str, str], name: str) -> float | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    # As in Azure's DurationInSeconds.
    if text == "unknown":
        return -1.0
    if len(text) > _SPAN_LENGTH_MAX:
        raise InvalidRequest(f"{name}: a duration is expected, for example 90s, 15m, 24h or 7d")
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}") from error

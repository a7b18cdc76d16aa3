"""Schedule page: the form for a maintenance, and a preview of what it would announce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from forewarn.core.causes import CAUSES
from forewarn.core.model import EventType
from forewarn.dashboard.forms import describe_invalid_field, parse_duration_field, split_names
from forewarn.dashboard.page import PageModel, PageView
from forewarn.engine.maintenances import MaintenancePreview
from forewarn.errors import ForewarnError, InvalidRequest, LimitExceeded
from forewarn.store.contract import Reader
from forewarn.util.secrets import new_token
from forewarn.wire.control_request import MaintenanceIn

__all__ = ["make_schedule_page", "make_schedule_preview", "read_request"]

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
    hosts, vms = split_names(form.get("hosts", "")), split_names(form.get("vms", ""))
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
    notice, duration = _parse_seconds(form, "notice"), _parse_seconds(form, "duration")
    if notice is not None:
        content["notice_s"] = notice
    if duration is not None:
        content["duration_s"] = round(duration)
    try:
        return MaintenanceIn.model_validate(content)
    except ValidationError as error:
        raise InvalidRequest(describe_invalid_field(error)) from error


def _parse_seconds(form: Mapping[str, str], name: str) -> float | None:
    # As in Azure's DurationInSeconds.
    if form.get(name, "").strip() == "unknown":
        return -1.0
    found = parse_duration_field(form, name)
    return None if found is None else found.total_seconds()

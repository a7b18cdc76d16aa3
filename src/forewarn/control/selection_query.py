"""Query parameters that filter maintenances, events and audit log entries, the same for every list."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request

from forewarn.control.context import Caller
from forewarn.core.model import EntryKind, EventSource, EventType
from forewarn.core.selection import Selection
from forewarn.errors import Forbidden, InvalidRequest
from forewarn.wire.json_types import NO_NUL, Moment

__all__ = ["SelectionOf", "make_text_query"]


def make_text_query(description: str, length_max: int = 128) -> object:
    """Return a query parameter that takes a name or a text, of 1 to `length_max` characters."""
    return Query(min_length=1, max_length=length_max, pattern=NO_NUL, description=description)


async def _read_selection(  # noqa: PLR0913 - a parameter each
    request: Request,
    caller: Caller,
    since: Annotated[
        Moment | None,
        Query(description="Only entries that were written, or maintenances that were created, at or after this time."),
    ] = None,
    until: Annotated[
        Moment | None,
        Query(description="Only entries that were written, or maintenances that were created, before this time."),
    ] = None,
    vm: Annotated[
        str | None, make_text_query("Only entries or maintenances of this VM, even if it no longer exists.")
    ] = None,
    scope: Annotated[str | None, make_text_query("Only entries or maintenances of this scope.")] = None,
    host: Annotated[
        str | None,
        make_text_query("Only entries or maintenances of VMs that were on this host when the maintenance was created."),
    ] = None,
    kind: Annotated[
        list[EntryKind] | None,
        Query(
            description="Only audit log entries of these kinds, or maintenances with an audit log entry of these kinds."
        ),
    ] = None,
    actor: Annotated[
        str | None,
        make_text_query(
            "Only entries of this actor, such as operator:ann, or maintenances that have such an entry.", 256
        ),
    ] = None,
    type_: Annotated[
        EventType | None,
        Query(
            alias="type",
            description="Only maintenances of this type, or the events and audit log entries of such maintenances.",
        ),
    ] = None,
    source: Annotated[
        EventSource | None,
        Query(
            description="Only maintenances from this source, or the events and audit log entries of such maintenances."
        ),
    ] = None,
    text: Annotated[
        str | None,
        make_text_query(
            "Only entries or maintenances with this text in a reason or description; ASCII case is ignored.", 1000
        ),
    ] = None,
) -> Selection:
    if since is not None and until is not None and until <= since:
        raise InvalidRequest("until must be after since")
    hidden: dict[str, object] = {"host": host, "actor": actor, "text": text}
    # Entries of a shared maintenance may belong to others: selecting maintenances by kind would reveal them.
    if not request.url.path.startswith("/v1/audit-log") and not request.url.path.startswith("/v1/watch"):
        hidden["kind"] = kind
    asked = [name for name, value in hidden.items() if value is not None]
    if asked and caller.ownership is not None:  # matches would reveal values that the tenant is not shown
        raise Forbidden(f"{caller.actor} may not filter by {', '.join(asked)}: not allowed for role {caller.role}")
    return Selection(
        since=since,
        until=until,
        vm=vm,
        scope=scope,
        host=host,
        kinds=tuple(dict.fromkeys(kind or ())),
        actor=actor,
        type=type_,
        source=source,
        text=text,
    )


SelectionOf = Annotated[Selection, Depends(_read_selection)]

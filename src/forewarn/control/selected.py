"""Query parameters that filter maintenances, events and audit log entries, the same for every list."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request

from forewarn.control.context import Caller
from forewarn.core.model import EntryKind, EventType, Source
from forewarn.core.selection import Selection
from forewarn.errors import Forbidden, InvalidRequest
from forewarn.wire.control import Moment

__all__ = ["SelectionOf"]

_NO_NUL = r"^[^\x00]*$"


def _text(description: str, most: int = 128) -> object:
    return Query(min_length=1, max_length=most, pattern=_NO_NUL, description=description)


async def _selection(  # noqa: PLR0913 - a parameter each
    request: Request,
    caller: Caller,
    since: Annotated[Moment | None, Query(description="Not before this moment.")] = None,
    until: Annotated[Moment | None, Query(description="Before this moment.")] = None,
    vm: Annotated[str | None, _text("What has to do with this VM, also one that is gone.")] = None,
    scope: Annotated[str | None, _text("What has to do with this scope.")] = None,
    host: Annotated[str | None, _text("What has to do with VMs that were on this host then.")] = None,
    kind: Annotated[list[EntryKind] | None, Query(description="Audit log entries of these kinds.")] = None,
    actor: Annotated[str | None, _text("Who did it, such as operator:ann or vm:db.", 256)] = None,
    type_: Annotated[EventType | None, Query(alias="type", description="Maintenances of this type.")] = None,
    source: Annotated[Source | None, Query(description="Maintenances of this source.")] = None,
    text: Annotated[str | None, _text("What stands in a reason or a description; any case.", 1000)] = None,
) -> Selection:
    if since is not None and until is not None and until <= since:
        msg = "until is not after since: nothing lies between them"
        raise InvalidRequest(msg)
    hidden: dict[str, object] = {"host": host, "actor": actor, "text": text}
    if not request.url.path.startswith("/v1/audit-log") and not request.url.path.startswith("/v1/watch"):
        hidden["kind"] = kind
    asked = [name for name, value in hidden.items() if value is not None]
    if asked and caller.owned is not None:  # matches would reveal values that the tenant is not shown
        msg = f"{caller.actor} may not choose by {', '.join(asked)}: it is not for the role {caller.role}"
        raise Forbidden(msg)
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


SelectionOf = Annotated[Selection, Depends(_selection)]

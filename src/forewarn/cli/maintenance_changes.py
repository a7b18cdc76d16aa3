"""`forewarn maintenance approve`, `cancel`, `start` and `retry`: the same change of one or several maintenances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from forewarn.cli.command import OptionGroup, command
from forewarn.cli.completers import maintenance_ids
from forewarn.cli.confirmation import confirm
from forewarn.cli.connection import ControlConnection, quote_segment
from forewarn.cli.list_options import HistoryFilter
from forewarn.cli.maintenance_options import ReasonOption
from forewarn.cli.output import Output, format_count, format_moment, format_names
from forewarn.cli.short_ids import resolve_id
from forewarn.cli.times import split_names
from forewarn.core.causes import CAUSES
from forewarn.core.model import MaintenanceState
from forewarn.errors import Conflict, ForewarnError, ServerUnreachable

__all__ = ["Change", "app", "build_maintenance_path", "build_retry_body"]

SELECTED_MAX = 1000
"""Maximum number of maintenances that options may select for one command."""

_PREVIEWED_MAX = 20
_NAMES_MAX = 5
_UNKNOWN, _REFUSED = 404, 409

_Ids = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID...",
        help="Ids of the maintenances, or their beginnings. Without ids, the filters select them.",
        autocompletion=maintenance_ids,
    ),
]


class SomeFailed(ForewarnError):
    """A change of several maintenances failed for some of them."""

    code = "some_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeveralOptions(OptionGroup):
    """Options of a change of several maintenances."""

    every: Annotated[
        bool, typer.Option("--all", help="Without ids and filters: every maintenance for which this is possible.")
    ] = False
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the maintenances, but change nothing.")] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change that can be made to several maintenances.

    Attributes:
        verb: What is done, such as ``cancel``.
        done: Participle of the verb, such as ``canceled``.
        states: States in which this is possible; filters select only maintenances in these.
        make: Callback that makes the change to the maintenance with an id, and returns the answer and a line about it.
    """

    verb: str
    done: str
    states: tuple[MaintenanceState, ...]
    make: Callable[[str], tuple[Any, str]]


app = typer.Typer()


@command(
    app,
    "approve",
    "forewarn maintenance approve k3v9xq2mab",
    "forewarn maintenance approve --scope web --dry-run",
    "forewarn maintenance approve --host host-1 --yes",
)
def approve(
    connection: ControlConnection,
    output: Output,
    choice: HistoryFilter,
    options: SeveralOptions,
    ids: _Ids = None,
) -> None:
    """Approve all events of scheduled maintenance on behalf of their VMs, so that the maintenance can start.

    Without ids, this approves every maintenance that the filters select. Unless you give exactly one id, the command
    shows what it would change, and asks for confirmation.
    """

    def make(maintenance_id: str) -> tuple[Any, str]:
        m = connection.get(build_maintenance_path(connection, maintenance_id))
        waiting = [event["id"] for event in m["events"] if event["status"] == "Scheduled" and not event["approved_at"]]
        if waiting:
            # The answer lists the outcome of each event even if some are refused, so it is read like a success.
            answer = connection.send_change(
                "POST", "/v1/events/approve", {"event_ids": waiting}, accepted_statuses=(_UNKNOWN, _REFUSED)
            )
            refused = [item["event_id"] for item in answer["items"] if item["status"] != 200]  # noqa: PLR2004 - HTTP OK
            if refused:
                raise Conflict(f"a policy reserves approval for others: {', '.join(refused)}")
            m = connection.get(build_maintenance_path(connection, maintenance_id))
        line = f"{format_count(len(waiting), 'event')} approved" if waiting else "no event needs approval"
        return m, f"maintenance {m['id']} is {m['state']}: {line}"

    change = Change(verb="approve", done="approved", states=(MaintenanceState.SCHEDULED,), make=make)
    _change_several(connection, output, change, ids, choice, options)


@command(
    app,
    "cancel",
    "forewarn maintenance cancel k3v9xq2mab",
    'forewarn maintenance cancel k3v9xq2mab --reason "postponed"',
    "forewarn maintenance cancel --host host-1 --dry-run",
    "forewarn maintenance cancel --all --yes",
)
def cancel(
    connection: ControlConnection,
    output: Output,
    choice: HistoryFilter,
    options: SeveralOptions,
    ids: _Ids = None,
    reason: ReasonOption = None,
) -> None:
    """Cancel maintenance that has not started.

    Without ids, this cancels every maintenance that the filters select. Unless you give exactly one id, the command
    shows what it would change, and asks for confirmation.
    """
    states = (MaintenanceState.QUEUED, MaintenanceState.SCHEDULED)
    make = _make_posting(connection, "cancel", {"reason": reason})
    change = Change(verb="cancel", done="canceled", states=states, make=make)
    _change_several(connection, output, change, ids, choice, options)


@command(
    app,
    "start",
    'forewarn maintenance start k3v9xq2mab --reason "the owner agreed by telephone"',
    'forewarn maintenance start --scope web --reason "the owner agreed by telephone" --dry-run',
)
def start(
    connection: ControlConnection,
    output: Output,
    choice: HistoryFilter,
    options: SeveralOptions,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Reason, recorded in the audit log.")],
    ids: _Ids = None,
) -> None:
    """Start scheduled maintenance now, without waiting for approvals or NotBefore.

    Without ids, this starts every maintenance that the filters select. Unless you give exactly one id, the command
    shows what it would change, and asks for confirmation.
    """
    make = _make_posting(connection, "start", {"reason": reason})
    change = Change(verb="start", done="started", states=(MaintenanceState.SCHEDULED,), make=make)
    _change_several(connection, output, change, ids, choice, options)


@command(
    app,
    "retry",
    "forewarn maintenance retry k3v9xq2mab",
    "forewarn maintenance retry --since 1d --host host-1 --dry-run",
)
def retry(
    connection: ControlConnection,
    output: Output,
    choice: HistoryFilter,
    options: SeveralOptions,
    ids: _Ids = None,
) -> None:
    """Schedule failed or canceled maintenance again, as new maintenance with a new warning.

    Without ids, this schedules all failed maintenance that the filters select. Unless you give exactly one id, the
    command shows what it would schedule, and asks for confirmation. If it was for hosts, the VMs that run on these
    hosts now are affected.
    """

    def make(maintenance_id: str) -> tuple[Any, str]:
        m = connection.get(build_maintenance_path(connection, maintenance_id))
        made = connection.send_change("POST", "/v1/maintenance", build_retry_body(m))["items"]
        new = ", ".join(f"{each['id']} ({each['state']})" for each in made)
        return made, f"maintenance {m['id']} is scheduled again as {new}"

    change = Change(verb="retry", done="scheduled again", states=(MaintenanceState.FAILED,), make=make)
    _change_several(connection, output, change, ids, choice, options)


def build_retry_body(m: dict[str, Any]) -> dict[str, Any]:
    """Return the request, as the API takes it, that schedules a maintenance again.

    A forced notice is not repeated, so the VMs get the usual one.

    Raises:
        Conflict: The maintenance has not failed and was not canceled, or it was the failure of a host.
    """
    if m["state"] not in {MaintenanceState.FAILED, MaintenanceState.CANCELED}:
        raise Conflict(f"maintenance {m['id']} is {m['state']}: only a failed or canceled one can be scheduled again")
    if m["cause"] in CAUSES and CAUSES[m["cause"]].is_immediate:
        raise Conflict(f"maintenance {m['id']} was the failure of a host, which cannot be scheduled")
    where = {"hosts": m["hosts"]} if m["hosts"] else {"vms": m["vms"]}
    body = where | {name: m[name] for name in ("type", "cause", "source", "description", "duration_s")}
    if m["impact"] != m["type"]:
        body["impact"] = m["impact"]
    if m["notice_s"] and m["force_reason"] is None:
        body["notice_s"] = m["notice_s"]
    return body


def build_maintenance_path(connection: ControlConnection, maintenance_id: str, *rest: str) -> str:
    """Return the path of a maintenance in the control API; its id may be given by its beginning.

    Raises:
        Conflict: Several ids begin like that.
    """
    whole = resolve_id(connection, "maintenance", maintenance_id)
    return "/".join(["/v1/maintenance", quote_segment(whole), *rest])


def _make_posting(connection: ControlConnection, verb: str, body: dict[str, Any]) -> Callable[[str], tuple[Any, str]]:
    def make(maintenance_id: str) -> tuple[Any, str]:
        changed = connection.send_change("POST", build_maintenance_path(connection, maintenance_id, verb), body)
        return changed, f"maintenance {changed['id']} is {changed['state']}"

    return make


def _change_several(
    connection: ControlConnection,
    output: Output,
    change: Change,
    ids: list[str] | None,
    choice: HistoryFilter,
    options: SeveralOptions,
) -> None:
    """Make a change to the maintenances that ids or filters select; ask first if that may be several.

    Raises:
        typer.BadParameter: Nothing is selected, too much is, or both by ids and by filters.
        SomeFailed: The change failed for some of several.
    """
    named = split_names(ids)
    if bool(named) == (choice.has_options or options.every) or (choice.has_options and options.every):
        raise typer.BadParameter("give ids, or filters such as --host, or --all: one of these", param_hint="ID")
    if len(named) == 1 and not options.dry_run:
        result, line = change.make(named[0])
        output.print_result(result, line)
        return
    if named and options.yes and not options.dry_run:
        _make_each(output, change, named)
        return
    if named:
        found = [connection.get(build_maintenance_path(connection, each)) for each in named]
    else:
        found = _select(connection, change, choice)
    if options.dry_run:
        dry = f"dry run: {format_count(len(found), 'maintenance')} would be {change.done}; nothing was changed"
        output.print_result(found, *_preview(found), dry)
        return
    if not found:
        output.print_notice(f"no maintenance to {change.verb}")
        output.print_if_json([])
        return
    question = f"{format_count(len(found), 'maintenance')} will be {change.done}:"
    confirm(output, lambda: [question, *_preview(found)], yes=options.yes)
    _make_each(output, change, [m["id"] for m in found])


def _select(connection: ControlConnection, change: Change, choice: HistoryFilter) -> list[dict[str, Any]]:
    params = choice.to_query_params(connection) | {"state": [str(state) for state in change.states]}
    found = list(connection.iterate_items("/v1/maintenance", SELECTED_MAX + 1, **params))
    if len(found) > SELECTED_MAX:
        msg = f"they select more than {SELECTED_MAX:,} maintenances: select fewer"
        raise typer.BadParameter(msg, param_hint="filters")
    # In the order in which they were created, as the service would take them.
    return found[::-1]


def _preview(found: Sequence[dict[str, Any]]) -> list[str]:
    lines = []
    for m in found[:_PREVIEWED_MAX]:
        when = "" if m["not_before"] is None else f", not before {format_moment(m['not_before'])}"
        names = format_names(m["vms"] or m["hosts"], _NAMES_MAX) or "no VM"
        lines.append(f"  {m['id']}  {m['state']}: {m['type']} of {names}{when}")
    if len(found) > _PREVIEWED_MAX:
        lines.append(f"  and {len(found) - _PREVIEWED_MAX} more")
    return lines


def _make_each(output: Output, change: Change, ids: Sequence[str]) -> None:
    """Make the change to each maintenance, with a line for each.

    Raises:
        SomeFailed: It failed for some.
        ServerUnreachable: The service is gone; the others were not tried.
    """
    results: list[dict[str, Any]] = []
    try:
        for number, maintenance_id in enumerate(ids):
            output.show_progress(f"{number} of {len(ids)} {change.done}")
            try:
                result, line = change.make(maintenance_id)
            except ServerUnreachable:
                raise
            except ForewarnError as error:
                results.append(
                    {"id": maintenance_id, "result": None, "error": {"code": error.code, "message": error.message}}
                )
                line = f"maintenance {maintenance_id}: {error.message}"
            else:
                results.append({"id": maintenance_id, "result": result, "error": None})
            output.show_progress()
            if not output.is_json:
                (output.print_notice if results[-1]["error"] else output.print_line)(line)
    finally:
        output.print_if_json(results)
    failed = sum(each["error"] is not None for each in results)
    if failed:
        raise SomeFailed(f"{failed} of {format_count(len(ids), 'maintenance')} could not be {change.done}")

"""`forewarn rollout`: one maintenance for many hosts, in order."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from forewarn.cli.command import command, make_group
from forewarn.cli.completers import rollout_ids
from forewarn.cli.confirmation import Yes, confirm
from forewarn.cli.connection import ControlConnection, quote_segment
from forewarn.cli.list_options import WatchListOptions
from forewarn.cli.list_output import print_page
from forewarn.cli.maintenance_options import ReasonOption
from forewarn.cli.maintenance_text import describe_quiet_hours_move
from forewarn.cli.output import (
    Column,
    Output,
    format_count,
    format_moment,
    format_names,
    format_seconds,
    parse_moment,
    show_moment,
)
from forewarn.cli.short_ids import resolve_id
from forewarn.errors import ConfigError, ForewarnError

__all__ = ["app"]

_Which = Annotated[
    str, typer.Argument(metavar="ID", help="Id of the rollout, or its beginning.", autocompletion=rollout_ids)
]
_Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow the rollout until it ends or waits for you.")]
_LOOK_S = 1.0
_ENDED = frozenset({"aborted", "completed", "failed"})
_SIZE_BYTES_MAX = 4 << 20


class RolloutFailed(ForewarnError):
    """A followed rollout did not complete."""

    code = "rollout_failed"


app = make_group("rollout", "Carry out the same operation on many hosts, in order.", "Operate")


@command(app, "start", "forewarn rollout start kernel.yaml --dry-run", "forewarn rollout start kernel.yaml --follow")
def start(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Specification of the rollout, YAML.")],
    connection: ControlConnection,
    output: Output,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan without starting anything.")] = False,
    follow: _Follow = False,
) -> None:
    """Start a rollout, or show its plan with --dry-run."""
    from forewarn.wire.rollout import RolloutIn, parse_rollout

    # Parsed here as well, because only this side can name the line of the file in an error.
    spec = RolloutIn.from_spec(parse_rollout(_read_spec(file), str(file)))
    body = spec.model_dump(mode="json", exclude_none=True)
    if dry_run:
        _print_plan(output, connection.send_change("POST", "/v1/rollouts/plan", body))
        return
    made = connection.send_change("POST", "/v1/rollouts", body)
    if follow:
        _follow_rollout(connection, output, made["id"])
    else:
        _print_rollout(connection, output, made["id"])


@command(app, "list", "forewarn rollout list")
def list_rollouts(connection: ControlConnection, output: Output, options: WatchListOptions) -> None:
    """List rollouts, the newest first."""
    print_page(
        connection,
        output,
        "/v1/rollouts",
        [
            Column("id"),
            Column("name", is_whole=False),
            Column("state", is_state=True),
            Column("hosts", _format_progress),
            Column("since", show_moment("created_at")),
            Column("ended", show_moment("ended_at"), is_wide=True),
            Column("batch", _format_batch, is_wide=True),
            Column("in flight", is_whole=False, is_wide=True),
            Column("waits for", is_whole=False, is_wide=True),
            Column("reason", is_whole=False, is_wide=True),
        ],
        options=options,
        list_name="rollouts",
        params={},
        empty="no rollouts: see 'forewarn rollout start --help'",
        noun="rollouts",
    )


@command(app, "show", "forewarn rollout show k3v9xq2mab", "forewarn rollout show k3v9xq2mab --follow")
def show(
    which: _Which,
    connection: ControlConnection,
    output: Output,
    follow: _Follow = False,
) -> None:
    """Show the progress of a rollout, and what it waits for."""
    if follow:
        _follow_rollout(connection, output, which)
        return
    _print_rollout(connection, output, which)


@command(app, "pause", 'forewarn rollout pause k3v9xq2mab --reason "customer called"')
def pause(which: _Which, connection: ControlConnection, output: Output, reason: ReasonOption = None) -> None:
    """Pause a rollout: no further hosts get maintenance. Maintenance already scheduled or started continues."""
    _send_change(connection, output, which, "pause", {"reason": reason})


@command(app, "resume", "forewarn rollout resume k3v9xq2mab")
def resume(
    which: _Which,
    connection: ControlConnection,
    output: Output,
    accept_health: Annotated[
        bool, typer.Option("--accept-health", help="Treat the last health check as passed.")
    ] = False,
) -> None:
    """Resume a paused rollout; earlier failures no longer count towards the limit failures_max."""
    _send_change(connection, output, which, "resume", {"accept_health": accept_health})


@command(
    app,
    "abort",
    'forewarn rollout abort k3v9xq2mab --reason "wrong kernel"',
    'forewarn rollout abort k3v9xq2mab --reason "wrong kernel" --yes',
)
def abort(
    which: _Which, connection: ControlConnection, output: Output, reason: ReasonOption = None, yes: Yes = False
) -> None:
    """Abort a rollout, and cancel its maintenance that has not started. Started maintenance continues to its end.

    Without --yes, the command asks for confirmation.
    """

    def describe() -> str:
        shown = connection.get(_build_path(connection, which))
        return (
            f"Rollout {shown['name']} ends after {_format_progress(shown)} hosts: "
            f"{shown['counts']['pending']} hosts are left out, and what has not started is canceled. "
            "It cannot be resumed; pause it to stop temporarily."
        )

    confirm(output, describe, yes=yes)
    _send_change(connection, output, which, "abort", {"reason": reason})


def _build_path(connection: ControlConnection, rollout_id: str, *rest: str) -> str:
    return "/".join(["/v1/rollouts", quote_segment(resolve_id(connection, "rollout", rollout_id)), *rest])


def _read_spec(file: Path) -> bytes:
    try:
        # Checked before reading: a wrong file name may be that of a disk image.
        if file.stat().st_size > _SIZE_BYTES_MAX:
            raise ConfigError(f"{file} is too large: a rollout may have at most {_SIZE_BYTES_MAX} bytes")
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error


def _print_plan(output: Output, plan: dict[str, Any]) -> None:
    if output.print_if_json(plan):
        return
    output.print_table(
        plan["batches"],
        [
            Column("batch", lambda batch: f"{batch['number']}{' canary' if batch['is_canary'] else ''}"),
            Column("begins", show_moment("begins_at")),
            Column("ends", show_moment("ends_at")),
            Column("vms"),
            Column("not warned", lambda batch: batch["unwarned"] or None),
            Column("hosts", lambda batch: "; then ".join(map(", ".join, batch["rounds"])), is_whole=False),
        ],
    )
    output.print_lines(describe_plan(plan["batches"]))
    spent = (parse_moment(plan["ends_at"]) - parse_moment(plan["begins_at"])).total_seconds()
    least = "at least " if plan["is_at_least"] else ""
    output.print_line()
    hosts = format_count(plan["hosts"], "host")
    output.print_line(f"dry run: {hosts}, {least}{format_seconds(spent)} if no one approves early; nothing was started")


def describe_plan(batches: list[dict[str, Any]]) -> list[str]:
    """Describe the hosts that quiet hours postpone, and name the VMs that are not warned."""
    moves = [move for batch in batches for move in batch["moves"]]
    lines = [
        f"host {move['host']}: not before {format_moment(move['not_before'])}, moved {describe_quiet_hours_move(move)}"
        for move in moves[:_LINES_MAX]
    ]
    if len(moves) > _LINES_MAX:
        lines.append(f"and {len(moves) - _LINES_MAX} more hosts are moved by quiet hours")
    names = [name for batch in batches for name in batch["unwarned_vms"]]
    if names:
        count = sum(batch["unwarned"] for batch in batches)
        shown = format_names(names, _LINES_MAX, count)
        lines.append(f"not warned: {shown} ({'have' if count > 1 else 'has'} not asked for events)")
    return lines


_LINES_MAX = 20


def _format_progress(rollout: dict[str, Any]) -> str:
    counts = rollout["counts"]
    over = counts["done"] + counts["failed"] + counts["skipped"]
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    return f"{over} of {sum(counts.values())}{failed}"


def _format_batch(rollout: dict[str, Any]) -> str | None:
    return None if rollout["batch"] is None else f"{rollout['batch']} of {rollout['batches']}"


def _print_rollout(connection: ControlConnection, output: Output, rollout_id: str) -> None:
    shown = connection.get(_build_path(connection, rollout_id))
    hosts = list(connection.iterate_items(_build_path(connection, rollout_id, "hosts")))
    if output.print_if_json({**shown, "hosts": hosts}):
        return
    output.print_fields(
        [
            ("rollout", f"{shown['id']} {shown['name']}"),
            ("state", shown["state"]),
            ("reason", shown["reason"]),
            ("hosts", _format_progress(shown)),
            ("batch", _format_batch(shown)),
            ("waits for", shown["waits_for"]),
            ("until", format_moment(shown["waits_until"])),
            ("started", format_moment(shown["started_at"])),
            ("ended", format_moment(shown["ended_at"])),
        ]
    )
    output.print_table(
        hosts,
        [
            Column("host", "name"),
            Column("batch"),
            Column("state", is_state=True),
            Column("maintenance", "maintenance_ids"),
            Column("", "reason", is_whole=False),
        ],
    )


def _follow_rollout(connection: ControlConnection, output: Output, rollout_id: str) -> None:
    """Print one line for each change, and what it waits for in between; end when it is over or paused.

    Raises:
        RolloutFailed: It did not complete.
    """
    last = ""
    rollout_id = resolve_id(connection, "rollout", rollout_id)
    while True:
        shown = connection.get(_build_path(connection, rollout_id))
        flight = f", in flight: {', '.join(shown['in_flight'][:5])}" if shown["in_flight"] else ""
        line = f"{shown['state']}: {_format_progress(shown)} hosts{flight}"
        if line != last:
            last = line
            output.show_progress()
            if output.is_json:
                output.print_json_line(shown)
            else:
                output.print_line(line)
        is_over = shown["state"] in _ENDED
        # A paused rollout that still has hosts in flight goes on changing, so it is followed until they have ended.
        if is_over or (shown["state"] == "paused" and not shown["in_flight"]):
            output.show_progress()
            if shown["state"] != "completed":
                raise RolloutFailed(f"the rollout is {shown['state']}: {shown['reason'] or _format_progress(shown)}")
            return
        output.show_progress(f"{shown['waits_for'] or 'working'}")
        time.sleep(_LOOK_S)


def _send_change(
    connection: ControlConnection, output: Output, rollout_id: str, verb: str, body: dict[str, object]
) -> None:
    sent = {name: value for name, value in body.items() if value is not None}
    shown = connection.send_change("POST", _build_path(connection, rollout_id, verb), sent)
    output.print_result(shown, f"rollout {shown['id']} is {shown['state']}: {_format_progress(shown)} hosts")

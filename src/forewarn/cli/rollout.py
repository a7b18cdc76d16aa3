"""`forewarn rollout`: one maintenance for many hosts, in order."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from forewarn.cli.command import command, group
from forewarn.cli.confirming import Yes, confirm
from forewarn.cli.connection import Connection, segment
from forewarn.cli.maintenance import moved_words
from forewarn.cli.names import rollout_ids
from forewarn.cli.output import Column, Output, format_moment, format_seconds, parse_moment
from forewarn.errors import ConfigError, ForewarnError

__all__ = ["add_rollout"]

_Which = Annotated[str, typer.Argument(metavar="ID", help="Of the list of rollouts.", autocompletion=rollout_ids)]
_Why = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; for the audit log.")]
_LOOK_S = 1.0
_ENDED = frozenset({"aborted", "completed", "failed"})
_SIZE_BYTES_MAX = 4 << 20


class RolloutFailed(ForewarnError):
    """A followed rollout did not complete."""

    code = "rollout_failed"


def add_rollout(app: typer.Typer) -> None:
    """Add the commands of `rollout`."""
    noun = group(app, "rollout", "Carry one maintenance over many hosts, in order.", "Operate")
    _add_start(noun)

    @command(noun, "list", "forewarn rollout list")
    def list_rollouts(connection: Connection, output: Output) -> None:
        """List the newest rollouts."""
        found = connection.get("/v1/rollouts")["items"]
        if not output.show(found):
            output.table(
                [
                    Column("id"),
                    Column("name", is_whole=False),
                    Column("state", is_state=True),
                    Column("hosts"),
                    Column("since"),
                ],
                [
                    (each["id"], each["name"], each["state"], _progress(each), format_moment(each["created_at"]))
                    for each in found
                ],
                empty="there are none: see 'forewarn rollout start --help'",
            )

    @command(noun, "show", "forewarn rollout show k3v9xq2mab", "forewarn rollout show k3v9xq2mab --follow")
    def show(
        which: _Which,
        connection: Connection,
        output: Output,
        follow: Annotated[bool, typer.Option("--follow", "-f", help="Until it is over, or waits for you.")] = False,
    ) -> None:
        """Show the progress of a rollout, and what it waits for."""
        if follow:
            _follow(connection, output, which)
            return
        _show(connection, output, which)

    @command(noun, "pause", 'forewarn rollout pause k3v9xq2mab --reason "customer called"')
    def pause(which: _Which, connection: Connection, output: Output, reason: _Why = None) -> None:
        """Begin no further host; maintenance in flight is finished."""
        _change(connection, output, which, "pause", {"reason": reason})

    @command(noun, "resume", "forewarn rollout resume k3v9xq2mab")
    def resume(
        which: _Which,
        connection: Connection,
        output: Output,
        accept_health: Annotated[
            bool, typer.Option("--accept-health", help="As if the last health check had passed.")
        ] = False,
    ) -> None:
        """Resume a rollout; previous failures no longer count."""
        _change(connection, output, which, "resume", {"accept_health": accept_health})

    @command(
        noun,
        "abort",
        'forewarn rollout abort k3v9xq2mab --reason "wrong kernel"',
        'forewarn rollout abort k3v9xq2mab --reason "wrong kernel" --yes',
    )
    def abort(which: _Which, connection: Connection, output: Output, reason: _Why = None, yes: Yes = False) -> None:
        """Begin no further host and cancel what has not started; started maintenance is finished.

        Asks first; --yes confirms.
        """

        def describe() -> str:
            shown = connection.get(f"/v1/rollouts/{segment(which)}")
            return (
                f"Rollout {shown['name']} ends after {_progress(shown)} hosts: {shown['counts']['pending']} hosts will "
                "not have their turn, and what has not started is canceled. It cannot be resumed; to stop for a while, "
                "pause it."
            )

        confirm(output, describe, yes=yes)
        _change(connection, output, which, "abort", {"reason": reason})


def _add_start(noun: typer.Typer) -> None:
    @command(
        noun,
        "start",
        "forewarn rollout start kernel.yaml --dry-run",
        "forewarn rollout start kernel.yaml --follow",
    )
    def start(
        file: Annotated[Path, typer.Argument(metavar="FILE", help="What is done where, and how carefully; YAML.")],
        connection: Connection,
        output: Output,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, and do nothing.")] = False,
        follow: Annotated[
            bool, typer.Option("--follow", "-f", help="Show how it goes, until it is over or waits for you.")
        ] = False,
    ) -> None:
        """Start a rollout, or show its plan."""
        from forewarn.wire.rollout import RolloutIn, parse_rollout

        spec = RolloutIn.of(parse_rollout(_content(file), str(file)))
        body = spec.model_dump(mode="json", exclude_none=True)
        if dry_run:
            _print_plan(output, connection.change("POST", "/v1/rollouts/plan", body))
            return
        made = connection.change("POST", "/v1/rollouts", body)
        if follow:
            _follow(connection, output, made["id"])
        else:
            _show(connection, output, made["id"])


def _content(file: Path) -> bytes:
    try:
        if file.stat().st_size > _SIZE_BYTES_MAX:
            msg = f"{file}: more than the {_SIZE_BYTES_MAX} bytes that a rollout may have"
            raise ConfigError(msg)
        return file.read_bytes()
    except OSError as error:
        msg = f"cannot read {file}: {error.strerror}"
        raise ConfigError(msg) from error


def _print_plan(output: Output, plan: dict[str, Any]) -> None:
    if output.show(plan):
        return
    rows = [
        (
            f"{batch['number']}{' canary' if batch['is_canary'] else ''}",
            format_moment(batch["begins_at"]),
            format_moment(batch["ends_at"]),
            batch["vms"],
            batch["unwarned"] or None,
            "; then ".join(", ".join(hosts) for hosts in batch["rounds"]),
        )
        for batch in plan["batches"]
    ]
    columns = [Column(head) for head in ("batch", "begins", "ends", "vms", "not warned")]
    output.table([*columns, Column("hosts", is_whole=False)], rows)
    for line in plan_lines(plan["batches"]):
        output.line(line)
    spent = (parse_moment(plan["ends_at"]) - parse_moment(plan["begins_at"])).total_seconds()
    least = "at least " if plan["is_at_least"] else ""
    output.line()
    hosts = f"{plan['hosts']} host{'' if plan['hosts'] == 1 else 's'}"
    output.line(f"dry run: {hosts}, {least}{format_seconds(spent)} if nobody approves early; nothing was done")


def plan_lines(batches: list[dict[str, Any]]) -> list[str]:
    """Describe the hosts that quiet hours postpone, and name the VMs that are not warned."""
    moves = [move for batch in batches for move in batch["moves"]]
    lines = [
        f"host {move['host']}: not before {format_moment(move['not_before'])}, moved {moved_words(move)}"
        for move in moves[:_LINES_MAX]
    ]
    if len(moves) > _LINES_MAX:
        lines.append(f"and {len(moves) - _LINES_MAX} more hosts are moved by quiet hours")
    names = [name for batch in batches for name in batch["unwarned_vms"]]
    if names:
        count = sum(batch["unwarned"] for batch in batches)
        shown = ", ".join(names[:_LINES_MAX]) + (f" and {count - _LINES_MAX} more" if count > _LINES_MAX else "")
        lines.append(f"not warned: {shown} ({'have' if count > 1 else 'has'} not asked for events)")
    return lines


_LINES_MAX = 20


def _progress(rollout: dict[str, Any]) -> str:
    counts = rollout["counts"]
    over = counts["done"] + counts["failed"] + counts["skipped"]
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    return f"{over} of {sum(counts.values())}{failed}"


def _show(connection: Connection, output: Output, which: str) -> None:
    shown = connection.get(f"/v1/rollouts/{segment(which)}")
    hosts = list(connection.pages(f"/v1/rollouts/{segment(which)}/hosts"))
    if output.show({**shown, "hosts": hosts}):
        return
    output.fields(
        [
            ("rollout", f"{shown['id']} {shown['name']}"),
            ("state", shown["state"]),
            ("reason", shown["reason"]),
            ("hosts", _progress(shown)),
            ("batch", None if shown["batch"] is None else f"{shown['batch']} of {shown['batches']}"),
            ("waits for", shown["waits_for"]),
            ("until", format_moment(shown["waits_until"])),
            ("started", format_moment(shown["started_at"])),
            ("ended", format_moment(shown["ended_at"])),
        ]
    )
    output.table(
        [
            Column("host"),
            Column("batch"),
            Column("state", is_state=True),
            Column("maintenance"),
            Column("", is_whole=False),
        ],
        [(h["name"], h["batch"], h["state"], ", ".join(h["maintenance_ids"]), h["reason"] or "") for h in hosts],
    )


def _follow(connection: Connection, output: Output, which: str) -> None:
    """Print one line for each change, and what it waits for in between; end when it is over or paused.

    Raises:
        RolloutFailed: It did not complete.
    """
    last = ""
    while True:
        shown = connection.get(f"/v1/rollouts/{segment(which)}")
        flight = f", in flight: {', '.join(shown['in_flight'][:5])}" if shown["in_flight"] else ""
        line = f"{shown['state']}: {_progress(shown)} hosts{flight}"
        if line != last:
            last = line
            output.passing()
            if output.is_json:
                output.json_line(shown)
            else:
                output.line(line)
        is_over = shown["state"] in _ENDED
        if is_over or (shown["state"] == "paused" and not shown["in_flight"]):
            output.passing()
            if shown["state"] != "completed":
                msg = f"the rollout is {shown['state']}: {shown['reason'] or _progress(shown)}"
                raise RolloutFailed(msg)
            return
        output.passing(f"{shown['waits_for'] or 'working'}")
        time.sleep(_LOOK_S)


def _change(connection: Connection, output: Output, which: str, verb: str, body: dict[str, object]) -> None:
    sent = {name: value for name, value in body.items() if value is not None}
    shown = connection.change("POST", f"/v1/rollouts/{segment(which)}/{verb}", sent)
    if not output.show(shown):
        output.line(f"rollout {shown['id']} is {shown['state']}: {_progress(shown)} hosts")

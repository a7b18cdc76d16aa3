"""`forewarn agent`: the agent inside a VM."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forewarn.cli.command import command, make_group
from forewarn.cli.output import Column, Output, format_count, format_relative, format_seconds
from forewarn.errors import ConfigError, InvalidRequest, NotFound, ServerUnreachable, Unauthorized

if TYPE_CHECKING:
    from forewarn.agent.configuration import Configuration
    from forewarn.agent.explanation import EventExplanation, TypicalEvent

__all__ = ["app"]

_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="FOREWARN_AGENT_CONFIG",
        help="File with the agent's configuration, TOML. (default: /etc/forewarn/agent.toml; on Windows, agent.toml in "
        "ProgramData/forewarn)",
    ),
]
_ERRORS = {401: Unauthorized, 404: NotFound, 400: InvalidRequest}
_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
_TIMEOUT_S = 5.0
_NAMES_MAX = 20
_LINES_MAX = 10
_OK = 200
_PREPARED = {True: "in time", False: "NOT IN TIME", None: "-"}

app = make_group("agent", "Run inside a VM: prepare for events, approve them, recover.", "Run")


def _event_argument(default: str) -> Any:  # noqa: ANN401 - what Typer takes
    return typer.Argument(metavar="[EVENT]", help=f"Id of the event. (default: {default})")


@command(app, "run", "forewarn agent run", "forewarn agent run --config agent.toml --dry-run")
def run(
    config: _Config = None,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run no hooks, approve nothing and save no state.")
    ] = False,
) -> None:
    """Watch the endpoint for events; prepare, approve and recover as configured, until a signal stops the agent."""
    arguments = ["--config", str(_find_config_file(config)), *(["--dry-run"] if is_dry_run else [])]
    # Windows cannot replace a process: execv would start a second one and hand the shell its prompt back.
    if sys.platform == "win32":
        from forewarn.agent.run import run_agent

        raise typer.Exit(run_agent(_find_config_file(config), is_dry_run=is_dry_run))
    # Replace this process with one without the command line's libraries: an idle agent should need little memory.
    os.execv(sys.executable, [sys.executable, "-m", "forewarn.agent", *arguments])  # noqa: S606 - itself


@command(
    app,
    "check",
    "forewarn agent check",
    "forewarn agent check --config agent.toml --type Freeze --duration 5s --source Platform",
)
def check(
    output: Output,
    config: _Config = None,
    event_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Explain only one event, of this type.")
    ] = None,
    source: Annotated[str, typer.Option(metavar="SOURCE", help="With --type: Platform or User.")] = "Platform",
    duration: Annotated[
        str, typer.Option(metavar="SPAN", help="With --type: expected duration of the impact, or 'unknown'.")
    ] = "unknown",
    description: Annotated[str, typer.Option(metavar="TEXT", help="With --type: description of the event.")] = "",
    is_others: Annotated[
        bool, typer.Option("--others", help="With --type: the event names only other VMs, not this one.")
    ] = False,
) -> None:
    """Check the configuration, and explain how the agent would handle each kind of event.

    The exit status is 1 if the file is invalid or the command of a hook cannot be run on this machine.
    """
    from forewarn.agent.configuration import find_time_zone, load_configuration
    from forewarn.agent.explanation import TYPICAL, TypicalEvent, explain_configuration
    from forewarn.cli.times import as_duration_s, check_known
    from forewarn.clock import RealClock

    path = _find_config_file(config)
    configuration = load_configuration(path)
    cases: tuple[TypicalEvent, ...] = TYPICAL
    if event_type is not None:
        check_known(event_type, _TYPES, "type", "--type")
        seconds = as_duration_s(duration, "--duration")
        case = TypicalEvent(
            cause="given on the command line",
            type=event_type,
            source=source,
            duration_s=-1 if seconds is None else seconds,
            description=description,
            is_mine=not is_others,
        )
        cases = (case,)
    local = RealClock().now().astimezone(find_time_zone(configuration.timezone))
    explained = explain_configuration(configuration, local, cases)
    errors, warnings = _find_faults(configuration, path)
    result = {"config": str(path), "errors": errors, "warnings": warnings}
    if output.print_if_json(result | {"events": [asdict(each) for each in explained]}):
        raise typer.Exit(1 if errors else 0)
    for error in errors:
        output.print_notice(f"forewarn: {error}")
    if errors:
        raise typer.Exit(1)
    count = format_count(len(configuration.rule), "rule")
    output.print_line(f"{path} is valid: {count}, endpoint {configuration.endpoint}")
    for warning in warnings:
        output.print_notice(f"warning: {warning}")
    output.print_line()
    _show_explained(output, explained)


@command(app, "status", "forewarn agent status", "forewarn agent status --json")
def status(output: Output, config: _Config = None) -> None:
    """Show the running agent: its state, current events, and what each event waits for."""
    answer = _request_agent(config, "GET", "/status")
    if not output.print_if_json(answer):
        _show_status(output, answer)


@command(app, "approve", "forewarn agent approve", "forewarn agent approve 602D9444-D2CD-49C7-8624-8643E7171297")
def approve(
    output: Output,
    event_id: Annotated[str | None, _event_argument("all events that are not approved yet")] = None,
    config: _Config = None,
) -> None:
    """Approve events manually, even if a rule, a failed step or another VM prevents the automatic approval.

    The agent sends each approval when the preparation of this VM and the hooks of before_approval have ended, even if
    they failed.
    """
    _request_change(
        output, config, "/approve", event_id, " will be approved as soon as the preparation of this VM has ended"
    )


@command(app, "recover", "forewarn agent recover")
def recover(
    output: Output,
    event_id: Annotated[str | None, _event_argument("all events with a failed recovery")] = None,
    config: _Config = None,
) -> None:
    """Run a failed recovery again, after you have fixed the cause."""
    _request_change(output, config, "/recover", event_id, ": recovery restarted")


@command(app, "retry", "forewarn agent retry", "forewarn agent retry 602D9444-D2CD-49C7-8624-8643E7171297")
def retry(
    output: Output,
    event_id: Annotated[str | None, _event_argument("all events with a failed step")] = None,
    config: _Config = None,
) -> None:
    """Run failed steps again, after you have fixed the cause.

    Before the event starts, you can retry the steps 'prepare' and 'before-approval', but no later than 5 s before
    NotBefore. To change the 5 s, set the key 'margin' in the configuration.

    After the event has started, you can retry the steps 'prepare' and 'started'.

    After the event is over, you can retry the steps 'recover' and 'canceled'.
    """
    _request_change(output, config, "/retry", event_id, ": failed steps restarted")


@command(app, "install", "sudo forewarn agent install", "forewarn agent install --print")
def install(
    config: _Config = None,
    is_printed: Annotated[
        bool, typer.Option("--print", help="Print the systemd unit instead of installing it.")
    ] = False,
    is_started: Annotated[
        bool, typer.Option("--start/--no-start", help="Start the agent now and at every boot.")
    ] = True,
    user: Annotated[str | None, typer.Option(metavar="NAME", help="User to run the agent as. (default: root)")] = None,
) -> None:
    """Install the agent as a systemd service, with an example configuration if no configuration exists."""
    from forewarn.agent.install import install_service as set_up
    from forewarn.agent.install import render_unit

    path = _find_config_file(config).absolute()
    if is_printed:
        typer.echo(render_unit(sys.executable, path, user), nl=False)
        return
    for line in set_up(path, python=sys.executable, is_started=is_started, user=user):
        typer.echo(line)


@command(app, "uninstall", "sudo forewarn agent uninstall")
def uninstall() -> None:
    """Stop the systemd service and remove its unit; configuration and state stay."""
    from forewarn.agent.install import uninstall_service as take_down

    for line in take_down():
        typer.echo(line)


def _find_faults(configuration: Configuration, path: Path) -> tuple[list[str], list[str]]:
    """Return errors and warnings about a readable configuration."""
    from forewarn.agent.command_check import find_broken_commands
    from forewarn.agent.rule_reachability import find_unreachable_rules

    errors = [f"{path}: {each}" for each in find_broken_commands(configuration)]
    warnings = [
        f"{path}: {configuration.rules[each.index].name!r} can never match: {each.reason}"
        for each in find_unreachable_rules(configuration.rules)
    ]
    if not configuration.rule:
        warnings.append("there are no rules: every event is only logged")
    if configuration.dry_run:
        warnings.append("dry_run is set: no hook runs and nothing is approved")
    return errors, warnings


def _show_explained(output: Output, explained: tuple[EventExplanation, ...]) -> None:
    """Show each distinct handling once, with all causes that lead to it."""
    alike: dict[tuple[object, ...], list[EventExplanation]] = {}
    for each in explained:
        alike.setdefault((each.rule, each.prepares, each.approves, each.recovers), []).append(each)
    for group_ in alike.values():
        first = group_[0]
        output.print_heading(first.rule if first.rule != "none" else "no rule")
        output.print_fields(
            [
                *_make_rows("for", [_describe_case(each.case) for each in group_]),
                *_make_rows("prepares", first.prepares or ["nothing"]),
                *_make_rows("approves", [first.approves]),
                *_make_rows("recovers", first.recovers or ["nothing to do"]),
            ]
        )


def _make_rows(name: str, values: Sequence[object]) -> list[tuple[str, object]]:
    """Return a name with its values, one below the other."""
    return [(f"  {name}" if number == 0 else "", value) for number, value in enumerate(values)]


def _describe_case(case: TypicalEvent) -> str:
    duration = "" if case.duration_s < 0 else f", {case.duration_s} s"
    return f"{case.type} by {case.source}{duration}: {case.cause}"


def _show_status(output: Output, status: dict[str, Any]) -> None:
    now = datetime.fromisoformat(status["now"]).astimezone(UTC)
    output.print_fields(
        [
            ("vm", status["vm"] or "not known yet"),
            ("endpoint", status["endpoint"]),
            ("last answer", format_relative(status["last_answer_at"], now) or "none yet"),
            ("last error", status["last_error"]),
            ("workload", "out of service" if status["drained"] else "in service"),
            ("configuration error", status["config_error"]),
            ("restart needed for", status["waits_for_restart"]),
            ("mode", "dry run: no hook runs, nothing is approved" if status["dry_run"] else None),
        ]
    )
    output.print_line()
    output.print_table(
        status["events"],
        [
            Column("event", lambda each: each["event"]["id"]),
            Column("type", lambda each: each["event"]["type"]),
            Column("state", is_state=True),
            Column("not before", lambda each: format_relative(each["event"]["not_before"], now), is_whole=False),
            Column("waits for", "why", is_whole=False),
        ],
        empty="no events",
    )
    for each in status["events"]:
        output.print_heading(each["event"]["id"])
        output.print_fields([("  resources", _format_resources(each, status["vm"])), *_make_failure_rows(each, now)])
    if status["finished"]:
        output.print_heading("Recently ended")
        output.print_table(
            status["finished"][:10],
            [
                Column("event", lambda each: each["event"]["id"]),
                Column("type", lambda each: each["event"]["type"]),
                Column("outcome"),
                Column("prepared", lambda each: _PREPARED[each["was_prepared"]]),
                Column("gone", lambda each: format_relative(each["gone_at"], now)),
                Column("away", _format_absence),
            ],
        )


def _format_resources(event_state: dict[str, Any], vm: str) -> str:
    """Return the names of the VMs that an event hits, this one first, with a note if this VM is not among them."""
    names = sorted(event_state["event"]["resources"], key=lambda name: name != vm)
    shown = [f"{name} (this VM)" if name == vm else name for name in names[:_NAMES_MAX]]
    if len(names) > len(shown):
        shown.append(f"{len(names) - len(shown)} more")
    if not event_state["affects_this_vm"]:
        shown.append("not this VM")
    return ", ".join(shown)


def _make_failure_rows(event_state: dict[str, Any], now: datetime) -> list[tuple[str, object]]:
    """Return rows about the failed steps: cause, time, and the last lines of output."""
    rows: list[tuple[str, object]] = []
    for step, run in event_state["steps"].items():
        if run["state"] == "failed":
            rows += _make_rows(
                f"{step} failed", [f"{format_relative(run['ended_at'], now) or 'earlier'}: {run['reason']}"]
            )
            rows += _make_rows("exit status", [run["exit_status"]])
            rows += _make_rows("timed out", ["yes" if run["has_timed_out"] else None])
            rows += _make_rows("output", run["output"].rstrip().splitlines()[-_LINES_MAX:])
    return rows


def _format_absence(finished: dict[str, Any]) -> str | None:
    if not (finished["started_at"] and finished["gone_at"]):
        return None
    span = datetime.fromisoformat(finished["gone_at"]) - datetime.fromisoformat(finished["started_at"])
    return format_seconds(span.total_seconds())


def _request_change(output: Output, config: Path | None, path: str, event_id: str | None, outcome: str) -> None:
    answer = _request_agent(config, "POST", path, event_id)
    output.print_result(answer, *(f"event {each}{outcome}" for each in answer["event_ids"]))


def _find_config_file(config: Path | None) -> Path:
    if config is not None:
        return config
    from forewarn.agent.configuration import default_config_file

    return default_config_file()


def _request_agent(config: Path | None, method: str, path: str, event_id: str | None = None) -> dict[str, Any]:
    """Ask the running agent; it may run even if its configuration file has become invalid since.

    Raises:
        ConfigError: The configuration is invalid, and no agent answers.
        ServerUnreachable: The agent does not answer.
        ForewarnError: The agent refuses.
    """
    from forewarn.agent.configuration import parse_configuration, read_config_text, read_listen_settings

    file = _find_config_file(config)
    text = read_config_text(file)
    try:
        configuration = parse_configuration(text, str(file))
    except ConfigError as error:
        try:
            # The agent goes on with its previous configuration, so only the address has to be readable.
            return _send_request(read_listen_settings(text), method, path, event_id)
        except (ConfigError, ServerUnreachable):
            raise error from None
    return _send_request(configuration, method, path, event_id)


def _send_request(configuration: Configuration, method: str, path: str, event_id: str | None) -> dict[str, Any]:
    """Ask the agent at the address in a configuration.

    Raises:
        ConfigError: The configuration has no address.
        ServerUnreachable: The agent does not answer.
        ForewarnError: The agent refuses.
    """
    import msgspec

    from forewarn.agent.run import get_token_path
    from forewarn.client.exchange import HttpRequest
    from forewarn.client.transport import HttpTransport
    from forewarn.errors import EndpointUnreachable
    from forewarn.util.secrets import read_token

    if not configuration.listen:
        raise ConfigError("the agent has no address: set `listen` in its configuration")
    path_of_token = get_token_path(configuration)
    # The agent writes this file when it starts, so without it there is nothing to connect to.
    if not path_of_token.exists():
        msg = f"no agent has run with this configuration ({path_of_token} is missing): start 'forewarn agent run'"
        raise ServerUnreachable(msg)
    token = read_token(path_of_token)
    http = HttpTransport(f"http://{configuration.listen}")
    body = msgspec.json.encode({"event_id": event_id}) if event_id else b""
    request = HttpRequest(
        method=method, path=path, headers={"Authorization": f"Bearer {token}"}, body=body, timeout_s=_TIMEOUT_S
    )
    try:
        answer = http.send(request)
    except EndpointUnreachable as error:
        msg = f"no agent answers at {configuration.listen}: start it with 'forewarn agent run'"
        raise ServerUnreachable(msg) from error
    finally:
        http.close()
    try:
        content: dict[str, Any] = msgspec.json.decode(answer.body)
    except msgspec.DecodeError as error:
        msg = f"the server at {configuration.listen} is not an agent: check `listen` in the configuration"
        raise ServerUnreachable(msg) from error
    if answer.status != _OK:
        raise _ERRORS.get(answer.status, ServerUnreachable)(content["error"]["message"])
    return content

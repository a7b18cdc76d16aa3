"""`forewarn agent`: the agent inside a VM."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forewarn.cli.command import command, group
from forewarn.cli.output import Column, Output, format_relative, format_seconds
from forewarn.errors import ConfigError, InvalidRequest, NotFound, ServerUnreachable, Unauthorized

if TYPE_CHECKING:
    from forewarn.agent.configuration import Configuration
    from forewarn.agent.explain import Case, Explained

__all__ = ["add_agent"]

_Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        envvar="FOREWARN_AGENT_CONFIG",
        help="The agent's configuration, TOML. (default: the system's place for it)",
    ),
]
_EventId = Annotated[str | None, typer.Argument(metavar="[EVENT]", help="Id of the event; all that wait, without one.")]
_ERRORS = {401: Unauthorized, 404: NotFound, 400: InvalidRequest}
_TIMEOUT_S = 5.0
_NAMES_MAX = 20
_LINES_MAX = 10
_OK = 200


def add_agent(app: typer.Typer) -> None:
    """Add the commands of `agent`."""
    noun = group(app, "agent", "Prepare a VM for events, approve them, recover: inside the VM.", "Run")
    _add_run(noun)
    _add_check(noun)
    _add_status(noun)
    _add_words(noun)
    _add_install(noun)


def _add_run(noun: typer.Typer) -> None:
    @command(noun, "run", "forewarn agent run", "forewarn agent run --config agent.toml --dry-run")
    def run(
        config: _Config = None,
        is_dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Everything but approvals and hooks; nothing is remembered.")
        ] = False,
    ) -> None:
        """Watch the endpoint; prepare, approve and recover as configured, until stopped by a signal."""
        arguments = ["--config", str(_config_file(config)), *(["--dry-run"] if is_dry_run else [])]
        if sys.platform == "win32":
            from forewarn.agent.run import run_agent

            raise typer.Exit(run_agent(_config_file(config), is_dry_run=is_dry_run))
        # Replace this process with one without the command line's libraries: an idle agent should need little memory.
        os.execv(sys.executable, [sys.executable, "-m", "forewarn.agent", *arguments])  # noqa: S606 - itself


def _add_check(noun: typer.Typer) -> None:
    @command(
        noun,
        "check",
        "forewarn agent check",
        "forewarn agent check --config agent.toml --type Freeze --duration 5s --source Platform",
    )
    def check(
        output: Output,
        config: _Config = None,
        event_type: Annotated[
            str | None, typer.Option("--type", metavar="TYPE", help="Ask about one event only, of that type.")
        ] = None,
        source: Annotated[str, typer.Option(metavar="SOURCE", help="With --type: Platform or User.")] = "Platform",
        duration: Annotated[
            str, typer.Option(metavar="SPAN", help="With --type: its expected impact, or unknown.")
        ] = "unknown",
        description: Annotated[str, typer.Option(metavar="TEXT", help="With --type: its description.")] = "",
        is_others: Annotated[bool, typer.Option("--others", help="With --type: it hits another VM.")] = False,
    ) -> None:
        """Check the configuration, and explain how the agent would handle each kind of event.

        The exit status is 1 if the file is invalid or the command of a hook cannot be run on this machine.
        """
        from forewarn.agent.configuration import local_time, read_configuration, read_text, to_local
        from forewarn.agent.explain import TYPICAL, Case, explain
        from forewarn.cli.times import as_duration_s
        from forewarn.clock import RealClock

        path = _config_file(config)
        text = read_text(path)
        configuration = read_configuration(text, str(path))
        cases: tuple[Case, ...] = TYPICAL
        if event_type is not None:
            _check_type(event_type)
            seconds = as_duration_s(duration, "--duration")
            case = Case(
                cause="as asked",
                type=event_type,
                source=source,
                duration_s=-1 if seconds is None else seconds,
                description=description,
                is_mine=not is_others,
            )
            cases = (case,)
        local = to_local(RealClock().now(), local_time(configuration.timezone))
        explained = explain(configuration, local, cases)
        errors, warnings = _faults(configuration, path, text)
        told = {"config": str(path), "errors": errors, "warnings": warnings}
        if output.show(told | {"events": [_as_json(each) for each in explained]}):
            raise typer.Exit(1 if errors else 0)
        for error in errors:
            output.notice(f"forewarn: {error}")
        if errors:
            raise typer.Exit(1)
        count = f"{len(configuration.rule)} rule{'' if len(configuration.rule) == 1 else 's'}"
        output.line(f"{path} is valid: {count}, asking {configuration.endpoint}")
        for warning in warnings:
            output.notice(f"warning: {warning}")
        output.line()
        _show_explained(output, explained)


def _faults(configuration: Configuration, path: Path, text: str) -> tuple[list[str], list[str]]:
    """Return errors and warnings about a readable configuration, each with its place in the file."""
    from forewarn.agent.lines import line_of
    from forewarn.agent.program import broken_commands
    from forewarn.agent.reach import unreachable_rules

    errors = [f"{path}:{line_of(text, each.keys)}: {each.message}" for each in broken_commands(configuration)]
    warnings = [
        f"{path}:{line_of(text, ('rule', each.place))}: {configuration.rules[each.place].name!r} can never match: "
        f"{each.why}"
        for each in unreachable_rules(configuration.rules)
    ]
    if not configuration.rule:
        warnings.append("there are no rules: every event is only logged")
    if configuration.dry_run:
        warnings.append("dry_run is set: no hook runs and nothing is approved")
    return errors, warnings


def _check_type(event_type: str) -> None:
    types = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate")
    if event_type not in types:
        msg = f"{event_type!r} is expected to be one of {', '.join(types)}"
        raise typer.BadParameter(msg, param_hint="--type")


def _as_json(explained: Explained) -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(explained)


def _show_explained(output: Output, explained: tuple[Explained, ...]) -> None:
    """Show each distinct handling once, with all causes that lead to it."""
    alike: dict[tuple[object, ...], list[Explained]] = {}
    for each in explained:
        alike.setdefault((each.rule, each.prepares, each.approves, each.recovers), []).append(each)
    for group_ in alike.values():
        first = group_[0]
        output.heading(first.rule if first.rule != "none" else "no rule")
        output.fields(
            [
                *_rows("for", [_words(each.case) for each in group_]),
                *_rows("prepares", first.prepares or ["nothing"]),
                *_rows("approves", [first.approves]),
                *_rows("recovers", first.recovers or ["nothing to do"]),
            ]
        )


def _rows(name: str, values: Sequence[object]) -> list[tuple[str, object]]:
    """Return a name with its values, one below the other."""
    return [(f"  {name}" if number == 0 else "", value) for number, value in enumerate(values)]


def _words(case: Case) -> str:
    duration = "" if case.duration_s < 0 else f", {case.duration_s} s"
    return f"{case.type} by {case.source}{duration}: {case.cause}"


def _add_status(noun: typer.Typer) -> None:
    @command(noun, "status", "forewarn agent status", "forewarn agent status --json")
    def status(output: Output, config: _Config = None) -> None:
        """Show the state of the running agent: current events, and what it waits for."""
        told = _ask(config, "GET", "/status")
        if output.show(told):
            return
        _show_status(output, told)


def _show_status(output: Output, told: dict[str, Any]) -> None:
    now = datetime.fromisoformat(told["now"]).astimezone(UTC)
    output.fields(
        [
            ("vm", told["vm"] or "not known yet"),
            ("endpoint", told["endpoint"]),
            ("last answer", format_relative(told["last_answer_at"], now) or "none yet"),
            ("trouble", told["last_error"]),
            ("work", "out of service" if told["drained"] else "in service"),
            ("not in effect", told["config_error"]),
            ("waits for a restart", ", ".join(told["waits_for_restart"])),
            ("mode", "dry run: no hook runs, nothing is approved" if told["dry_run"] else None),
        ]
    )
    output.line()
    columns = [Column("event"), Column("type"), Column("state", is_state=True), Column("not before", is_whole=False)]
    rows = [
        (
            each["event"]["id"],
            each["event"]["type"],
            each["state"],
            format_relative(each["event"]["not_before"], now),
            each["why"],
        )
        for each in told["events"]
    ]
    output.table([*columns, Column("what it waits for", is_whole=False)], rows, empty="no events")
    for each in told["events"]:
        output.heading(each["event"]["id"])
        output.fields([("  resources", _resources(each, told["vm"])), *_failures(each, now)])
    if told["finished"]:
        output.heading("Done with")
        output.table(
            [Column("event"), Column("type"), Column("outcome"), Column("prepared"), Column("gone"), Column("away")],
            [_finished_row(each, now) for each in told["finished"][:10]],
        )


def _resources(told: dict[str, Any], vm: str) -> str:
    """Return the names of the VMs that an event hits, this one first, with a note if this VM is not among them."""
    names = sorted(told["event"]["resources"], key=lambda name: name != vm)
    shown = [f"{name} (this VM)" if name == vm else name for name in names[:_NAMES_MAX]]
    if len(names) > len(shown):
        shown.append(f"{len(names) - len(shown)} more")
    if not told["affects_this_vm"]:
        shown.append("but not this VM")
    return ", ".join(shown)


def _failures(told: dict[str, Any], now: datetime) -> list[tuple[str, object]]:
    """Return rows about the failed steps: cause, time, and the last lines of output."""
    rows: list[tuple[str, object]] = []
    for step, run in told["steps"].items():
        if run["state"] == "failed":
            rows += _rows(f"{step} failed", [f"{format_relative(run['ended_at'], now) or 'earlier'}: {run['reason']}"])
            rows += _rows("exit status", [run["exit_status"]])
            rows += _rows("time-out", ["yes" if run["has_timed_out"] else None])
            rows += _rows("printed", run["output"].rstrip().splitlines()[-_LINES_MAX:])
    return rows


def _finished_row(finished: dict[str, Any], now: datetime) -> tuple[object, ...]:
    prepared = {True: "in time", False: "NOT IN TIME", None: "-"}[finished["was_prepared"]]
    away = None
    if finished["started_at"] and finished["gone_at"]:
        span = datetime.fromisoformat(finished["gone_at"]) - datetime.fromisoformat(finished["started_at"])
        away = format_seconds(span.total_seconds())
    return (
        finished["event"]["id"],
        finished["event"]["type"],
        finished["outcome"],
        prepared,
        format_relative(finished["gone_at"], now),
        away,
    )


def _add_words(noun: typer.Typer) -> None:
    @command(noun, "approve", "forewarn agent approve", "forewarn agent approve 602D9444-D2CD-49C7-8624-8643E7171297")
    def approve(output: Output, event_id: _EventId = None, config: _Config = None) -> None:
        """Approve events manually: they are approved once prepared, whatever their rules wait for."""
        told = _ask(config, "POST", "/approve", event_id)
        if not output.show(told):
            for each in told["event_ids"]:
                output.line(f"event {each} is approved by hand")

    @command(noun, "recover", "forewarn agent recover")
    def recover(output: Output, event_id: _EventId = None, config: _Config = None) -> None:
        """Run a failed recovery again, once the cause has been fixed."""
        told = _ask(config, "POST", "/recover", event_id)
        if not output.show(told):
            for each in told["event_ids"]:
                output.line(f"event {each}: recovery begins again")

    @command(noun, "retry", "forewarn agent retry", "forewarn agent retry 602D9444-D2CD-49C7-8624-8643E7171297")
    def retry(
        output: Output,
        event_id: Annotated[
            str | None, typer.Argument(metavar="[EVENT]", help="Id of the event; all with a failed step, without one.")
        ] = None,
        config: _Config = None,
    ) -> None:
        """Run failed steps again, once the cause has been fixed; preparation steps only until NotBefore is near."""
        told = _ask(config, "POST", "/retry", event_id)
        if not output.show(told):
            for each in told["event_ids"]:
                output.line(f"event {each}: what failed runs again")


def _add_install(noun: typer.Typer) -> None:
    @command(noun, "install", "sudo forewarn agent install", "forewarn agent install --print")
    def install(
        config: _Config = None,
        is_printed: Annotated[
            bool, typer.Option("--print", help="Only print the systemd unit that would be installed.")
        ] = False,
        is_started: Annotated[bool, typer.Option("--start/--no-start", help="Start it now, and at every boot.")] = True,
        user: Annotated[str | None, typer.Option(metavar="NAME", help="Run it as that user. (default: root)")] = None,
    ) -> None:
        """Set the agent up as a systemd service; writes an example configuration if there is none."""
        from forewarn.agent.install import install as set_up
        from forewarn.agent.install import unit_text

        path = _config_file(config).absolute()
        if is_printed:
            typer.echo(unit_text(sys.executable, path, user), nl=False)
            return
        for line in set_up(path, python=sys.executable, is_started=is_started, user=user):
            typer.echo(line)

    @command(noun, "uninstall", "sudo forewarn agent uninstall")
    def uninstall() -> None:
        """Stop the systemd service and remove its unit; configuration and state stay."""
        from forewarn.agent.install import uninstall as take_down

        for line in take_down():
            typer.echo(line)


def _config_file(config: Path | None) -> Path:
    if config is not None:
        return config
    from forewarn.agent.configuration import default_config_file

    return default_config_file()


def _ask(config: Path | None, method: str, path: str, event_id: str | None = None) -> dict[str, Any]:
    """Ask the running agent; it may run even if its configuration file has become invalid since.

    Raises:
        ConfigError: The configuration is invalid, and no agent answers.
        ServerUnreachable: The agent does not answer.
        ForewarnError: The agent refuses.
    """
    from forewarn.agent.configuration import read_address, read_configuration, read_text

    file = _config_file(config)
    text = read_text(file)
    try:
        configuration = read_configuration(text, str(file))
    except ConfigError as error:
        try:
            return _ask_at(read_address(text), method, path, event_id)
        except (ConfigError, ServerUnreachable):
            raise error from None
    return _ask_at(configuration, method, path, event_id)


def _ask_at(configuration: Configuration, method: str, path: str, event_id: str | None) -> dict[str, Any]:
    """Ask the agent at the address in a configuration.

    Raises:
        ConfigError: The configuration has no address.
        ServerUnreachable: The agent does not answer.
        ForewarnError: The agent refuses.
    """
    import msgspec

    from forewarn.agent.run import token_path
    from forewarn.client.exchange import Request
    from forewarn.client.transport import Http
    from forewarn.errors import EndpointUnreachable
    from forewarn.util.secrets import read_token

    if not configuration.listen:
        msg = "the agent has no address to be asked at: set `listen` in its configuration"
        raise ConfigError(msg)
    path_of_token = token_path(configuration)
    if not path_of_token.exists():
        msg = f"no agent has run with this configuration ({path_of_token} is missing): see 'forewarn agent run --help'"
        raise ServerUnreachable(msg)
    token = read_token(path_of_token)
    http = Http(f"http://{configuration.listen}")
    body = msgspec.json.encode({"event_id": event_id}) if event_id else b""
    request = Request(
        method=method, path=path, headers={"Authorization": f"Bearer {token}"}, body=body, timeout_s=_TIMEOUT_S
    )
    try:
        answer = http.send(request)
    except EndpointUnreachable as error:
        msg = f"no agent answers at {configuration.listen}: is it running? ('forewarn agent run')"
        raise ServerUnreachable(msg) from error
    finally:
        http.close()
    try:
        content: dict[str, Any] = msgspec.json.decode(answer.body)
    except msgspec.DecodeError as error:
        msg = f"what answers at {configuration.listen} is not an agent"
        raise ServerUnreachable(msg) from error
    if answer.status != _OK:
        raise _ERRORS.get(answer.status, ServerUnreachable)(content["error"]["message"])
    return content

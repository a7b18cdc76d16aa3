"""`forewarn scenario`: sequences of events for VMs, as files to list, show and play."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from forewarn.cli.command import command, make_group, require_extra
from forewarn.cli.completers import scenario_names
from forewarn.cli.output import Column, Output
from forewarn.cli.record import warn_if_truncated
from forewarn.errors import ForewarnError
from forewarn.util.escape import escape_lines

if TYPE_CHECKING:
    from forewarn.testing.scenario.scenario_loader import Scenario
    from forewarn.testing.trial.player import StepOutcome

__all__ = [
    "ExpectationFailed",
    "SetOption",
    "app",
    "format_scenario_time",
    "make_step_printer",
    "make_wait_printer",
    "parse_parameters",
]

_COMMANDS = {"play": "scenario play", "try": "try"}
_Which = Annotated[
    str,
    typer.Argument(
        metavar="NAME_OR_FILE", help="Name of a shipped scenario, or a file.", autocompletion=scenario_names
    ),
]

SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Parameter of the scenario; repeatable.")
]


class ExpectationFailed(ForewarnError):
    """A scenario did not go as its file expects."""

    code = "expectation_failed"


app = make_group("scenario", "List, show, check and play scenarios.", "Test")


@command(app, "list", "forewarn scenario list")
def list_scenarios(output: Output) -> None:
    """List the scenarios that come with Forewarn."""
    with require_extra("testing"):
        from forewarn.testing.scenario.scenario_loader import load_scenario, shipped_scenarios

    found = [load_scenario(name) for name in shipped_scenarios()]
    content = [{"name": each.name, "title": each.title, "steps": len(each.steps), "only": each.only} for each in found]
    if not output.print_if_json(content):
        output.print_table(
            found,
            [
                Column("name"),
                Column("title", is_whole=False),
                Column("vms", lambda each: len(each.inventory.vms)),
                Column("steps", lambda each: len(each.steps)),
                Column("for", lambda each: each.only or "play, try"),
            ],
        )


@command(app, "show", "forewarn scenario show live-migration")
def show(which: _Which, output: Output, parameters: SetOption = None) -> None:
    """Show the steps of a scenario with their times, or the errors in its file."""
    with require_extra("testing"):
        from forewarn.testing.scenario.scenario_loader import load_scenario
        from forewarn.testing.scenario.scenario_timeline import format_timeline

    scenario = load_scenario(which, parse_parameters(parameters))
    content = {
        "name": scenario.name,
        "title": scenario.title,
        "description": scenario.description,
        "handler": scenario.handler,
        "steps": [step.model_dump(mode="json", exclude_none=True) for step in scenario.steps],
    }
    if not output.print_if_json(content):
        output.print_heading(scenario.title)
        if scenario.only is not None:
            output.print_line(f"for 'forewarn {_COMMANDS[scenario.only]}' only")
        output.print_lines([*scenario.description.splitlines(), "", *format_timeline(scenario)])


@command(
    app,
    "play",
    "forewarn scenario play live-migration",
    "forewarn scenario play ./my-scenario.yaml --clock real --speed 60",
    "forewarn scenario play ./my-scenario.yaml --set notice=30s",
)
def play(
    which: _Which,
    output: Output,
    clock: Annotated[
        Literal["virtual", "real"],
        typer.Option(
            help="virtual: playing takes no real time. real: playing takes the scenario's time, divided by --speed."
        ),
    ] = "virtual",
    speed: Annotated[
        float,
        typer.Option(
            min=0.01, max=100_000, metavar="TIMES", help="With --clock real: factor by which the scenario runs faster."
        ),
    ] = 1.0,
    parameters: SetOption = None,
) -> None:
    """Start a temporary service, play a scenario in it, and check that all expectations of the scenario are met."""
    with require_extra("testing"):
        from forewarn.testing.scenario.scenario_loader import load_scenario

    scenario = load_scenario(which, parse_parameters(parameters))
    outcomes = asyncio.run(_play_scenario(scenario, clock, speed, output))
    failed = [outcome for outcome in outcomes if outcome.failure]
    # JSON is printed before the failure is raised, because it says which steps failed.
    output.print_if_json([{**asdict(outcome), "at": outcome.at.total_seconds()} for outcome in outcomes])
    if failed:
        where = f"in {_format_location(failed[0])}: {failed[0].failure}"
        raise ExpectationFailed(f"{len(failed)} of {len(outcomes)} steps failed; the first {where}")


@command(app, "check", "forewarn scenario check my-scenario.yaml", "forewarn scenario check scenarios/*.yaml --json")
def check(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Scenario files, or names of shipped scenarios.")
    ],
    output: Output,
    parameters: SetOption = None,
) -> None:
    """Check scenarios without playing them, and report each error with file and line.

    The exit status is 1 if any scenario has an error.
    """
    with require_extra("testing"):
        from forewarn.testing.scenario.scenario_loader import check_scenario

    given = parse_parameters(parameters)
    found = {file: [error.message for error in check_scenario(file, given)] for file in files}
    rows = [{"file": file, "ok": not faults, "faults": faults} for file, faults in found.items()]
    output.print_result(rows, *(line for file, faults in found.items() for line in faults or [f"{file}: ok"]))
    if any(found.values()):
        raise typer.Exit(1)


@command(app, "schema", "forewarn scenario schema > scenario.schema.json")
def schema() -> None:
    """Print the JSON Schema of scenario files.

    Save the schema as scenario.schema.json in the folder of your scenarios, so that editors find it.
    """
    with require_extra("testing"):
        from forewarn.testing.scenario.scenario_schema import encode_scenario_schema

    sys.stdout.write(encode_scenario_schema())


@command(app, "from-transcript", "forewarn scenario from-transcript vm.jsonl > vm.yaml")
def from_transcript(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Transcript made by 'forewarn record'.")],
) -> None:
    """Convert a transcript to a scenario, and print it as YAML.

    Recorded changes that Forewarn's rules would not allow are left out. Comments at the top of the scenario list
    these changes.
    """
    with require_extra("testing"):
        from forewarn.testing.transcript.transcript import load_transcript
        from forewarn.testing.transcript.transcript_conversion import convert_transcript
    transcript = load_transcript(path)
    warn_if_truncated(Output(), transcript)
    sys.stdout.write(escape_lines(convert_transcript(transcript)))


def parse_parameters(texts: list[str] | None) -> dict[str, str]:
    """Return the names and values given by ``--set``.

    Raises:
        BadParameter: One has no equals sign, or a name is given twice.
    """
    given: dict[str, str] = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator or not name or name in given:
            raise typer.BadParameter(f"{text!r} must be NAME=VALUE, with each name once", param_hint="--set")
        given[name] = value
    return given


def _format_location(outcome: StepOutcome) -> str:
    """Return the line of a step, with the file if it is an included one."""
    return f"{outcome.file}, line {outcome.line}" if outcome.file else f"line {outcome.line}"


async def _play_scenario(scenario: Scenario, clock: str, speed: float, output: Output) -> list[StepOutcome]:
    from forewarn.clock import VIRTUAL_START, ScaledClock

    with require_extra("testing"):
        from forewarn.testing.trial.player import ScenarioPlayer, create_lab

    # Both clocks begin at the same time, so that quiet hours are where the file expects them.
    made = None if clock == "virtual" else ScaledClock(speed, VIRTUAL_START)
    async with create_lab(scenario, made).running() as lab:
        return await ScenarioPlayer(
            scenario, lab, make_step_printer(output), on_wait=make_wait_printer(output, len(scenario.steps))
        ).play()


def make_wait_printer(output: Output, count: int) -> Callable[[int, str], None]:
    """Return a callback that shows on a terminal which step is waited for."""
    return lambda number, text: output.show_progress(f"step {number} of {count}: {text}")


def make_step_printer(output: Output) -> Callable[[StepOutcome], None]:
    """Return a callback that prints each finished step."""

    def tell(outcome: StepOutcome) -> None:
        if output.is_json:
            return
        output.show_progress()
        mark = "✗" if outcome.failure else "✓" if outcome.is_expectation else "·"
        output.print_line(f"{format_scenario_time(outcome.at):>12}  {mark} {outcome.text}")
        if outcome.failure:
            output.print_line(f"{'':>12}    {_format_location(outcome)}: {outcome.failure}")

    return tell


def format_scenario_time(span: timedelta) -> str:
    """Format a time of a scenario: ``15:00`` or ``1d 02:00:00``."""
    minutes, seconds = divmod(round(span.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02}:{seconds:02}" if hours or days else f"{minutes}:{seconds:02}"
    return f"{days}d {clock}" if days else clock

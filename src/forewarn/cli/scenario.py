"""`forewarn scenario`: sequences of events for VMs, as files to list, show and play."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from forewarn.cli.command import command, group, testing_extra
from forewarn.cli.names import scenario_names
from forewarn.cli.output import Column, Output
from forewarn.cli.record import add_from_transcript
from forewarn.errors import ForewarnError

if TYPE_CHECKING:
    from forewarn.testing.loading import Scenario
    from forewarn.testing.player import Outcome

__all__ = ["ExpectationFailed", "SetOption", "add_scenario", "format_at", "parse_parameters", "teller", "waiter"]

_COMMANDS = {"play": "scenario play", "try": "try"}
_Which = Annotated[
    str,
    typer.Argument(metavar="NAME_OR_FILE", help="A scenario of the list, or a file.", autocompletion=scenario_names),
]

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the scenario; may be repeated."),
]


class ExpectationFailed(ForewarnError):
    """A scenario did not go as its file expects."""

    code = "expectation_failed"


def add_scenario(app: typer.Typer) -> None:
    """Add the commands of `scenario`."""
    noun = group(app, "scenario", "List, look at and play what can happen to VMs.", "Test")

    @command(noun, "list", "forewarn scenario list")
    def list_scenarios(output: Output) -> None:
        """List the scenarios that come with Forewarn."""
        with testing_extra():
            from forewarn.testing.loading import load_scenario, shipped_scenarios

        found = [load_scenario(name) for name in shipped_scenarios()]
        content = [
            {"name": each.name, "title": each.title, "steps": len(each.steps), "only": each.only} for each in found
        ]
        if not output.show(content):
            output.table(
                [Column("name"), Column("title", is_whole=False), Column("vms"), Column("steps"), Column("for")],
                [
                    (each.name, each.title, len(each.inventory.vms), len(each.steps), each.only or "play, try")
                    for each in found
                ],
            )

    @command(noun, "show", "forewarn scenario show live-migration")
    def show(which: _Which, output: Output, parameters: SetOption = None) -> None:
        """Show the steps of a scenario with their times; a file is checked."""
        with testing_extra():
            from forewarn.testing.drawing import draw
            from forewarn.testing.loading import load_scenario

        scenario = load_scenario(which, parse_parameters(parameters))
        content = {
            "name": scenario.name,
            "title": scenario.title,
            "description": scenario.description,
            "handler": scenario.handler,
            "steps": [step.model_dump(mode="json", exclude_none=True) for step in scenario.steps],
        }
        if not output.show(content):
            output.heading(scenario.title)
            if scenario.only is not None:
                output.line(f"for 'forewarn {_COMMANDS[scenario.only]}' only")
            for line in scenario.description.splitlines():
                output.line(line)
            output.line()
            for line in draw(scenario):
                output.line(line)

    @command(
        noun,
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
            typer.Option(help="virtual: it takes no time. real: it takes as long as it says, divided by --speed."),
        ] = "virtual",
        speed: Annotated[
            float, typer.Option(min=0.01, max=100_000, metavar="TIMES", help="How much faster; with a real clock.")
        ] = 1.0,
        parameters: SetOption = None,
    ) -> None:
        """Play a scenario against a separate service, and check that all its expectations are met."""
        with testing_extra():
            from forewarn.testing.loading import load_scenario

        scenario = load_scenario(which, parse_parameters(parameters))
        outcomes = asyncio.run(_play(scenario, clock, speed, output))
        failed = [outcome for outcome in outcomes if outcome.fault]
        output.show([{**asdict(outcome), "at": outcome.at.total_seconds()} for outcome in outcomes])
        if failed:
            where = f"in {_where(failed[0])}: {failed[0].fault}"
            msg = f"{len(failed)} of {len(outcomes)} steps failed; the first {where}"
            raise ExpectationFailed(msg)

    _add_check(noun)
    add_from_transcript(noun)


def _add_check(noun: typer.Typer) -> None:
    """Add the commands for authors of files: `check` and `schema`."""

    @command(
        noun,
        "check",
        "forewarn scenario check my-scenario.yaml",
        "forewarn scenario check scenarios/*.yaml --json",
    )
    def check(
        files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Scenario files, or names of the list.")],
        output: Output,
        parameters: SetOption = None,
    ) -> None:
        """Report errors in scenarios with file and line, without playing them.

        Exit status 1 if any has an error.
        """
        with testing_extra():
            from forewarn.testing.loading import check_scenario

        given = parse_parameters(parameters)
        found = {file: [error.message for error in check_scenario(file, given)] for file in files}
        rows = [{"file": file, "ok": not faults, "faults": faults} for file, faults in found.items()]
        if not output.show(rows):
            for file, faults in found.items():
                for words in faults or [f"{file}: ok"]:
                    output.line(words)
        if any(found.values()):
            raise typer.Exit(1)

    @command(noun, "schema", "forewarn scenario schema > scenario.schema.json")
    def schema() -> None:
        """Print the JSON Schema of scenario files; editors use the copy next to a scenario."""
        with testing_extra():
            from forewarn.testing.scenario_schema import encode_scenario_schema

        sys.stdout.write(encode_scenario_schema())


def parse_parameters(texts: list[str] | None) -> dict[str, str]:
    """Return the names and values given by ``--set``.

    Raises:
        BadParameter: One has no equals sign, or a name is given twice.
    """
    given: dict[str, str] = {}
    for text in texts or []:
        name, separator, value = text.partition("=")
        if not separator or not name or name in given:
            msg = f"{text!r} is expected to be NAME=VALUE, with each name once"
            raise typer.BadParameter(msg, param_hint="--set")
        given[name] = value
    return given


def _where(outcome: Outcome) -> str:
    """Return the line of a step, with the file if it is an included one."""
    return f"{outcome.file}, line {outcome.line}" if outcome.file else f"line {outcome.line}"


async def _play(scenario: Scenario, clock: str, speed: float, output: Output) -> list[Outcome]:
    from forewarn.clock import VIRTUAL_START, SpedClock

    with testing_extra():
        from forewarn.testing.player import Player, lab_of

    # Both clocks begin at the same time, so that quiet hours are where the file expects them.
    made = None if clock == "virtual" else SpedClock(speed, VIRTUAL_START)
    async with lab_of(scenario, made).running() as lab:
        return await Player(scenario, lab, teller(output), on_wait=waiter(output, len(scenario.steps))).play()


def waiter(output: Output, count: int) -> Callable[[int, str], None]:
    """Return a callback that shows on a terminal which step is waited for."""
    return lambda number, text: output.passing(f"step {number} of {count}: {text}")


def teller(output: Output) -> Callable[[Outcome], None]:
    """Return a callback that prints each finished step."""

    def tell(outcome: Outcome) -> None:
        if output.is_json:
            return
        output.passing()
        mark = "✗" if outcome.fault else "✓" if outcome.is_expectation else "·"
        output.line(f"{format_at(outcome.at):>12}  {mark} {outcome.text}")
        if outcome.fault:
            output.line(f"{'':>12}    {_where(outcome)}: {outcome.fault}")

    return tell


def format_at(span: timedelta) -> str:
    """Format a time of a scenario: ``15:00`` or ``1d 02:00:00``."""
    minutes, seconds = divmod(round(span.total_seconds()), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    clock = f"{hours}:{minutes:02}:{seconds:02}" if hours or days else f"{minutes}:{seconds:02}"
    return f"{days}d {clock}" if days else clock

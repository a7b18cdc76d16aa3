"""The summary: waiting times, recovery times, and commands to try next."""

from __future__ import annotations

from datetime import timedelta

from rich.console import Console
from rich.text import Text

from forewarn.demo.cast import CAST, HOST, Vm
from forewarn.demo.narration import enumerate_names
from forewarn.demo.record import Record
from forewarn.demo.style import Words
from forewarn.demo.timeline import draw_heading

__all__ = ["Waits", "format_span", "print_summary", "recovery"]

_NEXT_STEPS = (
    ("serve", "forewarn serve"),
    ("announce", f"forewarn maintenance schedule --host {HOST} --type Freeze"),
    ("read on", "less docs/tutorial/first-steps.md"),
)
_MILLISECONDS_SHOWN = timedelta(milliseconds=100)
_words = Words()


class Waits:
    """Waiting times in an act whose maintenance was approved.

    Args:
        record: Complete record of the act.
    """

    def __init__(self, record: Record) -> None:
        self._record = record
        self.last = max(CAST, key=self.approval)
        """The VM that approved last."""

    def approval(self, vm: Vm) -> timedelta:
        """Return the time from the announcement to the VM's approval."""
        return self._record.span(self._record.moment("scheduled"), self._record.approved_at(vm))

    def others(self, vm: Vm) -> timedelta:
        """Return the time from the VM's approval to the last one."""
        return self.approval(self.last) - self.approval(vm)

    def start(self) -> timedelta:
        """Return the time from the last approval to the start, both as seen by the VM that approved last."""
        started = self._record.first(self.last, "Started")
        return self._record.span(self._record.approved_at(self.last), None if started is None else started.at)


def recovery(record: Record, vm: Vm) -> timedelta:
    """Return the time from the completion of the maintenance until the VM saw its event gone."""
    latest = record.latest(vm)
    return record.span(record.moment("completed"), None if latest is None else latest.at)


def format_span(span: timedelta) -> str:
    """Format as ``12 ms`` below a tenth of a second, as ``3.5 s`` from there."""
    if span < _MILLISECONDS_SHOWN:
        return f"{max(span, timedelta(0)) / timedelta(milliseconds=1):.0f} ms"
    return f"{span.total_seconds():.1f} s"


def summarise(migration: Record) -> list[str]:
    """Summarise the live migration act in sentences."""
    waits = Waits(migration)
    waited = [f"{vm.name} {format_span(waits.others(vm))}" for vm in CAST if vm != waits.last]
    return [
        f"Nothing started before {waits.last.name} approved, the last. Waited for it: {enumerate_names(waited)}.",
        f"From the last approval to the start: {format_span(waits.start())}, as {waits.last.name} saw it.",
        "No VM was ever shown an id or a name of the other tenant.",
    ]


def print_summary(console: Console, migration: Record, failure: Record) -> None:
    """Print the summary and the next steps."""
    console.print()
    console.print(draw_heading(console, "What happened"))
    for sentence in summarise(migration):
        for row in _words(sentence).wrap(console, console.width):
            row.rstrip()
            console.print(row)
    console.print()
    for row in _columns(_spans(migration, failure), "llrrrr"):
        console.print(row, soft_wrap=True)
    console.print()
    console.print(draw_heading(console, "Try it yourself"))
    steps = [[Text(purpose, "quiet"), Text(command, "command")] for purpose, command in _NEXT_STEPS]
    for row in _columns(steps, "ll"):
        console.print(row, soft_wrap=True)


def _spans(migration: Record, failure: Record) -> list[list[Text]]:
    """Return a table: two header rows, then one row for each VM."""
    waits = Waits(migration)
    heads = (
        ("", "", "approved", "waited", "back after", "back after"),
        ("", "", "after", "for others", "migration", "failure"),
    )
    rows = [[Text(cell, "quiet") for cell in head] for head in heads]
    for vm in CAST:
        others = format_span(waits.others(vm)) if vm != waits.last else "was last"
        spans = (waits.approval(vm), recovery(migration, vm), recovery(failure, vm))
        approval, back, back_again = (Text(format_span(span)) for span in spans)
        name = Text(vm.name, style=f"speaker.{vm.name}")
        rows.append([name, Text(vm.asks), approval, Text(others), back, back_again])
    return rows


def _columns(table: list[list[Text]], sides: str) -> list[Text]:
    """Align the columns of a table; ``l`` or ``r`` is the side of each."""
    widths = [max(cell.cell_len for cell in column) for column in zip(*table, strict=True)]
    rows = []
    for cells in table:
        row = Text()
        for cell, width, side in zip(cells, widths, sides, strict=True):
            cell.align("right" if side == "r" else "left", width)
            row += Text("  ") + cell
        row.rstrip()
        rows.append(row)
    return rows

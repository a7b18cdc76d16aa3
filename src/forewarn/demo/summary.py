"""The summary: waiting times, recovery times, and commands to try next."""

from __future__ import annotations

from datetime import timedelta

from rich.console import Console
from rich.table import Table
from rich.text import Text

from forewarn.demo.act_record import ActRecord
from forewarn.demo.sentences import join_names
from forewarn.demo.style import ProtocolHighlighter
from forewarn.demo.timeline import draw_heading
from forewarn.demo.vms import CAST, HOST, DemoVm

__all__ = ["WaitingTimes", "format_span", "measure_recovery", "print_summary"]

_NEXT_STEPS = (
    ("serve", "forewarn serve"),
    ("announce", f"forewarn maintenance schedule --host {HOST} --type Freeze"),
    ("read on", "less docs/tutorial/first-steps.md"),
)
_MILLISECONDS_SHOWN = timedelta(milliseconds=100)
_words = ProtocolHighlighter()


class WaitingTimes:
    """Waiting times in an act whose maintenance was approved.

    Args:
        record: Complete record of the act.
    """

    def __init__(self, record: ActRecord) -> None:
        self._record = record
        self.last_vm = max(CAST, key=self.measure_approval)
        """The VM that approved last."""

    def measure_approval(self, vm: DemoVm) -> timedelta:
        """Return the time from the announcement to the VM's approval."""
        return self._record.measure_span(self._record.find_time("scheduled"), self._record.find_approval_time(vm))

    def measure_wait(self, vm: DemoVm) -> timedelta:
        """Return the time from the VM's approval to the last one."""
        return self.measure_approval(self.last_vm) - self.measure_approval(vm)

    def measure_start(self) -> timedelta:
        """Return the time from the last approval to the start, both as seen by the VM that approved last."""
        started = self._record.find_first(self.last_vm, "Started")
        return self._record.measure_span(
            self._record.find_approval_time(self.last_vm), None if started is None else started.at
        )


def measure_recovery(record: ActRecord, vm: DemoVm) -> timedelta:
    """Return the time from the completion of the maintenance until the VM saw its event gone."""
    latest = record.find_latest(vm)
    return record.measure_span(record.find_time("completed"), None if latest is None else latest.at)


def format_span(span: timedelta) -> str:
    """Format as ``12 ms`` below a tenth of a second, as ``3.5 s`` from there."""
    if span < _MILLISECONDS_SHOWN:
        return f"{max(span, timedelta(0)) / timedelta(milliseconds=1):.0f} ms"
    return f"{span.total_seconds():.1f} s"


def summarize_migration(migration: ActRecord) -> list[str]:
    """Summarise the live migration act in sentences."""
    waits = WaitingTimes(migration)
    waited = [f"{vm.name} {format_span(waits.measure_wait(vm))}" for vm in CAST if vm != waits.last_vm]
    return [
        f"Nothing started before {waits.last_vm.name} approved, as the last VM. Waited for it: {join_names(waited)}.",
        f"From the last approval to the start: {format_span(waits.measure_start())}, as {waits.last_vm.name} saw it.",
        "No VM was ever shown an id or a name of the other tenant.",
    ]


def print_summary(console: Console, migration: ActRecord, failure: ActRecord) -> None:
    """Print the summary and the next steps."""
    console.print()
    console.print(draw_heading(console, "Summary"))
    for sentence in summarize_migration(migration):
        for row in _words(sentence).wrap(console, console.width):
            row.rstrip()
            console.print(row)
    console.print()
    console.print(_make_table(migration, failure))
    console.print()
    console.print(draw_heading(console, "Try it yourself"))
    for purpose, command in _NEXT_STEPS:
        console.print(Text.assemble((f"  {purpose:<10}", "quiet"), (command, "command")), soft_wrap=True)


def _make_table(migration: ActRecord, failure: ActRecord) -> Table:
    """Return a table with a row for each VM."""
    waits = WaitingTimes(migration)
    table = Table(box=None, padding=(0, 0, 0, 2), header_style="quiet")
    table.add_column("")
    table.add_column("")
    for head in ("approved\nafter", "waited\nfor others", "back after\nmigration", "back after\nfailure"):
        table.add_column(head, justify="right")
    for vm in CAST:
        others = format_span(waits.measure_wait(vm)) if vm != waits.last_vm else "was last"
        spans = (waits.measure_approval(vm), measure_recovery(migration, vm), measure_recovery(failure, vm))
        approval, back, back_again = map(format_span, spans)
        table.add_row(Text(vm.name, f"speaker.{vm.name}"), vm.poll_method, approval, others, back, back_again)
    return table

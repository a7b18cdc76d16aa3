"""The story of a run: sentences in the order of time."""

from __future__ import annotations

from datetime import timedelta

from forewarn.core.model import AuditEntry, EntryKind
from forewarn.testing.simulation.machine_clock import START
from forewarn.testing.simulation.outcome import Outcome
from forewarn.testing.simulation.story import tell
from forewarn.testing.simulation.trace import Fact


def test_facts_and_entries_stand_in_the_order_of_time() -> None:
    facts = (
        Fact(0.0, "chaos", "kinds", {"kinds": ["isolate"]}),
        Fact(61.5, "operator", "host", {"status": 201}),
        Fact(62.25, "vm-0", "document", {"incarnation": 2, "events": {"E": ["Scheduled", ["vm-0"]]}}),
        Fact(63.0, "chaos", "isolate"),
        Fact(65.0, "chaos", "over", {"fault": "isolate"}),
        Fact(70.0, "vm-0", "kill", {"power": True}),
    )
    entry = AuditEntry(
        kind=EntryKind.SCHEDULED, at=START + timedelta(seconds=61.75), actor="operator:ann", maintenance_id="m"
    )
    assert list(tell(Outcome(facts=facts, entries=[entry]))) == [
        "  0:00.000  faults: kinds: isolate",
        "  1:01.500  an operator or a tenant asks: host; the answer is 201",
        "  1:01.750  audit log: scheduled m by operator:ann",
        "  1:02.250  vm-0 is shown, in document 2: E Scheduled of ['vm-0']",
        "  1:03.000  faults: isolate",
        "  1:05.000  faults: isolate is over",
        "  1:10.000  vm-0 loses its power",
    ]


def test_a_fact_of_an_unknown_kind_is_shown_with_its_details() -> None:
    [line] = tell(Outcome(facts=[Fact(1.0, "vm-0", "something", {"number": 3})]))
    assert line == "  0:01.000  vm-0 something: number=3"

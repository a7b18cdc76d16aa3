"""Which VMs a maintenance hits without a warning."""

from __future__ import annotations

from dataclasses import replace

from forewarn.core.maintenance.unwarned import find_unwarned_vms
from forewarn.core.model import MaintenanceState
from tests.support.world import NOW
from tests.unit.core.builders import an_event, maintenance, vm

S = MaintenanceState
WAITING = maintenance(vm("a"), vm("b"), vm("c"), not_before=NOW)


def test_who_has_no_event_is_not_warned_in_the_order_of_the_maintenance() -> None:
    """R70c."""
    assert find_unwarned_vms(WAITING, [an_event("b")]) == ("a", "c")
    assert find_unwarned_vms(WAITING, []) == ("a", "b", "c")


def test_an_event_that_was_withdrawn_warns_nobody_while_it_may_still_happen() -> None:
    """R70, R70c."""
    event = an_event("a", "b", is_listed=False)
    assert find_unwarned_vms(WAITING, [event]) == ("a", "b", "c")
    over = replace(WAITING, state=S.COMPLETED, started_at=NOW, ended_at=NOW)
    assert find_unwarned_vms(over, [event]) == ("c",)


def test_what_waits_in_the_queue_warns_those_who_ask_now() -> None:
    """R61, R70c."""
    queued = replace(WAITING, state=S.QUEUED, not_before=None)
    assert find_unwarned_vms(queued, [], lambda name: name == "b") == ("a", "c")
    assert find_unwarned_vms(queued, []) == ()


def test_what_was_taken_back_hits_nobody() -> None:
    """R77."""
    assert find_unwarned_vms(replace(WAITING, state=S.CANCELED, ended_at=NOW), []) == ()

"""Injected faults: whom they affect, and how they are described."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.fault import FAULTS, FaultKind, FaultPoint, InjectedFault
from tests.support.world import NOW

EVERYWHERE = tuple(FaultPoint)


def kind(place: FaultPoint) -> FaultKind:
    """Return the first kind that acts there."""
    return next(each for each in FAULTS.values() if each.place is place)


def fault(place: FaultPoint = FaultPoint.STATUS, **details: object) -> InjectedFault:
    return replace(InjectedFault(id=1, kind=kind(place)), **details)  # type: ignore[arg-type] # of any field


@pytest.mark.parametrize("place", FaultPoint)
def test_a_document_is_affected_by_all_that_acts_on_its_request(place: FaultPoint) -> None:
    is_affected = place not in {FaultPoint.NOTICE, FaultPoint.ONCE}
    assert fault(place).affects_documents is is_affected
    assert fault(place, method="GET").affects_documents is is_affected
    assert not fault(place, method="POST").affects_documents


def test_it_applies_to_its_vms_methods_and_points() -> None:
    everyone, one, posts = fault(), fault(vms=("a",)), fault(method="POST")
    assert everyone.applies_to("b", "GET", EVERYWHERE)
    assert one.applies_to("a", "GET", EVERYWHERE)
    assert not one.applies_to("b", "GET", EVERYWHERE)
    assert posts.applies_to("b", "POST", EVERYWHERE)
    assert not posts.applies_to("b", "GET", EVERYWHERE)
    assert posts.applies_to("b", "", EVERYWHERE)  # of any method
    assert not everyone.applies_to("b", "GET", [FaultPoint.TIME])


def test_its_description_names_only_what_is_limited() -> None:
    name = kind(FaultPoint.STATUS).name
    assert fault().describe() == f"{name} for every VM"
    limited = fault(
        vms=("a", "b"), method="GET", count=3, rate=0.25, until=NOW + timedelta(seconds=1), delay=timedelta(seconds=2)
    )
    assert limited.describe() == (
        f"{name} for a, b on GET 3 times in 25% of the requests until {NOW + timedelta(seconds=1):%H:%M:%S} for 2s each"
    )
    assert fault(count=0).describe() == f"{name} for every VM 0 times"

"""What is drawn for a world: its kinds of faults, and how they come."""

from __future__ import annotations

import random

from forewarn.testing.simulation.chaos import KINDS, Plan, draw_plan


def draw(seed: int, kinds: tuple[str, ...] | None = None) -> Plan:
    return draw_plan(random.Random(seed), random.Random(-seed - 1), kinds)


def test_every_kind_of_fault_is_drawn_and_half_of_the_worlds_are_busy() -> None:
    plans = [draw(seed) for seed in range(200)]
    assert {kind for plan in plans for kind in plan.kinds} == set(KINDS)
    assert 60 < sum(plan.is_busy for plan in plans) < 140
    assert any(not plan.kinds for plan in plans)


def test_a_kind_that_came_later_leaves_the_others_as_they_were() -> None:
    """Seeds that once failed are replayed, so they must keep their worlds."""
    later = {"abort-commits", "slow-database", "strand-endpoint"}
    for seed in range(50):
        calm, busy = (draw_plan(random.Random(seed), random.Random(other)) for other in (0, 1))
        assert [kind for kind in busy.kinds if kind not in later] == list(calm.kinds)
        assert (calm.is_busy, busy.is_busy) == (False, True)


def test_kinds_that_are_named_are_taken_as_they_are() -> None:
    assert draw(1, ("isolate",)).kinds == ("isolate",)
    assert draw(1, ()).kinds == ()

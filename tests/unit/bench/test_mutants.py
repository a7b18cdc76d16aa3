"""The mutants of the correct handlers, and what is said of those that do no harm."""

from __future__ import annotations

import pytest

from bench.mutants import HANDLERS, Mutant, harmless_mutants, mutants_of


@pytest.fixture(scope="module")
def mutants() -> list[Mutant]:
    return [mutant for handler in HANDLERS for mutant in mutants_of(handler)]


def test_each_mutant_differs_in_more_than_what_it_prints(mutants: list[Mutant]) -> None:
    assert len(mutants) >= 200
    assert {mutant.handler for mutant in mutants} == set(HANDLERS)
    assert not [mutant for mutant in mutants if mutant.was == mutant.now]
    assert not [mutant for mutant in mutants if mutant.was.startswith("print(")]


def test_what_is_said_to_be_harmless_is_a_mutant(mutants: list[Mutant]) -> None:
    """A handler that has changed makes other mutants: then bench/mutants.toml has to follow."""
    made = {(mutant.handler, mutant.now) for mutant in mutants}
    assert harmless_mutants().keys() <= made
    assert all(harmless_mutants().values())

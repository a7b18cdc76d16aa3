"""The inventory of the fault run and its changes: each is one that the service takes."""

from __future__ import annotations

import json
import random

from forewarn.wire.inventory import parse_inventory
from tests.faultrun.fleet import Fleet

HOSTS = ["host-0", "host-1", "host-2"]


def addresses(fleet: Fleet) -> dict[str, str]:
    return {name: f"10.0.{number // 200}.{number % 200 + 1}" for name, number in fleet.numbers.items()}


def changes(count: int) -> list[Fleet]:
    rng = random.Random(7)
    made = [Fleet(HOSTS, 30)]
    for _ in range(count):
        made.append(made[-1].changed(rng))
    return made


def test_each_is_an_inventory_that_can_be_applied() -> None:
    for fleet in changes(100):
        parsed = parse_inventory(json.dumps(fleet.inventory(addresses(fleet))).encode())
        assert {vm.name: vm.host for vm in parsed.vms} == {vm: fleet.places[vm].host for vm in fleet.names}


def test_a_vm_that_was_removed_never_comes_back() -> None:
    gone: set[str] = set()
    for fleet in changes(100):
        gone |= fleet.gone
        assert not gone & fleet.numbers.keys()
        assert fleet.gone <= fleet.passing
    assert gone


def test_a_vm_keeps_its_audience_and_its_fault_domain_wherever_it_moves() -> None:
    made = changes(100)
    first, last = made[0], made[-1]
    moved = [vm for vm in first.names if vm in last.places and last.places[vm].host != first.places[vm].host]
    assert moved
    for vm in moved:
        before, after = first.places[vm], last.places[vm]
        assert (before.label, before.fault_domain) == (after.label, after.fault_domain)


def test_a_vm_with_an_agent_is_alone_and_stays_where_it_is() -> None:
    made = changes(100)
    agents = made[0].with_agents
    assert agents
    for fleet in made:
        assert agents <= fleet.numbers.keys()
        assert {vm: fleet.places[vm] for vm in agents} == {vm: made[0].places[vm] for vm in agents}
        assert not any(fleet.places[vm].is_spread for vm in agents)


def test_a_change_leaves_what_was_before_as_it_was() -> None:
    fleet = Fleet(HOSTS, 9)
    before = json.dumps(fleet.inventory(addresses(fleet)))
    for seed in range(20):
        fleet.changed(random.Random(seed))
    assert json.dumps(fleet.inventory(addresses(fleet))) == before
    assert not fleet.passing


def test_a_vm_that_is_added_and_removed_by_one_change_never_was() -> None:
    rng, first = random.Random(7), Fleet(HOSTS, 5)
    for _ in range(2000):
        fleet = first.changed(rng)
        assert fleet.passing <= first.numbers.keys() | fleet.numbers.keys()

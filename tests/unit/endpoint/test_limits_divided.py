"""Limits of one of several processes."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from forewarn.endpoint.traffic import EndpointLimits

_DIVIDED = {"connections_max", "unknown_connections_max", "body_bytes_max"}


def test_a_single_process_has_the_limits_themselves() -> None:
    limits = EndpointLimits()
    assert limits.divide(1) is limits


@pytest.mark.parametrize("processes", [2, 3, 64])
def test_the_parts_of_a_limit_for_all_callers_never_exceed_it(processes: int) -> None:
    limits = EndpointLimits(connections_max=1000, connections_per_vm_max=100, body_bytes_max=1 << 20)
    part = limits.divide(processes)
    assert part.unknown_connections_max is not None
    assert 0 <= 1000 - processes * part.connections_max < processes
    assert 0 <= 100 - processes * part.unknown_connections_max < processes
    assert 0 <= (1 << 20) - processes * part.body_bytes_max < processes


def test_a_part_is_at_least_one() -> None:
    part = EndpointLimits(connections_max=1, connections_per_vm_max=1, body_bytes_max=1).divide(2)
    assert (part.connections_max, part.unknown_connections_max, part.body_bytes_max) == (1, 1, 1)


def test_limits_for_one_vm_or_address_stay_as_they_are() -> None:
    limits = EndpointLimits(rate_limit_per_s=5)
    part = asdict(limits.divide(4))
    assert {name: part[name] for name in part.keys() - _DIVIDED} == {
        name: value for name, value in asdict(limits).items() if name not in _DIVIDED
    }

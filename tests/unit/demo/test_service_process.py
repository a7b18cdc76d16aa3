from __future__ import annotations

import json

import pytest

from forewarn.cli.serve import format_ready_line
from forewarn.demo.service_process import make_child_environment, parse_ready_line
from forewarn.demo.vms import CAST, encode_inventory
from forewarn.wire.inventory import parse_inventory


def test_the_line_that_serve_prints_is_understood() -> None:
    row = format_ready_line(["http://127.0.0.1:43745", "http://127.0.0.2:43746"], "http://127.0.0.1:43497", 3, 1)
    assert parse_ready_line(row + "\n") == ("http://127.0.0.1:43745", "http://127.0.0.1:43497")


@pytest.mark.parametrize("row", ["", "something else\n"])
def test_another_line_is_not(row: str) -> None:
    assert parse_ready_line(row) is None


def test_settings_for_other_services_do_not_reach_the_demo() -> None:
    given = {"PATH": "/bin", "FOREWARN_CLOCK": "virtual", "forewarn_control_listen": "x"}
    assert make_child_environment(given) == {"PATH": "/bin"}


def test_the_inventory_declares_the_cast() -> None:
    inventory = parse_inventory(encode_inventory().encode())
    assert [(vm.name, vm.scope, vm.addresses) for vm in inventory.vms] == [
        (vm.name, vm.scope, (vm.address,)) for vm in CAST
    ]


def test_the_vms_of_a_set_share_a_fault_domain_and_no_update_domain() -> None:
    # Different fault domains would be hit one after the other (R61), one update domain would make one event (R34).
    vms = [vm for vm in json.loads(encode_inventory())["vms"] if vm["scope"] == "web"]
    assert {vm.get("fault_domain", 0) for vm in vms} == {0}
    assert len({vm["update_domain"] for vm in vms}) == len(vms)

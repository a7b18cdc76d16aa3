"""Policies in the inventory: what is said comes back, and every fault is one line that says where it stands."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from forewarn.core.policy import ExtensionAllowance, Policy
from forewarn.errors import InvalidRequest
from forewarn.wire.hostfeed import HostFeedState, encode_state_line, parse_line
from forewarn.wire.imds import Dialect
from forewarn.wire.inventory import parse_inventory, to_inventory_in
from tests.support.quiet import quiet_hours

EXAMPLE = """
hosts: [{name: host-1}]
scopes:
  - name: web
    kind: availability-set
    policy:
      approve_user_operations: true
      approve_freezes_up_to: 10s
      quiet_hours:
        - {days: [Mon, tue, mon], from: "08:00", to: "18:00", timezone: Europe/Berlin}
        - {from: "22:00", to: "24:00", timezone: UTC}
      user_operations_max: 2
      unavailable_max: 3
      approvers: [vm, "vm:web-0", operator, vm]
      extension: {max: 10m, times: 2}
vms:
  - {name: web-0, host: host-1, scope: web}
  - {name: db, host: host-1, policy: {extension: {max: 90s}}}
"""


def scope_with(policy: str) -> bytes:
    return f"scopes: [{{name: web, kind: availability-set, policy: {policy}}}]".encode()


def fault(text: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_inventory(text)
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_policy_is_read_as_it_is_said() -> None:
    """X5."""
    inventory = parse_inventory(EXAMPLE.encode())
    (web,) = inventory.scopes
    every_day = "mon tue wed thu fri sat sun"
    assert web.policy == Policy(
        approves_user_operations=True,
        approves_freezes_up_to=timedelta(seconds=10),
        quiet_hours=(
            quiet_hours("mon tue", "08:00", "18:00"),
            quiet_hours(every_day, "22:00", "00:00", "UTC"),
        ),
        user_operations_max=2,
        unavailable_max=3,
        approvers=("vm", "vm:web-0", "operator"),
        extension=ExtensionAllowance(max=timedelta(minutes=10), times=2),
    )
    member, lone = inventory.vms[0], inventory.vms[1]
    assert member.policy == Policy()
    assert lone.policy == Policy(extension=ExtensionAllowance(max=timedelta(seconds=90), times=1))


def test_a_policy_that_is_shown_reads_back_as_the_same() -> None:
    inventory = parse_inventory(EXAMPLE.encode())
    assert parse_inventory(to_inventory_in(inventory).model_dump_json().encode()) == inventory


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("{quiet: []}", "scopes[0] (web).policy.quiet: Extra inputs are not permitted"),
        ("[]", "scopes[0] (web).policy: Input should be a valid dictionary"),
        ("{approve_freezes_up_to: 0s}", "policy.approve_freezes_up_to: 0s is out of range: expected more than 0s"),
        ("{approve_freezes_up_to: soon}", "policy.approve_freezes_up_to: 'soon' is not a span of time"),
        ("{unavailable_max: 0}", "policy.unavailable_max: Input should be greater than or equal to 1"),
        ("{user_operations_max: 0}", "policy.user_operations_max: Input should be greater than or equal to 1"),
        ("{approvers: []}", "policy.approvers: List should have at least 1 item"),
        ("{approvers: [user]}", "policy.approvers[0]: 'user' is not an approver: expected one of vm, operator, tenant"),
        ("{approvers: ['vm:']}", "policy.approvers[0]: 'vm:' is not an approver"),
        ("{approvers: ['vm:nobody']}", "scope web: approver vm:nobody is not a VM of this scope"),
        ("{extension: {times: 2}}", "policy.extension.max: Field required"),
        ("{extension: {max: 10m, times: 0}}", "policy.extension.times: Input should be greater"),
        ("{extension: {max: 8d}}", "policy.extension.max: 8d is out of range"),
        ('{quiet_hours: [{from: "8:00", to: "18:00", timezone: UTC}]}', ".from: '8:00' is not a time of day: expected"),
        (
            '{quiet_hours: [{from: 10:30, to: "18:00", timezone: UTC}]}',
            '.from: 630 is not a time of day: expected for example "08:00", in quotes',
        ),
        (
            '{quiet_hours: [{from: "08:00", to: "25:00", timezone: UTC}]}',
            "[0].to: '25:00' is not a time of day",
        ),
        ('{quiet_hours: [{from: "08:00", to: "18:00"}]}', "quiet_hours[0].timezone: Field required"),
        ('{quiet_hours: [{from: "08:00", to: "18:00", timezone: Berlin}]}', "'Berlin' is not a time zone that this"),
        ('{quiet_hours: [{from: "08:00", to: "18:00", timezone: ../../etc/passwd}]}', "is not a time zone"),
        ('{quiet_hours: [{days: [], from: "08:00", to: "18:00", timezone: UTC}]}', "quiet_hours[0].days: List should"),
        ('{quiet_hours: [{days: [monday], from: "08:00", to: "18:00", timezone: UTC}]}', "quiet_hours[0].days[0]: "),
        ('{quiet_hours: [{from: "08:00", to: "08:00", timezone: UTC}]}', "quiet_hours leave no time for maintenance"),
        (
            '{quiet_hours: [{from: "06:00", to: "18:00", timezone: UTC}, {from: "18:00", to: "06:00", timezone: UTC}]}',
            "quiet_hours leave no time for maintenance",
        ),
    ],
)
def test_a_fault_of_a_policy_is_named_with_its_place(policy: str, expected: str) -> None:
    assert expected in fault(scope_with(policy))


def test_only_a_vm_without_a_scope_has_a_policy_of_its_own() -> None:
    text = EXAMPLE.replace("scope: web}", "scope: web, policy: {user_operations_max: 1}}")
    assert "vm web-0: its policy is that of scope web" in fault(text.encode())


def test_a_lone_vm_can_leave_approvals_to_itself_and_to_no_other_vm() -> None:
    lone = "hosts: [{{name: h}}]\nvms: [{{name: db, host: h, policy: {{approvers: ['vm:{}']}}}}]"
    assert parse_inventory(lone.format("db").encode()).vms[0].policy.approvers == ("vm:db",)
    assert "vm db: approver vm:web" in fault(lone.format("web").encode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scopes: [{name: s, kind: standalone, policy: {unavailable_max: 1}}]", "scope s is standalone"),
        (
            "hosts: [{name: h}]\nvms: [{name: db, host: h, policy: {unavailable_max: 1}}]",
            "vm db: unavailable_max is for",
        ),
    ],
)
def test_only_a_group_of_vms_limits_how_many_of_them_are_unavailable(text: str, expected: str) -> None:
    assert expected in fault(text.encode())


def test_an_endpoint_on_a_host_is_told_of_no_policy() -> None:
    """It decides nothing by policies."""
    inventory = parse_inventory(EXAMPLE.encode())
    state = HostFeedState(host="host-1", inventory=inventory, dialect=Dialect(), first_answer_delay_s=0, documents=())
    line = encode_state_line(state)
    assert "policy" not in json.dumps(json.loads(line))
    told = parse_line(line)
    assert isinstance(told, HostFeedState)
    assert {each.name for each in told.inventory.vms} == {"web-0", "db"}

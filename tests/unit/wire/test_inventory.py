"""The inventory file: every fault is one line that says where it stands; what is declared can be read back."""

from __future__ import annotations

import json
import re
from datetime import timedelta

import hypothesis.strategies as st
import pytest
from hypothesis import given

from forewarn.core.model import NotificationProfile, ScopeKind
from forewarn.errors import InvalidRequest
from forewarn.wire.inventory import compute_fingerprint, format_file_error, parse_inventory, to_inventory_in

EXAMPLE = """
hosts: [{name: host-1}, {name: host-2}]
scopes:
  - {name: web, kind: availability-set}
  - name: fleet
    kind: scale-set
    fault_domain_count: 2
    terminate_notification: {enable: true, not_before_timeout: PT9M}
    os_image_notification: {enable: true}
    couples_deletes: true
    policy: {approve_user_operations: true}
vms:
  - {name: WestNO_0, host: host-1, scope: web, fault_domain: 0, update_domain: 0, addresses: [10.9.0.11]}
  - {name: fleet_1, host: host-1, scope: fleet, fault_domain: 1, priority: Spot, tags: {b: "1", a: größer}}
  - {name: db, host: host-2, addresses: [10.9.0.13, "fd00::0:1"]}
"""
HOST = "hosts: [{name: h}]\n"


def fault(text: str | bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_inventory(text.encode() if isinstance(text, str) else text)
    message = caught.value.message
    assert "\n" not in message
    return message


def test_what_is_declared_is_read_with_the_defaults_of_the_rest() -> None:
    """W7: names keep their case."""
    inventory = parse_inventory(EXAMPLE.encode())
    assert [host.name for host in inventory.hosts] == ["host-1", "host-2"]
    web, fleet = inventory.scopes
    assert (web.kind, web.fault_domain_count, web.couples_deletes) == (ScopeKind.AVAILABILITY_SET, None, False)
    assert fleet.terminate_notification == NotificationProfile(enable=True, not_before_timeout=timedelta(minutes=9))
    assert fleet.os_image_notification == NotificationProfile(enable=True, not_before_timeout=timedelta(minutes=15))
    vm, spot, db = inventory.vms
    assert (vm.name, vm.host, vm.scope, vm.addresses) == ("WestNO_0", "host-1", "web", ("10.9.0.11",))
    assert (spot.is_spot, spot.tags) == (True, (("b", "1"), ("a", "größer")))
    assert (db.scope, db.addresses) == (None, ("10.9.0.13", "fd00::1"))


def test_what_is_shown_reads_back_as_the_same() -> None:
    inventory = parse_inventory(EXAMPLE.encode())
    assert parse_inventory(to_inventory_in(inventory).model_dump_json().encode()) == inventory


def test_json_is_read_as_yaml_is_with_or_without_a_byte_order_mark() -> None:
    inventory = parse_inventory(EXAMPLE.encode())
    text = json.dumps(to_inventory_in(inventory).model_dump(mode="json"))
    assert parse_inventory(text.encode()) == inventory
    assert parse_inventory(b"\xef\xbb\xbf" + text.encode()) == inventory
    assert parse_inventory(b"\xef\xbb\xbf" + EXAMPLE.encode()) == inventory


def test_words_that_yaml_takes_for_dates_are_names() -> None:
    inventory = parse_inventory(b"hosts: [{name: 2024-01-02}]")
    assert inventory.hosts[0].name == "2024-01-02"


@pytest.mark.parametrize(
    ("given_address", "kept"),
    [("::ffff:10.0.0.1", "10.0.0.1"), ("FD00:0::1", "fd00::1"), ("127.0.0.11", "127.0.0.11")],
)
def test_addresses_are_kept_in_the_form_in_which_callers_are_looked_up(given_address: str, kept: str) -> None:
    text = HOST + f"vms: [{{name: a, host: h, addresses: ['{given_address}']}}]"
    assert parse_inventory(text.encode()).vms[0].addresses == (kept,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "inventory: expected a mapping with hosts, scopes and vms"),
        ("- a\n- b\n", "inventory: expected a mapping"),
        ("hosts: [", "inventory: line 2, column 1: "),
        ("hosts:\n\t- a\n", "inventory: line 2, column 1: "),
        ("hosts: []\nvms: []\nhosts: []\n", "inventory: line 3, column 1: duplicate key 'hosts'"),
        ('{"hosts": [], "hosts": []}', "inventory: line 1, column 15: duplicate key 'hosts'"),
        ('{"hosts": [}', "inventory: line 1, column 12: not JSON: "),
        (b"hosts: \xff\xfe", "inventory: neither YAML nor JSON in UTF-8"),
        (b"\x00\x01", "inventory: neither YAML nor JSON in UTF-8"),
        ("{" * 5000, "inventory: "),
        ("[" * 5000, "inventory: "),
        ("hosts: !!python/object/apply:os.system ['true']", "inventory: line 1, column 8: could not determine"),
        ("hosts: &a [*a]", "inventory: hosts[0]"),
        ("host: []", "inventory: host: Extra inputs"),
        ("hosts: {}", "inventory: hosts: Input should be a valid list"),
        ("hosts: [{name: a}, {nam: b}]", "inventory: hosts[1].name: Field required (and 1 more)"),
        ("hosts: [a]", "inventory: hosts[0]: "),
        ("hosts: [{name: 7}]", "inventory: hosts[0].name: Input should be a valid string"),
        ("hosts: [{name: on}]", "inventory: hosts[0].name: Input should be a valid string"),
        ("hosts: [{name: ''}]", "inventory: hosts[0] ().name: String should have at least 1 character"),
        ("hosts: [{name: a b}]", "inventory: hosts[0] (a b).name: String should match pattern"),
        ('hosts: [{name: "a\\n"}]', "inventory: hosts[0] "),
        ("hosts: [{name: a}, {name: a}]", "inventory: duplicate host name 'a'"),
        (
            "scopes: [{name: s, kind: zone}]",
            "inventory: scopes[0] (s).kind: Input should be 'standalone', 'cloud-service'",
        ),
        (
            "scopes: [{name: s, kind: standalone}, {name: s, kind: standalone}]",
            "inventory: duplicate scope name 's'",
        ),
        (
            "scopes: [{name: s, kind: scale-set, fault_domain_count: 0}]",
            "inventory: scopes[0] (s).fault_domain_count: ",
        ),
        (HOST + "vms: [{name: a, host: h}, {name: a, host: h}]", "inventory: duplicate vm name 'a'"),
        (HOST + "vms: [{name: a, host: i}]", "inventory: vm a: host 'i' is not declared"),
        (HOST + "vms: [{name: a, host: h, scope: s}]", "inventory: vm a: scope 's' is not declared"),
        (HOST + "vms: [{name: a}]", "inventory: vms[0] (a).host: Field required"),
        (
            HOST + "vms: [{name: a, host: h, addresses: [10.0.0.256]}]",
            "vms[0] (a).addresses[0]: '10.0.0.256' is not an IP address",
        ),
        (
            HOST + "vms: [{name: a, host: h, addresses: ['fe80::1%eth0']}]",
            "vms[0] (a).addresses[0]: 'fe80::1%eth0' has a zone",
        ),
        (HOST + "vms: [{name: a, host: h, addresses: 10.0.0.1}]", "vms[0] (a).addresses: Input should be a valid list"),
        (
            HOST
            + "vms: [{name: a, host: h, addresses: [10.0.0.1]}, {name: b, host: h, addresses: ['::ffff:10.0.0.1']}]",
            "inventory: duplicate address '10.0.0.1'",
        ),
        (HOST + "vms: [{name: a, host: h, fault_domain: -1}]", "inventory: vms[0] (a).fault_domain: "),
        (HOST + "vms: [{name: a, host: h, priority: spot}]", "inventory: vms[0] (a).priority: "),
        (HOST + "vms: [{name: a, host: h, tags: {a: 1}}]", "inventory: vms[0] (a).tags"),
        (
            HOST
            + "scopes: [{name: s, kind: scale-set, fault_domain_count: 2}]\n"
            + "vms: [{name: a, host: h, scope: s, fault_domain: 2}]",
            "inventory: vm a: fault domain 2 does not exist, scope s has 2",
        ),
    ],
)
def test_a_fault_is_one_line_that_says_where(text: str | bytes, expected: str) -> None:
    assert expected in re.sub(r"line \d+: ", "", fault(text))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("hosts:\n  - name: a\n  - nam: b\n", 3),
        ("hosts:\n  - name: a\n\n  # a remark\n  - name: a b\n", 5),
        ("hosts:\n  - name: a\n  - name: a\n", 3),
        ("vms:\n  - name: a\n    host:\n      h i\nhosts: []\n", 3),
        (HOST + "vms:\n  - name: a\n    host: h\n    addresses:\n      - 10.0.0.1\n      - 10.0.0.256\n", 7),
        (HOST + "vms:\n  - {name: a, host: h}\n  - {name: b, host: i}\n", 4),
        (HOST + "vms:\n- {name: a, host: h, addresses: [10.0.0.1]}\n- {name: b, host: h, addresses: [10.0.0.1]}\n", 4),
        ("scopes:\n  - name: s\n    kind: standalone\n    terminate_notification:\n      enable: true\n", 2),
        ("scopes:\n  - name: s\n    kind: standalone\n    policy:\n      approvers: ['vm:x']\n", 5),
        ('{\n "hosts": [\n  {"name": "a"},\n  {"nam": "b"}\n ]\n}', 4),
        ('{\n "hosts": [],\n "hosts": []\n}', 3),
        ('{\n "hosts": [\n  {]\n}', 3),
        ("hosts: &all [{name: a}]\nscopes: []\nvms:\n  - *all\n", 4),
    ],
)
def test_a_fault_names_its_line_and_the_file_that_it_is_in(text: str, line: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"^inventory: line {line}[:,]") as caught:
        parse_inventory(text.encode())
    assert caught.value.details["line"] == line
    said = format_file_error(caught.value, "fleet.yaml")
    assert said.startswith(f"fleet.yaml:{line}: ")
    assert "inventory: " not in said


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("::ffff:0.0.0.0", "unspecified"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("ff02::1", "multicast"),
        ("::ffff:224.0.0.1", "multicast"),
        ("255.255.255.255", "broadcast"),
    ],
)
def test_an_address_from_which_no_vm_calls_is_refused(address: str, word: str) -> None:
    said = fault(HOST + f"vms:\n  - {{name: a, host: h, addresses: ['{address}']}}")
    assert "line 3: vms[0] (a).addresses[0]: " in said
    assert f"{word} address, which no VM can call from" in said


PROFILE = "scopes: [{{name: s, kind: {kind}, {profile}}}]"


@pytest.mark.parametrize(
    ("kind", "profile", "expected"),
    [
        ("scale-set", "terminate_notification: {enable: true, not_before_timeout: PT4M}", "must be PT5M to PT15M"),
        ("scale-set", "terminate_notification: {enable: true, not_before_timeout: PT16M}", "must be PT5M to PT15M"),
        (
            "scale-set",
            "terminate_notification: {enable: true, not_before_timeout: 5m}",
            "not a number of minutes in ISO 8601",
        ),
        ("scale-set", "terminate_notification: {enable: true, not_before_timeout: PT300S}", "not a number of minutes"),
        ("scale-set", "os_image_notification: {enable: true, not_before_timeout: PT5M}", "must be PT15M"),
        (
            "availability-set",
            "terminate_notification: {enable: true}",
            "only a scale-set can have notification profiles",
        ),
        ("cloud-service", "os_image_notification: {enable: true}", "only a scale-set can have notification profiles"),
    ],
)
def test_notification_profiles_that_azure_rejects_are_rejected(kind: str, profile: str, expected: str) -> None:
    """R91, R93."""
    message = fault(PROFILE.format(kind=kind, profile=profile))
    assert expected in message
    assert "s" in message.partition("inventory: ")[2]


@pytest.mark.parametrize("size", ["Standard_G1", "Standard_M8ms", "Standard_NC6", "Standard_HB120", "Basic_NV4"])
def test_sizes_without_memory_preserving_updates_cannot_opt_in_to_os_image_events(size: str) -> None:
    """R93."""
    text = HOST + "scopes: [{name: s, kind: scale-set, os_image_notification: {enable: true}}]\n"
    assert "series G, M, N and H cannot" in fault(text + f"vms: [{{name: a, host: h, scope: s, size: {size}}}]")


def test_the_fingerprint_is_that_of_the_bytes() -> None:
    assert compute_fingerprint(b"hosts: []") == compute_fingerprint(b"hosts: []") != compute_fingerprint(b"hosts:  []")


@given(st.binary(max_size=200) | st.text(alphabet="{}[]:,-&*!|>'\"%@ \n\tahostsvmname0.", max_size=80).map(str.encode))
def test_whatever_is_sent_is_read_or_refused_in_one_line(text: bytes) -> None:
    message = "inventory: read"
    try:
        parse_inventory(text)
    except InvalidRequest as error:
        message = error.message
    assert message.startswith("inventory: ")
    assert "\n" not in message

"""`/metadata/instance`: what a VM reads about itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.model import Scope, ScopeKind, VirtualMachine
from forewarn.wire.instance import VERSIONS, build_document, find_value, get_version_error, is_leaf, render_value
from tests.unit.wire.builders import EVENT, MAINTENANCE, VERSION_NAMES, encode, events

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"

SCALE_SET = Scope(name="Pool", kind=ScopeKind.SCALE_SET)
FULL = VirtualMachine(
    name="Pool_3",
    host="host-1",
    scope="Pool",
    fault_domain=1,
    update_domain=4,
    addresses=("10.9.0.11", "fd00::11", "10.9.1.11"),
    vm_id="5C08B38E-4D57-4C23-AC45-AA5F13A16123",
    size="Standard_D2s_v3",
    location="westeurope",
    zone="2",
    resource_group="Production",
    subscription_id="8D10DA13-8125-4BA9-A717-BF7490507B3D",
    os_type="Linux",
    priority="Spot",
    tags=(("team", "web"), ("tier", "front")),
    mac_address="00:0d:3a:1b-c2-ef",
)
BARE = VirtualMachine(name="db", host="host-1")


def test_a_vm_of_a_scale_set_reads_all_about_itself() -> None:
    """X3: every field, numbers as strings, tags in both forms."""
    assert build_document(FULL, SCALE_SET) == {
        "compute": {
            "location": "westeurope",
            "name": "Pool_3",
            "osType": "Linux",
            "platformFaultDomain": "1",
            "platformUpdateDomain": "4",
            "priority": "Spot",
            "resourceGroupName": "Production",
            "subscriptionId": "8D10DA13-8125-4BA9-A717-BF7490507B3D",
            "tags": "team:web;tier:front",
            "tagsList": [{"name": "team", "value": "web"}, {"name": "tier", "value": "front"}],
            "vmId": "5C08B38E-4D57-4C23-AC45-AA5F13A16123",
            "vmScaleSetName": "Pool",
            "vmSize": "Standard_D2s_v3",
            "zone": "2",
        },
        "network": {
            "interface": [
                {
                    "ipv4": {
                        "ipAddress": [
                            {"privateIpAddress": "10.9.0.11", "publicIpAddress": ""},
                            {"privateIpAddress": "10.9.1.11", "publicIpAddress": ""},
                        ],
                        "subnet": [],
                    },
                    "ipv6": {"ipAddress": [{"privateIpAddress": "fd00::11", "publicIpAddress": ""}]},
                    "macAddress": "000D3A1BC2EF",
                }
            ]
        },
    }


def test_what_the_inventory_does_not_say_is_an_empty_string() -> None:
    """X3: never null, never missing."""
    compute = build_document(BARE, None)["compute"]
    said = {"name": "db", "tagsList": []}
    assert compute == dict.fromkeys(build_document(FULL, SCALE_SET)["compute"], "") | said


def test_a_vm_without_addresses_has_one_empty_interface() -> None:
    """X3."""
    interface = {"ipv4": {"ipAddress": [], "subnet": []}, "ipv6": {"ipAddress": []}, "macAddress": ""}
    assert build_document(BARE, None)["network"] == {"interface": [interface]}


@pytest.mark.parametrize("kind", list(ScopeKind))
def test_only_a_scale_set_gives_its_name(kind: ScopeKind) -> None:
    """X3."""
    name = build_document(FULL, Scope(name="Pool", kind=kind))["compute"]["vmScaleSetName"]
    assert name == ("Pool" if kind is ScopeKind.SCALE_SET else "")


@pytest.mark.parametrize("name", VERSION_NAMES[1:])
def test_a_vm_finds_the_name_it_reads_here_in_the_resources_of_its_event(name: str) -> None:
    """W7, W10, R106: the name of the inventory with its case, in both places."""
    event = replace(EVENT, resources=(FULL.name,))
    assert find_value(build_document(FULL, SCALE_SET), ["compute", "name"]) == "Pool_3"
    assert events(encode((event, MAINTENANCE), name=name))[0]["Resources"] == ["Pool_3"]


@pytest.mark.parametrize("text", VERSIONS)
def test_every_documented_version_is_taken(text: str) -> None:
    """X3."""
    assert get_version_error(text) is None


def test_no_version_at_all_is_told_the_newest_three() -> None:
    """R111: of the instance metadata, not of Scheduled Events."""
    body = json.loads(get_version_error("") or b"")
    assert body["error"].startswith("Bad request. api-version is invalid or was not specified")
    assert body["newest-versions"] == ["2025-04-07", "2024-07-17", "2024-03-15"]


@pytest.mark.parametrize(
    "text",
    [
        "2017-07-01",
        "2017-03-01",
        "2020-07-01",
        "latest",
        "2021-2-1",
        "20210201",
        "2021-02-01 ",
        "2021-02-01\n",
        "2021-02-01-preview",
        "9999-99-99",
        "\uff12\uff10\uff12\uff11-02-01",
    ],
    ids=ascii,
)
def test_a_version_that_never_existed_is_invalid(text: str) -> None:
    """R111: also one of Scheduled Events only."""
    body = json.loads(get_version_error(text) or b"")
    assert body == {
        "error": "Bad request. Invalid version requested",
        "newest-versions": ["2025-04-07", "2024-07-17", "2024-03-15"],
    }


@pytest.mark.parametrize(
    ("value", "is_so"), [("Pool_3", True), ("", True), ({}, False), ([], False), ({"name": "n"}, False)], ids=str
)
def test_a_leaf_is_a_single_value(value: Any, is_so: bool) -> None:  # noqa: ANN401
    """R111."""
    assert is_leaf(value) is is_so


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["compute", "name"], "Pool_3"),
        (["COMPUTE", "VMid"], "5C08B38E-4D57-4C23-AC45-AA5F13A16123"),
        (["compute", "tagsList", "1", "value"], "front"),
        (["network", "interface", "0", "macAddress"], "000D3A1BC2EF"),
        (["network", "interface", "0", "ipv4", "ipAddress", "1", "privateIpAddress"], "10.9.1.11"),
        (["network", "interface", "0", "ipv4", "subnet"], []),
        (["network", "interface", "0", "ipv4", "ipAddress", "0", "publicIpAddress"], ""),
    ],
    ids="/".join,
)
def test_a_path_leads_to_its_value_whatever_its_case(path: list[str], value: object) -> None:
    """X3: an empty string is a value too."""
    assert find_value(build_document(FULL, SCALE_SET), path) == value


def test_the_empty_path_is_the_whole_document() -> None:
    """X3."""
    document = build_document(FULL, SCALE_SET)
    assert find_value(document, []) is document


@pytest.mark.parametrize(
    "path",
    [
        ["storage"],
        [""],
        ["compute", ""],
        ["compute", "names"],
        ["compute", "name", "P"],
        ["compute", "name", "0"],
        ["compute", "tagsList", "2"],
        ["compute", "tagsList", "-1"],
        ["compute", "tagsList", "00"],
        ["compute", "tagsList", "\u0661"],
        ["compute", "tagsList", "\u00b2"],
        ["compute", "tagsList", "name"],
        ["compute", "tagsList", "9" * 5000],
        ["network", "interface", "0", "ipv6", "subnet"],
    ],
    ids=lambda path: ascii("/".join(path)[:40]),
)
def test_a_path_that_leads_nowhere_has_no_value(path: list[str]) -> None:
    """X3: also where its number is longer than Python cares to read."""
    assert find_value(build_document(FULL, SCALE_SET), path) is None


@given(st.lists(st.sampled_from(["compute", "network", "interface", "tagsList", "name", "0", "1"]) | st.text()))
def test_any_path_has_a_value_that_can_be_shown_or_none(path: list[str]) -> None:
    """X3."""
    value = find_value(build_document(FULL, SCALE_SET), path)
    assert value is None or json.loads(render_value(value, text_format=False)[0]) == value


def test_json_is_compact_and_plain_utf_8() -> None:
    """X3, R8, W2."""
    assert render_value({"a": ["ü", ""], "b": {}}, text_format=False) == ('{"a":["ü",""],"b":{}}'.encode(), JSON)


@pytest.mark.parametrize(
    ("value", "body"),
    [
        ("Pool_3", b"Pool_3"),
        ("", b""),
        ("Zürich", "Zürich".encode()),
        ({"compute": {"x": "y"}, "list": [], "name": "n"}, b"compute/\nlist/\nname"),
        ([{"a": "b"}, {"c": "d"}], b"0/\n1/"),
        ([], b""),
        ({}, b""),
    ],
    ids=str,
)
def test_text_is_the_value_or_a_list_of_what_lies_below(value: Any, body: bytes) -> None:  # noqa: ANN401
    """X3."""
    assert render_value(value, text_format=True) == (body, TEXT)


def test_a_vm_asks_for_its_own_name_in_plain_text() -> None:
    """W10, X3: the first request of many handlers."""
    assert render_value(find_value(build_document(FULL, SCALE_SET), ["compute", "name"]), text_format=True) == (
        b"Pool_3",
        TEXT,
    )

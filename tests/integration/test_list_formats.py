"""Lists on the command line: formats, columns and order."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.support.command_line import CommandLine
from tests.support.service import Running, Vm, running

INVENTORY: dict[str, Any] = {
    "hosts": [
        {"name": "h1", "labels": {"rack": "r2", "example.com/room": "b"}},
        {"name": "h2", "labels": {"rack": "r1"}},
        {"name": "h3"},
    ],
    "vms": [
        {"name": "a", "host": "h2", "addresses": ["127.0.0.11"], "size": "small"},
        {"name": "b", "host": "h1", "addresses": ["127.0.0.12"]},
        {"name": "c", "host": "h2", "addresses": ["127.0.0.13"]},
    ],
}
LISTS = [
    ("vm", "list"),
    ("host", "list"),
    ("maintenance", "list"),
    ("event", "list"),
    ("rollout", "list"),
    ("token", "list"),
    ("host", "tokens", "h1"),
    ("subscription", "list"),
    ("fault", "list"),
    ("limit", "list"),
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("formats"), fault_injection=True) as started:
        with started.operator() as api:
            answer = api.put("/v1/inventory", json=INVENTORY, params={"remove_missing": True})
            assert answer.status_code == 200, answer.text
            for vm in INVENTORY["vms"]:
                started.enable(Vm(vm["name"], vm["addresses"][0]))
            for path, body in (
                ("/v1/maintenance", {"vms": ["a"], "type": "Reboot", "notice_s": 3600}),
                ("/v1/maintenance", {"vms": ["b"], "type": "Freeze", "notice_s": 1800}),
                ("/v1/faults", {"kind": "503", "vms": ["a"]}),
                ("/v1/subscriptions", {"name": "chat", "url": "https://example.com/hook"}),
                ("/v1/tokens", {"name": "ann", "role": "read-only"}),
                ("/v1/hosts/h1/tokens", None),
                ("/v1/rollouts", {"name": "kernel", "cause": "host-maintenance", "hosts": ["h3"]}),
            ):
                assert api.post(path, json=body).status_code == 201
        yield started


@pytest.fixture
def cli(service: Running, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(service, monkeypatch, capsys)


@pytest.mark.parametrize("command", LISTS, ids="-".join)
def test_every_list_has_every_format(cli: CommandLine, command: tuple[str, ...]) -> None:
    items = cli.json(*command)
    is_counting = command[0] == "limit"  # the counts of the caller change with each call
    printed = yaml.safe_load(cli.run(*command, "-o", "yaml")[0])
    assert is_counting or printed == items
    printed = json.loads(cli.run(*command, "-o", "json")[0])
    assert is_counting or printed == items
    table, wide = cli.lines(*command), cli.lines(*command, "-o", "wide")
    assert len(table) == len(wide) == len(items) + 1
    titles, wide_titles = re.split(r" {2,}", table[0]), re.split(r" {2,}", wide[0])
    assert set(titles) <= set(wide_titles)
    rows = list(csv.DictReader(cli.lines(*command, "-o", "csv")))
    assert len(rows) == len(items)
    assert set(rows[0]) <= set(items[0])
    names = cli.lines(*command, "-o", "name")
    first = titles[0].lower()
    assert names == [str(item["name"] if first == "caller" else item[first]) for item in items]
    # The first column, which other commands take.
    assert [line.split()[0] for line in table[1:]] == names


def test_columns_are_members_of_the_json(cli: CommandLine) -> None:
    assert cli.lines("host", "list", "-o", "columns=name,labels.rack,labels.example.com/room,vms") == [
        "NAME  LABELS.RACK  LABELS.EXAMPLE.COM/ROOM  VMS",
        "h1    r2           b                        b",
        "h2    r1           -                        a, c",
        "h3    -            -                        -",
    ]
    (first, second) = cli.lines("event", "list", "-o", "columns=resources,type,approved_at")[1:]
    assert [first.split(), second.split()] == [["b", "Freeze", "-"], ["a", "Reboot", "-"]]
    assert cli.lines("maintenance", "list", "--vm", "a", "-o", "columns=vms,events.status")[1:] == ["a    Scheduled"]


@pytest.mark.parametrize(
    ("field", "names"),
    [
        ("name", ["a", "b", "c"]),
        ("-name", ["c", "b", "a"]),
        ("host", ["b", "a", "c"]),
        ("-host", ["a", "c", "b"]),
        ("size", ["a", "b", "c"]),
    ],
)
def test_a_list_is_sorted_by_a_member_and_items_without_it_come_last(
    cli: CommandLine, field: str, names: list[str]
) -> None:
    assert cli.lines("vm", "list", "--sort", field, "-o", "name") == names
    assert [vm["name"] for vm in cli.json("vm", "list", "--sort", field)] == names


def test_the_limit_applies_after_the_order(cli: CommandLine) -> None:
    out, err = cli.run("host", "list", "--sort", "labels.rack", "--limit", "1", "-o", "name")
    assert (out, err) == ("h2\n", "there are more hosts: use --limit 10\n")
    assert cli.lines("host", "list", "--sort", "-labels.rack", "-o", "columns=name") == ["NAME", "h1", "h2", "h3"]
    listed = cli.json("maintenance", "list", "--sort", "-not_before")
    assert [m["vms"] for m in listed if m["vms"]] == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "xml"], "unknown format 'xml': expected one of table, wide, json, yaml, name, csv"),
        (["-o", "json=name"], "unknown format 'json=name'"),
        (["-o", "columns="], "name the members to show, for example columns=name,host"),
        (["-o", "columns"], "name the members to show"),
        (["-o", "columns=nope"], "unknown member 'nope': expected one of name, host, scope"),
        (["-o", "columns=" + "name," * 51], "at most 50 columns"),
        (["--sort", "nope"], "unknown member 'nope': expected one of name, host, scope"),
        (["--json", "--csv"], "cannot be combined with --json"),
        (["-o", "yaml", "--json"], "cannot be combined with --json"),
        (["-o", "wide", "--csv"], "cannot be combined with --csv"),
    ],
)
def test_what_cannot_be_printed_says_why(cli: CommandLine, options: list[str], message: str) -> None:
    out, err = cli.run("vm", "list", *options, status=2)
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_the_short_forms_agree_with_the_long_one(cli: CommandLine) -> None:
    assert cli.run("vm", "list", "--csv", "-o", "csv") == cli.run("vm", "list", "--csv")
    assert cli.run("vm", "list", "--json", "-o", "json") == cli.run("vm", "list", "--json")


def test_a_list_that_is_too_long_to_sort_is_refused(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forewarn.cli.list_output.SORTED_MAX", 2)
    _, err = cli.run("vm", "list", "--sort", "name", status=2)
    assert "there are more than 2 VMs, too many to sort: select fewer" in err


def test_every_name_is_printed_without_a_limit(cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forewarn.cli.list_output.PLAIN_LIMIT", 2)
    assert cli.run("vm", "list", "-o", "name") == ("a\nb\nc\n", "")
    assert cli.run("vm", "list", "-o", "columns=name") == (
        "NAME\na\nb\n",
        "there are more VMs: use --limit 20\n",
    )

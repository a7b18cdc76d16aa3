"""The whole inventory, read and printed while it arrives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forewarn.cli.inventory import CUT, print_pieces
from forewarn.cli.inventory_document import decode_pieces, drop_defaults, format_json, format_yaml, parse_document
from forewarn.cli.inventory_yaml import format_yaml_item
from forewarn.cli.output import as_yaml
from forewarn.errors import ForewarnError, InvalidRequest, OtherSideError, StoreUnavailable
from forewarn.wire.inventory import parse_inventory
from forewarn.wire.inventory_lines import encode_end_error, encode_inventory_lines

TEXT = """
hosts: [{name: host-1}, {name: host-2}]
vms:
  - {name: a, host: host-1, addresses: [10.9.0.11, "fd00::1"], tags: {b: "grö\\u2028ßer \\u009b"}}
  - {name: b, host: host-1}
  - {name: c, host: host-2, policy: {approvers: [operator], approve_freezes_up_to: 10s}}
"""
INVENTORY = parse_inventory(TEXT.encode())
LINES = b"".join(encode_inventory_lines([list(INVENTORY.hosts)], [], [list(INVENTORY.vms)])).split(b"\n")
DECLARED = json.loads(b"\n".join(LINES))


def pieces_of(size: int, lines: list[bytes] = LINES) -> Iterator[list[bytes]]:
    return (lines[first : first + size] for first in range(0, len(lines), size))


@pytest.mark.parametrize("size", range(1, 12))
def test_however_it_arrives_it_is_read_whole(size: int) -> None:
    found: dict[str, list[Any]] = {}
    for member, objects in decode_pieces(parse_document(pieces_of(size))):
        found.setdefault(member, []).extend(objects)
    assert {member: found[member] for member in DECLARED} == DECLARED
    assert yaml.safe_load("".join(format_yaml(decode_pieces(parse_document(pieces_of(size)))))) == {
        member: [drop_defaults(item) for item in items] for member, items in DECLARED.items()
    }
    assert json.loads("".join(format_json(parse_document(pieces_of(size)), is_indented=False))) == DECLARED
    assert json.loads("".join(format_json(parse_document(pieces_of(size)), is_indented=True))) == DECLARED


def test_json_on_a_terminal_looks_as_json_of_the_whole_does() -> None:
    text = "".join(format_json(parse_document(pieces_of(3)), is_indented=True))
    assert text.splitlines() == json.dumps(DECLARED, ensure_ascii=True, indent=2).replace(
        "\\u00f6", "ö"
    ).replace("\\u00df", "ß").splitlines()  # fmt: skip
    assert "\u2028" not in text
    assert "\u009b" not in "".join(format_json(parse_document(pieces_of(3)), is_indented=False))


def test_output_begins_with_the_first_lines() -> None:
    def arrive() -> Iterator[list[bytes]]:
        yield LINES[:2]
        raise InvalidRequest("nothing more was to be read")

    assert next(format_yaml(decode_pieces(parse_document(arrive())))) == "hosts:\n- name: host-1\n"
    assert "host-1" in next(text for text in format_json(parse_document(arrive()), is_indented=False) if "name" in text)


@pytest.mark.parametrize("count", range(len(LINES) - 2))
def test_without_its_end_it_is_an_error(count: int) -> None:
    with pytest.raises(OtherSideError, match="end of the inventory"):
        list(parse_document([LINES[:count]]))


def test_the_error_at_its_end_is_raised_after_what_came_before() -> None:
    lines = LINES[:3] + encode_end_error(StoreUnavailable("the disk is gone")).split(b"\n")
    texts: list[str] = []
    with pytest.raises(StoreUnavailable, match="the disk is gone"):
        texts.extend(format_yaml(decode_pieces(parse_document(pieces_of(2, lines)))))
    assert "host-1" in "".join(texts)


@pytest.mark.parametrize("count", range(3, len(LINES) - 2))
def test_what_is_printed_of_an_incomplete_inventory_cannot_be_applied(
    count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = format_yaml(decode_pieces(parse_document(pieces_of(1, LINES[:count]))))
    with pytest.raises(OtherSideError):
        print_pieces(texts, if_cut=CUT)
    printed = capsys.readouterr().out
    assert "host-1" in printed
    with pytest.raises(InvalidRequest, match="did not find expected"):
        parse_inventory(printed.encode())


def test_an_inventory_in_one_line_is_read_too() -> None:
    line = json.dumps(DECLARED, ensure_ascii=False).encode()
    assert json.loads("".join(format_json(parse_document([[line]]), is_indented=False))) == DECLARED


@pytest.mark.parametrize("line", [b"<html>", b"[]", b'{"items": 3}'])
def test_another_answer_is_no_inventory(line: bytes) -> None:
    with pytest.raises(ForewarnError, match="not an inventory"):
        list(parse_document([[line]]))


# YAML

_TEXTS = st.one_of(
    st.text(max_size=80),
    st.from_regex(r"[A-Za-z0-9_.:+\-]{1,12}", fullmatch=True),
    st.ip_addresses().map(str),
    st.uuids().map(str),
    st.sampled_from([
        "yes", "No", "null", "~", "1:20", "1::2:3", "0x1f", "1e5", ".5", "12e03", "on", "=", "<<", "y", "a:", ":a",
    ]),
)  # fmt: skip
_ITEMS = st.dictionaries(
    st.sampled_from(["name", "host", "zone", "tags", "addresses", "fault_domain", "enable"]),
    st.one_of(
        _TEXTS,
        st.integers(-5, 2000),
        st.booleans(),
        st.lists(_TEXTS, min_size=1, max_size=3),
        st.dictionaries(_TEXTS, _TEXTS, min_size=1, max_size=3),
    ),
    min_size=1,
)


@given(_ITEMS)
def test_an_item_is_printed_as_pyyaml_prints_it(item: dict[str, Any]) -> None:
    assert format_yaml_item(item) == as_yaml([item])


@given(_TEXTS)
def test_a_text_is_read_back_as_the_same_text(text: str) -> None:
    assert yaml.safe_load(format_yaml_item({"name": text})) == [{"name": text}]

"""The whole inventory from the control API: read and formatted while it arrives, and never held as a whole."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, TypeVar

from forewarn.cli.connection import make_error
from forewarn.cli.inventory_yaml import format_yaml_item
from forewarn.cli.output import as_json
from forewarn.core.policy import ALL_APPROVERS
from forewarn.errors import OtherSideError
from forewarn.util.escape import escape_json

T = TypeVar("T")

__all__ = ["decode_pieces", "drop_defaults", "format_json", "format_yaml", "parse_document"]

Objects = tuple[str, list[dict[str, Any]]]
"""Name of a member of the inventory, and some of its objects; each member has at least one such piece."""

Texts = tuple[str, list[str]]
"""The same, with each object as JSON in one line."""

_MEMBER = re.compile(rb'(?:\{|\],)"(\w+)":\[')
_END = b"]}"
_ERROR = b'{"error":'


def parse_document(pieces: Iterable[list[bytes]]) -> Iterator[Texts]:
    """Yield the objects of an inventory from the lines that `forewarn.wire.inventory_lines` describes.

    Raises:
        OtherSideError: The last lines are missing, or these are not the lines of an inventory.
        ForewarnError: The service could not complete it, and says why.
    """
    member, is_complete = "", False
    for lines in pieces:
        found: list[str] = []
        for line in lines:
            if line.endswith(b":[") or line == _END:
                yield member, found
                found = []
                match, is_complete = _MEMBER.fullmatch(line), line == _END
                member = member if match is None else match[1].decode()
            elif line.startswith(_ERROR):
                yield member, found
                raise make_error(json.loads(line))
            elif line and not member:
                yield from _split_whole(line)
                is_complete = True
            elif line:
                found.append(line.decode().rstrip(","))
        yield member, found
    if not is_complete:
        raise OtherSideError("the service did not send the end of the inventory: what was printed is incomplete")


def _split_whole(line: bytes) -> Iterator[Texts]:
    """Yield the members of an inventory in one line, as older services send it."""
    try:
        for member, items in json.loads(line).items():
            yield member, [json.dumps(item, ensure_ascii=False) for item in items]
    except (ValueError, AttributeError, TypeError) as error:
        raise OtherSideError("the answer is not an inventory: check the control URL") from error


def decode_pieces(pieces: Iterable[Texts]) -> Iterator[Objects]:
    """Yield the objects decoded."""
    for member, texts in pieces:
        yield member, json.loads(f"[{','.join(texts)}]")


def format_json(pieces: Iterable[Texts], *, is_indented: bool) -> Iterator[str]:
    """Yield the inventory as JSON: indented as a whole, or one line for each object."""
    gap, margin = ("\n  ", "\n    ") if is_indented else ("", "\n")
    before = "{"
    for member, group in _group(pieces):
        yield f"{before}{gap}{json.dumps(member)}: ["
        end, separator = "", margin
        for _, texts in group:
            if texts:
                shown = [_indent_object(text) for text in texts] if is_indented else map(escape_json, texts)
                yield separator + f",{margin}".join(shown)
                end, separator = gap or "\n", f",{margin}"
        before = f"{end}],"
    yield before[:-1] + "\n}\n"


def _indent_object(text: str) -> str:
    return as_json(json.loads(text), is_indented=True).replace("\n", "\n    ")


def _group(pieces: Iterable[tuple[str, list[T]]]) -> Iterator[tuple[str, Iterator[tuple[str, list[T]]]]]:
    """Group pieces by their member; the pieces before the first one are empty."""
    return ((member, group) for member, group in groupby(pieces, key=itemgetter(0)) if member)


def format_yaml(pieces: Iterable[Objects]) -> Iterator[str]:
    """Yield the inventory as YAML, without empty members of its objects."""
    for member, group in _group(pieces):
        is_empty = True
        for _, items in group:
            if items:
                heading = f"{member}:\n" if is_empty else ""
                yield heading + "".join([format_yaml_item(drop_defaults(item)) for item in items])
                is_empty = False
        if is_empty:
            yield f"{member}: []\n"


def drop_defaults(item: dict[str, Any]) -> dict[str, Any]:
    """Return a host, scope or VM without empty members, which mean the same as absent ones."""
    found: dict[str, Any] = {name: value for name, value in item.items() if value or isinstance(value, int)}
    if "policy" in found:
        found["policy"] = _drop_policy_defaults(found["policy"])
    return found


def _drop_policy_defaults(policy: dict[str, Any]) -> dict[str, Any]:
    is_default = {"approve_user_operations": False, "approvers": list(ALL_APPROVERS)}
    return {
        name: value
        for name, value in policy.items()
        if (value or isinstance(value, int)) and value != is_default.get(name)
    }

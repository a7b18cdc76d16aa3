"""Labels of hosts, scopes and VMs, and the selectors that choose by them.

A label is a key and a value that the operator gives, such as ``rack=r1``. A selector has the grammar that Kubernetes
uses: ``rack=r1,model!=x``, ``team in (db,web)``, ``team notin (db)``, ``gpu``, ``!gpu``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from forewarn.errors import InvalidRequest

__all__ = [
    "ANY_LABELS",
    "KEY_PATTERN",
    "LABELS_MAX",
    "SELECTOR_LENGTH_MAX",
    "VALUE_PATTERN",
    "LabelRequirement",
    "LabelSelector",
    "Labels",
    "merge_labels",
    "parse_selector",
]

Labels = tuple[tuple[str, str], ...]
"""Keys and values; each key once, sorted by key."""

LABELS_MAX = 32
"""Maximum number of labels of one object."""

SELECTOR_LENGTH_MAX = 1000
"""Maximum length of a selector, in characters."""

_REQUIREMENTS_MAX = 16
_VALUES_MAX = 64

_KEY = r"[A-Za-z0-9](?:[A-Za-z0-9_.\-/]{0,126}[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.\-]{0,126}[A-Za-z0-9])?)?"

KEY_PATTERN = f"^{_KEY}$"
"""Form of a key: 1 to 128 letters, digits, ``_``, ``.``, ``-``, ``/``; the first and the last are letters or digits."""

VALUE_PATTERN = f"^{_VALUE}$"
"""Form of a value: as a key, without ``/``; it may be empty."""

_REQUIREMENT = re.compile(
    rf"""\s*(?:
    (?P<key>{_KEY})\s*(?P<sign>==|=|!=)\s*(?P<value>{_VALUE})
    | (?P<set_key>{_KEY})\s+(?P<word>in|notin)\s*\(\s*(?P<values>{_VALUE}(?:\s*,\s*{_VALUE})*)\s*\)
    | (?P<absent>!)?\s*(?P<name>{_KEY})
    )\s*(?:,|$)""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """One condition of a selector.

    Attributes:
        key: Key of the label.
        values: Values of which the label must have one; None: any value.
        is_negated: True if the label must be absent, or have none of the values.
    """

    key: str
    values: tuple[str, ...] | None
    is_negated: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if the labels fulfil the condition."""
        value = labels.get(self.key)
        is_found = value is not None and (self.values is None or value in self.values)
        return is_found is not self.is_negated


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Conditions on labels, all of which must hold; none: every object is selected."""

    requirements: tuple[LabelRequirement, ...] = ()

    def __bool__(self) -> bool:
        """Return True if there is a condition."""
        return bool(self.requirements)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return True if the labels fulfil all conditions."""
        return all(each.matches(labels) for each in self.requirements)


ANY_LABELS = LabelSelector()
"""The selector that selects every object."""


def merge_labels(*layers: Labels) -> dict[str, str]:
    """Return the labels of all layers; for a key that several have, the value of the last counts.

    A VM has the labels of its host, of its scope, and its own, in this order.
    """
    return {key: value for layer in layers for key, value in layer}


def parse_selector(text: str) -> LabelSelector:
    """Parse a selector; an empty text selects every object.

    Raises:
        InvalidRequest: It is too long, or a condition is malformed; the message quotes the rest from there.
    """
    if len(text) > SELECTOR_LENGTH_MAX:
        raise InvalidRequest(f"selector: longer than {SELECTOR_LENGTH_MAX} characters")
    found: list[LabelRequirement] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _REQUIREMENT.match(text, position)
        if match is None or (match.end() >= end and text[:end].endswith(",")):
            rest = text[position:end][:60]
            msg = f"selector: cannot read {rest!r}: expected for example rack=r1,model!=x,team in (db,web),gpu,!spare"
            raise InvalidRequest(msg)
        found.append(_to_requirement(match))
        position = match.end()
    if len(found) > _REQUIREMENTS_MAX or sum(len(each.values or ()) for each in found) > _VALUES_MAX:
        raise InvalidRequest(f"selector: at most {_REQUIREMENTS_MAX} conditions and {_VALUES_MAX} values")
    return LabelSelector(tuple(found))


def _to_requirement(match: re.Match[str]) -> LabelRequirement:
    if match["key"] is not None:
        return LabelRequirement(match["key"], (match["value"],), is_negated=match["sign"] == "!=")
    if match["set_key"] is not None:
        values = tuple(dict.fromkeys(each.strip() for each in match["values"].split(",")))
        return LabelRequirement(match["set_key"], values, is_negated=match["word"] == "notin")
    return LabelRequirement(match["name"], None, is_negated=match["absent"] is not None)

"""Selectors of labels: what they are read from, and what they select."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.label import (
    ANY_LABELS,
    SELECTOR_LENGTH_MAX,
    LabelRequirement,
    LabelSelector,
    merge_labels,
    parse_selector,
)
from forewarn.errors import InvalidRequest

LABELS = {"rack": "r1", "team": "db", "empty": ""}


@pytest.mark.parametrize(
    ("text", "is_selected"),
    [
        ("", True),
        (" ", True),
        ("rack=r1", True),
        ("rack==r1", True),
        ("rack=r", False),
        ("rack = r1 , team = db", True),
        ("rack=r1,team=web", False),
        ("team!=web", True),
        ("team!=db", False),
        ("model!=x", True),
        ("team in (web,db)", True),
        ("team in ( web , ops )", False),
        ("team notin (web,ops)", True),
        ("team notin (db)", False),
        ("model notin (x)", True),
        ("rack", True),
        ("model", False),
        ("!model", True),
        ("! rack", False),
        ("empty=", True),
        ("rack=", False),
        ("empty=,rack=r1", True),
        ("empty in (,x)", True),
        ("Rack=r1", False),
        ("in", False),
        ("notin notin (notin)", True),
    ],
)
def test_a_selector_selects(text: str, *, is_selected: bool) -> None:
    assert parse_selector(text).matches(LABELS) is is_selected


@pytest.mark.parametrize(
    "text",
    [
        ",", "rack=r1,", "rack=r1,,team=db", "!", "=", "rack=r1 team=db", "a b", "team in", "team in (", "a=b/c",
        "team in db", "team in (a b)", "é=1", "rack=-r1", "-rack", "!rack=r1", "a" * 129, "rack=r1\n,x y", "a\x00",
    ],
)  # fmt: skip
def test_a_malformed_selector_is_quoted_from_where_it_is_malformed(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^selector: cannot read '") as caught:
        parse_selector(f"row=2,{text}")
    quoted = caught.value.message.partition(": expected")[0]
    # A comma too many belongs to the condition before it.
    assert "row=2" not in quoted or text == ","


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a" * (SELECTOR_LENGTH_MAX + 1), "longer than 1000 characters"),
        (",".join(f"k{n}" for n in range(17)), "at most 16 conditions"),
        (f"k in ({','.join(f'v{n}' for n in range(65))})", "64 values"),
    ],
)
def test_a_selector_has_limits(text: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        parse_selector(text)


WORDS = st.sampled_from(["a", "b", "in", "notin", "a/b", "x.y-z_0"])
VALUES = st.sampled_from(["", "a", "in", "x.y-z_0"])


@given(
    st.lists(
        st.builds(
            LabelRequirement, WORDS, st.none() | st.lists(VALUES, min_size=1, unique=True).map(tuple), st.booleans()
        ),
        max_size=8,
    ).map(lambda found: LabelSelector(tuple(found)))
)
def test_what_is_written_in_the_grammar_is_read_back(selector: LabelSelector) -> None:
    written = [
        f"{'!' * each.is_negated}{each.key}"
        if each.values is None
        else f"{each.key} {'notin' if each.is_negated else 'in'} ({','.join(each.values)})"
        for each in selector.requirements
    ]
    assert parse_selector(",".join(written)) == selector
    assert bool(selector) is bool(written)


@given(st.dictionaries(WORDS, VALUES), WORDS, st.none() | st.lists(VALUES, min_size=1).map(tuple))
def test_a_negated_condition_selects_the_rest(labels: dict[str, str], key: str, values: tuple[str, ...] | None) -> None:
    condition = LabelRequirement(key, values)
    assert condition.matches(labels) is not LabelRequirement(key, values, is_negated=True).matches(labels)


def test_the_last_layer_counts() -> None:
    assert merge_labels((("rack", "r1"), ("row", "2")), (), (("rack", "r9"),)) == {"rack": "r9", "row": "2"}
    assert ANY_LABELS.matches({})

"""`If-None-Match`: whether the client has the current document already."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.wire.imds import is_not_modified

FORMS = ["{}", '"{}"', 'W/"{}"', "W/{}", '  "{}"  ', '"0", "{}"', '"{}","0"', 'W/"0" ,  {} , "0"']


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_current_incarnation_matches(form: str) -> None:
    """R14, A9."""
    assert is_not_modified(form.format(5), 5)


@pytest.mark.parametrize("form", FORMS)
def test_no_form_of_another_incarnation_matches(form: str) -> None:
    """R14: neither an older one, nor one that has the same digits in it."""
    assert not is_not_modified(form.format(4), 5)
    assert not is_not_modified(form.format(55), 5)
    assert not is_not_modified(form.format(15), 5)


@pytest.mark.parametrize(
    "header", ["", " ", ",", '""', "W/", 'W/""', "abc", "5.0", "+5", "05", "-5", "5 6", '"5-gzip"']
)
def test_what_is_not_the_incarnation_itself_does_not_match(header: str) -> None:
    """R14: such a client gets the document."""
    assert not is_not_modified(header, 5)


@pytest.mark.parametrize("size", [2, 1000])
def test_one_matching_tag_in_a_list_is_enough(size: int) -> None:
    """R14."""
    tags = ", ".join(f'"{number}"' for number in range(1, size + 1))
    assert is_not_modified(tags, size)
    assert not is_not_modified(tags, size + 1)


@given(
    form=st.sampled_from(["{}", '"{}"', 'W/"{}"']),
    told=st.integers(min_value=1),
    current=st.integers(min_value=1),
)
def test_a_tag_matches_exactly_when_the_incarnations_are_equal(form: str, told: int, current: int) -> None:
    """R14, R42."""
    assert is_not_modified(form.format(told), current) == (told == current)


@given(st.text().filter(lambda text: "7" not in text and "*" not in text))
def test_no_text_without_the_incarnation_in_it_matches(header: str) -> None:
    """R14: whatever a client sends, it is read without an error."""
    assert not is_not_modified(header, 7)


def test_a_star_matches_whatever_there_is() -> None:
    """R14: as HTTP has it."""
    assert is_not_modified("*", 5)
    assert is_not_modified('"1", *', 5)
    assert not is_not_modified('"*"', 5)

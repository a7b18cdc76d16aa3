"""Times on the command line."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
import typer

from forewarn.cli.times import as_duration_s, as_moment_or_span, as_span_s, split_names


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("24h", 86400), ("7d", 604800), ("250ms", 0.25), ("30", 30)]
)
def test_a_span_is_read_with_its_unit_or_in_seconds(text: str, seconds: float) -> None:
    assert as_span_s(text, "--notice") == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5m", "15 minutes", "inf", "nan"])
def test_what_is_no_span_names_the_option_and_what_was_expected(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a span of time: expected for example") as error:
        as_span_s(text, "--notice")
    assert error.value.param_hint == "--notice"


def test_no_span_stays_none() -> None:
    assert as_span_s(None, "--notice") is None
    assert as_duration_s(None, "--duration") is None


@pytest.mark.parametrize(("text", "seconds"), [("5s", 5), ("2m", 120), ("0", 0), ("unknown", -1), ("-1", -1)])
def test_a_duration_is_whole_seconds_or_unknown(text: str, seconds: int) -> None:
    assert as_duration_s(text, "--duration") == seconds


def test_a_duration_of_half_a_second_is_refused() -> None:
    with pytest.raises(typer.BadParameter, match="whole seconds"):
        as_duration_s("500ms", "--duration")


@pytest.mark.parametrize(
    "text", ["2030-01-31T12:00:00Z", "2030-01-31T12:00:00z", "2030-01-31T13:00:00+01:00", "2030-01-31 12:00:00Z"]
)
def test_a_moment_is_rfc_3339(text: str) -> None:
    assert as_moment_or_span(text, "--not-before") == datetime(2030, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(("text", "seconds"), [("15m", 900), ("900", 900), ("20300131", 20300131)])
def test_a_moment_may_be_given_as_a_span_from_now(text: str, seconds: float) -> None:
    assert as_moment_or_span(text, "--not-before") == seconds


def test_a_moment_without_time_zone_is_refused_with_the_form_that_was_meant() -> None:
    with pytest.raises(typer.BadParameter, match="expected for example 2030-01-31T12:00:00Z"):
        as_moment_or_span("2030-01-31T12:00:00", "--not-before")


@pytest.mark.parametrize("text", ["tomorrow", "", "2030-13-01T00:00:00Z"])
def test_what_is_neither_a_moment_nor_a_span_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a time: expected for example"):
        as_moment_or_span(text, "--not-before")


def test_names_come_by_option_and_by_comma_each_once_and_in_order() -> None:
    assert split_names(["b,a", "c", "a", " d , "]) == ["b", "a", "c", "d"]
    assert split_names(None) == []

"""What commands print."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from forewarn.cli.output import Column, Output, format_moment, format_relative, format_seconds
from forewarn.util.escape import escape_controls

NOW = datetime(2030, 1, 1, tzinfo=UTC)
EVENT_ID = "602D9444-D2CD-49C7-8624-8643E7171297"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0s"),
        (0.25, "0.25s"),
        (9, "9s"),
        (60, "1m"),
        (892, "14m 52s"),
        (86400, "1d"),
        (604799, "6d 23h"),
        (3605, "1h"),
    ],
)
def test_a_span_shows_its_two_largest_units(seconds: float, words: str) -> None:
    assert format_seconds(seconds) == words


@pytest.mark.parametrize(
    ("moment", "words"),
    [
        ("2030-01-01T00:15:00Z", "in 15m"),
        ("2029-12-31T20:55:00Z", "3h 5m ago"),
        ("2030-01-01T00:00:00.400000Z", "now"),
        (None, None),
    ],
)
def test_a_moment_shows_how_far_away_it_is(moment: str | None, words: str | None) -> None:
    assert format_relative(moment, NOW) == words


def test_a_moment_is_shown_in_utc_with_thousandths_where_there_are_some() -> None:
    assert format_moment("2030-01-01T01:00:00+01:00") == "2030-01-01 00:00:00Z"
    assert format_moment("2030-01-01T00:00:00.250999Z") == "2030-01-01 00:00:00.250Z"
    assert format_moment(None) is None


def test_control_characters_become_visible() -> None:
    assert escape_controls("a\x1b[31mb\nc\u202e") == "a\\x1b[31mb\\nc\\u202e"
    assert escape_controls("Grüße") == "Grüße"


def test_a_table_keeps_ids_whole_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = ", ".join(f"machine-{n}" for n in range(30))
    columns = [Column("id"), Column("type"), Column("status"), Column("not before"), Column("names", is_whole=False)]
    row = {"id": EVENT_ID, "type": "Terminate", "status": "Scheduled", "not_before": "in 14m 52s", "names": names}
    Output().print_table([row], columns)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"id          {EVENT_ID}", "the row does not fit, so it is printed as names and values"
    assert [line.split()[0] for line in lines[1:5]] == ["type", "status", "not", "names"]
    assert max(len(line) for line in lines) <= 80


def test_no_word_of_a_table_is_broken(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    columns = [Column("id"), Column("left", is_whole=False), Column("right", is_whole=False)]
    row = {"id": "k3", "left": "alpha beta gamma delta", "right": "one-very-long-name two three four five six"}
    Output().print_table([row, row | {"left": "x"}], columns)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["ID", "LEFT", "RIGHT"]
    assert max(len(line) for line in lines) <= 40
    words = " ".join(lines).split()
    assert {*row["left"].split(), *row["right"].split()} <= set(words)
    assert len(lines) < 12, "the columns use the width that there is"


def test_no_word_of_a_line_or_a_field_is_broken(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    Output().print_line(
        "  maintenance k3v9xq2mab is  scheduled: Freeze of a-very-long-name-of-a-machine-that-fits-nowhere"
    )
    Output().print_fields([("vms", ["one-name", "two-names", "three-names"]), ("名", "機械 機械 機械 機械 機械 機械")])
    assert capsys.readouterr().out.splitlines() == [
        "  maintenance k3v9xq2mab is",
        "      scheduled: Freeze of",
        "      a-very-long-name-of-a-machine-that-fits-nowhere",
        "vms  one-name, two-names,",
        "     three-names",
        "名   機械 機械 機械 機械 機械",
        "     機械",
    ]


def test_a_table_that_is_piped_has_one_line_for_each_row_and_no_trailing_space(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    names = ", ".join(f"machine-{n}" for n in range(300))
    rows = [{"name": "a", "names": names}, {"name": "b", "names": ""}]
    Output().print_table(rows, [Column("name"), Column("names", is_whole=False)])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["NAME  NAMES", f"a     {names}", "b     -"]


def test_square_brackets_of_a_description_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    Output().print_table([{"text": "[red]x[/red] :smile:"}], [Column("text")])
    assert "[red]x[/red] :smile:" in capsys.readouterr().out


def test_an_empty_table_says_so_beside_the_output(capsys: pytest.CaptureFixture[str]) -> None:
    Output().print_table([], [Column("id")], empty="no events")
    assert capsys.readouterr() == ("", "no events\n")


def test_fields_without_a_value_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    Output().print_fields([("id", "k3"), ("forced", None), ("description", "")])
    assert capsys.readouterr().out == "id  k3\n"


def test_a_value_is_printed_as_json_where_that_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert Output(is_json=True).print_if_json({"name": "Grüße"})
    assert json.loads(capsys.readouterr().out) == {"name": "Grüße"}
    assert not Output().print_if_json({})
    assert capsys.readouterr().out == ""

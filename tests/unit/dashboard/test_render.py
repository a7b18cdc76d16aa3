from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from forewarn.dashboard.render import STATIC, _encode_json, format_duration, format_time, render_template, static_path
from forewarn.errors import Hint, NotFound
from tests.support.documents import ROOT

AT = datetime(2026, 11, 21, 10, 5, 7, 999_999, tzinfo=UTC)


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        (None, ""),
        (0, "0 s"),
        (0.25, "0.2 s"),
        (9.96, "10.0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3601, "1 h 1 s"),
        (timedelta(days=2, hours=3, minutes=4), "2 d 3 h"),
        (-90, "-1 min 30 s"),
    ],
)
def test_spans_are_told_in_their_two_largest_units(length: timedelta | float | None, expected: str) -> None:
    assert format_duration(length) == expected


def test_moments_are_told_to_the_second_in_utc() -> None:
    assert format_time(AT) == "2026-11-21 10:05:07 UTC"
    assert format_time(None) == ""


def test_data_cannot_end_its_element() -> None:
    hostile = {"name": "</script><script>alert(1)</script>&<!--"}
    text = str(_encode_json(hostile))
    assert not set("<>&") & set(text)
    assert json.loads(text) == hostile


def test_what_is_said_is_never_markup() -> None:
    error = NotFound("<b>bold</b>", hint=Hint("", "<i>all</i>", '/"><i>'))
    values = {"title": "x", "error": error, "status": 404, "is_virtual": False, "clock_jump": None}
    page = render_template("error.html", values, is_whole=False)
    assert b"&lt;b&gt;bold&lt;/b&gt;" in page
    assert b"<i>" not in page


def test_the_address_of_a_file_changes_with_its_content() -> None:
    path = static_path("forewarn.css")
    assert path.endswith("/forewarn.css")
    assert path != static_path("forewarn.js")


def test_every_vendored_file_is_told_of() -> None:
    told = (STATIC / "VENDORED.md").read_text()
    names = {file.name for file in STATIC.iterdir()}
    for name in names:
        is_of_others = ".min." in name or name.startswith("swagger-ui")
        assert is_of_others == (f"`{name}`" in told), name


def test_no_page_has_a_script_or_a_style_in_its_markup() -> None:
    """The Content-Security-Policy would keep it from working."""
    for template in (ROOT / "src/forewarn/dashboard/templates").iterdir():
        text = template.read_text()
        assert " style=" not in text
        assert " onclick" not in text
        assert "javascript:" not in text
        for piece in text.split("<script")[1:]:
            assert piece.startswith((' src="', ' type="application/json"')), template.name

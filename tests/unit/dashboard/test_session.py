from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import pytest
from starlette.requests import Request
from starlette.responses import Response

from forewarn.dashboard.session import Sessions

NOW = datetime(2030, 1, 1, tzinfo=UTC)


def request(word: str | None = None) -> Request:
    headers = [(b"host", b"127.0.0.1:8170")]
    if word is not None:
        headers.append((b"cookie", f"forewarn-8170={word}".encode()))
    return Request({"type": "http", "scheme": "http", "path": "/", "headers": headers, "server": ("127.0.0.1", 8170)})


def begun(sessions: Sessions) -> str:
    response = Response()
    sessions.begin("operator:local", NOW, request(), response)
    return response.headers["set-cookie"].partition("=")[2].partition(";")[0]


def test_a_session_outlives_a_restart_and_holds_at_every_replica() -> None:
    word = begun(Sessions("secret"))
    found = Sessions("secret").find(request(word), NOW)
    assert found is not None
    assert (found.actor, found.until) == ("operator:local", NOW + timedelta(hours=12))


def test_another_operators_token_ends_all_sessions() -> None:
    assert Sessions("new").find(request(begun(Sessions("old"))), NOW) is None


def test_it_is_over_after_twelve_hours() -> None:
    sessions = Sessions("secret")
    word = begun(sessions)
    assert sessions.find(request(word), NOW + timedelta(hours=11, minutes=59)) is not None
    assert sessions.find(request(word), NOW + timedelta(hours=12)) is None


def test_whoever_has_logged_out_stays_out_with_the_same_cookie_and_others_stay_in() -> None:
    sessions = Sessions("secret")
    mine, other = begun(sessions), begun(sessions)
    sessions.end(request(mine), Response())
    assert sessions.find(request(mine), NOW) is None
    assert sessions.find(request(other), NOW) is not None


@pytest.mark.parametrize("word", ["", "x", "ключ", "====", "AAAA" * 20, "a" * 5000])
def test_what_we_have_not_sealed_is_no_session(word: str) -> None:
    sessions = Sessions("secret")
    assert sessions.find(request(word), NOW) is None
    sessions.end(request(word), Response())


def test_a_changed_cookie_is_no_session() -> None:
    sessions = Sessions("secret")
    sealed = base64.urlsafe_b64decode(begun(sessions))
    for place in (0, 31, 40, len(sealed) - 1):
        changed = bytes(byte ^ (index == place) for index, byte in enumerate(sealed))
        assert sessions.find(request(base64.urlsafe_b64encode(changed).decode()), NOW) is None

"""Sessions of the dashboard: what a cookie says, and when it says nothing any more."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest
from starlette.requests import Request
from starlette.responses import Response

from forewarn.core.access import FILE_OPERATOR, Principal, Revocation, Role, Token
from forewarn.dashboard.session import DashboardSession, Sessions
from forewarn.engine.tokens import TokenCommands
from forewarn.errors import Forbidden

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOURS = timedelta(hours=12)
TOKEN = Token(id="t1", name="shop", role=Role.TENANT, digest="d", created_at=NOW, created_by="", scopes=("web",))
SIGNED = Principal(actor="tenant:oidc/ann", role=Role.TENANT, scopes=frozenset({"web"}), vms=frozenset({"db"}))


class Kept(dict[str, Token]):
    """Tokens and revocations, as the tables have them."""

    def __init__(self, **tokens: Token) -> None:
        super().__init__(tokens)
        self.revoked: dict[str, Revocation] = {}
        self.looks = 0

    async def find(self, token_id: str) -> Token | None:
        return self.get(token_id)

    async def is_revoked(self, nonce: str) -> bool:
        self.looks += 1
        return nonce in self.revoked

    async def record_revocation(self, revocation: Revocation) -> bool:
        is_new = revocation.nonce not in self.revoked
        self.revoked[revocation.nonce] = revocation
        return is_new


def sessions(word: str = "operator", tokens: Kept | None = None) -> Sessions:
    return Sessions(word, HOURS, cast("TokenCommands", Kept() if tokens is None else tokens))


def request(word: str | None = None) -> Request:
    headers = [(b"host", b"127.0.0.1:8170")]
    if word is not None:
        headers.append((b"cookie", f"forewarn-8170={word}".encode()))
    return Request({"type": "http", "scheme": "http", "path": "/", "headers": headers, "server": ("127.0.0.1", 8170)})


def begun(made: Sessions, caller: Principal = FILE_OPERATOR) -> str:
    response = Response()
    made.begin(caller, NOW, request(), response)
    return response.headers["set-cookie"].partition("=")[2].partition(";")[0]


def found(made: Sessions, word: str, now: datetime = NOW) -> DashboardSession | None:
    return asyncio.run(made.find(request(word), now))


@pytest.mark.parametrize("caller", [FILE_OPERATOR, SIGNED])
def test_a_session_outlives_a_restart_and_holds_at_every_replica(caller: Principal) -> None:
    assert found(sessions(), begun(sessions(), caller)) == DashboardSession(caller=caller, until=NOW + HOURS)


def test_one_of_a_token_ends_when_that_is_revoked_and_has_what_it_says_now() -> None:
    tokens = Kept(t1=TOKEN)
    word = begun(sessions(), TOKEN.to_principal())
    assert found(sessions(tokens=tokens), word) == DashboardSession(caller=TOKEN.to_principal(), until=NOW + HOURS)
    tokens["t1"] = replace(TOKEN, revoked_at=NOW)
    assert found(sessions(tokens=tokens), word) is None
    assert found(sessions(), word) is None, "the token was forgotten"


def test_none_outlives_its_token() -> None:
    until = NOW + timedelta(minutes=5)
    tokens = Kept(t1=replace(TOKEN, expires_at=until))
    word = begun(sessions(), tokens["t1"].to_principal())
    assert found(sessions(tokens=tokens), word, until - timedelta(seconds=1)) is not None
    assert found(sessions(tokens=tokens), word, until) is None
    signed = begun(sessions(), replace(SIGNED, expires_at=until))
    assert found(sessions(), signed, until - timedelta(seconds=1)) is not None
    assert found(sessions(), signed, until) is None


def test_another_operators_token_ends_all_sessions() -> None:
    assert found(sessions("new"), begun(sessions("old"))) is None


def test_it_is_over_after_its_time() -> None:
    made = sessions()
    word = begun(made)
    assert found(made, word, NOW + HOURS - timedelta(minutes=1)) is not None
    assert found(made, word, NOW + HOURS) is None


def test_whoever_has_logged_out_stays_out_with_the_same_cookie_and_others_stay_in() -> None:
    made = sessions()
    mine, other = begun(made), begun(made)
    asyncio.run(made.end(request(mine), Response(), NOW))
    assert found(made, mine) is None
    assert found(made, other) is not None


def test_whoever_has_logged_out_is_out_at_every_replica_and_after_a_restart() -> None:
    tokens = Kept(t1=TOKEN)
    one = sessions(tokens=tokens)
    for caller in (FILE_OPERATOR, SIGNED, TOKEN.to_principal()):
        word = begun(one, caller)
        asyncio.run(one.end(request(word), Response(), NOW))
        assert found(sessions(tokens=tokens), word) is None
    assert {each.actor for each in tokens.revoked.values()} == {FILE_OPERATOR.actor, SIGNED.actor, "tenant:shop"}
    assert {each.expires_at for each in tokens.revoked.values()} == {NOW + HOURS}, "no longer than the session"


def test_what_is_shown_in_the_same_second_asks_the_database_once() -> None:
    tokens = Kept()
    made = sessions(tokens=tokens)
    word = begun(made)
    for _ in range(3):
        assert found(made, word) is not None
    assert tokens.looks == 1


def test_what_does_not_fit_into_a_cookie_is_refused_before_the_browser_drops_it() -> None:
    many = replace(SIGNED, scopes=frozenset(secrets.token_hex() for _ in range(100)))
    with pytest.raises(Forbidden, match="too many scopes"):
        begun(sessions(), many)


@pytest.mark.parametrize("word", ["", "x", "ключ", "====", "AAAA" * 20, "a.b", "a" * 5000, ".".join("abc")])
def test_what_we_have_not_sealed_is_no_session(word: str) -> None:
    made = sessions()
    assert found(made, word) is None
    asyncio.run(made.end(request(word), Response(), NOW))


def test_a_changed_cookie_is_no_session() -> None:
    made = sessions()
    word = begun(made)
    for place in (0, 10, len(word) // 2, len(word) - 10):
        changed = word[:place] + ("A" if word[place] != "A" else "B") + word[place + 1 :]
        assert found(made, changed) is None

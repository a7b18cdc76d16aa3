"""Tokens: that of the file is readable by its owner only; others are known by their digest."""

from __future__ import annotations

import asyncio
import os
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from forewarn.auth.authenticator import Authenticator, load_operator_token
from forewarn.core.access import FILE_OPERATOR, Principal, Role, Token
from forewarn.errors import ConfigError, Unauthorized
from forewarn.util.secrets import TOKEN_FILE, hash_token, read_token

TOKENS = Authenticator(operator_token="s3cret")


def test_the_token_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "forewarn"
    before = os.umask(0)
    try:
        token = load_operator_token(folder)
    finally:
        os.umask(before)
    assert len(token) >= 40
    assert stat.S_IMODE((folder / TOKEN_FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert load_operator_token(folder) == read_token(folder / TOKEN_FILE) == token
    assert load_operator_token(tmp_path / "other") != token


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot store the operator token in .*file.*--state-dir"):
        load_operator_token(tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", "is empty"), (b" \n", "is empty"), (b"\xff\xfe", "it is not text")],
)
def test_a_token_file_without_a_token_is_refused(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / TOKEN_FILE
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        read_token(path)
    with pytest.raises(ConfigError, match=expected):
        load_operator_token(tmp_path)


GOOD = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o666])
def test_an_operator_token_that_others_can_read_is_refused_with_what_to_do(mode: int, tmp_path: Path) -> None:
    path = tmp_path / TOKEN_FILE
    path.write_text(GOOD)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"others can read .*chmod 600 {path}.*remove it"):
        load_operator_token(tmp_path)
    path.chmod(0o400)
    assert load_operator_token(tmp_path) == GOOD


@pytest.mark.parametrize("token", ["hunter2", GOOD[:-1], "a" * 64])
def test_an_operator_token_that_can_be_guessed_is_refused_with_what_to_do(token: str, tmp_path: Path) -> None:
    path = tmp_path / TOKEN_FILE
    path.write_text(token)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"can be guessed; 32 random characters.*remove it") as caught:
        load_operator_token(tmp_path)
    assert token not in caught.value.message.replace(str(path), "")


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the token file .*none: No such file"):
        read_token(tmp_path / "none")


NOW = datetime(2030, 1, 1, tzinfo=UTC)
ROBOT = Token(
    id="t1",
    name="robot",
    role=Role.TENANT,
    scopes=("web",),
    digest=hash_token("r0bot"),
    created_at=NOW,
    created_by="",
    expires_at=NOW + timedelta(days=1),
)


def ask(header: str | None, *tokens: Token, now: datetime = NOW) -> Principal:
    """Who that is, where these tokens are in the table."""

    async def find(shown: str) -> Token | None:
        return next((token for token in tokens if token.digest == shown), None)

    return asyncio.run(TOKENS.authenticate(header, find, now))


@pytest.mark.parametrize("header", ["Bearer s3cret", "bearer s3cret", "BEARER   s3cret "])
def test_the_token_of_the_file_makes_an_operator(header: str) -> None:
    assert ask(header) == FILE_OPERATOR
    assert FILE_OPERATOR.actor == "operator:local"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic s3cret", "s3cret"])
def test_without_a_bearer_token_it_says_how_to_give_one(header: str | None) -> None:
    with pytest.raises(Unauthorized, match="--token-file"):
        ask(header)


@pytest.mark.parametrize("header", ["Bearer x", "Bearer s3cret2", "Bearer s3cre", "Bearer größer", "Bearer \x00"])
def test_another_token_is_refused_without_telling_the_right_one(header: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        ask(header, ROBOT)
    assert "s3cret" not in caught.value.message
    assert header.removeprefix("Bearer ") not in caught.value.message.split()


def test_a_token_of_the_table_says_who_and_with_which_role() -> None:
    found = ask("Bearer r0bot", ROBOT)
    assert (found.actor, found.role, found.scopes, found.token_id) == (
        "tenant:robot",
        Role.TENANT,
        frozenset({"web"}),
        "t1",
    )
    assert found.expires_at == ROBOT.expires_at


def test_a_token_is_taken_until_it_expires_or_is_revoked() -> None:
    last = NOW + timedelta(days=1) - timedelta(microseconds=1)
    assert ask("Bearer r0bot", ROBOT, now=last).token_id == "t1"
    with pytest.raises(Unauthorized, match="has expired"):
        ask("Bearer r0bot", ROBOT, now=NOW + timedelta(days=1))
    with pytest.raises(Unauthorized, match="was revoked"):
        ask("Bearer r0bot", replace(ROBOT, revoked_at=NOW))


def test_the_token_of_a_host_names_the_host() -> None:
    token = Token(id="t2", name="h", role=Role.HOST, host="h", digest=hash_token("h0st"), created_at=NOW, created_by="")
    found = ask("Bearer h0st", token)
    assert (found.actor, found.host) == ("host:h", "h")
    with pytest.raises(Unauthorized, match="forewarn host create-token"):
        ask("Bearer h0st", replace(token, revoked_at=NOW))

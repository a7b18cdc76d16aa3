"""The operator's token: readable by its owner only, and compared with care."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from forewarn.auth import TOKEN_FILE, Tokens, operator_token
from forewarn.errors import ConfigError, Unauthorized
from forewarn.secret import read_token

TOKENS = Tokens(operator="s3cret")


def test_the_token_is_made_once_and_only_its_owner_may_read_it(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "forewarn"
    before = os.umask(0)
    try:
        token = operator_token(folder)
    finally:
        os.umask(before)
    assert len(token) >= 40
    assert stat.S_IMODE((folder / TOKEN_FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert operator_token(folder) == read_token(folder / TOKEN_FILE) == token
    assert operator_token(tmp_path / "other") != token


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot keep the operator token in .*file.*--state-dir"):
        operator_token(tmp_path / "file")


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"", "is empty"), (b" \n", "is empty"), (b"\xff\xfe", "holds no text")],
)
def test_a_token_file_without_a_token_is_refused(content: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / TOKEN_FILE
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=expected):
        read_token(path)
    with pytest.raises(ConfigError, match=expected):
        operator_token(tmp_path)


def test_a_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the token file .*none: No such file"):
        read_token(tmp_path / "none")


@pytest.mark.parametrize("header", ["Bearer s3cret", "bearer s3cret", "BEARER   s3cret "])
def test_the_token_makes_an_operator(header: str) -> None:
    assert TOKENS.actor(header) == "operator:local"


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer ", "Basic s3cret", "s3cret"])
def test_without_a_bearer_token_it_says_how_to_give_one(header: str | None) -> None:
    with pytest.raises(Unauthorized, match="--token-file"):
        TOKENS.actor(header)


@pytest.mark.parametrize("header", ["Bearer x", "Bearer s3cret2", "Bearer s3cre", "Bearer größer", "Bearer \x00"])
def test_another_token_is_refused_without_telling_the_right_one(header: str) -> None:
    with pytest.raises(Unauthorized) as caught:
        TOKENS.actor(header)
    assert "s3cret" not in caught.value.message

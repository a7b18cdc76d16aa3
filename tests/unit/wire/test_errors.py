"""The bodies of errors, byte for byte."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.wire.imds import (
    FORWARDED,
    METADATA_MISSING,
    VERSIONS,
    Dialect,
    encode_error,
    encode_version_error,
)

VERSION_ERROR = (
    b'{ "error": "Bad request. api-version is invalid or was not specified in the request. For more information '
    b'refer to aka.ms/azureimds", "newest-versions": [ "2020-07-01", "2019-08-01", "2019-04-01" ] }'
)


def test_a_missing_metadata_header_is_answered_with_the_captured_bytes() -> None:
    """R10, R63, C11."""
    assert METADATA_MISSING == b'{ "error": "Bad request: . Required metadata header not specified" }'


def test_a_missing_or_unsupported_version_is_told_the_three_newest() -> None:
    """R15, R64."""
    assert encode_version_error(v.name for v in VERSIONS) == VERSION_ERROR


def test_the_newest_versions_do_not_depend_on_the_order_of_the_table() -> None:
    """R64: newest first."""
    assert encode_version_error(v.name for v in reversed(VERSIONS)) == VERSION_ERROR


def test_the_china_cloud_names_the_same_three_versions() -> None:
    """R64, A2."""
    assert encode_version_error(v.name for v in Dialect(cloud="china").list_versions()) == VERSION_ERROR


def test_a_forwarded_request_is_refused_with_a_reason() -> None:
    """R13, R65."""
    assert FORWARDED == b'{ "error": "Bad request: . X-Forwarded-For header is not allowed" }'


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("Not found", b'{ "error": "Not found" }'),
        ("Method not allowed", b'{ "error": "Method not allowed" }'),
        ("Too many requests", b'{ "error": "Too many requests" }'),
    ],
)
def test_an_error_has_the_spacing_of_captured_ones(text: str, body: bytes) -> None:
    """R3, R4, R9, R65."""
    assert encode_error(text) == body


def test_a_refused_payload_is_answered_with_its_reason() -> None:
    """R54, R65."""
    assert encode_error("Bad request: . body is empty") == b'{ "error": "Bad request: . body is empty" }'


@given(st.text())
def test_whatever_the_text_an_error_is_an_object_with_a_string(text: str) -> None:
    """R65."""
    assert json.loads(encode_error(text)) == {"error": text}


@pytest.mark.parametrize("body", [METADATA_MISSING, FORWARDED, VERSION_ERROR])
def test_every_error_body_is_an_object_with_a_string_called_error(body: bytes) -> None:
    """R8, R65."""
    content = json.loads(body)
    assert isinstance(content["error"], str)
    assert content["error"]


def test_members_beside_the_error_follow_it_in_the_order_given() -> None:
    """R64, R65."""
    assert encode_error("no", second="b", first=["x"]) == b'{ "error": "no", "second": "b", "first": [ "x" ] }'

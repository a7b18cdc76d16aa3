"""Calls that are refused: limited by address, told to the audit log, and never with the token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forewarn.core.access import Role
from tests.support.access import client_of, token_of
from tests.support.control import error
from tests.support.service import Running, eventually, running
from tests.support.spans import GUARD_S


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path, auth_failures_max=5, refused_entries_max=3) as started:
        yield started


def refused(apart: Running, most: int = 1000) -> list[dict[str, Any]]:
    with apart.operator() as operator:
        items = operator.get("/v1/audit-log", params={"limit": most, "newest": True}).json()["items"]
    return [entry for entry in items if entry["kind"] == "refused"]


def test_after_so_many_failures_an_address_gets_429_and_a_valid_token_is_taken_all_the_same(apart: Running) -> None:
    with client_of(apart, "guess") as stranger:
        answers = [stranger.get("/v1/vms") for _ in range(7)]
    assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 2
    body = error(answers[-1], 429, "too_many_failures")
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60
    assert body["details"]["retry_after_s"] == int(answers[-1].headers["retry-after"])
    with apart.operator() as operator:
        assert operator.get("/v1/vms").status_code == 200


def test_refused_calls_stand_in_the_audit_log_and_a_flood_is_summed_up(tmp_path: Path) -> None:
    with running(tmp_path, refused_entries_max=3) as apart:
        token = token_of(apart, Role.READ_ONLY)
        with client_of(apart, token) as reader:
            error(reader.post("/v1/vms/Web_0/restart"), 403, "forbidden")
        with client_of(apart, "s3cret-guess") as stranger:
            for _ in range(10):
                stranger.get("/v1/vms/\u00fc%00x", params={"q": "hidden"})
        assert eventually(lambda: len(refused(apart)) == 3)
        entries = refused(apart)
    first = entries[0]
    assert (first["actor"], first["source_address"]) == ("read-only:test-read-only", "127.0.0.1")
    assert first["reason"].startswith("POST /v1/vms/Web_0/restart: read-only:test-read-only may not do this")
    assert {entry["actor"] for entry in entries[1:]} <= {"unknown"}
    assert not any(word in str(entries) for word in ("s3cret-guess", token, "hidden"))
    with running(tmp_path) as again:
        assert [entry["reason"] for entry in refused(again)][-1] == "8 more within a minute"


def test_a_path_that_nobody_has_is_404_and_no_refusal(apart: Running) -> None:
    with client_of(apart, "guess") as stranger:
        assert stranger.get("/v2/none").status_code == 404
    with httpx.Client(base_url=apart.service.control_url, trust_env=False, timeout=GUARD_S) as nobody:
        assert nobody.get("/healthz").status_code == 200
    assert refused(apart) == []


def test_no_word_of_a_token_is_written_down(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        words = [token_of(service, role) for role in (Role.OPERATOR, Role.TENANT, Role.HOST)]
        with client_of(service, words[0]) as client:
            assert client.get("/v1/tokens").status_code == 200
        words.append(service.service.tokens.operator_token)
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    found = {path.name for path, content in written.items() for word in words if word.encode() in content}
    assert found == {"operator.token"}, "only the operator's own file"
    assert any(path.name.startswith("forewarn.db") for path in written)

"""Tokens of an issuer: which are taken, whose they are, and how often its keys are asked for."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc.jwk import ECKey, RSAKey
from pydantic import ValidationError

from forewarn.auth.oidc import Issuer
from forewarn.config.loading import load_settings
from forewarn.config.oidc_settings import Oidc
from forewarn.core.access import Principal, Role
from forewarn.errors import ConfigError, Forbidden, IssuerUnreachable, Unauthorized
from tests.support.issuer import AUDIENCE, URL, FakeIssuer, unsigned
from tests.support.world import NOW

NOW_S = int(NOW.timestamp())
OPS = {"claim": "roles", "value": "ops", "role": "operator"}


@pytest.fixture(scope="module")
def keys() -> dict[str, RSAKey | ECKey]:
    return {
        "rsa": RSAKey.generate_key(2048),
        "ec": ECKey.generate_key("P-256"),
        "new": ECKey.generate_key("P-256"),
    }


@pytest.fixture
def issuer(keys: dict[str, RSAKey | ECKey]) -> FakeIssuer:
    return FakeIssuer(keys, shown={"rsa", "ec"})


def settings(*grants: dict[str, Any], **more: object) -> Oidc:
    content = {"issuer": URL, "audience": AUDIENCE, "grants": list(grants or (OPS,)), **more}
    return Oidc.model_validate(content)


def taken(issuer: FakeIssuer, *tokens: str, now: datetime = NOW, **more: object) -> list[Principal]:
    """Who those are, asked one after the other."""
    known = Issuer(settings(**more), issuer.transport)

    async def ask() -> list[Principal]:
        return [known.principal_from_claims(await known.verify_token(token, now)) for token in tokens]

    return asyncio.run(ask())


@pytest.mark.parametrize(("kid", "alg"), [("rsa", "RS256"), ("ec", "ES256")])
def test_a_token_that_the_issuer_signed_for_us_is_taken(issuer: FakeIssuer, kid: str, alg: str) -> None:
    (found,) = taken(issuer, issuer.token(NOW_S, kid, alg))
    assert (found.actor, found.role) == ("operator:oidc/alice", Role.OPERATOR)
    assert found.expires_at == NOW.replace(microsecond=0) + timedelta(seconds=600)


@pytest.mark.parametrize(
    "wrong",
    [
        {"exp": NOW_S - 31},
        {"exp": None},
        {"exp": "soon"},
        {"nbf": NOW_S + 31},
        {"iat": NOW_S + 31},
        {"aud": "another"},
        {"aud": ["another", "third"]},
        {"aud": None},
        {"iss": "https://evil.example.com"},
        {"iss": None},
        {"sub": None},
        {"sub": ""},
        {"sub": "a\nb"},
        {"sub": "a" * 129},
        {"sub": 5},
    ],
)
def test_a_token_that_says_something_wrong_is_refused(issuer: FakeIssuer, wrong: dict[str, Any]) -> None:
    with pytest.raises(Unauthorized, match="token rejected"):
        taken(issuer, issuer.token(NOW_S, **wrong))


@pytest.mark.parametrize("right", [{"exp": NOW_S - 29}, {"nbf": NOW_S + 29}, {"aud": ["another", AUDIENCE]}])
def test_clocks_may_be_apart_a_little_and_a_token_may_be_for_others_too(
    issuer: FakeIssuer, right: dict[str, Any]
) -> None:
    assert taken(issuer, issuer.token(NOW_S, **right))


@pytest.mark.parametrize("alg", ["none", "None", "NONE", "nOnE"])
def test_a_token_without_a_signature_is_refused(issuer: FakeIssuer, alg: str) -> None:
    with pytest.raises(Unauthorized):
        taken(issuer, unsigned(NOW_S, alg))


def test_a_public_key_is_no_shared_secret(issuer: FakeIssuer) -> None:
    with pytest.raises(Unauthorized):
        taken(issuer, issuer.confused(NOW_S))


def test_a_secret_key_that_the_issuer_shows_is_not_taken(issuer: FakeIssuer) -> None:
    token, key = issuer.shared(NOW_S)
    issuer.also.append(key)
    with pytest.raises(Unauthorized):
        taken(issuer, token)
    assert taken(issuer, issuer.token(NOW_S))


def test_an_algorithm_that_is_not_allowed_is_refused(issuer: FakeIssuer) -> None:
    with pytest.raises(Unauthorized):
        taken(issuer, issuer.token(NOW_S, alg="RS512"))
    with pytest.raises(Unauthorized):
        taken(issuer, issuer.token(NOW_S, "ec", "ES256"), algorithms=["RS256"])


def test_a_token_that_was_changed_is_refused(issuer: FakeIssuer) -> None:
    head, _, signature = issuer.token(NOW_S).split(".")
    _, body, _ = issuer.token(NOW_S, sub="eve").split(".")
    for token in (f"{head}.{body}.{signature}", f"{head}.{body}.", "a.b.c", "..", f"{head}.{body}.!", "é.é.é"):
        with pytest.raises(Unauthorized):
            taken(issuer, token)
    with pytest.raises(Unauthorized, match="longer than"):
        taken(issuer, issuer.token(NOW_S, more="x" * 20_000))


# Keys


def test_keys_are_asked_for_once(issuer: FakeIssuer) -> None:
    taken(issuer, *[issuer.token(NOW_S)] * 3)
    assert len(issuer.asked) == 2


def test_a_key_that_is_new_is_found_and_unknown_ones_cost_the_issuer_little(issuer: FakeIssuer) -> None:
    known = Issuer(settings(), issuer.transport)

    async def ask(kid: str, after: timedelta) -> bool:
        try:
            await known.verify_token(issuer.token(NOW_S, kid, "ES256"), NOW + after)
        except Unauthorized:
            return False
        return True

    async def run() -> None:
        assert await ask("ec", timedelta(0))
        for _ in range(50):
            assert not await ask("new", timedelta(seconds=1))
        assert len(issuer.asked) == 2
        issuer.shown = {"new"}
        assert await ask("new", timedelta(seconds=31))
        assert len(issuer.asked) == 4
        assert not await ask("ec", timedelta(seconds=32)), "a key that is gone is not taken any more"

    asyncio.run(run())


def test_while_the_issuer_is_away_its_keys_are_used_for_a_day(issuer: FakeIssuer) -> None:
    known = Issuer(settings(), issuer.transport)

    async def ask(after: timedelta) -> dict[str, Any]:
        return await known.verify_token(issuer.token(NOW_S + int(after.total_seconds())), NOW + after)

    async def run() -> None:
        assert await ask(timedelta(0))
        issuer.is_away = True
        assert await ask(timedelta(hours=24))
        with pytest.raises(IssuerUnreachable, match="does not answer"):
            await ask(timedelta(hours=26))
        issuer.is_away = False
        assert await ask(timedelta(hours=27))

    asyncio.run(run())


def test_an_issuer_that_never_answered_is_told_apart_from_a_wrong_token(issuer: FakeIssuer) -> None:
    issuer.is_away = True
    with pytest.raises(IssuerUnreachable, match=r"does not answer: https://login\.example\.com"):
        taken(issuer, issuer.token(NOW_S))


@pytest.mark.parametrize(
    ("says", "match"),
    [
        ({"issuer": "https://evil.example.com"}, "calls itself 'https://evil"),
        ({"jwks_uri": "http://evil.example.com/keys"}, "https is expected"),
        ({"jwks_uri": "file:///etc/passwd"}, "https is expected"),
        ({"jwks_uri": None}, "https is expected"),
        ({"jwks_uri": f"{URL}/nothing"}, "status 404"),
    ],
)
def test_an_issuer_that_says_something_odd_is_not_believed(
    issuer: FakeIssuer, says: dict[str, Any], match: str
) -> None:
    issuer.says = says
    with pytest.raises(IssuerUnreachable, match=match):
        taken(issuer, issuer.token(NOW_S))


def test_an_answer_without_end_is_not_read() -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b"[" * (2 << 20))

    known = Issuer(settings(), httpx.MockTransport(answer))
    with pytest.raises(IssuerUnreachable, match="more than 1048576 bytes"):
        asyncio.run(known.find_endpoint("token_endpoint", NOW))


def test_what_the_issuer_says_of_itself_is_there_for_a_login(issuer: FakeIssuer) -> None:
    known = Issuer(settings(), issuer.transport)
    assert asyncio.run(known.find_endpoint("token_endpoint", NOW)) == f"{URL}/token"


# Grants

WEB = {"claim": "groups", "value": "web", "role": "tenant", "scopes": ["web"]}
DB = {"claim": "groups", "value": "db", "role": "tenant", "vms": ["db"]}
READ = {"claim": "groups", "value": "all", "role": "read-only"}


def mapped(claims: dict[str, Any], *grants: dict[str, Any], **more: object) -> Principal:
    return Issuer(settings(*grants, **more)).principal_from_claims({"sub": "bob", **claims})


def test_grants_of_the_same_role_add_up_and_the_first_says_the_role() -> None:
    found = mapped({"groups": ["db", "web", "all"]}, WEB, DB, READ)
    assert (found.role, found.scopes, found.vms) == (Role.TENANT, frozenset({"web"}), frozenset({"db"}))
    assert mapped({"groups": ["db", "all"]}, READ, WEB, DB).role is Role.READ_ONLY


def test_a_claim_may_name_what_a_tenant_owns() -> None:
    grant = {"claim": "kind", "value": "tenant", "role": "tenant", "scopes_claim": "ext.scopes", "vms_claim": "vm"}
    found = mapped({"kind": "tenant", "ext": {"scopes": ["a", "b", 5]}, "vm": "one"}, grant)
    assert (found.scopes, found.vms) == (frozenset({"a", "b"}), frozenset({"one"}))
    assert mapped({"kind": "tenant", "vm": {"x": 1}}, grant).scopes == frozenset()


def test_a_claim_is_found_by_its_name_and_then_by_a_path() -> None:
    url = {"claim": "https://example.com/roles", "value": "x", "role": "read-only"}
    deep = {"claim": "realm_access.roles", "value": "x", "role": "read-only"}
    assert mapped({"https://example.com/roles": ["x"]}, url).role is Role.READ_ONLY
    assert mapped({"realm_access": {"roles": ["x"]}}, deep).role is Role.READ_ONLY
    assert (
        mapped({"mail": "b@x", "realm_access": {"roles": "x"}}, deep, name_claim="mail").actor == "read-only:oidc/b@x"
    )


@pytest.mark.parametrize(
    "claims", [{}, {"groups": "website"}, {"groups": [["web"]]}, {"groups": True}, {"roles": "web"}]
)
def test_without_a_grant_nobody_gets_in(claims: dict[str, Any]) -> None:
    with pytest.raises(Forbidden, match="oidc/bob matches no grant"):
        mapped(claims, WEB, DB)


@pytest.mark.parametrize(
    "wrong",
    [
        {"issuer": "http://login.example.com"},
        {"issuer": "login.example.com"},
        {"algorithms": ["none"]},
        {"algorithms": ["HS256"]},
        {"algorithms": []},
        {"grants": []},
        {"grants": [{**OPS, "role": "host"}]},
        {"grants": [{**OPS, "scopes": ["web"]}]},
        {"grants": [{**WEB, "scopes": []}]},
        {"grants": [{**OPS, "claim": ""}]},
        {"audience": ""},
        {"secret": "x"},
        {"leeway": "1h"},
    ],
)
def test_settings_that_would_let_the_wrong_ones_in_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Oidc.model_validate({"issuer": URL, "audience": AUDIENCE, "grants": [OPS], **wrong})


def test_the_setting_is_json_in_the_environment_and_a_table_in_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FOREWARN_OIDC", json.dumps({"issuer": URL, "audience": "a", "grants": [OPS]}))
    said = load_settings().oidc
    assert said is not None
    assert said.grants[0].role is Role.OPERATOR
    monkeypatch.delenv("FOREWARN_OIDC")
    path = tmp_path / "forewarn.toml"
    path.write_text(
        f'[oidc]\nissuer = "{URL}"\naudience = "a"\nleeway = "10s"\n\n'
        '[[oidc.grants]]\nclaim = "c"\nvalue = "v"\nrole = "tenant"\nscopes = ["web"]\n'
    )
    read = load_settings(path).oidc
    assert read is not None
    assert (read.leeway, read.grants[0].scopes) == (timedelta(seconds=10), ("web",))
    path.write_text('[oidc]\nissuer = "http://far.example.com"\naudience = "a"\ngrants = []\n')
    with pytest.raises(ConfigError, match=r"setting oidc\.issuer: .*https"):
        load_settings(path)

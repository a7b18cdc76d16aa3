"""A real issuer in a process of its own: a login there, and what the control API makes of the token."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from tests.support.access import client_of
from tests.support.control import error
from tests.support.pages import Browser, text_of
from tests.support.ports import reserve_port
from tests.support.provider import provider
from tests.support.service import Running, running
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.slow
CLIENT, BACK = "forewarn", "http://127.0.0.1:9/back"


@pytest.fixture(scope="module")
def port() -> int:
    return reserve_port()


@pytest.fixture(scope="module")
def apart(port: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that takes tokens of that issuer, which need not be there yet."""
    oidc = {
        "issuer": f"http://localhost:{port}",
        "audience": CLIENT,
        "keys_pause": "0s",
        "grants": [
            {"claim": "groups", "value": "ops", "role": "operator"},
            {"claim": "groups", "value": "web", "role": "tenant", "scopes": ["web"]},
        ],
    }
    with running(tmp_path_factory.mktemp("apart"), oidc=oidc) as started:
        yield started


def login(url: str, name: str, groups: list[str], client: str = CLIENT) -> str:
    """The token that a person gets who logs in: authorization code with PKCE."""
    verifier = secrets.token_urlsafe(32)
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    with httpx.Client(base_url=url, trust_env=False, timeout=GUARD_S) as browser:
        assert browser.put(f"/users/{name}", json={"groups": groups}).is_success
        asked = {
            "client_id": client,
            "redirect_uri": BACK,
            "response_type": "code",
            "scope": "openid",
            "nonce": "n",
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        back = browser.post("/oauth2/authorize", params=asked, data={"sub": name})
        code = parse_qs(urlsplit(back.headers["location"]).query)["code"][0]
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": BACK, "code_verifier": verifier}
        answer = browser.post("/oauth2/token", data=form, auth=(client, "secret"))
        assert answer.is_success, answer.text
        return str(answer.json()["id_token"])


def test_who_logs_in_is_known_by_the_grants(apart: Running, port: int, tmp_path: Path) -> None:
    with provider(port) as url:
        ann, bob, eve = login(url, "ann", ["ops"]), login(url, "bob", ["web"]), login(url, "eve", ["none"])
        elsewhere = login(url, "ann", ["ops"], client="another")
        with client_of(apart, ann) as client:
            who = client.get("/v1/whoami").json()
            assert (who["actor"], who["role"]) == ("operator:oidc/ann", "operator")
            assert who["expires_at"] is not None
            assert client.get("/v1/hosts").status_code == 200
        with client_of(apart, bob) as client:
            assert client.get("/v1/whoami").json()["scopes"] == ["web"]
            assert {vm["name"] for vm in client.get("/v1/vms").json()["items"]} == {"Web_0", "Web_1", "Web_2"}
            error(client.get("/v1/hosts"), 403, "forbidden")
        with client_of(apart, eve) as client:
            error(client.get("/v1/vms"), 403, "forbidden")
        with client_of(apart, elsewhere) as client:
            error(client.get("/v1/vms"), 401, "unauthorized")
    with client_of(apart, bob) as client:
        assert client.get("/v1/whoami").status_code == 200, "its keys are known while the issuer is away"
    with provider(port) as url:
        assert login(url, "bob", ["web"]) != bob
        with client_of(apart, login(url, "bob", ["web"])) as client:
            assert client.get("/v1/whoami").status_code == 200, "an issuer that begins anew has other keys"
        with client_of(apart, bob) as client:
            error(client.get("/v1/whoami"), 401, "unauthorized")
    with apart.operator() as operator:
        refused = [e for e in operator.get("/v1/audit-log?limit=1000").json()["items"] if e["kind"] == "refused"]
        assert all(token not in str(refused) for token in (ann, bob, eve, elsewhere))
        assert any("oidc/eve matches no grant" in entry["reason"] for entry in refused)


def test_an_issuer_that_was_never_there_is_503_and_other_tokens_are_taken(tmp_path: Path) -> None:
    grant = {"claim": "c", "value": "v", "role": "operator"}
    url = f"http://127.0.0.1:{reserve_port()}"
    with running(tmp_path, oidc={"issuer": url, "audience": "a", "grants": [grant]}) as service:
        with client_of(service, "a.b.c") as client:
            error(client.get("/v1/whoami"), 503, "issuer_unreachable")
        with service.operator() as operator:
            assert operator.get("/v1/whoami").json()["actor"] == "operator:local"


# In a browser


@pytest.fixture
def dashboard(port: int, tmp_path: Path) -> Iterator[Running]:
    """A service whose dashboard the issuer knows as a client, with a secret."""
    secret = tmp_path / "secret"
    secret.write_text("secret\n")
    oidc = {
        "issuer": f"http://localhost:{port}",
        "audience": "not-of-the-dashboard",
        "client_id": CLIENT,
        "client_secret_file": str(secret),
        "keys_pause": "0s",
        "grants": [
            {"claim": "groups", "value": "ops", "role": "operator"},
            {"claim": "groups", "value": "web", "role": "tenant", "scopes": ["web"]},
        ],
    }
    with running(tmp_path, oidc=oidc) as started:
        yield started


def asked(browser: Browser, target: str = "/vms") -> str:
    """Where the issuer is asked, for somebody who wants to go there."""
    assert "Log in with your organisation" in text_of(browser.get("/login"))
    left = browser.get("/login/issuer", params={"next": target}, follow_redirects=False)
    assert left.status_code == 303, left.text
    return str(left.headers["location"])


def answered(url: str, name: str) -> str:
    """Where the issuer sends the browser of somebody who has logged in there."""
    with httpx.Client(trust_env=False, timeout=GUARD_S) as browser:
        return str(browser.post(url, data={"sub": name}).headers["location"])


def test_people_log_in_to_the_dashboard_at_the_issuer(dashboard: Running, port: int) -> None:
    with provider(port) as url, httpx.Client(base_url=url, trust_env=False, timeout=GUARD_S) as issuer:
        for name, group in (("ann", "ops"), ("bob", "web"), ("eve", "none")):
            assert issuer.put(f"/users/{name}", json={"groups": [group]}).is_success
        for name, role in (("ann", "operator"), ("bob", "tenant")):
            with Browser(dashboard) as browser:
                back = answered(asked(browser), name)
                assert back.startswith(f"{dashboard.service.control_url}/login/back?")
                page = browser.get(back)
                assert (page.status_code, 'content="0;url=/vms"' in page.text) == (200, True), page.text
                assert f"{role}:oidc/{name}" in text_of(browser.get("/vms"))
                assert browser.get("/hosts").status_code == (200 if role == "operator" else 403)
                again = browser.get(back)
                assert again.status_code == 401, "an answer is taken once"
        with Browser(dashboard) as browser:
            nobody = browser.get(answered(asked(browser), "eve"))
            assert (nobody.status_code, "matches no grant" in text_of(nobody)) == (403, True)
            assert "/login" in str(browser.get("/vms").url)


def test_an_answer_belongs_to_the_browser_that_asked(dashboard: Running, port: int) -> None:
    """Nobody is logged in as somebody else by a link to an answer that was meant for another browser."""
    with provider(port) as url, httpx.Client(base_url=url, trust_env=False, timeout=GUARD_S) as issuer:
        assert issuer.put("/users/ann", json={"groups": ["ops"]}).is_success
        with Browser(dashboard) as ann, Browser(dashboard) as bob:
            back = answered(asked(ann), "ann")
            assert bob.get(back).status_code == 401, "it asked nothing"
            asked(bob)
            assert bob.get(back).status_code == 401, "it asked something else"
            assert "/login" in str(bob.get("/vms").url)
            for wrong in ("?code=made-up&state=x", "?error=access_denied&error_description=no+entry", ""):
                assert ann.get(f"/login/back{wrong}").status_code == 401, wrong
            assert ann.get(f"{back}&iss=http%3A%2F%2Felsewhere.example").status_code == 401
            assert ann.get(back).status_code == 200
    for entry in refused(dashboard):
        assert parse_qs(urlsplit(back).query)["code"][0] not in entry


def test_an_issuer_that_is_away_is_said_to_be(dashboard: Running) -> None:
    with Browser(dashboard) as browser:
        answer = browser.get("/login/issuer")
        assert (answer.status_code, "the issuer does not answer" in text_of(answer)) == (503, True)


def refused(service: Running) -> list[str]:
    """What the audit log says of refused calls."""
    with service.operator() as api:
        found = api.get("/v1/audit-log", params={"kind": "refused", "limit": 1000}).json()["items"]
    return [str(entry) for entry in found]

"""Logging in without a token: by the link that `forewarn dashboard` prints, and at a real issuer."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.browser.test_accessibility import broken_rules
from tests.support.browsing import Witness, profile, visit
from tests.support.estate import Estate, write_inventory
from tests.support.ports import reserve_port
from tests.support.provider import provider
from tests.support.service import Running, running
from tests.support.spans import GUARD_S

_COMMAND_S = 60


@pytest.fixture
def stranger(browser: Browser, service: Running, witness: Witness) -> Iterator[Page]:
    """An empty page of somebody who has not logged in."""
    witness.expect(r"//cdn\.\S+/npm/|/favicon\.ico")  # what the issuer's own page wishes for
    context = profile(browser, service, witness)
    yield context.new_page()
    context.close()


def link_of(service: Running, folder: Path) -> str:
    """What `forewarn dashboard` prints, run as somebody on the machine of the service would."""
    token = folder / "operator.token"
    token.write_text(service.service.tokens.operator_token)
    command = [sys.executable, "-m", "forewarn", "dashboard"]
    options = ["--control-url", service.service.control_url, "--token-file", str(token)]
    ran = subprocess.run([*command, *options], capture_output=True, text=True, timeout=_COMMAND_S, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


# By a link


def test_the_link_of_the_command_line_logs_in_with_one_key_and_once(
    service: Running, stranger: Page, witness: Witness, tmp_path: Path
) -> None:
    witness.expect("401")
    link = link_of(service, tmp_path)
    stranger.goto(link)
    expect(stranger.get_by_role("button", name="Log in as operator:local")).to_be_focused()
    stranger.keyboard.press("Enter")
    expect(stranger.get_by_text("operator:local")).to_be_visible()
    assert urlsplit(stranger.url).path == "/"
    visit(stranger, "/audit-log")
    stranger.get_by_role("button", name="Log out").click()
    stranger.goto(link)
    expect(stranger.get_by_role("alert")).to_contain_text("make a new one with 'forewarn dashboard'")


# At an issuer


@pytest.fixture(scope="module")
def issuer() -> Iterator[str]:
    with provider(reserve_port()) as url:
        people = {"ann": ["ops"], "bob": ["db"], "eve": ["none"]}
        for name, groups in people.items():
            assert httpx.put(
                f"{url}/users/{name}", json={"groups": groups}, trust_env=False, timeout=GUARD_S
            ).is_success
        yield url


@pytest.fixture(scope="module")
def service(issuer: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service at which people log in with that issuer; it is on another site than the dashboard."""
    folder = tmp_path_factory.mktemp("issuer")
    secret = folder / "client.secret"
    secret.write_text("the issuer of this test takes any")
    oidc = {
        "issuer": issuer,
        "audience": "forewarn",
        "client_id": "forewarn-dashboard",
        "client_secret_file": secret,
        "grants": [
            {"claim": "groups", "value": "ops", "role": "operator"},
            {"claim": "groups", "value": "db", "role": "tenant", "vms": ["db-0"]},
        ],
    }
    with running(folder, inventory=write_inventory(folder), oidc=oidc) as started:
        yield started


def log_in(page: Page, name: str) -> None:
    """From the page that asks for a log-in, to the issuer's own page, and through it."""
    page.get_by_role("link", name="Log in with your organisation").click()
    expect(page.locator("h1")).to_have_text("Authorize Client")
    page.get_by_placeholder("sub").fill(name)
    page.get_by_role("button", name="Authorize").click()


def test_who_logs_in_at_the_issuer_comes_back_to_the_page_that_was_asked_for(
    issuer: str, service: Running, stranger: Page, estate: Estate
) -> None:
    stranger.goto(f"/hosts/{estate.host}?x=1")
    log_in(stranger, "ann")
    expect(stranger).to_have_url(f"{service.service.control_url}/hosts/{estate.host}?x=1")
    expect(stranger.locator("h1")).to_have_text(f"Host {estate.host}")
    expect(stranger.get_by_text("operator:oidc/ann")).to_be_visible()
    cookies = {each["name"]: each for each in stranger.context.cookies(service.service.control_url)}
    assert [each["sameSite"] for each in cookies.values()] == ["Strict"], "nothing is left of the question"
    assert stranger.evaluate("document.cookie") == ""
    visit(stranger, "/vms")
    stranger.get_by_role("button", name="Log out").click()
    expect(stranger.get_by_role("link", name="Log in with your organisation")).to_be_visible()


def test_a_tenant_of_the_issuer_sees_its_own_part(stranger: Page) -> None:
    stranger.goto("/vms")
    log_in(stranger, "bob")
    expect(stranger.get_by_text("tenant:oidc/bob")).to_be_visible()
    expect(stranger.locator("main tbody tr")).to_have_count(1)
    expect(stranger.locator("main tbody")).to_contain_text("db-0")


def test_whom_no_grant_is_for_is_told_so_and_stays_outside(stranger: Page, witness: Witness) -> None:
    witness.expect("403")
    stranger.goto("/login")
    log_in(stranger, "eve")
    expect(stranger.get_by_role("alert")).to_contain_text("oidc/eve")
    stranger.goto("/")
    expect(stranger.locator("h1")).to_have_text("Log in")


def test_who_is_refused_by_the_issuer_or_answers_twice_can_begin_anew(
    issuer: str, service: Running, stranger: Page, witness: Witness
) -> None:
    witness.expect("401")
    stranger.goto("/login")
    stranger.get_by_role("link", name="Log in with your organisation").click()
    asked = parse_qs(urlsplit(stranger.url).query)
    assert asked["redirect_uri"] == [f"{service.service.control_url}/login/back"]
    assert asked["code_challenge_method"] == ["S256"]
    stranger.get_by_role("button", name="Deny").click()
    expect(stranger.get_by_role("alert")).to_contain_text("log in again")
    stranger.goto("/login/back?code=abc&state=def")
    expect(stranger.get_by_role("alert")).to_contain_text("log in again")
    stranger.goto("/login")
    log_in(stranger, "ann")
    expect(stranger.get_by_text("operator:oidc/ann")).to_be_visible()


def test_the_pages_on_the_way_keep_the_rules_also_without_scripts(
    browser: Browser, service: Running, stranger: Page, witness: Witness
) -> None:
    stranger.goto("/login?next=/vms")
    assert broken_rules(stranger) == []
    with service.operator() as api:
        stranger.goto(urlsplit(api.post("/v1/login-links").json()["url"]).path)
    assert broken_rules(stranger) == []
    stranger.goto("/login?next=/vms")

    def hold(route: Route) -> None:
        """The page that goes on by itself does not: it is looked at."""
        answer = route.fetch()
        route.fulfill(response=answer, body=re.sub(r'<meta http-equiv="refresh"[^>]*>', "", answer.text()))

    stranger.route("**/login/back?*", hold)
    stranger.get_by_role("link", name="Log in with your organisation").click()
    back = stranger.request.post(stranger.url, form={"sub": "ann"}, max_redirects=0).headers["location"]
    stranger.goto(back)  # a redirect could not be held
    expect(stranger.locator("h1")).to_have_text("You are logged in")
    assert broken_rules(stranger) == []
    stranger.get_by_role("link", name="Continue").click()
    expect(stranger.locator("h1")).to_have_text("VMs")

    context = profile(browser, service, witness, java_script_enabled=False)
    page = context.new_page()
    page.goto("/audit-log")
    log_in(page, "ann")
    expect(page.locator("h1")).to_have_text("Audit log")
    context.close()

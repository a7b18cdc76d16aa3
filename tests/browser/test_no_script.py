"""A browser that runs no scripts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.browsing import PATIENCE_MS
from tests.support.estate import Estate, announce
from tests.support.service import Running


@pytest.fixture
def context(browser: Browser, service: Running) -> Iterator[BrowserContext]:
    """A profile without scripts, whose user has logged in by the form."""
    made = browser.new_context(base_url=service.service.control_url, java_script_enabled=False)
    made.set_default_timeout(PATIENCE_MS)
    page = made.new_page()
    page.goto("/")
    page.get_by_label("Token").fill(service.service.tokens.operator_token)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_text("operator:local")).to_be_visible()
    yield made
    made.close()


def open_until(page: Page, path: str, text: str) -> None:
    """Open a page, and again as somebody would who misses something: it may be half a second old."""
    for _ in range(10):
        page.goto(path)
        if text in page.locator("main").inner_text():
            break
        page.wait_for_timeout(200)
    expect(page.locator("main")).to_contain_text(text)


def test_every_page_can_be_read(service: Running, page: Page, estate: Estate) -> None:
    found = announce(service, estate)
    for path, text in (
        ("/", f"It starts as soon as {estate.db.name} and {estate.web.name} approve, at the latest 20"),
        (f"/maintenance/{found.id}", "at the latest 20"),
        ("/hosts", estate.host),
        (f"/hosts/{estate.host}", estate.db.name),
        ("/vms", estate.db.name),
        (f"/vms/{estate.db.name}", '"EventType": "Freeze"'),
        (f"/scopes/{estate.web.name}", estate.web.vms[1]),
        ("/rollouts", "None yet"),
        ("/audit-log", "scheduled"),
        (f"/search?q={estate.host}", "Freeze"),
        ("/administration", "Tokens"),
        ("/administration/tokens", "newest first"),
        ("/administration/subscriptions", "subscription create"),
        ("/administration/settings", "notice_max"),
        ("/administration/replicas", "Host endpoints"),
        ("/administration/access", "operator:local"),
    ):
        open_until(page, path, text)
        expect(page.get_by_role("button", name="Switch between")).to_be_hidden()
    page.goto("/")
    expect(page.get_by_text("Timeline", exact=True)).to_be_hidden()


def test_forms_work(service: Running, page: Page, estate: Estate) -> None:
    page.goto(f"/hosts/{estate.host}")
    page.get_by_role("link", name="Schedule a maintenance").click()
    page.get_by_label("Description").fill("By hand")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Announce maintenance").click()
    expect(page).to_have_url(re.compile("/maintenance/"))
    page.get_by_role("button", name=f"Approve for {estate.db.name}").click()
    expect(page.locator("main")).to_contain_text("by operator:local")
    page.get_by_label("Start it now").fill("No time")
    page.get_by_role("button", name="Start now").click()
    expect(page.locator("h1")).to_contain_text("Start it now?")
    page.get_by_role("button", name="Start now").click()
    expect(page.locator("h1")).to_contain_text("started")
    page.get_by_role("button", name="Complete").click()
    page.get_by_role("button", name="Mark as completed").click()
    expect(page.locator("h1")).to_contain_text("completed")
    page.get_by_role("searchbox").fill(estate.web.name)
    page.keyboard.press("Enter")
    page.get_by_role("link", name=estate.web.name, exact=True).click()
    expect(page.locator("h1")).to_have_text(f"Scope {estate.web.name}")
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("h1")).to_have_text("Log in")

"""The whole life of a maintenance, seen by somebody who opened the overview once."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.support.browsing import visit
from tests.support.estate import Estate
from tests.support.service import Running

SETTINGS = {"simulate_complete_after": "6s"}


def fill_by_keyboard(page: Page, estate: Estate) -> None:
    """Fill the form in with nothing but keys, from the top of the page on."""
    page.locator("body").press("Tab")
    words = {
        "hosts": estate.host,
        "duration": "9s",
        "notice": "10m",
        "description": "New fans",
        "reason": "It is a test",
    }
    for _ in range(60):
        name = page.evaluate("document.activeElement.name || ''")
        if name == "type":
            page.keyboard.type("Freeze")
        elif name == "force":
            page.keyboard.press("Space")
        elif name in words:
            page.keyboard.type(words.pop(name))
        elif name == "step":
            page.keyboard.press("Enter")
            return
        page.keyboard.press("Tab")
    pytest.fail("the button cannot be reached with Tab")


def announced(page: Page, estate: Estate) -> str:
    """Schedule a maintenance of that host by keyboard; where its page is."""
    visit(page, "/schedule")
    fill_by_keyboard(page, estate)
    rehearsal = page.locator("#rehearsal")
    expect(rehearsal).to_contain_text(f"{estate.db.name} is notified about {estate.db.vms[0]}")
    expect(rehearsal).to_contain_text(f"{estate.web.name} is notified about {' and '.join(estate.web.vms)}")
    page.get_by_role("button", name="Announce maintenance").focus()
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/maintenance/"))
    return page.url


def test_a_maintenance_is_followed_from_its_announcement_to_its_end_without_a_reload(
    service: Running, context: BrowserContext, page: Page, estate: Estate
) -> None:
    overview, form = visit(page, "/"), context.new_page()
    with estate.web.asking(service), estate.db.asking(service):
        address = announced(form, estate)
        row = overview.locator(f"[id='row-{address.rpartition('/')[2]}']")
        expect(row).to_contain_text("0 of 2")
        expect(row).to_contain_text(f"as soon as {estate.db.name} and {estate.web.name} approve,")
        form.evaluate("window.stayed = true")

        estate.web.approve(service)
        expect(row).to_contain_text("1 of 2")
        expect(row).to_contain_text(f"as soon as {estate.db.name} approves,")
        expect(form.locator("#live")).to_contain_text(f"as soon as {estate.db.name} approves,")
        by_hand = form.get_by_role("button", name=f"Approve for {estate.db.name}")
        expect(form.get_by_role("button", name=f"Approve for {estate.web.name}")).to_have_count(0)

        by_hand.click()
        expect(row.locator(".state-started")).to_be_visible()
        done = overview.locator(f"[id='ended-{address.rpartition('/')[2]}']")
        expect(done).to_contain_text("completed")
        expect(overview.get_by_role("region", name="Recently ended")).to_contain_text(estate.host)
        expect(row).to_have_count(0)
        expect(form.locator("h1")).to_contain_text("completed")
        expect(form.get_by_role("button", name="Start now")).to_have_count(0)
    assert overview.evaluate("window.stayed")
    assert estate.web.ask(service) == []

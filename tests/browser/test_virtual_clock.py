"""A service on virtual time: what counts down stands still until somebody advances the clock."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from forewarn.core.model import EventType
from tests.support.browsing import Witness, logged_in, visit
from tests.support.dashboard_story import Story, story


@pytest.fixture
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with story("empty", tmp_path_factory.mktemp("story")) as made:
        yield made


@pytest.fixture
def page(browser: Browser, told: Story, witness: Witness) -> Iterator[Page]:
    context = logged_in(browser, told.service, witness)
    yield context.new_page()
    context.close()


def test_countdowns_stand_still_and_move_when_the_clock_is_advanced(told: Story, page: Page) -> None:
    told.look("pg-primary")
    found = told.schedule(EventType.FREEZE, vms=("pg-primary",))
    other = page.context.new_page()
    for each, path in ((page, "/"), (other, f"/maintenance/{found.id}")):
        visit(each, path)
        expect(each.locator("main")).to_contain_text("in 15 min")
        expect(each.locator("footer")).to_contain_text("Virtual time: 2026-11-20 08:00:00 UTC")
    page.wait_for_timeout(2500)
    for each in (page, other):
        expect(each.locator("main")).to_contain_text("in 15 min")
    told.advance(minutes=4, seconds=30)
    for each in (page, other):
        expect(each.locator("main")).to_contain_text("in 10 min 30 s")
        expect(each.locator("footer")).to_contain_text("08:04:30 UTC")
    told.advance(minutes=11)
    for each in (page, other):
        expect(each.locator("main")).to_contain_text("completed")
    assert page.evaluate("window.stayed")

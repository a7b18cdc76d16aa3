"""A page that is open while the service goes away and comes back."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, Route, expect

from tests.support.browsing import Witness, logged_in, visit
from tests.support.estate import Estate, announce, estates, write_inventory
from tests.support.ports import reserve_address
from tests.support.service import Running, running

_LATE_S = 0.5


def test_a_lost_connection_is_told_and_restored_without_a_reload(
    browser: Browser, witness: Witness, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "inventory": write_inventory(tmp_path),
        "simulate_complete_after": "none",
        "control_listen": reserve_address(),
    }
    witness.expect("ERR_CONNECTION|ERR_INCOMPLETE|ERR_EMPTY|SSE|sse|network error|Failed to fetch")
    estate = next(estates())
    with running(tmp_path, **settings) as service:
        estate.web.ask(service)
        context = logged_in(browser, service, witness)
        page = visit(context.new_page(), "/")
        expect(page.locator("#live")).to_contain_text("No maintenance is scheduled")
        banner = page.get_by_text("The connection is lost")
        expect(banner).to_be_hidden()
    expect(banner).to_be_visible()
    with running(tmp_path, **settings) as service:
        expect(banner).to_be_hidden()
        found = announce(service, estate)
        expect(page.locator(f"[id='row-{found.id}']")).to_be_visible()
        assert page.evaluate("window.stayed")
        context.close()


def test_a_page_follows_what_happens_however_late_its_scripts_come(
    service: Running, page: Page, estate: Estate
) -> None:
    def dawdle(route: Route) -> None:
        time.sleep(_LATE_S)
        route.continue_()

    page.route("**/hx-sse.min.js", dawdle)
    visit(page, "/")
    found = announce(service, estate)
    expect(page.locator(f"[id='row-{found.id}']")).to_be_visible()
    assert page.evaluate("window.stayed")

"""Somebody who has no mouse."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from forewarn.core.model import EventType
from tests.support.browsing import visit
from tests.support.estate import Estate, announce
from tests.support.service import Running

_FOCUSABLE = """() => [...document.querySelectorAll(
  "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
)].filter((each) => each.checkVisibility() && !each.closest("[aria-hidden=true]") && !each.disabled)
  .map((each, number) => { each.place = number; return each.outerHTML.slice(0, 80); })"""

_FOCUSED = """() => {
  const found = document.activeElement;
  const style = getComputedStyle(found);
  const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  const box = found.getBoundingClientRect();
  const within = box.right > 0 && box.left < innerWidth && box.bottom > 0 && box.top < innerHeight;
  return [found === document.body ? -1 : found.place ?? -2, seen, within];
}"""

_PART = "document.activeElement.type === 'datetime-local' && document.activeElement.passed === true"
"""A date has several parts, each of which Tab goes to."""


@pytest.fixture
def paths(service: Running, estate: Estate) -> list[str]:
    """Pages with all controls there are."""
    found = announce(service, estate)
    return [
        "/",
        f"/maintenance/{found.id}",
        "/schedule",
        f"/vms/{estate.db.name}",
        f"/hosts/{estate.host}",
        "/audit-log",
        "/administration",
        "/administration/tokens",
        "/administration/tokens/create",
        "/administration/access",
    ]


def test_every_control_is_reached_by_tab_in_the_order_of_the_page_and_shows_it(page: Page, paths: list[str]) -> None:
    # The pages stand still: what other tests began goes on, and would put rows between those that were counted.
    page.route("**/live/**", lambda _: None)
    for path in paths:
        visit(page, path)
        page.evaluate("window.focus()")
        wanted = page.evaluate(_FOCUSABLE)
        for number, control in enumerate(wanted):
            page.keyboard.press("Tab")
            while number and page.evaluate(_PART):
                page.keyboard.press("Tab")
            page.evaluate("document.activeElement.passed = true")
            assert page.evaluate(_FOCUSED) == [number, True, True], (path, control)


def test_the_first_tab_leads_past_the_menu(page: Page) -> None:
    visit(page, "/audit-log")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator("main").get_by_role("textbox").first).to_be_focused()


def test_what_is_being_written_stays_while_the_page_changes_around_it(
    service: Running, page: Page, estate: Estate
) -> None:
    found = announce(service, estate)
    visit(page, f"/maintenance/{found.id}")
    field = page.get_by_label("Start it now")
    field.focus()
    page.keyboard.type("Because of the fan")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    estate.web.approve(service)
    expect(page.get_by_role("button", name="Approve for")).to_have_count(1)
    expect(field).to_be_focused()
    expect(field).to_have_value("Because of the fan")
    assert field.evaluate("field => [field.selectionStart, field.selectionEnd]") == [15, 15]
    page.keyboard.type("old ")
    expect(field).to_have_value("Because of the old fan")


def test_a_button_keeps_the_focus_while_rows_come_and_go(service: Running, page: Page, estate: Estate) -> None:
    found = announce(service, estate)
    visit(page, f"/maintenance/{found.id}")
    button = page.get_by_role("button", name=f"Approve for {estate.web.name}")
    button.focus()
    estate.db.approve(service)
    expect(page.get_by_role("button", name="Approve for")).to_have_count(1)
    expect(button).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_contain_text("started")


def test_what_was_opened_stays_open_and_what_was_closed_closed(service: Running, page: Page, estate: Estate) -> None:
    visit(page, f"/vms/{estate.db.name}")
    first, second = page.locator("details").nth(0), page.locator("details").nth(1)
    first.locator("summary").press("Enter")
    second.locator("summary").press("Enter")
    expect(first).not_to_have_attribute("open", "")
    found = announce(service, estate, EventType.REBOOT)
    expect(second.locator("pre")).to_contain_text("Reboot")
    expect(page.locator("main").get_by_role("link", name="Reboot")).to_be_visible()
    assert found.id in page.content()
    expect(second).to_have_attribute("open", "")
    expect(first).not_to_have_attribute("open", "")
    expect(second.locator("summary")).to_be_focused()


def test_a_reader_who_scrolled_down_stays_there(service: Running, page: Page, estate: Estate) -> None:
    page.set_viewport_size({"width": 800, "height": 300})
    found = announce(service, estate)
    visit(page, f"/maintenance/{found.id}")
    page.locator("#history").scroll_into_view_if_needed()
    place = "document.querySelector('#history').getBoundingClientRect().top"
    before = page.evaluate(place)
    assert page.evaluate("scrollY") > 0
    estate.web.approve(service)
    expect(page.locator("main")).to_contain_text(f"by vm:{estate.web.vms[0]}")
    assert abs(page.evaluate(place) - before) < 80

"""Logging in and out."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.support.browsing import PATIENCE_MS, Witness, logged_in, visit
from tests.support.estate import write_inventory
from tests.support.service import Running, running


@pytest.fixture
def context(browser: Browser, service: Running, witness: Witness) -> BrowserContext:
    """A profile of the browser, whose user has not logged in."""
    made = browser.new_context(base_url=service.service.control_url)
    made.set_default_timeout(PATIENCE_MS)
    witness.watch(made)
    return made


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.keyboard.press("Enter")


def test_whoever_has_not_logged_in_is_asked_to_and_goes_on_to_where_they_wanted(service: Running, page: Page) -> None:
    page.goto("/vms/db-3?x=1")
    expect(page).to_have_title("Log in · Forewarn")
    expect(page.get_by_label("Token")).to_be_focused()
    expect(page.get_by_role("navigation")).to_have_count(0)
    log_in(page, service.service.tokens.operator_token)
    expect(page).to_have_url(re.compile(r"/vms/db-3\?x=1$"))
    expect(page.locator("h1")).to_have_text("VM db-3")
    cookie = page.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert page.evaluate("document.cookie") == ""
    assert service.service.tokens.operator_token not in cookie["value"]


@pytest.mark.parametrize(
    "path", ["/", "/hosts", "/vms", "/audit-log", "/rollouts", "/schedule", "/search?q=x", "/scopes/x"]
)
def test_no_page_shows_anything_to_a_stranger(service: Running, page: Page, path: str) -> None:
    page.goto(path)
    expect(page.locator("h1")).to_have_text("Log in")
    assert "rack-" not in page.content()


def test_a_wrong_token_is_refused_and_nobody_is_logged_in(page: Page, witness: Witness) -> None:
    witness.expect("401")
    page.goto("/login")
    for token in ("wrong", "<script>window.hacked=1</script>", "x" * 5000, "ключ"):
        log_in(page, token)
        expect(page.get_by_role("alert")).to_contain_text("unknown token")
        expect(page.get_by_label("Token")).to_have_value("")
    page.goto("/")
    expect(page.locator("h1")).to_have_text("Log in")


def test_who_logs_out_is_out_in_every_window(service: Running, page: Page, witness: Witness) -> None:
    page.goto("/")
    log_in(page, service.service.tokens.operator_token)
    expect(page.get_by_text("operator:local")).to_be_visible()
    cookie = page.context.cookies()[0]
    other = page.context.new_page()
    visit(other, "/audit-log")
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("h1")).to_have_text("Log in")
    other.goto("/audit-log")
    expect(other.locator("h1")).to_have_text("Log in")
    page.context.add_cookies([cookie])  # type: ignore[list-item] # what cookies() gives, add_cookies takes
    page.goto("/")
    expect(page.locator("h1")).to_have_text("Log in")


@pytest.mark.parametrize(
    "wanted",
    ["//evil.example", "https://evil.example/", "/\\evil.example", "/\t/evil.example", "javascript:alert(1)", "\\"],
)
def test_after_the_log_in_nobody_is_led_away(service: Running, page: Page, wanted: str) -> None:
    page.goto("/login")
    page.locator("[name='next']").evaluate("(field, value) => { field.value = value; }", wanted)
    log_in(page, service.service.tokens.operator_token)
    expect(page.get_by_text("operator:local")).to_be_visible()
    assert page.url.startswith(service.service.control_url + "/")
    page.goto("/login?next=//evil.example/")
    assert page.locator("[name='next']").input_value() == "/"


def test_a_session_that_is_over_asks_for_a_log_in_also_where_a_page_is_open(
    browser: Browser, witness: Witness, tmp_path: Path
) -> None:
    witness.expect("401|ERR_INCOMPLETE|SSE|sse")
    with running(tmp_path, inventory=write_inventory(tmp_path), clock="virtual") as service:
        context = logged_in(browser, service, witness)
        page = visit(context.new_page(), "/vms/db-1")
        scheduler = service.service.scheduler
        service.run(scheduler.advance_clock(timedelta(hours=11)))
        visit(page, "/vms/db-1")
        service.run(scheduler.advance_clock(timedelta(hours=2)))
        expect(page.locator("h1")).to_have_text("Log in")
        log_in(page, service.service.tokens.operator_token)
        expect(page.locator("h1")).to_have_text("VM db-1")
        context.close()

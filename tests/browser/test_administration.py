"""The pages of the administration, as an operator uses them."""

from __future__ import annotations

import re

from playwright.sync_api import Browser, Page, expect

from forewarn.core.access import Role
from tests.support.access import token_of
from tests.support.browsing import Witness, logged_in, visit
from tests.support.estate import Estate
from tests.support.service import Running


def open_section(page: Page, name: str) -> None:
    """Go to a page of the administration by the menu."""
    visit(page, "/")
    page.get_by_role("navigation").get_by_role("link", name="Administration").click()
    page.get_by_role("main").get_by_role("link", name=name, exact=True).click()
    expect(page.locator("h1")).to_have_text(name)
    expect(page.get_by_role("navigation").locator("a[aria-current]")).to_have_text("Administration")


# Tokens


def test_an_operator_creates_a_token_of_a_tenant_which_logs_in_until_it_is_revoked(
    service: Running, browser: Browser, page: Page, estate: Estate, witness: Witness
) -> None:
    witness.expect("400")
    witness.expect("401")  # a page that is open when its session ends
    open_section(page, "Tokens")
    page.get_by_role("link", name="Create a token").click()
    page.get_by_label("Name").fill("shop")
    page.get_by_label("Role").select_option("tenant")
    page.get_by_role("button", name="Create token").click()
    expect(page.get_by_role("alert")).to_contain_text("role tenant needs scopes or vms")
    expect(page.get_by_label("Role")).to_have_value("tenant")
    page.get_by_label("Scopes of a tenant").fill(estate.web.name)
    page.get_by_label("VMs of a tenant").fill(estate.db.name)
    page.get_by_label("Lifetime").fill("2h")
    page.get_by_role("button", name="Create token").click()
    secret = page.get_by_label("Token", exact=True)
    expect(secret).not_to_be_editable()
    expect(page.locator("main")).to_contain_text("tenant:shop")
    context = logged_in(browser, service, witness, token=secret.input_value())
    theirs = context.new_page()
    visit(theirs, "/")
    expect(theirs.locator("header")).to_contain_text("tenant:shop")
    expect(theirs.get_by_role("link", name="Administration")).to_have_count(0)

    page.get_by_role("link", name="Go to the list of tokens").click()
    row = page.get_by_role("row").filter(has_text="shop")
    expect(row).to_contain_text(f"scope {estate.web.name}, VM {estate.db.name}")
    expect(row).to_contain_text("valid")
    row.get_by_role("button", name="Revoke shop").click()
    expect(page.get_by_role("alert")).to_contain_text("tenant:shop stops working at once")
    page.get_by_role("link", name="Go back without changes").click()
    row.get_by_role("button", name="Revoke shop").click()
    page.get_by_role("button", name="Revoke", exact=True).click()
    expect(page.locator("h1")).to_have_text("Tokens")
    expect(row).to_have_count(0)
    page.get_by_role("link", name="all, also expired and revoked").click()
    expect(row).to_contain_text("revoked")
    expect(row.get_by_role("button")).to_have_count(0)
    expect(theirs).to_have_url(re.compile("/login"))
    context.close()


def test_the_list_of_tokens_follows_what_happens(service: Running, page: Page) -> None:
    visit(page, "/administration/tokens")
    token_of(service, Role.READ_ONLY, name="late-comer")
    expect(page.get_by_role("row").filter(has_text="late-comer")).to_contain_text("read-only")
    assert page.evaluate("window.stayed")


def test_an_operator_who_revokes_the_token_of_the_session_is_warned_and_logged_out(
    service: Running, browser: Browser, witness: Witness
) -> None:
    witness.expect("401")
    context = logged_in(browser, service, witness, token=token_of(service, Role.OPERATOR, name="dana"))
    page = context.new_page()
    visit(page, "/administration/tokens")
    page.get_by_role("button", name="Revoke dana").click()
    expect(page.get_by_role("alert")).to_contain_text("you will be logged out")
    page.get_by_role("button", name="Revoke", exact=True).click()
    expect(page).to_have_url(re.compile("/login"))
    context.close()

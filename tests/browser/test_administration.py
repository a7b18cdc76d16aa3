"""The pages of the administration, as an operator uses them."""

from __future__ import annotations

import re
from dataclasses import replace

from playwright.sync_api import Browser, Page, expect

from forewarn import __version__
from forewarn.core.access import Role
from forewarn.core.limit_log import CallerKind
from forewarn.core.subscription import DeliveryState
from forewarn.engine.subscriptions import find_subscription
from forewarn.store.contract import Transaction
from tests.support.access import client_of, token_of
from tests.support.browsing import Witness, logged_in, visit
from tests.support.estate import Estate, announce
from tests.support.receiver import receiver
from tests.support.service import Running
from tests.support.world import NOW

SETTINGS = {"notify_retry": "1h"}


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


# Subscriptions


def give_up(service: Running, name: str) -> None:
    """As if the time for all that waits were over."""
    engine = service.service.engine

    def change(tx: Transaction) -> None:
        found = find_subscription(tx, name)
        waiting = tx.list_deliveries(found.id, DeliveryState.WAITING)
        tx.save_deliveries(replace(each, state=DeliveryState.DEAD, next_at=None) for each in waiting)

    service.run(engine.committer.write(change))


def test_a_subscription_is_tested_paused_resumed_and_deleted(service: Running, page: Page, estate: Estate) -> None:
    with receiver() as hook, service.operator() as api:
        made = api.post("/v1/subscriptions", json={"name": "chat", "url": hook.url, "scopes": [estate.web.name]})
        assert made.status_code == 201, made.text
        open_section(page, "Subscriptions")
        row = page.get_by_role("row").filter(has_text="chat")
        expect(row).to_contain_text("active")
        expect(row).to_contain_text(f"all kinds; {estate.web.name}")
        expect(row).to_contain_text("not known")
        row.get_by_role("link", name="chat").click()
        expect(page.locator("h1")).to_have_text("Subscription chat")
        announce(service, estate)
        recent = page.get_by_role("region", name="Recent attempts")
        expect(recent.get_by_role("row").filter(has_text="scheduled")).to_contain_text("delivered 204")
        expect(page.get_by_role("definition").filter(has_text="UTC").first).to_be_visible()

        page.get_by_role("button", name="Send a test").click()
        expect(page.get_by_role("status").filter(has_text="answered")).to_contain_text("answered 204")
        page.get_by_role("link", name="Subscription chat").click()

        page.get_by_label("Send nothing until it is resumed").fill("The chat moves")
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("main")).to_contain_text("Nothing is sent until it is resumed: The chat moves")
        page.get_by_label("Skip what has happened since").check()
        page.get_by_role("button", name="Resume").click()
        expect(page.locator("h1")).to_have_text("Skip notifications?")
        page.get_by_role("link", name="Go back without changes").click()
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_role("button", name="Pause")).to_be_visible()

        page.get_by_role("button", name="Delete").click()
        expect(page.get_by_role("alert")).to_contain_text("The subscription chat and its 0 stored deliveries")
        page.get_by_role("button", name="Delete").click()
        expect(page.locator("h1")).to_have_text("Subscriptions")
        expect(row).to_have_count(0)


def test_what_was_given_up_is_shown_with_its_error_and_sent_again(service: Running, page: Page, estate: Estate) -> None:
    with receiver(lambda _got: 500) as hook, service.operator() as api:
        body = {"name": "broken", "url": hook.url, "vms": [estate.db.name], "kinds": ["scheduled"]}
        assert api.post("/v1/subscriptions", json=body).status_code == 201
        announce(service, estate)
        visit(page, "/administration/subscriptions/broken")
        waiting = page.get_by_role("region", name="To be retried")
        expect(waiting.get_by_role("row").filter(has_text="scheduled")).to_contain_text("500")
        give_up(service, "broken")
        dead = page.get_by_role("region", name="Given up (dead)")
        expect(dead.get_by_role("row").filter(has_text="scheduled")).to_contain_text("500")
        expect(page.locator("main")).to_contain_text("Its receiver has failed since")
        hook.script = lambda _got: 204
        dead.get_by_role("button", name=re.compile("^Send again [0-9]+-")).click()
        expect(dead).to_contain_text("None.")
        recent = page.get_by_role("region", name="Recent attempts")
        expect(recent.get_by_role("row").filter(has_text="delivered")).to_have_count(1)
        assert hook.kinds == ["event.scheduled"]

        api.delete("/v1/subscriptions/broken")
        expect(page.locator("main")).to_contain_text("does not exist")


# Settings


def test_settings_say_where_their_values_come_from(page: Page) -> None:
    open_section(page, "Settings")
    row = page.locator("#setting-notify_retry")
    expect(row).to_contain_text("1h default: 5s")
    expect(row).to_contain_text("command line")
    expect(row).to_contain_text("Pause after the first failed delivery")
    expect(page.locator("#setting-notice_max")).to_contain_text("default")
    page.get_by_role("link", name="not the default").click()
    expect(row).to_be_visible()
    expect(page.locator("#setting-notice_max")).to_have_count(0)


# Replicas and hosts


def test_an_endpoint_is_listed_while_it_is_connected(service: Running, page: Page, estate: Estate) -> None:
    open_section(page, "Replicas and hosts")
    main = page.locator("main")
    expect(main).to_contain_text("the only replica on its database")
    expect(main).to_contain_text(__version__)
    row = page.get_by_role("row").filter(has_text=estate.host)
    expect(row).to_have_count(0)
    headers = {"user-agent": "forewarn/9.8.7"}
    with (
        client_of(service, token_of(service, Role.HOST, host=estate.host)) as host,
        host.stream("GET", f"/v1/hosts/{estate.host}/watch", headers=headers) as stream,
    ):
        lines = stream.iter_lines()
        assert '"kind":"state"' in next(lines)
        expect(row).to_contain_text("9.8.7 differs")
        expect(row).to_contain_text("nothing waits to be sent")
        expect(row.get_by_role("time")).to_contain_text("UTC")
    expect(row).to_have_count(0)


# Access


def test_refused_calls_and_callers_are_shown(service: Running, page: Page) -> None:
    open_section(page, "Access")
    callers = page.get_by_role("region", name="Callers")
    mine = callers.get_by_role("row").filter(has_text="operator:local")
    expect(mine).to_contain_text("live-pages 1 of")
    with client_of(service, token_of(service, Role.READ_ONLY, name="curious")) as api:
        assert api.post("/v1/clock/confirm").status_code == 403
    refusal = page.get_by_role("region", name="Refused calls").get_by_role("row").filter(has_text="read-only:curious")
    expect(refusal).to_contain_text("POST /v1/clock/confirm")
    expect(callers.get_by_role("row").filter(has_text="read-only:curious")).to_contain_text("none")
    service.do(lambda: service.service.context.limits_met.count_refusal(CallerKind.VM, "web-7", "rate_limit", NOW))
    limited = callers.get_by_role("row").filter(has_text="web-7")
    expect(limited).to_contain_text("rate_limit 1 time")
    page.get_by_role("link", name="All refused calls").click()
    expect(page.locator("h1")).to_have_text("Audit log")
    expect(page.get_by_role("row").filter(has_text="read-only:curious")).to_contain_text("refused")

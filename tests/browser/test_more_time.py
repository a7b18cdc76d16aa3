"""Putting a maintenance off, and asking for more time, on its page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from forewarn.core.access import Role
from forewarn.core.model import EventType, Maintenance
from tests.support.access import token_of
from tests.support.browsing import Witness, logged_in, visit
from tests.support.estate import Estate, announce, write_inventory
from tests.support.service import Running, running


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service whose scopes have a policy that grants more time, twice."""
    folder: Path = tmp_path_factory.mktemp("more-time")
    inventory = write_inventory(folder, policy={"extension": {"max": "10m", "times": 2}})
    with running(folder, inventory=inventory, clock="virtual", clock_start="2030-01-01T00:00:00Z") as started:
        yield started


@pytest.fixture
def found(service: Running, estate: Estate) -> Maintenance:
    latest = datetime(2030, 1, 2, tzinfo=UTC)
    return announce(service, estate, EventType.REBOOT, hosts=(), vms=estate.web.vms, latest_start=latest)


@pytest.fixture
def tenant(browser: Browser, service: Running, witness: Witness, estate: Estate) -> Iterator[Page]:
    """A page of the tenant whose scope it hits."""
    token = token_of(service, Role.TENANT, name="ann", owns={"scopes": [estate.web.name]})
    context = logged_in(browser, service, witness, token=token)
    yield context.new_page()
    context.close()


def test_a_tenant_puts_a_maintenance_off_and_all_who_watch_it_see_the_new_time(
    found: Maintenance, estate: Estate, tenant: Page, page: Page, service: Running
) -> None:
    visit(tenant, f"/maintenance/{found.id}")
    visit(page, f"/maintenance/{found.id}")
    facts = page.get_by_role("region", name="Facts")
    expect(facts).to_contain_text("2030-01-01 00:15:00")
    expect(tenant.get_by_role("button", name="Cancel maintenance")).to_have_count(0)
    field = tenant.get_by_label("Postpone")
    tenant.get_by_role("button", name="Postpone").click()
    assert field.evaluate("field => field.validity.valueMissing")
    field.fill("2h")
    tenant.get_by_role("textbox", name="Reason").first.fill("Month-end is being closed")
    tenant.keyboard.press("Enter")
    expect(tenant.get_by_role("region", name="History")).to_contain_text("Month-end is being closed")
    expect(facts).to_contain_text("2030-01-01 02:15:00")
    expect(page.get_by_role("region", name="History")).to_contain_text("tenant:ann")
    (shown,) = estate.web.ask(service)
    assert shown["NotBefore"] == "Tue, 01 Jan 2030 02:15:00 GMT"
    assert page.evaluate("window.stayed")


@pytest.mark.parametrize(("by", "status", "says"), [("soon", 400, "30m, 2h or 1d"), ("9d", 409, "latest start")])
def test_a_span_that_will_not_do_is_refused_in_words(
    found: Maintenance, tenant: Page, witness: Witness, by: str, status: int, says: str
) -> None:
    witness.expect(str(status))
    visit(tenant, f"/maintenance/{found.id}")
    tenant.get_by_label("Postpone").fill(by)
    tenant.get_by_role("button", name="Postpone").click()
    expect(tenant.get_by_role("alert")).to_contain_text(says)
    tenant.go_back()
    expect(tenant.locator("h1")).to_contain_text("scheduled")


def test_more_time_is_had_as_often_as_the_policy_grants(found: Maintenance, tenant: Page) -> None:
    visit(tenant, f"/maintenance/{found.id}")
    facts, field = tenant.get_by_role("region", name="Facts"), tenant.get_by_label("More time")
    for by, then in (("6m", "00:21:00"), ("4m", "00:25:00")):
        field.fill(by)
        tenant.get_by_role("button", name="Ask for more time").click()
        expect(facts).to_contain_text(f"2030-01-01 {then}")
    expect(field).to_have_count(0)

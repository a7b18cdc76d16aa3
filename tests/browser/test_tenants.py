"""Several people at once, each in a browser of their own: two tenants of one host, and somebody who may only look."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, Page, expect

from forewarn.core.access import Role
from tests.support.access import token_of
from tests.support.browsing import Witness, logged_in, visit
from tests.support.estate import Estate, announce
from tests.support.service import Running

Seat = Callable[..., Page]


@pytest.fixture
def seat(browser: Browser, service: Running, witness: Witness) -> Iterator[Seat]:
    """Lets somebody sit down in front of a browser of their own."""
    with ExitStack() as stack:

        def sit(role: Role, name: str, **owns: list[str]) -> Page:
            token = token_of(service, role, name=name, owns=owns)
            context = logged_in(browser, service, witness, token=token)
            stack.callback(context.close)
            return context.new_page()

        yield sit


@pytest.fixture
def web(seat: Seat, estate: Estate) -> Page:
    return seat(Role.TENANT, "ann", scopes=[estate.web.name])


@pytest.fixture
def db(seat: Seat, estate: Estate) -> Page:
    return seat(Role.TENANT, "bob", vms=[estate.db.name])


def tells(page: Page, *names: str) -> list[str]:
    """Which of these the page as it is now holds anywhere, also where nobody sees it."""
    content = page.content()
    return [name for name in names if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", content)]


def test_two_tenants_follow_one_maintenance_and_see_nothing_of_each_other(
    service: Running, estate: Estate, web: Page, db: Page
) -> None:
    found = announce(service, estate)
    path = f"/maintenance/{found.id}"
    hidden_from_web = (estate.db.name, estate.host, "bob", "operator:test")
    hidden_from_db = (estate.web.name, *estate.web.vms, estate.host, "ann", "operator:test")
    visit(web, path)
    row = visit(db, "/").locator(f"[id='row-{found.id}']")
    expect(web.locator(".lead")).to_contain_text(f"It starts when {estate.web.name} and others have approved")
    expect(row).to_contain_text(f"It starts when {estate.db.name} and others have approved")
    expect(web.get_by_role("button", name="Approve for")).to_have_count(1)
    assert (tells(web, *hidden_from_web), tells(db, *hidden_from_db)) == ([], [])

    web.get_by_role("button", name=f"Approve for {estate.web.name}").click()
    expect(web.get_by_role("region", name="History")).to_contain_text("tenant:ann")
    expect(web.locator(".lead")).to_contain_text("It starts when others have approved")
    expect(row).to_contain_text(f"It starts as soon as {estate.db.name} approves")
    assert (tells(web, *hidden_from_web), tells(db, *hidden_from_db)) == ([], [])

    estate.db.approve(service)
    expect(row.locator(".state-started")).to_be_visible()
    expect(web.locator("h1")).to_contain_text("started")
    expect(web.get_by_role("region", name="Actions")).to_have_count(0)
    assert (tells(web, *hidden_from_web), tells(db, *hidden_from_db)) == ([], [])
    assert db.evaluate("window.stayed")


def test_what_a_tenant_does_not_own_is_not_there_for_it(
    service: Running, estate: Estate, db: Page, witness: Witness
) -> None:
    witness.expect("40[34]")
    alone = announce(service, estate, hosts=(), vms=estate.web.vms)
    visit(db, "/")
    expect(db.locator("#live")).to_contain_text("No maintenance is scheduled")
    menu = db.get_by_role("navigation", name="Pages")
    expect(menu.get_by_role("link")).to_have_text(["Overview", "VMs", "Audit log"])
    for path in (f"/maintenance/{alone.id}", f"/vms/{estate.web.vms[0]}", f"/scopes/{estate.web.name}"):
        db.goto(path)
        expect(db.locator("h1")).to_have_text("Not found")
    for path in (f"/hosts/{estate.host}", "/rollouts", "/schedule"):
        db.goto(path)
        expect(db.get_by_role("alert")).to_contain_text("not allowed for role tenant")
    for path in ("/vms", "/audit-log", f"/search?q={estate.web.name}", f"/search?q={estate.host}"):
        visit(db, path)
        assert tells(db, *estate.web.vms, alone.id, estate.host if "q=" not in path else "-") == []
    visit(db, f"/vms/{estate.db.name}")
    expect(db.locator("#live")).to_contain_text("None active or recently ended")


def test_who_may_only_look_sees_everything_live_and_has_no_buttons(
    service: Running, estate: Estate, seat: Seat
) -> None:
    found = announce(service, estate)
    wall = seat(Role.READ_ONLY, "wall")
    pages = ["/", "/hosts", f"/hosts/{estate.host}", "/vms", f"/vms/{estate.db.name}", "/rollouts", "/audit-log"]
    for path in [*pages, f"/maintenance/{found.id}"]:
        visit(wall, path)
        assert wall.locator("main form[method=post], main a[href^='/schedule']").count() == 0, path
    expect(wall.get_by_role("navigation", name="Pages").get_by_role("link", name="Schedule")).to_have_count(0)
    expect(wall.locator("#tenants + table")).to_contain_text("not approved")
    estate.web.approve(service)
    expect(wall.locator("#tenants + table")).to_contain_text(f"by vm:{estate.web.vms[0]}")
    ours = {"origin": service.service.control_url}
    for verb in ("cancel", "start", "complete", "defer", "extend"):
        answer = wall.request.post(f"/maintenance/{found.id}/{verb}", form={"reason": "x", "by": "1h"}, headers=ours)
        assert (verb, answer.status) == (verb, 403)
    assert wall.evaluate("window.stayed")

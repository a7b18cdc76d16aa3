"""What the buttons on the page of a maintenance do."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.support.browsing import Witness, visit
from tests.support.estate import Estate, announce
from tests.support.service import Running


def test_a_maintenance_is_taken_back_with_a_reason_that_stands_in_the_audit_log(
    service: Running, page: Page, estate: Estate
) -> None:
    found = announce(service, estate)
    visit(page, f"/maintenance/{found.id}")
    page.get_by_label("Cancel this maintenance").fill("The fans came too late")
    page.get_by_role("button", name="Cancel maintenance").click()
    expect(page.locator("h1")).to_contain_text("canceled")
    expect(page.get_by_role("region", name="History")).to_contain_text("The fans came too late")
    expect(page.locator("#actions")).to_have_count(0)
    visit(page, f"/audit-log?maintenance={found.id}")
    expect(page.locator("#live")).to_contain_text("operator:local")
    assert estate.web.ask(service) == []


def test_a_start_wants_a_reason_and_a_second_thought(service: Running, page: Page, estate: Estate) -> None:
    found = announce(service, estate)
    visit(page, f"/maintenance/{found.id}")
    reason, button = page.get_by_label("Start it now"), page.get_by_role("button", name="Start now")
    button.click()
    assert reason.evaluate("field => field.validity.valueMissing")
    reason.fill("The fan is on fire")
    button.click()
    expect(page.locator("h1")).to_contain_text("Start it now?")
    expect(page.get_by_role("alert")).to_contain_text(estate.db.name)
    page.get_by_role("link", name="Go back without changes").click()
    expect(page.locator("h1")).to_contain_text("scheduled")
    reason.fill("The fan is on fire")
    button.click()
    expect(page.locator("h1")).to_contain_text("Start it now?")
    page.get_by_role("button", name="Start now").click()
    expect(page.locator("h1")).to_contain_text("started")
    expect(page.locator("#live")).to_contain_text("The fan is on fire")
    assert {event["EventStatus"] for event in estate.db.ask(service)} == {"Started"}


def test_what_does_not_end_by_itself_is_completed_by_hand(service: Running, page: Page, estate: Estate) -> None:
    found = announce(service, estate)
    estate.web.approve(service)
    estate.db.approve(service)
    visit(page, f"/maintenance/{found.id}")
    page.get_by_role("button", name="Complete").click()
    page.get_by_role("button", name="Mark as completed").click()
    expect(page.locator("h1")).to_contain_text("completed")
    expect(page.locator("#live")).to_contain_text("It is over")
    assert estate.db.ask(service) == []


def test_a_button_that_comes_too_late_says_so(service: Running, page: Page, estate: Estate, witness: Witness) -> None:
    found = announce(service, estate)
    witness.expect("409")
    visit(page, f"/maintenance/{found.id}")
    form = page.locator("form[action$='/cancel']").evaluate_handle("form => form.cloneNode(true)")
    service.run(service.service.engine.maintenances.cancel(found.id, actor="operator:test"))
    expect(page.locator("h1")).to_contain_text("canceled")
    with page.expect_navigation():
        form.evaluate("form => { document.body.append(form); form.requestSubmit(); }")
    expect(page.get_by_role("alert")).to_contain_text("canceled")
    expect(page.get_by_role("link", name="Go to the overview")).to_be_visible()


def test_a_forged_form_without_a_reason_gets_a_page_that_says_what_is_missing(
    service: Running, page: Page, estate: Estate
) -> None:
    found = announce(service, estate)
    url = f"{service.service.control_url}/maintenance/{found.id}"
    ours = {"origin": service.service.control_url}
    forms: list[dict[str, str | float | bool]] = [{}, {"reason": "  "}, {"reason": "x" * 1001}, {"reason": "\0"}]
    for form in forms:
        answer = page.request.post(f"{url}/start", form=form, headers=ours)
        assert (answer.status, "reason" in answer.text()) == (400, True)
    assert page.request.post(f"{url}/explode", form={}, headers=ours).status == 404
    assert page.request.post(f"{url}/start", data='{"reason": "x"}', headers=ours).status == 400
    assert page.request.post(f"{url}/start", form={"reason": "no origin"}).status == 403
    visit(page, f"/maintenance/{found.id}")
    expect(page.locator("h1")).to_contain_text("scheduled")

"""The form that schedules, filled in wrongly on purpose."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from forewarn.core.model import Maintenance
from forewarn.store.contract import Reader
from tests.support.browsing import Witness, visit
from tests.support.estate import Estate
from tests.support.service import Running

SCRIPT = "<script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
TEXTS = ("hosts", "vms", "duration", "notice", "description", "reason")


def maintenances(service: Running) -> list[Maintenance]:
    def read(reader: Reader) -> list[Maintenance]:
        return list(reader.list_maintenances(limit=1000).items)

    return service.run(service.service.engine.read(read))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"hosts": "no-such-host"}, "no-such-host"),
        ({"vms": "no-such-vm"}, "no-such-vm"),
        ({}, "hosts"),
        ({"hosts": "HOST", "vms": "VM"}, "hosts"),
        ({"hosts": "HOST", "notice": "1m"}, "notice"),
        ({"hosts": "HOST", "notice": "soon"}, "notice: "),
        ({"hosts": "HOST", "notice": "-5m"}, "notice"),
        ({"hosts": "HOST", "notice": "9" * 400}, "notice"),
        ({"hosts": "HOST", "duration": "a while"}, "duration: "),
        ({"hosts": "HOST", "duration": "5000000d"}, "duration"),
        ({"hosts": " ".join(["x"] + [f"h{n}" for n in range(2000)])}, "host"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_field_is_named_and_all_that_was_written_stays(
    service: Running, page: Page, witness: Witness, estate: Estate, fields: dict[str, str], says: str
) -> None:
    witness.expect("status: 4|Failed to load resource.* 4")
    before = len(maintenances(service))
    visit(page, "/schedule")
    page.get_by_label("Description").fill("Kept")
    for name, value in fields.items():
        page.locator(f"#{name}").fill(value.replace("HOST", estate.host).replace("VM", estate.db.name))
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text(re.compile(says, re.IGNORECASE))
    assert len(page.get_by_role("alert").inner_text()) < 400
    expect(page.get_by_label("Description")).to_have_value("Kept")
    expect(page.get_by_role("button", name="Announce maintenance")).to_have_count(0)
    assert len(maintenances(service)) == before


def test_markup_in_every_field_is_text(page: Page, witness: Witness) -> None:
    witness.expect("status: 4|Failed to load resource.* 4")
    visit(page, "/schedule")
    for name in TEXTS:
        page.locator(f"#{name}").fill(SCRIPT)
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_be_visible()
    for name in TEXTS:
        expect(page.locator(f"#{name}")).to_have_value(SCRIPT)
    visit(page, "/schedule?hosts=%22%3E%3Cscript%3Ewindow.hacked%3D1%3C/script%3E&description=%22onfocus=%22hacked=1")
    assert page.locator("#hosts").input_value().startswith('">')
    visit(page, "/search?q=%3Cscript%3Ewindow.hacked%3D1%3C/script%3E")
    expect(page.locator("h1")).to_contain_text("<script>")
    assert page.evaluate("window.hacked") is None


def test_a_description_with_markup_is_text_wherever_it_stands(service: Running, page: Page, estate: Estate) -> None:
    visit(page, f"/schedule?hosts={estate.host}&duration=5s")
    page.get_by_label("Description").fill(SCRIPT)
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Announce maintenance").click()
    expect(page).to_have_url(re.compile("/maintenance/"))
    expect(page.locator("#live")).to_contain_text(SCRIPT)
    visit(page, f"/vms/{estate.db.name}")
    expect(page.locator("pre").first).to_contain_text("<script>")
    visit(page, "/")
    assert page.evaluate("window.hacked") is None


def test_ten_thousand_characters_are_refused_in_one_line(
    service: Running, page: Page, witness: Witness, estate: Estate
) -> None:
    witness.expect("status: 4|Failed to load resource.* 4")
    visit(page, f"/schedule?hosts={estate.host}")
    field = page.get_by_label("Description")
    field.press_sequentially("x" * 5)
    assert field.get_attribute("maxlength") == "1000"
    for name in ("description", "hosts"):
        page.locator(f"#{name}").evaluate(
            "field => { field.removeAttribute('maxlength'); field.value = 'x'.repeat(10000); }"
        )
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("alert")).to_be_visible()
        assert len(page.get_by_role("alert").inner_text()) < 400
        visit(page, f"/schedule?hosts={estate.host}")


def test_a_form_that_is_sent_twice_makes_one_maintenance(service: Running, page: Page, estate: Estate) -> None:
    visit(page, f"/schedule?hosts={estate.host}")
    page.get_by_role("button", name="Preview").click()
    button = page.get_by_role("button", name="Announce maintenance")
    expect(button).to_be_visible()
    form: dict[str, str | float | bool] = {
        name: page.locator(f"[name='{name}']").first.input_value()
        for name in ("key", "hosts", "type", "duration", "notice", "description")
    }
    button.dblclick(no_wait_after=True)
    expect(page).to_have_url(re.compile("/maintenance/"))
    again = page.request.post(
        "/schedule", form=form | {"step": "send"}, headers={"origin": service.service.control_url}
    )
    assert again.url == page.url
    assert sum(estate.host in found.hosts for found in maintenances(service)) == 1

"""Names that are hard to show: markup, right to left, without a place to break, signs that mean something in a URL."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventType, Host, Scope, ScopeKind, VirtualMachine
from tests.support.browsing import visit
from tests.support.service import Running
from tests.support.wire import Wire, get

MARKUP = "<b onmouseover=window.hacked=1>x</b>&amp;\"'</script><script>window.hacked=1</script>"
RTL = "שרת-ראשי \u202eexe.gnp العربية"
LONG = "n" * 128
ADDRESS = "a?b=c#d%2Fe&f+g;h"
NAMES = {"markup": MARKUP, "rtl": RTL, "long": LONG, "address": ADDRESS}


@pytest.fixture(scope="module")
def named(service: Running) -> Running:
    """Hosts, scopes and VMs of those names, with a maintenance each."""
    hosts, scopes, vms = [], [], []
    for n, name in enumerate(NAMES.values()):
        hosts.append(Host(name=f"h{name}"))
        scopes.append(Scope(name=f"s{name}", kind=ScopeKind.AVAILABILITY_SET))
        vms.append(
            VirtualMachine(name=f"v{name}", host=f"h{name}", scope=f"s{name}", addresses=(f"127.0.60.{2 * n + 1}",))
        )
        vms.append(VirtualMachine(name=f"w{name}", host=f"h{name}", addresses=(f"127.0.60.{2 * n + 2}",)))
    engine = service.service.engine
    inventory = Inventory(hosts=tuple(hosts), scopes=tuple(scopes), vms=tuple(vms))
    service.run(engine.inventory.apply(inventory, "odd", actor="operator:test"))
    for n, name in enumerate(NAMES.values()):
        for address in (2 * n + 1, 2 * n + 2):
            with Wire(service.address, f"127.0.60.{address}") as wire:
                assert wire.ask(get()).status == 200
        request = MaintenanceRequest(
            cause="host-maintenance", type=EventType.FREEZE, hosts=(f"h{name}",), description=name
        )
        service.run(engine.maintenances.schedule(request, actor=f"operator:{name}"))
    return service


def check(page: Page) -> None:
    """Nothing was executed, nothing became an element, and nothing sticks out."""
    assert page.evaluate("window.hacked") is None
    assert page.locator("[onmouseover]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


@pytest.mark.parametrize("path", ["/", "/?by=host", "/hosts", "/vms", "/audit-log", "/rollouts"])
def test_a_list_shows_every_name_as_it_is(named: Running, page: Page, path: str) -> None:
    visit(page, path)
    page.locator("main").hover()
    check(page)
    page.set_viewport_size({"width": 390, "height": 844})
    check(page)
    if path != "/rollouts":
        for name in NAMES.values():
            assert name in page.locator("main").inner_text().replace("\n", " ")


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_every_link_leads_to_the_thing_of_that_name(named: Running, page: Page, name: str) -> None:
    visit(page, "/")
    page.get_by_role("table", name="Active maintenances").get_by_role("link").filter(has_text=f"h{name}").click()
    expect(page.locator("h1")).to_contain_text(f"h{name}")
    check(page)
    tenants = page.get_by_role("region", name="Tenants")
    for who, heading in ((f"s{name}", f"Scope s{name}"), (f"w{name}", f"VM w{name}")):
        address = page.url
        tenants.get_by_role("link", name=who, exact=True).click()
        expect(page.locator("h1")).to_have_text(heading)
        check(page)
        page.set_viewport_size({"width": 390, "height": 844})
        check(page)
        visit(page, address)
    page.locator("dl").get_by_role("link", name=f"h{name}", exact=True).click()
    expect(page.locator("h1")).to_have_text(f"Host h{name}")
    page.get_by_role("link", name="Schedule a maintenance").click()
    expect(page.locator("#hosts")).to_have_value(f"h{name}")


def test_a_search_finds_them(named: Running, page: Page) -> None:
    for name in NAMES.values():
        visit(page, "/")
        page.get_by_role("searchbox").fill(name[:60])
        page.keyboard.press("Enter")
        expect(page.get_by_role("link", name=f"v{name}", exact=True)).to_be_visible()
        check(page)

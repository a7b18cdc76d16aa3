"""A page of somebody else's, open in the browser of somebody who has logged in."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from forewarn.core.model import Maintenance, MaintenanceState
from tests.support.browsing import logged_in, visit
from tests.support.estate import Estate, announce
from tests.support.hostile import Site, site
from tests.support.service import Running

NAMES = ["evil.example", "127.0.0.1", "localhost"]
"""Other sites, and one that a browser takes for the same site, since ports are no part of that."""


@pytest.fixture
def context(browser: Browser, service: Running) -> Iterator[BrowserContext]:
    """A profile without a witness: the hostile page is full of errors, as it should be."""
    made = logged_in(browser, service)
    yield made
    made.close()


@pytest.fixture
def evil() -> Iterator[Site]:
    with site() as found:
        yield found


def now(service: Running, found: Maintenance) -> MaintenanceState:
    seen = service.run(service.service.engine.read(lambda reader: reader.get_maintenance(found.id)))
    assert seen is not None
    return seen.state


@pytest.mark.parametrize("name", NAMES)
def test_its_forms_do_nothing(service: Running, page: Page, evil: Site, estate: Estate, name: str) -> None:
    found = announce(service, estate)
    ours = service.service.control_url
    for target in (f"maintenance/{found.id}/cancel", f"maintenance/{found.id}/start", "logout", "schedule"):
        evil.page = (
            f"<form method=post action='{ours}/{target}'><input name=reason value=evil><input name=step value=send>"
            f"<input name=hosts value='{estate.host}'></form>"
            "<script>document.forms[0].submit()</script>"
        )
        page.goto(f"http://{name}:{evil.port}/")
        expect(page).to_have_url(re.compile(f"^{re.escape(ours)}/"))
        heading = page.locator("h1")
        expect(heading).to_have_text("Not possible" if name == "127.0.0.1" or target == "logout" else "Log in")
    assert now(service, found) is MaintenanceState.SCHEDULED
    visit(page, "/")
    expect(page.get_by_text("operator:local")).to_be_visible()


@pytest.mark.parametrize("name", NAMES)
def test_its_scripts_read_nothing_and_change_nothing(
    service: Running, page: Page, evil: Site, estate: Estate, name: str
) -> None:
    found = announce(service, estate)
    ours = service.service.control_url
    evil.page = "<h1>evil</h1>"
    page.goto(f"http://{name}:{evil.port}/")
    read = """async ([url, init]) => {
      try { const answer = await fetch(url, init); return answer.type === "opaque" ? "" : await answer.text(); }
      catch (error) { return ""; }
    }"""
    asks = [
        ("/", {"credentials": "include"}),
        ("/", {"credentials": "include", "mode": "no-cors"}),
        (f"/live/maintenance/{found.id}", {"credentials": "include"}),
        ("/v1/maintenance", {"credentials": "include"}),
        (
            f"/maintenance/{found.id}/cancel",
            {"credentials": "include", "method": "POST", "mode": "no-cors", "body": "reason=x"},
        ),
        (
            f"/v1/maintenance/{found.id}/cancel",
            {"credentials": "include", "method": "POST", "mode": "no-cors", "body": "{}"},
        ),
        (
            f"/maintenance/{found.id}/start",
            {
                "credentials": "include",
                "method": "POST",
                "mode": "no-cors",
                "headers": {"content-type": "application/x-www-form-urlencoded"},
                "body": "reason=x",
            },
        ),
    ]
    for path, init in asks:
        assert page.evaluate(read, [ours + path, init]) == "", path
    loads = """async ([tag, url]) => await new Promise((done) => {
      const element = document.createElement(tag);
      element.onload = () => done("loaded"); element.onerror = () => done("refused");
      element[tag === "link" ? "href" : "src"] = url; if (tag === "link") element.rel = "stylesheet";
      document.body.append(element);
    })"""
    parts = visit(page.context.new_page(), "/").evaluate(
        "[...document.querySelectorAll('[src], link')].map((each) => each.src || each.href)"
    )
    files = [each for each in parts if "/static/" in each]
    assert len(files) > 4
    for url in files:
        tag = {"js": "script", "ss": "link", "vg": "img"}[url[-2:]]
        assert page.evaluate(loads, [tag, url]) == "refused", url
    assert now(service, found) is MaintenanceState.SCHEDULED


@pytest.mark.parametrize("name", NAMES)
def test_it_cannot_frame_a_page_nor_reach_a_window_that_it_opened(
    service: Running, page: Page, evil: Site, name: str
) -> None:
    ours = service.service.control_url
    evil.page = f"<iframe src='{ours}/' width=800 height=600></iframe><object data='{ours}/'></object>"
    page.goto(f"http://{name}:{evil.port}/")
    page.wait_for_timeout(500)
    assert all(frame.is_detached() or frame.url == "chrome-error://chromewebdata/" for frame in page.frames[1:])
    with page.expect_popup() as opened:
        page.evaluate(f"() => {{ window.other = window.open('{ours}/'); }}")
    opened.value.wait_for_load_state()
    assert opened.value.evaluate("window.opener") is None
    assert page.evaluate("(() => { try { return window.other.document.body.innerText } catch { return '' } })()") == ""


def test_a_name_that_was_rebound_to_this_machine_is_refused(service: Running, page: Page) -> None:
    port = service.service.control_url.rpartition(":")[2]
    rebound = f"http://rebound.example:{port}"
    for path in ("/", "/login", "/vms", "/live/", "/static/x/forewarn.js"):
        answer = page.request.get(f"http://127.0.0.1:{port}{path}", headers={"host": f"rebound.example:{port}"})
        assert answer.status == 403, path
    page.goto(f"{rebound}/login")
    expect(page.get_by_role("alert")).to_contain_text("use localhost")
    read = "async (path) => { const answer = await fetch(path); return [answer.status, await answer.text()]; }"
    for path in ("/", "/v1/maintenance", "/v1/vms", "/v1/audit-log"):
        status, text = page.evaluate(read, path)
        assert status in {401, 403}, path
        assert "rack-" not in text
    page.goto(f"http://localhost:{port}/login")
    expect(page.locator("h1")).to_have_text("Log in")

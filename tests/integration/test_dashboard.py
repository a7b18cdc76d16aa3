"""The dashboard over HTTP: logging in, pages, what buttons do, and what is refused."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from forewarn.dashboard.app import PAGES
from tests.support.control import entries
from tests.support.pages import Browser, text_of
from tests.support.processes import wait_for
from tests.support.service import Running, Vm, running
from tests.support.wire import approval, get, post


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("dashboard")) as made:
        yield made


@pytest.fixture
def stranger(service: Running) -> Iterator[Browser]:
    with Browser(service) as made:
        yield made


@pytest.fixture
def browser(service: Running, stranger: Browser) -> Browser:
    """One that has logged in."""
    answer = stranger.send_form("/login", token=service.service.tokens.operator_token, next="/")
    assert answer.status_code == 200, answer.text
    return stranger


def seen(vm: Vm, service: Running) -> Vm:
    """A VM that asks, and is told of events from then on."""
    service.enable(vm)
    return vm


def schedule(service: Running, vm: Vm, **more: object) -> dict[str, object]:
    with service.operator() as api:
        answer = api.post("/v1/maintenance", json={"vms": [vm.name], "type": "Reboot", **more})
        assert answer.status_code == 201, answer.text
        made: dict[str, object] = answer.json()["items"][0]
        return made


# Logging in


@pytest.mark.parametrize("path", [path for path in PAGES if "{" not in path])
def test_whoever_has_not_logged_in_is_asked_to_and_goes_on_from_there(stranger: Browser, path: str) -> None:
    answer = stranger.get(path, params={"q": "a b"})
    assert answer.url.path == "/login"
    target = path + "?q=a+b"
    assert f'name="next" value="{html.escape(target)}"' in answer.text


def test_what_is_live_ends_with_the_session(stranger: Browser) -> None:
    assert stranger.get("/live/").status_code == 401


def test_a_wrong_token_is_told_and_begins_no_session(stranger: Browser) -> None:
    answer = stranger.send_form("/login", token="wrong", next="/")
    assert answer.status_code == 401
    assert "unknown token" in text_of(answer)
    assert not stranger.cookies


def test_the_cookie_is_for_no_script_and_no_other_site(service: Running, stranger: Browser) -> None:
    token = service.service.tokens.operator_token
    headers = {"origin": stranger.origin}
    answer = stranger.post("/login", data={"token": token}, headers=headers, follow_redirects=False)
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert token not in cookie


def test_whoever_logs_out_has_no_session_any_more(browser: Browser) -> None:
    cookies = dict(browser.cookies)
    assert browser.send_form("/logout").url.path == "/login"
    browser.cookies.update(cookies)
    assert browser.get("/").url.path == "/login"


@pytest.mark.parametrize("target", ["//evil.example/", "https://evil.example/", "/\\evil.example", "", "javascript:x"])
def test_after_the_log_in_nobody_is_sent_elsewhere(service: Running, stranger: Browser, target: str) -> None:
    answer = stranger.send_form("/login", token=service.service.tokens.operator_token, next=target)
    assert str(answer.url) == f"{stranger.origin}/"


def test_the_cookie_opens_no_route_of_the_api(browser: Browser) -> None:
    """So nothing can be forged there: a page of another site cannot send a bearer token."""
    assert browser.get("/v1/maintenance").status_code == 401


# Forms from elsewhere


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "https://evil.example", "sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
        {"origin": "OURS", "sec-fetch-site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", ["/login", "/logout", "/schedule", "/maintenance/x/cancel", "/rollouts/x/pause"])
def test_a_form_of_another_site_does_nothing(browser: Browser, path: str, headers: dict[str, str]) -> None:
    sent = {name: browser.origin if value == "OURS" else value for name, value in headers.items()}
    answer = browser.post(path, data={"step": "send"}, headers=sent)
    assert answer.status_code == 403
    assert "not sent from a page of this service" in text_of(answer)


def test_a_name_that_is_not_of_this_machine_is_not_answered_on_loopback(browser: Browser) -> None:
    """A hostile page may let its name lead to 127.0.0.1."""
    port = urlsplit(browser.origin).port
    assert browser.get("/", headers={"host": f"evil.example:{port}"}).status_code == 403
    assert browser.get("/", headers={"host": f"localhost:{port}"}).url.path == "/"


@pytest.mark.parametrize("body", [b"\xff\xfe", b"&".join(b"a=%d" % n for n in range(101))])
def test_what_no_form_sends_is_refused(browser: Browser, body: bytes) -> None:
    headers = {"origin": browser.origin, "content-type": "application/x-www-form-urlencoded"}
    assert browser.post("/schedule", content=body, headers=headers).status_code == 400


def test_a_body_that_is_no_form_is_refused(browser: Browser) -> None:
    answer = browser.post("/schedule", content=b"{}", headers={"origin": browser.origin, "content-type": "text/plain"})
    assert answer.status_code == 400


# Pages


def test_every_answer_has_the_headers_that_keep_others_out(browser: Browser) -> None:
    for answer in (browser.get("/"), browser.get("/vms/none"), browser.get("/login")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("page", "count"), [("/", 6), ("/docs", 4)])
def test_every_file_that_a_page_loads_is_ours_and_may_be_kept(browser: Browser, page: str, count: int) -> None:
    loaded = re.findall(r'(?:src|href)="([^"]+)"', browser.get(page).text)
    files = [path for path in loaded if path.startswith("/static/")]
    assert len(files) >= count
    assert not [path for path in loaded if not path.startswith(("/", "#"))]
    for path in files:
        answer = browser.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]


@pytest.mark.parametrize("name", ["x/none.js", "x/..%2f..%2fapp.py", "x/VENDORED.md", "x/.css"])
def test_no_other_file_is_given_away(browser: Browser, name: str) -> None:
    assert browser.get(f"/static/{name}").status_code == 404


@pytest.mark.parametrize(
    "path", ["/vms/none", "/hosts/none", "/hosts/%00", "/scopes/none", "/maintenance/none", "/rollouts/none"]
)
def test_what_does_not_exist_is_told_kindly(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 404
    assert "does not exist" in text_of(answer)


def test_an_unknown_path_of_the_api_is_answered_as_the_api_does(browser: Browser) -> None:
    answer = browser.get("/v1/none")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"


def test_the_overview_says_which_tenant_holds_it_up_and_what_happens_next(service: Running, browser: Browser) -> None:
    one, other = seen(service.vm(), service), seen(service.vm(), service)
    with service.operator() as api:
        body = {"vms": [one.name, other.name], "type": "Reboot", "duration_s": 60}
        made = api.post("/v1/maintenance", json=body).json()["items"][0]
        mine = next(event["id"] for event in made["events"] if event["scope"] == one.name)
    with service.wire(one) as wire:
        assert wire.ask(post(approval(mine))).status == 200
    words = f"It starts as soon as {other.name} approves, at the latest"
    assert wait_for(lambda: words in text_of(browser.get("/", params={"q": other.name})))
    assert "1 of 2" in text_of(browser.get("/", params={"q": other.name}))
    own = text_of(browser.get(f"/maintenance/{made['id']}"))
    assert f"It starts as soon as {other.name} approves, at the latest" in own
    assert f"by vm:{one.name} from {one.address}, api-version" in own


def test_the_timeline_has_what_the_table_has(service: Running, browser: Browser) -> None:
    vm = seen(service.vm(), service)
    made = schedule(service, vm)
    assert wait_for(lambda: str(made["id"]) in browser.get("/", params={"q": vm.name}).text)
    for by, row in (("scope", vm.name), ("host", f"host-{vm.name}")):
        page = browser.get("/", params={"by": by, "q": vm.name}).text
        found = re.search(r'id="timeline-data">(.*?)</script>', page)
        assert found is not None
        data = json.loads(found[1])
        assert [each["id"] for each in data["rows"]] == [row]
        assert {bar["href"] for bar in data["bars"]} == {f"/maintenance/{made['id']}"}


def test_a_vm_shows_what_it_sees_in_each_version_and_what_it_asked(service: Running, browser: Browser) -> None:
    vm = seen(service.vm(), service)
    schedule(service, vm)
    with service.wire(vm) as wire:
        body = wire.ask(get()).body
    answer = browser.get(f"/vms/{vm.name}")
    page = text_of(answer)
    for version in service.service.feed.versions:
        assert f"<summary>{version.name}</summary>" in answer.text
    shown = re.search(r'id="document-2020-07-01">.*?<pre[^>]*>(.*?)</pre>', answer.text, re.DOTALL)
    assert shown is not None
    assert json.loads(html.unescape(shown[1])) == json.loads(body)
    assert "GET /metadata/scheduledevents" in page
    assert vm.address in page


@pytest.mark.parametrize("wanted", ["vm-39", "VM-39", "host-vm-39", "web"])
def test_a_part_of_a_name_finds_it(browser: Browser, wanted: str) -> None:
    assert wanted.lower() in text_of(browser.get("/search", params={"q": wanted})).lower()


def test_lists_are_paged(browser: Browser) -> None:
    for path in ("/vms", "/hosts"):
        names: list[str] = []
        at = path
        while at:
            page = browser.get(at).text
            names += re.findall(rf'<td data-label="\w+"><a href="{path}/([^"]+)"', page)
            following = re.search(r'href="([^"]+)">next', page)
            at = html.unescape(following[1]) if following else ""
        assert len(names) == len(set(names)) == 433
        assert names == sorted(names)


def test_names_are_text_wherever_they_stand(tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    with running(tmp_path) as made, Browser(made) as browser:
        browser.send_form("/login", token=made.service.tokens.operator_token, next="/")
        it = schedule(made, seen(made.vm(), made), description=hostile)
        page = browser.get(f"/maintenance/{it['id']}").text
        assert hostile not in page
        assert html.escape(hostile) in page


# Live


def test_a_page_follows_what_happens_without_being_asked_again(service: Running, browser: Browser) -> None:
    vm = seen(service.vm(), service)
    made = schedule(service, vm)
    with browser.stream("GET", f"/live/maintenance/{made['id']}") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        first = _event(lines)
        assert f"It starts as soon as {vm.name} approves" in first
        assert "<html" not in first
        with service.operator() as api:
            assert api.post(f"/v1/maintenance/{made['id']}/cancel", json={"reason": "not now"}).status_code == 200
        second = _event(lines)
        assert "It was canceled" in second
        assert "not now" in second


def _event(lines: Iterator[str]) -> str:
    """The data of the next event."""
    found = []
    for line in lines:
        if line.startswith("data: "):
            found.append(line.removeprefix("data: "))
        elif not line and found:
            return "\n".join(found)
    raise AssertionError("the stream ended")


# Buttons


def test_cancel_start_complete_and_approve_do_what_they_say(service: Running, browser: Browser) -> None:
    canceled, started = (schedule(service, seen(service.vm(), service)) for _ in range(2))
    approved = schedule(service, seen(service.vm(), service))
    assert "not needed" in text_of(browser.send_form(f"/maintenance/{canceled['id']}/cancel", reason="not needed"))
    refused = browser.send_form(f"/maintenance/{started['id']}/start", reason=" ")
    assert refused.status_code == 400
    assert "give a reason to start" in text_of(refused)
    asked = browser.send_form(f"/maintenance/{started['id']}/start", reason="now or never")
    assert "starts at once, without waiting for approvals" in text_of(asked)
    assert 'name="reason" value="now or never"' in asked.text
    with service.operator() as api:
        assert api.get(f"/v1/maintenance/{started['id']}").json()["state"] == "scheduled"
    begun = browser.send_form(f"/maintenance/{started['id']}/start", reason="now or never", confirm="yes")
    assert "now or never" in text_of(begun)
    event = approved["events"][0]["id"]  # type: ignore[index] # a list of events
    page = text_of(browser.send_form(f"/maintenance/{approved['id']}/approve/{event}"))
    assert "by operator:local" in page
    with service.operator() as api:
        states = {each["id"]: each["state"] for each in api.get("/v1/maintenance").json()["items"]}
    assert states[canceled["id"]] == "canceled"
    assert states[started["id"]] in {"started", "completed"}
    assert states[approved["id"]] in {"started", "completed"}


def test_completing_and_aborting_ask_first(service: Running, browser: Browser) -> None:
    started = schedule(service, seen(service.vm(), service))
    path = f"/maintenance/{started['id']}/complete"
    assert "ends for all tenants" in text_of(browser.send_form(path))
    assert browser.send_form("/maintenance/none/complete").status_code == 404
    host = f"host-{service.vm().name}"
    with service.operator() as api:
        body = {"name": "kernel", "cause": "host-maintenance", "hosts": [host]}
        rollout = api.post("/v1/rollouts", json=body).json()["id"]
        path = f"/rollouts/{rollout}/abort"
        asked = browser.send_form(path, reason="wrong <kernel>")
        assert "An aborted rollout cannot be resumed" in text_of(asked)
        assert 'value="wrong &lt;kernel&gt;"' in asked.text
        assert api.get(f"/v1/rollouts/{rollout}").json()["state"] not in {"aborting", "aborted"}
        browser.send_form(path, reason="wrong", confirm="yes")
        assert api.get(f"/v1/rollouts/{rollout}").json()["state"] in {"aborting", "aborted"}
        api.post(f"/v1/maintenance/{started['id']}/cancel")
    assert browser.send_form("/rollouts/none/abort").status_code == 404


def test_a_failed_host_is_shown_until_its_button_says_that_it_works(service: Running, browser: Browser) -> None:
    name = f"host-{service.vm().name}"
    with service.operator() as api:
        made = api.post(f"/v1/hosts/{name}/fail", json={"reason": "power <supply>"}).json()["items"]
        for each in made:
            api.post(f"/v1/maintenance/{each['id']}/complete")
        assert api.get(f"/v1/hosts/{name}").json()["failure_reason"] == "power <supply>"
        assert f'id="failed-{name}"' in browser.get("/").text
        assert "power &lt;supply&gt;" in browser.get(f"/hosts/{name}").text
        row = next(
            each for each in api.get("/v1/hosts", params={"limit": 1000}).json()["items"] if each["name"] == name
        )
        assert row["failed_at"] is not None
        after = browser.send_form(f"/hosts/{name}/recover", reason="repaired")
        assert "It was reported as failed" not in text_of(after)
        assert api.get(f"/v1/hosts/{name}").json()["failed_at"] is None
    assert f'id="failed-{name}"' not in browser.get("/").text
    assert browser.send_form(f"/hosts/{name}/recover").status_code == 409
    assert browser.send_form("/hosts/none/recover").status_code == 404


def test_it_says_when_it_was_announced_or_that_it_never_was(service: Running, browser: Browser) -> None:
    vm = seen(service.vm(), service)
    first, queued = schedule(service, vm), schedule(service, vm)
    assert queued["state"] == "queued"
    assert re.search(r"Announced\s+20", text_of(browser.get(f"/maintenance/{first['id']}")))
    assert re.search(r"Announced\s+not yet", text_of(browser.get(f"/maintenance/{queued['id']}")))
    canceled = browser.send_form(f"/maintenance/{queued['id']}/cancel", reason="not needed")
    assert re.search(r"Announced\s+never", text_of(canceled))


def test_a_button_that_comes_too_late_says_so(service: Running, browser: Browser) -> None:
    made = schedule(service, seen(service.vm(), service))
    assert browser.send_form(f"/maintenance/{made['id']}/cancel").status_code == 200
    again = browser.send_form(f"/maintenance/{made['id']}/cancel")
    assert again.status_code == 409
    assert "only a queued or scheduled one can be canceled" in text_of(again)
    assert browser.send_form(f"/maintenance/{made['id']}/explode").status_code == 404


# Scheduling


def test_the_form_shows_what_would_be_announced_and_announces_nothing(service: Running, browser: Browser) -> None:
    vm = seen(service.vm(), service)
    page = text_of(browser.send_form("/schedule", step="look", vms=vm.name, type="Reboot", duration="60s"))
    assert "Preview of the announcement" in page
    assert f"{vm.name} is notified about {vm.name}" in page
    with service.operator() as api:
        assert vm.name not in api.get("/v1/maintenance").text
        before = entries(api)
        browser.send_form("/schedule", step="look", vms=vm.name, type="Freeze")
        assert entries(api) == before


def test_who_is_not_warned_stands_in_the_preview_and_among_the_tenants(service: Running, browser: Browser) -> None:
    """R70c."""
    vm = service.vm()
    form = {"vms": vm.name, "type": "Reboot", "notice": "4h"}
    page = text_of(browser.send_form("/schedule", step="look", **form))
    assert "would be scheduled" in page
    assert f"Not warned: {vm.name} has not asked for events." in page
    sent = text_of(browser.send_form("/schedule", step="send", **form))
    assert "not warned has not asked for events" in sent
    seen(vm, service)
    with service.operator() as api:
        (made,) = [each for each in api.get("/v1/maintenance").json()["items"] if each["vms"] == [vm.name]]
    assert "not warned" not in text_of(browser.get(f"/maintenance/{made['id']}"))


def test_the_form_starts_at_once_what_nobody_can_be_warned_of(service: Running, browser: Browser) -> None:
    """R70a."""
    vm = service.vm()
    form = {"vms": vm.name, "type": "Reboot", "now": "on"}
    assert "would start at once" in text_of(browser.send_form("/schedule", step="look", **form))
    seen(vm, service)
    assert f"cannot start now: {vm.name} must be warned" in text_of(browser.send_form("/schedule", step="look", **form))


def test_a_form_that_is_sent_twice_makes_one_maintenance(service: Running, browser: Browser) -> None:
    vm = seen(service.vm(), service)
    form = {"step": "send", "vms": vm.name, "type": "Reboot", "key": "once", "notice": "20m", "description": "New disk"}
    first, second = browser.send_form("/schedule", **form), browser.send_form("/schedule", **form)
    assert first.url == second.url
    assert "New disk" in text_of(second)
    with service.operator() as api:
        made = [each for each in api.get("/v1/maintenance").json()["items"] if each["vms"] == [vm.name]]
    assert [each["notice_s"] for each in made] == [1200.0]


def test_who_schedules_says_up_to_when_it_may_be_put_off(service: Running, browser: Browser) -> None:
    vm = seen(service.vm(), service)
    latest = (datetime.now(UTC) + timedelta(days=2)).strftime("%Y-%m-%dT%H:%M")  # noqa: TID251 - what it is sent to reads the machine's clock
    sent = browser.send_form("/schedule", step="send", vms=vm.name, type="Reboot", latest_start=latest)
    assert f"Latest start {latest.replace('T', ' ')}:00 UTC" in text_of(sent)
    assert "Postpone, up to" in text_of(sent)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"hosts": "none"}, "host 'none' does not exist"),
        ({}, "name either hosts or VMs"),
        ({"hosts": "host-vm-1", "vms": "vm-1"}, "name either hosts or VMs, not both"),
        ({"vms": "vm-1", "notice": "1s"}, "a Reboot needs at least 15m"),
        ({"vms": "vm-1", "notice": "soon"}, "notice: 'soon' is not a span of time"),
        ({"vms": "vm-1", "duration": "-5"}, "duration_s"),
        ({"vms": "vm-1", "not_before": "tomorrow"}, "not_before"),
        ({"vms": "vm-1", "latest_start": "never"}, "latest_start"),
        ({"vms": "vm-1", "latest_start": "2020-01-01T00:00"}, "latest start"),
        ({"vms": "vm-1", "force": "on"}, "force requires a reason"),
        ({"vms": "vm-1", "type": "Explode"}, "type"),
        ({"vms": "vm-1", "description": "x" * 1001}, "description"),
        ({"vms": " ".join(f"v{n}" for n in range(10_001))}, "the limit is 10000"),
        ({"vms": "<script>alert(1)</script>"}, "does not exist"),
    ],
)
def test_a_form_with_bad_input_says_what_is_wrong_and_loses_nothing(
    browser: Browser, fields: dict[str, str], words: str
) -> None:
    sent = {"type": "Reboot", "description": "keep me"} | fields
    answer = browser.send_form("/schedule", step="send", **sent)
    assert 400 <= answer.status_code < 500
    assert words in text_of(answer)
    assert html.escape(sent["description"]) in answer.text
    assert "<script>alert" not in answer.text


@pytest.mark.parametrize(
    ("fields", "summary", "link"),
    [
        ({"vms": "vm-none"}, "vm 'vm-none' does not exist", '<a href="/vms">See all VMs</a>'),
        ({"hosts": "host-none"}, "host 'host-none' does not exist", '<a href="/hosts">See all hosts</a>'),
    ],
)
def test_an_error_in_the_browser_links_to_a_page_and_names_no_command(
    service: Running, browser: Browser, fields: dict[str, str], summary: str, link: str
) -> None:
    answer = browser.send_form("/schedule", step="send", type="Reboot", **fields)
    assert f"{summary}. {link}" in html.unescape(answer.text)
    assert "forewarn " not in text_of(answer)
    names = {key: [value] for key, value in fields.items()}
    with service.operator() as api:
        error = api.post("/v1/maintenance", json=names | {"type": "Reboot"}).json()["error"]
    assert error["message"].startswith(f"{summary}: see 'forewarn ")


@pytest.mark.parametrize("path", ["/maintenance/none/start", "/maintenance/none/approve/none", "/hosts/none/recover"])
def test_a_button_that_fails_names_no_command(browser: Browser, path: str) -> None:
    answer = browser.send_form(path, reason="now")
    assert answer.status_code == 404
    assert not re.search(r"forewarn (host|vm|maintenance|rollout)", text_of(answer))


def test_a_token_that_is_refused_is_not_advised_about_options(stranger: Browser) -> None:
    page = text_of(stranger.send_form("/login", token="wrong", next="/"))
    assert "unknown token. Enter a token of this service" in page
    assert "--token-file" not in page


# The audit log


def test_the_audit_log_is_searched_by_what_people_remember(service: Running, browser: Browser) -> None:
    one, other = seen(service.vm(), service), seen(service.vm(), service)
    made = schedule(service, one)
    foreign = schedule(service, other)
    browser.send_form(f"/maintenance/{made['id']}/cancel", reason="the disk came late")
    for fields in (
        {"text": "DISK came"},
        {"vm": one.name, "kind": "canceled"},
        {"maintenance": str(made["id"])},
        {"scope": "", "host": f"host-{one.name}", "since": "1h", "actor": "operator:local"},
    ):
        page = text_of(browser.get("/audit-log", params=fields))
        assert "the disk came late" in page, fields
        assert str(foreign["id"]) not in page, fields
    assert "No matching entries" in text_of(browser.get("/audit-log", params={"text": "no such words"}))
    assert "No matching entries" in text_of(browser.get("/audit-log", params={"vm": one.name, "until": "2020-01-01"}))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"since": "yesterday"}, "since: 'yesterday' is expected to be a duration like 30d"),
        ({"kind": "explosion"}, "kind 'explosion' is not a kind of audit log entry"),
        ({"text": "x" * 257}, "text is longer than 256 characters"),
    ],
)
def test_a_search_that_cannot_be_read_says_why(browser: Browser, fields: dict[str, str], words: str) -> None:
    page = browser.get("/audit-log", params=fields)
    assert page.status_code == 200
    assert words in text_of(page)


def test_older_entries_are_a_click_away(service: Running, browser: Browser) -> None:
    vm = seen(service.vm(), service)
    for _ in range(60):
        browser.send_form(f"/maintenance/{schedule(service, vm)['id']}/cancel")
    at, numbers = "/audit-log?" + f"vm={vm.name}", []
    while at:
        page = browser.get(at).text
        numbers += [int(found) for found in re.findall(r'id="entry-(\d+)"', page)]
        following = re.search(r'href="([^"]+)">older', page)
        at = html.unescape(following[1]) if following else ""
    assert len(numbers) == len(set(numbers)) >= 120
    assert numbers == sorted(numbers, reverse=True)

"""Who may see and press what on the dashboard: roles, tenants, links from the command line, an issuer."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from forewarn.control.access import ROUTES
from forewarn.core.access import Role
from forewarn.dashboard.app import PAGES
from tests.support.access import client_of, token_of
from tests.support.pages import Browser, text_of
from tests.support.processes import wait_for
from tests.support.service import Running, Vm, running

PEOPLE = [Role.OPERATOR, Role.READ_ONLY, Role.TENANT]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("access"), refused_entries_max=1_000_000) as made:
        yield made


@contextmanager
def logged_in(service: Running, token: str) -> Iterator[Browser]:
    with Browser(service) as made:
        answer = made.send_form("/login", token=token, next="/")
        assert answer.status_code == 200, answer.text
        yield made


def refusals(service: Running) -> list[str]:
    with service.operator() as api:
        found = api.get("/v1/audit-log", params={"kind": "refused", "limit": 1000, "newest": True}).json()["items"]
    return [f"{entry['actor']} {entry['reason']}" for entry in found]


@pytest.mark.parametrize("role", PEOPLE)
def test_each_role_sees_the_pages_of_its_routes_and_no_other(service: Running, role: Role) -> None:
    with logged_in(service, token_of(service, role)) as browser:
        shown = browser.get("/").text
        for path, (_, beside) in PAGES.items():
            address = re.sub(r"\{\w+(:path)?\}", "none", path)
            is_allowed = role in ROUTES[beside]
            for at in (address, f"/live{address}"):
                with browser.stream("GET", at) as answer:
                    assert (answer.status_code == 403) is not is_allowed, (at, answer.status_code)
                    assert answer.status_code in {200, 403, 404}
            navigation = re.search(r"<nav.*?</nav>", shown, re.DOTALL)
            assert navigation is not None
            if path in {"/schedule", "/rollouts", "/hosts", "/vms", "/audit-log", "/administration"}:
                assert (f'href="{path}"' in navigation[0]) is is_allowed
    if role is Role.TENANT:
        assert wait_for(lambda: any("tenant:test-tenant GET /hosts" in each for each in refusals(service)))


@pytest.mark.parametrize("role", [Role.READ_ONLY, Role.TENANT])
def test_no_button_does_more_than_the_route_beside_it(service: Running, role: Role) -> None:
    with service.operator() as api:
        service.enable(service.web[0])
        made = api.post("/v1/maintenance", json={"vms": [service.web[0].name], "type": "Reboot"}).json()["items"][0]
    try:
        at = f"/maintenance/{made['id']}"
        with logged_in(service, token_of(service, role)) as browser:
            page = browser.get(at).text
            assert f'action="{at}/start"' not in page
            assert (f"{at}/approve/" in page) is (role is Role.TENANT)
            forms = {f"{at}/start": {"reason": "now"}, f"{at}/complete": {}, "/rollouts/none/pause": {}}
            forms |= {"/schedule": {"vms": service.web[0].name, "type": "Reboot", "step": "send"}}
            for path, fields in forms.items():
                assert browser.send_form(path, **fields).status_code == 403, path
            # What the platform has scheduled, no tenant takes back.
            assert browser.send_form(f"{at}/cancel").status_code == 403
        with service.operator() as api:
            assert api.get(f"/v1/maintenance/{made['id']}").json()["state"] == "scheduled"
    finally:
        with service.operator() as api:
            api.post(f"/v1/maintenance/{made['id']}/cancel")


@pytest.mark.parametrize("role", [Role.READ_ONLY, Role.TENANT])
def test_only_an_operator_creates_and_revokes_tokens(service: Running, role: Role) -> None:
    token_of(service, Role.READ_ONLY, name=f"seen-by-{role}")
    with service.operator() as api:
        wanted = f"seen-by-{role}"
        found = next(each for each in api.get("/v1/tokens?limit=1000").json()["items"] if each["name"] == wanted)
    with logged_in(service, token_of(service, role)) as browser:
        at = f"/administration/tokens/{found['id']}/revoke"
        page = browser.get("/administration/tokens")
        assert (wanted in page.text) is (role is Role.READ_ONLY)
        assert "<button" not in page.text.partition("<main")[2]
        assert "/create" not in page.text
        for confirm in ("", "yes"):
            assert browser.send_form(at, confirm=confirm).status_code == 403
        answer = browser.send_form("/administration/tokens/create", name="more", role="operator")
        assert (answer.status_code, "not allowed for role" in text_of(answer)) == (403, True)
    with service.operator() as api:
        tokens = {each["name"]: each for each in api.get("/v1/tokens?limit=1000").json()["items"]}
        assert tokens[wanted]["revoked_at"] is None
        assert "more" not in tokens


@pytest.mark.parametrize("role", [Role.READ_ONLY, Role.TENANT])
def test_only_an_operator_acts_on_subscriptions_and_sees_where_they_lead(service: Running, role: Role) -> None:
    name = f"hook-of-{role}"
    with service.operator() as api:
        made = api.post("/v1/subscriptions", json={"name": name, "url": "http://127.0.0.1:9/secret-path?key=1"})
        assert made.status_code == 201, made.text
    at = f"/administration/subscriptions/{name}"
    is_reader = role is Role.READ_ONLY
    with logged_in(service, token_of(service, role)) as browser:
        for path in (at, "/administration/subscriptions"):
            answer = browser.get(path)
            assert (answer.status_code, name in answer.text) == ((200, True) if is_reader else (403, False))
            assert "secret-path" not in answer.text
            assert ("http://127.0.0.1:9/…" in answer.text) is is_reader
            assert "<button" not in answer.text.partition("<main")[2]
        for verb in ("pause", "resume", "delete", "redeliver", "test", "none"):
            assert browser.send_form(f"{at}/{verb}", confirm="yes").status_code == 403, verb
    with logged_in(service, service.service.tokens.operator_token) as browser:
        assert "secret-path" in browser.get(at).text
        assert browser.send_form(f"{at}/none").status_code == 404
        assert browser.send_form(f"{at}/redeliver", id="nonsense").status_code == 400
        assert browser.send_form(f"{at}/redeliver", id="1-none").status_code == 404
        for path in ("/administration/subscriptions/none", "/administration/subscriptions/none/delete"):
            assert browser.get(path).status_code in {404, 405}
        assert browser.send_form("/administration/subscriptions/none/delete").status_code == 404
        assert browser.send_form(f"{at}/delete", confirm="yes").status_code == 200
    with service.operator() as api:
        assert api.get(f"/v1/subscriptions/{name}").status_code == 404


def test_settings_are_shown_without_secrets_and_to_readers_without_keys(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    settings: dict[str, Any] = {
        "webhook_url": "http://ann:pass@127.0.0.1:9/secret-path?key=abc",
        "exec_command": "/bin/act --key=abc",
    }
    with running(tmp_path_factory.mktemp("settings"), **settings) as service:
        for role in PEOPLE:
            with logged_in(service, token_of(service, role)) as browser:
                answer = browser.get("/administration/settings")
            if role is Role.TENANT:
                assert (answer.status_code, "webhook_url" in answer.text) == (403, False)
                continue
            page = text_of(answer)
            assert "pass@" not in page
            assert "key=abc&" not in answer.text
            assert "notice_max" in page
            is_operator = role is Role.OPERATOR
            assert ("http://ann:***@127.0.0.1:9/secret-path?key=***" in page) is is_operator
            assert ("http://127.0.0.1:9/…" in page) is not is_operator
            assert ("/bin/act --key=abc" in page) is is_operator
            assert ("/bin/act …" in page) is not is_operator


def test_a_form_that_is_sent_twice_creates_one_token(service: Running) -> None:
    with logged_in(service, service.service.tokens.operator_token) as browser:
        found = re.search(r'name="key" value="([^"]+)"', browser.get("/administration/tokens/create").text)
        assert found is not None
        fields = {"name": "once", "role": "read-only", "key": found[1]}
        first = browser.send_form("/administration/tokens/create", **fields)
        again = browser.send_form("/administration/tokens/create", **fields)
    assert (first.status_code, 'id="secret"' in first.text) == (201, True)
    assert (again.status_code, 'id="secret"' in again.text) == (409, False)
    assert "was created by an earlier request" in text_of(again)
    with service.operator() as api:
        tokens = [each for each in api.get("/v1/tokens?limit=1000").json()["items"] if each["name"] == "once"]
    assert len(tokens) == 1


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": "", "role": "operator"}, "name:"),
        ({"name": "local", "role": "operator"}, "name local is reserved"),
        ({"name": "x", "role": "host"}, "role:"),
        ({"name": "x", "role": "tenant"}, "role tenant needs scopes or vms"),
        ({"name": "x", "role": "tenant", "scopes": "none"}, "none"),
        ({"name": "x", "role": "operator", "lifetime": "soon"}, "lifetime:"),
        ({"name": "x", "role": "operator", "lifetime": "9000d"}, "maximum token lifetime is 366 days"),
    ],
)
def test_a_form_that_asks_for_no_possible_token_says_why(
    service: Running, fields: dict[str, str], expected: str
) -> None:
    with logged_in(service, service.service.tokens.operator_token) as browser:
        answer = browser.send_form("/administration/tokens/create", **fields)
    assert answer.status_code in {400, 404}
    assert expected in text_of(answer)
    assert f'value="{fields["name"]}"' in answer.text, "what was typed is still there"


def test_the_endpoint_of_a_host_does_not_log_in(service: Running) -> None:
    with Browser(service) as browser:
        answer = browser.send_form("/login", token=token_of(service, Role.HOST), next="/")
        assert (answer.status_code, "not allowed for role host" in text_of(answer)) == (401, True)
        assert "/login" in str(browser.get("/").url)


# Tenants


@pytest.fixture
def mine(service: Running) -> Vm:
    found = service.vm()
    service.enable(found)
    return found


@pytest.fixture
def other(service: Running) -> Vm:
    found = service.vm()
    service.enable(found)
    return found


def test_two_tenants_see_their_own_part_and_nothing_of_each_other(service: Running, mine: Vm, other: Vm) -> None:
    body = {"vms": [mine.name, other.name], "type": "Reboot", "notice_s": 600, "force": True, "reason": "host-17 burns"}
    with service.operator() as api:
        made = api.post("/v1/maintenance", json=body).json()["items"][0]
        alone = api.post("/v1/maintenance", json={"vms": [other.name], "type": "Freeze"}).json()["items"][0]
    foreign = next(e["id"] for e in made["events"] if e["resources"] == [other.name])
    own = next(e["id"] for e in made["events"] if e["resources"] == [mine.name])
    at = f"/maintenance/{made['id']}"
    with logged_in(service, token_of(service, Role.TENANT, owns={"vms": [mine.name]})) as browser:
        pages = [
            "/",
            "/?by=host",
            at,
            f"/vms/{mine.name}",
            "/vms",
            "/audit-log",
            f"/audit-log?maintenance={made['id']}",
        ]
        pages += [f"/search?q={mine.name}", "/search?q=host", "/search?q=vm"]
        assert wait_for(lambda: mine.name in browser.get("/").text), "the board may be half a second old"
        for path in pages:
            answer = browser.get(path)
            assert answer.status_code == 200, path
            for word in (
                other.name,
                foreign,
                alone["id"],
                "host-(?!maintenance|failed|recovered)",
                "burns",
                "operator:local",
            ):
                assert not re.search(word, answer.text), (path, word)
        assert f"It starts as soon as {mine.name} approves" not in text_of(browser.get(at))
        assert f"It starts when {mine.name} and others have approved" in text_of(browser.get(at))
        for path in (f"/maintenance/{alone['id']}", f"/vms/{other.name}", "/scopes/web", "/maintenance/none"):
            assert browser.get(path).status_code == 404, path
        assert browser.send_form(f"{at}/approve/{foreign}").status_code == 404
        assert browser.send_form(f"/maintenance/{alone['id']}/defer", by="1h").status_code == 404
        assert "approved" in text_of(browser.send_form(f"{at}/approve/{own}"))
        assert "It starts when others have approved" in text_of(browser.get(at))
    with service.operator() as api:
        events = {e["id"]: e["approved_by"] for e in api.get(f"/v1/maintenance/{made['id']}").json()["events"]}
        assert events == {own: "tenant:test-tenant", foreign: None}
        for each in (made, alone):
            api.post(f"/v1/maintenance/{each['id']}/cancel")


def test_a_tenant_cannot_search_by_what_it_is_not_shown(service: Running, mine: Vm) -> None:
    with logged_in(service, token_of(service, Role.TENANT, owns={"vms": [mine.name]})) as browser:
        page = browser.get("/audit-log").text
        assert 'name="vm"' in page
        for name in ("host", "actor", "text"):
            assert f'name="{name}"' not in page
            assert f"cannot search by {name}" in text_of(browser.get("/audit-log", params={name: "x"}))


def test_a_tenant_puts_off_a_maintenance_from_its_page(service: Running, mine: Vm) -> None:
    with service.operator() as api:
        latest = datetime.now(UTC) + timedelta(days=2)  # noqa: TID251 - what it is sent to reads the machine's clock
        body = {"vms": [mine.name], "type": "Reboot", "latest_start": latest.isoformat()}
        made = api.post("/v1/maintenance", json=body).json()["items"][0]
    at = f"/maintenance/{made['id']}"
    with logged_in(service, token_of(service, Role.TENANT, owns={"vms": [mine.name]})) as browser:
        assert f'action="{at}/defer"' in browser.get(at).text
        page = text_of(browser.send_form(f"{at}/defer", by="2h", reason="not now"))
        assert "deferred" in page
        assert "not now" in page
        wrong = browser.send_form(f"{at}/defer", by="soon")
        assert (wrong.status_code, "for example 30m, 2h or 1d" in text_of(wrong)) == (400, True)
        assert browser.send_form(f"{at}/extend", by="5m").status_code == 409, "its policy grants none"
    with service.operator() as api:
        assert api.get(f"/v1/maintenance/{made['id']}").json()["deferrals"] == 1
        api.post(f"/v1/maintenance/{made['id']}/cancel")


# Sessions of tokens


@pytest.mark.slow
def test_revoking_a_token_ends_its_sessions_and_their_streams(service: Running) -> None:
    with service.operator() as api:
        made = api.post("/v1/tokens", json={"name": "ann", "role": "operator"}).json()
        with logged_in(service, made["token"]) as browser, browser.stream("GET", "/live/vms/none") as stream:
            pieces = stream.iter_text()
            assert next(pieces)
            assert api.delete(f"/v1/tokens/{made['id']}").status_code == 200
            assert "".join(pieces).count("\n\n") < 5, "the stream has ended"
            assert wait_for(lambda: "/login" in str(browser.get("/").url))


def test_a_wrong_token_is_written_down_and_too_many_are_put_off(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running(tmp_path_factory.mktemp("guesses"), auth_failures_max=3) as service, Browser(service) as browser:
        found = [browser.send_form("/login", token=f"guess-{number}", next="/").status_code for number in range(5)]
        assert found == [401, 401, 401, 429, 429]
        assert wait_for(lambda: any("POST /login" in each for each in refusals(service)))
        assert not any("guess" in each for each in refusals(service))
        assert browser.send_form("/login", token=service.service.tokens.operator_token, next="/").status_code == 200


# Links


@pytest.mark.parametrize("role", PEOPLE)
def test_a_link_logs_in_once_as_whoever_made_it(service: Running, role: Role) -> None:
    with client_of(service, token_of(service, role)) as api, Browser(service) as browser, Browser(service) as late:
        link = api.post("/v1/login-links").json()
        assert urlsplit(link["url"])._replace(path="").geturl() == service.service.control_url
        path = urlsplit(link["url"]).path
        for _ in range(2):
            assert "/login" in str(browser.get("/").url), "to look at the link is not to use it"
            assert f"logs you in as {role}:test-{role}" in text_of(browser.get(path))
        assert f"{role}:test-{role}" in text_of(browser.send_form(path))
        assert str(browser.get("/vms").url).endswith("/vms")
        for answer in (late.get(path), late.send_form(path)):
            assert (answer.status_code, "was used" in html.unescape(answer.text)) == (401, True)


def test_a_used_link_and_an_ended_session_are_worth_nothing_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("once")
    with running(folder) as service, service.operator() as api, Browser(service) as browser:
        path = urlsplit(api.post("/v1/login-links").json()["url"]).path
        stay = browser.send_form(path).request.headers["cookie"].partition("=")[2]
        assert "log in" not in text_of(browser.get("/")).lower()
        with Browser(service) as leaving:
            leaver = leaving.send_form("/login", token=service.service.tokens.operator_token, next="/")
            left = leaver.request.headers["cookie"].partition("=")[2]
            assert leaving.send_form("/logout").status_code == 200
    with running(folder) as service:
        port = urlsplit(service.service.control_url).port
        with Browser(service) as again:
            assert again.get(path).status_code == 401
            assert again.send_form(path).status_code == 401
            for cookie, is_in in ((left, False), (stay, True)):
                answer = again.get("/", headers={"cookie": f"forewarn-{port}={cookie}"})
                assert ("/login" not in str(answer.url)) is is_in


def test_a_link_is_pressed_on_our_own_page_only_and_cannot_be_made_up(service: Running) -> None:
    with service.operator() as api, Browser(service) as browser:
        path = urlsplit(api.post("/v1/login-links").json()["url"]).path
        elsewhere = {"origin": "http://elsewhere.example", "sec-fetch-site": "cross-site"}
        assert browser.post(path, headers=elsewhere).status_code == 403
        assert browser.get(f"{path}x").status_code == 401
        assert browser.get("/login/link/abc").status_code == 401
        cookie = browser.send_form("/login", token=service.service.tokens.operator_token, next="/").request.headers[
            "cookie"
        ]
        assert browser.get(f"/login/link/{cookie.partition('=')[2]}").status_code == 401, "a session is no link"


def test_a_link_is_over_after_its_minute_and_when_its_token_is_revoked(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with running(tmp_path_factory.mktemp("links"), clock="virtual") as service, service.operator() as api:
        path = urlsplit(api.post("/v1/login-links").json()["url"]).path
        made = api.post("/v1/tokens", json={"name": "ann", "role": "operator"}).json()
        with client_of(service, made["token"]) as ann:
            of_ann = urlsplit(ann.post("/v1/login-links").json()["url"]).path
        with Browser(service) as browser:
            assert [browser.get(each).status_code for each in (path, of_ann)] == [200, 200]
            api.delete(f"/v1/tokens/{made['id']}")
            assert browser.send_form(of_ann).status_code == 401
            api.post("/v1/clock/advance", json={"by_s": 60})
            assert browser.send_form(path).status_code == 401


def test_nobody_logs_in_at_an_issuer_where_there_is_none(service: Running) -> None:
    with Browser(service) as browser:
        assert "organisation" not in browser.get("/login").text
        assert browser.get("/login/issuer").status_code == 404
        assert isinstance(browser, httpx.Client)

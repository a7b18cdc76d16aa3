"""What one caller of the control API may use at a time, and that it leaves the others theirs."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from structlog.testing import capture_logs

from forewarn.clock import uptime_s
from forewarn.control.throttle import credential_of
from forewarn.core.access import Role
from forewarn.core.usage_limits import UseKind
from tests.support.access import client_of, token_of
from tests.support.control import error
from tests.support.pages import Browser
from tests.support.service import Running, eventually, running
from tests.support.wire import Wire

SMALL = {
    "connections_max": 8,
    "requests_max": 2,
    "watches_max": 2,
    "live_pages_max": 2,
    "body_size_bytes_max": 3000,
    "changes_per_minute_max": 5,
    "watch_starts_per_minute_max": 12,
    "refusals_per_minute_max": 6,
}
HOST = "host-Web_0"


@pytest.fixture(autouse=True)
def _stopped_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits per minute stay used up, however long the machine takes for the requests that use them."""
    now_s = uptime_s()
    monkeypatch.setattr("forewarn.control.admission.uptime_s", lambda: now_s)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Running]:
    """A service with small budgets for tenants and hosts."""
    with running(tmp_path, budgets={"tenant": SMALL, "host": SMALL}) as started:
        yield started


def asked(path: str, token: str, *headers: str, method: str = "GET") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: control", f"Authorization: Bearer {token}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Raw:
    """Connections that hold what they ask for."""

    def __init__(self, service: Running, stack: contextlib.ExitStack) -> None:
        parts = urlsplit(service.service.control_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = (parts.hostname, parts.port)
        self._stack = stack

    def send(self, data: bytes) -> Wire:
        wire = self._stack.enter_context(Wire(self._address, "127.0.0.1"))
        wire.send(data)
        return wire

    def status(self, data: bytes) -> int:
        """Of the answer, whose body may go on."""
        wire = self.send(data)
        return int(wire.sock.recv(12).split(b" ")[1])


@pytest.fixture
def raw(small: Running) -> Iterator[Raw]:
    with contextlib.ExitStack() as stack:
        yield Raw(small, stack)


def in_use(service: Running, name: str, use: UseKind) -> int:
    accounts = service.service.context.admission.accounts
    return service.do(lambda: sum(each.used[use] for each in accounts if each.name == name))


def is_limited(response: httpx.Response, use: UseKind, most: int) -> bool:
    details = error(response, 429, "budget_exceeded")["details"]
    assert int(response.headers["retry-after"]) >= 1
    return (details["limit"], details["most"]) == (use.value, most)


def test_watches_of_a_tenant_are_limited_by_what_it_owns_and_others_have_their_own(small: Running, raw: Raw) -> None:
    first = token_of(small, Role.TENANT, name="acme")
    second = token_of(small, Role.TENANT, name="acme-ci")
    other = token_of(small, Role.TENANT, name="other", owns={"scopes": ["wide"]})
    assert raw.status(asked("/v1/watch", first)) == 200
    assert raw.status(asked("/v1/watch", second)) == 200
    with client_of(small, first) as client:
        assert is_limited(client.get("/v1/watch"), UseKind.WATCHES, 2)
        assert client.get("/v1/vms").status_code == 200
    assert raw.status(asked("/v1/watch", other)) == 200
    assert raw.status(asked("/v1/watch", small.service.tokens.operator_token)) == 200


def test_a_watch_that_has_ended_makes_room(small: Running, raw: Raw) -> None:
    token = token_of(small, Role.TENANT, name="acme")
    watches = [raw.send(asked("/v1/watch", token)) for _ in range(2)]
    assert eventually(lambda: in_use(small, "tenant:acme", UseKind.WATCHES) == 2)
    watches[0].close()
    assert eventually(lambda: in_use(small, "tenant:acme", UseKind.WATCHES) == 1)
    assert raw.status(asked("/v1/watch", token)) == 200


def test_the_oldest_watch_of_a_host_makes_room_for_a_new_one(small: Running, raw: Raw) -> None:
    """An endpoint whose connection broke comes back before its old watch is known to be dead; others never notice."""
    token, other = token_of(small, Role.HOST, host=HOST), token_of(small, Role.HOST, host="host-Web_1")
    honest = raw.send(asked("/v1/hosts/host-Web_1/watch", other))
    watches = [raw.send(asked(f"/v1/hosts/{HOST}/watch", token)) for _ in range(2)]
    assert eventually(lambda: in_use(small, f"host:{HOST}", UseKind.WATCHES) == 2)
    for _ in range(3):
        assert raw.status(asked(f"/v1/hosts/{HOST}/watch", token)) == 200
    assert [b'"kind":"state"' in watch.rest() for watch in watches] == [True, True]
    assert in_use(small, f"host:{HOST}", UseKind.WATCHES) == 2
    assert small.do(lambda: len(small.service.context.hub)) == 3
    assert honest.has_more
    assert in_use(small, "host:host-Web_1", UseKind.WATCHES) == 1


def test_a_host_that_begins_watches_without_end_is_refused_and_others_are_not(small: Running, raw: Raw) -> None:
    """Each new watch ends the oldest one of the same host: two processes with one token would go on for ever."""
    token, other = token_of(small, Role.HOST, host=HOST), token_of(small, Role.HOST, host="host-Web_1")
    statuses = [raw.status(asked(f"/v1/hosts/{HOST}/watch", token)) for _ in range(14)]
    assert statuses[:12] == [200] * 12
    assert statuses[-1] == 429
    assert in_use(small, f"host:{HOST}", UseKind.WATCHES) == 2
    assert raw.status(asked("/v1/hosts/host-Web_1/watch", other)) == 200


def test_a_caller_who_goes_on_after_refusals_is_refused_unread_and_only_that_kind_of_request(
    small: Running, raw: Raw
) -> None:
    token = token_of(small, Role.TENANT, name="acme")
    other = token_of(small, Role.TENANT, name="other", owns={"scopes": ["wide"]})
    watch = asked("/v1/watch", token)
    assert [raw.status(watch) for _ in range(2)] == [200, 200]
    codes = []
    for _ in range(9):
        refused = raw.send(watch)
        codes.append(json.loads(refused.read().body)["error"]["code"])
        refused.close()
    assert codes == ["budget_exceeded"] * 6 + ["too_many_refusals"] * 3
    answer = raw.send(watch).read()
    assert (answer.status, answer.headers["retry-after"], answer.closes) == (429, "5", True)
    assert eventually(lambda: in_use(small, "tenant:acme", UseKind.CONNECTIONS) == 2)
    with client_of(small, token) as client, small.operator() as api:
        assert client.get("/v1/vms").status_code == 200
        assert client.post("/v1/vms/none/restart").status_code == 404
        assert 'forewarn_limited_total{limit="refusals"} 4.0' in api.get("/metrics").text
        (met,) = [each for each in api.get("/v1/limits").json()["items"] if each["name"] == "tenant:acme"]
        assert met["limited"] == {"watches": 6, "refusals": 4}
    assert raw.status(asked("/v1/watch", other)) == 200


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((b"authorization", b"Bearer t"), (b"authorization", b"bearer   t ")),
        ((b"cookie", b"__Host-forewarn-80=s"), (b"cookie", b"a=1; __Host-forewarn-80=s; forewarn-81=2")),
        ((b"cookie", b"forewarn-80=s"), (b"cookie", b"x=y; forewarn-80=s")),
    ],
)
def test_what_is_sent_beside_a_token_or_session_makes_nobody_somebody_else(
    first: tuple[bytes, bytes], second: tuple[bytes, bytes]
) -> None:
    host, other = (b"host", b"control:80"), (b"cookie", b"random=17")
    assert credential_of([host, first]) is not None
    assert credential_of([host, first]) == credential_of([second, host])
    if first[0] == b"authorization":
        assert credential_of([first]) == credential_of([other, second])
    assert credential_of([host, other]) is None


STRANGER = "127.0.7.7"


@pytest.fixture
def wary(tmp_path: Path) -> Iterator[Running]:
    """A service that takes little from callers who are not known."""
    with running(tmp_path, unknown_requests_per_address_minute_max=60, unknown_requests_per_minute_max=300) as started:
        yield started


@pytest.mark.parametrize("path", ["/v1/whoami", "/", "/login", "/healthz"])
def test_a_stranger_who_goes_on_is_refused_unread_and_known_callers_of_that_address_are_not(
    wary: Running, path: str
) -> None:
    parts = urlsplit(wary.service.control_url)
    address = (parts.hostname or "", parts.port or 0)

    def status(path: str, token: str, source: str) -> int:
        with Wire(address, source) as wire:
            return wire.ask(asked(path, token)).status

    known = token_of(wary, Role.TENANT, name="acme")
    assert status("/v1/whoami", known, STRANGER) == 200
    codes = []
    for number in range(14):
        with Wire(address, STRANGER) as wire:
            codes.append(b"too_many_refusals" in wire.ask(asked(path, f"wrong-{number}")).body)
    assert codes[:10] == [False] * 10, "a sixth of a minute's may come at once"
    assert codes[-1]
    assert status("/v1/whoami", known, STRANGER) == 200
    assert status("/v1/whoami", token_of(wary, Role.TENANT, name="new"), "127.0.7.8") == 200
    for number in range(12):
        status(path, "wrong", f"127.0.8.{number + 1}")
    assert status(path, "wrong", "127.0.9.1") == 429, "all strangers together have a limit, too"
    assert status("/v1/whoami", known, "127.0.9.2") == 200


def test_a_token_that_was_revoked_is_that_of_a_stranger(wary: Running) -> None:
    """It is looked up once more, and then no more than others are."""
    with wary.operator() as api:
        made = api.post("/v1/tokens", json={"name": "gone", "role": "read-only"}).json()
        with client_of(wary, made["token"]) as client:
            assert client.get("/v1/whoami").status_code == 200
            api.delete(f"/v1/tokens/{made['id']}").raise_for_status()
            assert client.get("/v1/whoami").status_code == 401
        throttle = wary.service.context.admission.throttle
        header = (b"authorization", f"Bearer {made['token']}".encode())
        assert not wary.do(lambda: throttle.is_known(credential_of([header])))


def test_live_pages_of_a_tenant_are_limited_and_its_pages_are_not(small: Running, raw: Raw) -> None:
    token = token_of(small, Role.TENANT, name="acme")
    with Browser(small) as browser:
        assert browser.send_form("/login", token=token, next="/").status_code == 200
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        host = urlsplit(browser.origin).netloc
        live = f"GET /live/ HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n".encode()
        assert [raw.status(live) for _ in range(3)] == [200, 200, 429]
        assert browser.get("/").status_code == 200


def test_a_loop_of_changes_of_a_tenant_is_ended_and_does_not_end_those_of_others(small: Running) -> None:
    tenant = token_of(small, Role.TENANT, name="acme")
    other = token_of(small, Role.TENANT, name="other", owns={"scopes": ["wide"]})
    small.enable(small.web[0])
    with client_of(small, tenant) as client:
        statuses = []
        for _ in range(3):
            made = client.post("/v1/vms/Web_0/restart")
            statuses.append(made.status_code)
            taken_back = client.post(f"/v1/maintenance/{made.json()['items'][0]['id']}/cancel", json={})
            statuses.append(taken_back.status_code)
        assert statuses == [201, 200] * 2 + [201, 429]
        assert is_limited(client.post("/v1/vms/Web_0/restart"), UseKind.CHANGES, 5)
        assert client.get("/v1/vms").status_code == 200
    with client_of(small, other) as client:
        assert client.post("/v1/vms/Wide_0/restart").status_code == 201
    with small.operator() as api:
        answers = [api.post("/v1/vms/none/restart").status_code for _ in range(100)]
    assert set(answers) == {404}


def test_bodies_that_have_not_ended_are_limited_together(small: Running, raw: Raw) -> None:
    token = token_of(small, Role.TENANT, name="acme")
    slow = raw.send(asked("/v1/vms/none/restart", token, "Content-Length: 2500", method="POST") + b" " * 2400)
    assert eventually(lambda: in_use(small, "tenant:acme", UseKind.BODY_BYTES) == 2400)
    with client_of(small, token) as client:
        assert is_limited(client.post("/v1/vms/none/restart", content=b" " * 601), UseKind.BODY_BYTES, 3000)
        slow.close()
        assert eventually(lambda: in_use(small, "tenant:acme", UseKind.BODY_BYTES) == 0)
        assert client.post("/v1/vms/none/restart", content=b" " * 601).status_code != 429


def test_requests_at_work_are_limited(small: Running, raw: Raw) -> None:
    token = token_of(small, Role.TENANT, name="acme")
    for _ in range(2):
        raw.send(asked("/v1/vms/none/restart", token, "Content-Length: 1", method="POST"))
    assert eventually(lambda: in_use(small, "tenant:acme", UseKind.REQUESTS) == 2)
    with client_of(small, token) as client:
        assert is_limited(client.get("/v1/vms"), UseKind.REQUESTS, 2)


def test_connections_of_a_caller_are_limited(small: Running, raw: Raw) -> None:
    token = token_of(small, Role.TENANT, name="acme")
    for _ in range(8):
        assert raw.status(asked("/v1/whoami", token)) == 200
    assert raw.status(asked("/v1/whoami", token)) == 429
    assert in_use(small, "tenant:acme", UseKind.CONNECTIONS) == 8


def test_whoever_meets_a_limit_is_counted_and_named(small: Running, raw: Raw) -> None:
    token = token_of(small, Role.TENANT, name="acme")
    with capture_logs() as logs, small.operator() as api:
        for _ in range(5):
            raw.status(asked("/v1/watch", token))
        assert 'forewarn_limited_total{limit="watches"} 3.0' in api.get("/metrics").text
        assert eventually(lambda: any("limits of the control API" in line["event"] for line in logs))
        (line,) = [line for line in logs if "limits of the control API" in line["event"]]
        assert line["worst"] == "tenant:acme: watches"
        items = api.get("/v1/limits").json()["items"]
        (met,) = [item for item in items if item["name"] == "tenant:acme"]
        assert met["used"]["watches"] == 2
        assert met["most"]["watches"] == 2
        assert met["limited"] == {"watches": 3}


def test_honest_use_meets_no_limit(service: Running) -> None:
    """With default settings: many dashboards of one tenant, and changes of an operator without a pause."""
    token = token_of(service, Role.TENANT, name="many")
    with contextlib.ExitStack() as stack, Browser(service) as browser:
        assert browser.send_form("/login", token=token, next="/").status_code == 200
        cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        live = f"GET /live/ HTTP/1.1\r\nHost: {urlsplit(browser.origin).netloc}\r\nCookie: {cookie}\r\n\r\n".encode()
        held = Raw(service, stack)
        assert [held.status(live) for _ in range(40)] == [200] * 40
        with service.operator() as api:
            assert {api.post("/v1/vms/none/restart").status_code for _ in range(300)} == {404}

"""What deployed clients depend on (W1 to W10), with the libraries that they are made of."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib import error as urllib_error
from urllib import request as urllib_request

import httpx
import pytest
import requests
from requests.adapters import HTTPAdapter

from forewarn.wire.imds import VERSIONS
from tests.support.service import Running, Vm
from tests.support.spans import GUARD_S
from tests.support.wire import EVENTS, LATEST, approval, get, post

METADATA = {"Metadata": "true"}
PATH = f"{EVENTS}?api-version={LATEST}"


@dataclass(frozen=True)
class Got:
    """An answer, as a library hands it out."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Ask = Callable[[str, str, bytes | None], Got]
"""Method, path and body to the answer."""


@contextmanager
def by_urllib(service: Running, vm: Vm) -> Iterator[Ask]:
    """A new connection for each request, `Connection: close`, a form's content type."""

    class Connection(http.client.HTTPConnection):
        def __init__(self, host: str, **options: object) -> None:
            super().__init__(host, timeout=GUARD_S, source_address=(vm.address, 0))

    class Handler(urllib_request.HTTPHandler):
        def http_open(self, req: urllib_request.Request) -> http.client.HTTPResponse:
            return self.do_open(Connection, req)

    opener = urllib_request.build_opener(Handler, urllib_request.ProxyHandler({}))

    def ask(method: str, path: str, body: bytes | None) -> Got:
        request = urllib_request.Request(service.url + path, data=body, headers=METADATA, method=method)  # noqa: S310
        try:
            with opener.open(request) as response:
                return Got(response.status, dict(response.headers.items()), response.read())
        except urllib_error.HTTPError as response:
            with response:
                return Got(response.code, dict(response.headers.items()), response.read())

    yield ask


@contextmanager
def by_http_client(service: Running, vm: Vm) -> Iterator[Ask]:
    """One connection, kept."""
    host, port = service.address
    connection = http.client.HTTPConnection(host, port, timeout=GUARD_S, source_address=(vm.address, 0))

    def ask(method: str, path: str, body: bytes | None) -> Got:
        connection.request(method, path, body, METADATA)
        response = connection.getresponse()
        return Got(response.status, dict(response.getheaders()), response.read())

    try:
        yield ask
    finally:
        connection.close()


@contextmanager
def by_requests(service: Running, vm: Vm) -> Iterator[Ask]:
    """A session."""

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - handed on as they come
            super().init_poolmanager(*arguments, source_address=(vm.address, 0), **options)

    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", Adapter())

        def ask(method: str, path: str, body: bytes | None) -> Got:
            response = session.request(method, service.url + path, data=body, headers=METADATA, timeout=GUARD_S)
            return Got(response.status_code, response.headers, response.content)

        yield ask


@contextmanager
def by_httpx(service: Running, vm: Vm) -> Iterator[Ask]:
    """A client."""
    transport = httpx.HTTPTransport(local_address=vm.address)
    with httpx.Client(transport=transport, trust_env=False, base_url=service.url, headers=METADATA) as client:

        def ask(method: str, path: str, body: bytes | None) -> Got:
            response = client.request(method, path, content=body)
            return Got(response.status_code, response.headers, response.content)

        yield ask


CLIENTS = [by_urllib, by_http_client, by_requests, by_httpx]
Client = Callable[[Running, Vm], AbstractContextManager[Ask]]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_handler_made_of_any_library_sees_an_event_from_beginning_to_end(service: Running, client: Client) -> None:
    """W2, W4, W5, W8, W10: asks for its name, polls, approves on each poll, polls until the event is gone."""
    vm = service.vm()
    with client(service, vm) as ask:
        name = json.loads(ask("GET", "/metadata/instance/compute?api-version=2019-08-01", None).body)["name"]
        assert json.loads(ask("GET", PATH, None).body) == {"DocumentIncarnation": 1, "Events": []}
        event_id = service.event(vm)
        for status in ("Scheduled", "Started", "Started"):
            got = ask("GET", PATH, None)
            assert got.headers["Content-Type" if "Content-Type" in got.headers else "content-type"].startswith(
                "application/json"
            )
            (event,) = json.loads(got.body)["Events"]
            assert (event["EventId"], event["EventStatus"], event["Resources"]) == (event_id, status, [name])
            approved = ask("POST", PATH, approval(event_id))
            assert (approved.status, approved.body) == (200, b"")
        service.complete(vm)
        assert json.loads(ask("GET", PATH, None).body)["Events"] == []
        assert ask("GET", EVENTS, None).status == 400
        assert ask("GET", PATH, None).status == 200


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_an_event_has_exactly_the_members_of_its_version(service: Running, version: object) -> None:
    """W1, R18: a client that makes a class of the members dies of an unknown one."""
    row = next(each for each in VERSIONS if each is version)
    vm = service.vm()
    service.event(vm)
    members = ["EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore", *row.members]
    with service.wire(vm) as wire:
        for _ in range(2):
            document = wire.ask(get(row.name)).json
            assert list(document) == ["DocumentIncarnation", "Events"]
            assert list(document["Events"][0]) == members


def test_every_answer_with_a_body_is_json_by_its_content_type(service: Running) -> None:
    """W2."""
    with service.wire(service.vm()) as wire:
        for request in (get(), get(), get("x"), get(metadata=None), post(b"{"), post(b'{"StartRequests":[]}')):
            assert wire.ask(request).headers["content-type"].startswith("application/json")


def test_a_reused_socket_loses_no_approval_when_the_server_closes(service: Running) -> None:
    """W3: whatever ends the connection is announced in the answer before."""
    vm = service.vm()
    event_id = service.event(vm)
    endings = [get(LATEST, "Connection: close"), get().replace(b"HTTP/1.1", b"HTTP/1.0"), b"no HTTP\r\n\r\n"]
    endings += [get(LATEST, "X: " + "x" * (1 << 16)), post(b" " * (2 << 20))]
    for ending in endings:
        with service.wire(vm) as wire:
            answer = wire.ask(ending)
            assert answer.closes
            assert wire.is_ended
    for going_on in (
        get(),
        get("x"),
        get(metadata=None),
        get(path="/x"),
        get(method="PUT"),
        post(b"{"),
        get(method="HEAD"),
    ):
        with service.wire(vm) as wire:
            assert not wire.ask(going_on).closes
            assert wire.ask(post(approval(event_id))).status == 200


def test_an_approval_is_answered_200_with_nothing_that_cannot_be_parsed(service: Running) -> None:
    """W4, R57."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        answer = wire.ask(post(approval(event_id)))
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")
    assert answer.head.startswith(b"HTTP/1.1 200 OK\r\n")


def test_approving_again_on_every_poll_is_200_each_time(service: Running) -> None:
    """W5, R49: while Scheduled, while Started, and after the end."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        for _ in range(3):
            assert wire.ask(post(approval(event_id))).status == 200
        assert wire.ask(get()).json["Events"][0]["EventStatus"] == "Started"
        service.complete(vm)
        assert wire.ask(get()).json["Events"] == []
        assert wire.ask(post(approval(event_id))).status == 200


@pytest.mark.parametrize("version", [version.name for version in VERSIONS])
@pytest.mark.parametrize("more", [{}, {"DocumentIncarnation": "1"}, {"DocumentIncarnation": 99}])
def test_an_approval_may_come_in_any_version_and_with_any_incarnation(
    service: Running, version: str, more: dict[str, object]
) -> None:
    """W6, R23, R48."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        assert wire.ask(get()).status == 200
        assert wire.ask(post(approval(event_id, **more), version)).status == 200
    assert service.is_approved(event_id)


def test_names_in_resources_are_those_of_the_instance_in_the_inventorys_case(service: Running) -> None:
    """W7: the VM finds itself by an exact comparison."""
    vm = service.web[1]
    service.enable(vm)
    service.schedule(vm)
    with service.wire(vm) as wire:
        name = wire.ask(get("2019-08-01", path="/metadata/instance/compute")).json["name"]
        assert name == "Web_1"
        assert name in wire.ask(get()).json["Events"][0]["Resources"]
        assert wire.ask(get("2017-03-01")).json["Events"][0]["Resources"] == [f"_{name}"]


def test_new_connections_and_kept_ones_are_both_answered_from_memory(service: Running) -> None:
    """W8."""
    vm = service.vm()
    service.enable(vm)
    for request, is_kept in ((get(), True), (get(LATEST, "Connection: close"), False)):
        before = service.fast()
        if is_kept:
            with service.wire(vm) as wire:
                for _ in range(20):
                    wire.ask(request)
        else:
            for _ in range(20):
                with service.wire(vm) as wire:
                    wire.ask(request)
        assert service.fast() - before >= 19


def test_the_incarnation_starts_at_one(service: Running) -> None:
    """W9, R45: 0 reads as "unset" in one client."""
    with service.wire(service.vm()) as wire:
        assert wire.ask(get()).json["DocumentIncarnation"] == 1


def test_a_vm_can_ask_for_its_name_before_it_asks_for_events(service: Running) -> None:
    """W10, X3."""
    vm = service.vm()
    with service.wire(vm) as wire:
        answer = wire.ask(get("2017-08-01", path="/metadata/instance"))
        assert answer.json["compute"]["name"] == vm.name

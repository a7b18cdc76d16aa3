"""Streams to hosts over real connections: what is on the wire, what a stream holds, and how it ends."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from forewarn import __version__
from forewarn.control.stream_connection import StreamConnection
from forewarn.core.access import Role
from forewarn.core.usage_limits import UseKind
from forewarn.host.control_plane_client import ControlPlaneClient
from tests.support.access import client_of, token_of
from tests.support.control import error
from tests.support.service import Running, eventually, running
from tests.support.wire import Wire

HOST = "host-Web_0"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as started:
        yield started


def open_wire(service: Running) -> Wire:
    parts = urlsplit(service.service.control_url)
    assert parts.hostname is not None
    assert parts.port is not None
    return Wire((parts.hostname, parts.port), "127.0.0.1")


def asked(token: str, *headers: str, host: str = HOST) -> bytes:
    lines = [f"GET /v1/hosts/{host}/watch HTTP/1.1", "Host: control", f"Authorization: Bearer {token}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def receive_until(wire: Wire, end: bytes) -> bytes:
    heard = b""
    while end not in heard:
        piece = wire.sock.recv(1 << 16)
        assert piece, heard
        heard += piece
    return heard


def count_tasks(service: Running) -> int:
    async def count() -> int:
        return len(asyncio.all_tasks())

    return service.run(count())


def test_a_stream_is_chunks_after_a_head_that_announces_the_end_of_the_connection(service: Running) -> None:
    with open_wire(service) as wire:
        wire.send(asked(token_of(service, Role.HOST, host=HOST)))
        head, _, rest = receive_until(wire, b"}\n\r\n").partition(b"\r\n\r\n")
        status, *headers = head.split(b"\r\n")
        assert status == b"HTTP/1.1 200 OK"
        assert {b"content-type: application/x-ndjson", b"transfer-encoding: chunked", b"connection: close"} <= set(
            headers
        )
        size, _, line = rest.partition(b"\r\n")
        assert line.startswith(b'{"kind":"state"')
        assert len(line) == int(size, 16) + len(b"\r\n")
        service.do(service.stop)
        assert wire.rest().endswith(b"0\r\n\r\n")


def test_a_stream_has_no_task_and_no_request(service: Running) -> None:
    token = token_of(service, Role.HOST, host=HOST)
    wires = []
    before = count_tasks(service)
    for _ in range(4):
        wire = open_wire(service)
        wires.append(wire)
        wire.send(asked(token))
        receive_until(wire, b"}\n\r\n")
    assert eventually(lambda: count_tasks(service) <= before + 1)
    connections = service.do(lambda: service.service.control.open_connections)
    assert [type(each) for each in connections].count(StreamConnection) == 4
    # Nothing that is kept grows with the layers of the app: neither object has a dictionary of attributes.
    streams = [each for each in connections if isinstance(each, StreamConnection)]
    assert not any(hasattr(each, "__dict__") or hasattr(each._source, "__dict__") for each in streams)
    for wire in wires:
        wire.close()
    assert eventually(lambda: service.do(lambda: len(service.service.context.hub)) == 0)
    assert eventually(lambda: service.do(lambda: service.service.control.pool._count) == 0)


def test_what_served_the_request_is_freed_without_the_garbage_collector(service: Running) -> None:
    """Garbage is collected rarely in a service, and thousands of hosts may connect at once."""

    def list_kept() -> list[RequestResponseCycle]:
        cycles = [each for each in gc.get_objects() if isinstance(each, RequestResponseCycle)]
        return [each for each in cycles if each.scope["path"].endswith("/watch")]

    token = token_of(service, Role.HOST, host=HOST)
    gc.collect()
    gc.disable()
    try:
        with open_wire(service) as wire:
            wire.send(asked(token))
            receive_until(wire, b"}\n\r\n")
            assert eventually(lambda: not list_kept())
    finally:
        gc.enable()


def test_a_request_behind_a_stream_is_not_answered_and_the_stream_goes_on(service: Running) -> None:
    vm = service.vm()
    host = next(each.host for each in service.service.identity.vms if each.name == vm.name)
    token = token_of(service, Role.HOST, host=host)
    with open_wire(service) as wire:
        wire.send(asked(token, host=host) * 2)
        receive_until(wire, b"}\n\r\n")
        wire.send(asked(token, host=host))
        wire.send(b"not HTTP")
        service.event(vm)
        heard = receive_until(wire, b'"kind":"document"')
        assert b"HTTP/1.1" not in heard
        assert service.do(lambda: len(service.service.context.hub)) == 1


def test_a_body_of_the_request_is_read_and_released(service: Running) -> None:
    token = token_of(service, Role.HOST, host=HOST)
    with open_wire(service) as wire:
        wire.send(asked(token, "Content-Length: 5") + b"hello")
        receive_until(wire, b"}\n\r\n")
        accounts = service.service.context.admission.accounts
        (account,) = service.do(lambda: [each for each in accounts if each.name == f"host:{HOST}"])
        assert eventually(lambda: account.used[UseKind.BODY_BYTES] == 0)
        assert account.used[UseKind.WATCHES] == 1


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/hosts/host-Web_1/watch", 403, "forbidden"),
        (f"/v1/hosts/{HOST}/x/watch", 404, "not_found"),
    ],
)
def test_a_host_watches_only_itself(service: Running, path: str, status: int, code: str) -> None:
    with client_of(service, token_of(service, Role.HOST, host=HOST)) as client:
        error(client.get(path), status, code)


def test_a_tenant_watches_no_host_and_an_operator_no_unknown_one(service: Running, api: httpx.Client) -> None:
    with client_of(service, token_of(service, Role.TENANT, name="acme")) as client:
        error(client.get(f"/v1/hosts/{HOST}/watch"), 403, "forbidden")
    error(api.get("/v1/hosts/none/watch"), 404, "not_found")
    assert service.do(lambda: len(service.service.context.hub)) == 0
    with api.stream("GET", f"/v1/hosts/{HOST}/watch") as response:
        assert response.status_code == 200
        assert next(response.iter_lines()).startswith('{"kind":"state"')


def test_the_endpoint_of_forewarn_says_its_version_and_other_programs_need_not(service: Running) -> None:
    token, streams = token_of(service, Role.HOST, host=HOST), service.service.context.host_streams

    async def watch() -> list[str]:
        client = ControlPlaneClient(HOST, [service.service.control_url], token)
        try:
            async with client.open_watch() as lines:
                await anext(lines)
                return [stream.version for stream in streams.list_streams()]
        finally:
            await client.close()

    assert asyncio.run(watch()) == [__version__]
    assert eventually(lambda: not len(streams))
    for agent in ("User-Agent: curl/8.5.0", "User-Agent: forewarn/" + "9" * 40, "X-Other: forewarn/1"):
        with open_wire(service) as wire:
            wire.send(asked(token, agent))
            receive_until(wire, b"}\n\r\n")
            assert [(stream.host, stream.version) for stream in streams.list_streams()] == [(HOST, "")]
        assert eventually(lambda: not len(streams))

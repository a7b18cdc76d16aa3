"""Clients that mean harm or are broken: the endpoint refuses them in its own words, and serves the others meanwhile."""

from __future__ import annotations

import contextlib
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.endpoint.descriptors import raise_descriptor_limit
from tests.support.service import Running, Vm, eventually, inventory, running
from tests.support.spans import GUARD_S, lasts, typical_s
from tests.support.ways import both_ways
from tests.support.wire import LATEST, Answer, Wire, approval, get, post

pytestmark = both_ways

REQUEST_TIMEOUT_S = 0.4
IDLE_TIMEOUT_S = 1
MALFORMED = b'{ "error": "Bad request: . Malformed HTTP request" }'
TOO_LARGE = b'{ "error": "Request header fields too large" }'
TOO_SLOW = b'{ "error": "Request timeout" }'
UNKNOWN = "00000000-0000-0000-0000-000000000000"


@pytest.fixture(scope="module")
def strict(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with little room."""
    folder = tmp_path_factory.mktemp("strict")
    with running(
        folder,
        connections_max=40,
        connections_per_vm_max=10,
        body_size_bytes_max=2000,
        header_size_bytes_max=1024,
        start_requests_max=20,
    ) as started:
        yield started


@pytest.fixture(scope="module")
def hasty(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with little patience."""
    folder = tmp_path_factory.mktemp("hasty")
    with running(folder, request_timeout=REQUEST_TIMEOUT_S, idle_timeout=IDLE_TIMEOUT_S) as started:
        yield started


def is_well(service: Running) -> bool:
    """Return whether another VM is answered."""
    with service.wire(service.vm()) as wire:
        return wire.ask(get()).status == 200


def refusal(service: Running, data: bytes, vm: Vm | None = None) -> Answer:
    """The one answer to what is sent, after which the connection ends as it says (W3)."""
    with service.wire(vm or service.vm()) as wire:
        answer = wire.ask(data)
        assert answer.closes
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert wire.is_ended
    return answer


# Slow


@pytest.mark.parametrize(
    "start",
    [
        b"G",
        get()[:-1],
        get()[:40],
        b"\r\nPOST ",
        post(b"12345")[:-1],
        get(LATEST, "Transfer-Encoding: chunked", method="POST") + b"5\r\nab",
    ],
    ids=["a letter", "headers", "path", "after an empty line", "body", "chunk"],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_request_that_does_not_come_to_its_end_is_408_and_closed(
    hasty: Running, start: bytes, is_first: bool
) -> None:
    """W3: others are served meanwhile."""
    with hasty.wire(hasty.vm()) as wire:
        if not is_first:
            assert wire.ask(get()).status == 200
        with lasts(REQUEST_TIMEOUT_S):
            wire.send(start)
            assert is_well(hasty)
            answer = wire.read()
        assert (answer.status, answer.body, answer.closes) == (408, TOO_SLOW, True)
        assert wire.is_ended


def test_a_request_that_trickles_in_is_408_all_the_same(hasty: Running) -> None:
    with hasty.wire(hasty.vm()) as wire:
        for byte in get():
            wire.send(bytes([byte]))
            if wire.has_more:
                break
            time.sleep(0.02)
        assert wire.read().status == 408


def test_a_body_that_nobody_waits_for_ends_the_connection_without_a_second_answer(hasty: Running) -> None:
    """W3: the next answer on a reused connection must not be one to nothing."""
    with hasty.wire(hasty.vm()) as wire:
        answer = wire.ask(post(b"12345", metadata=None)[:-1])
        assert answer.status == 400
        assert wire.is_ended


def test_a_request_that_stays_unfinished_behind_a_held_one_takes_no_answer_away(hasty: Running) -> None:
    vm = hasty.vm()
    hasty.enable(vm)
    with hasty.wire(vm) as wire:
        wire.send(get(LATEST, 'If-None-Match: "1"', "Prefer: wait=30") + b"GET /meta")
        assert wire.is_ended


def test_an_idle_connection_is_closed_after_a_while(hasty: Running) -> None:
    with hasty.wire(hasty.vm()) as silent, hasty.wire(hasty.vm()) as wire:
        assert wire.ask(get()).status == 200
        assert wire.is_ended
        assert silent.is_ended


# Large


@pytest.mark.parametrize(
    "data",
    [
        get(LATEST, "X: " + "x" * 2000),
        get(LATEST, *(f"X-{n}: y" for n in range(300))),
        get("x" * 2000),
        get(path="/" + "x" * 3_000_000),
        get(LATEST, "x" * 100_000 + ": y"),
        b"GET /" + b"x" * 2000,
        post(b"", LATEST, "X: " + "x" * 2000),
    ],
    ids=["header", "headers", "version", "huge path", "name", "path without end", "approval"],
)
def test_headers_over_the_limit_are_431(strict: Running, data: bytes) -> None:
    answer = refusal(strict, data)
    assert (answer.status, answer.body) == (431, TOO_LARGE)


@pytest.mark.parametrize("has_end", [True, False])
def test_large_trailers_are_431(strict: Running, has_end: bool) -> None:
    start = get(LATEST, "Transfer-Encoding: chunked", method="POST") + b"2\r\n{}\r\n0\r\n"
    trailers = b"X: y\r\n" * 20_000 + b"\r\n" if has_end else b"X: " + b"x" * 3_000_000
    answer = refusal(strict, start + trailers)
    assert (answer.status, answer.body) == (431, TOO_LARGE)


def test_a_trailer_is_no_header(service: Running) -> None:
    """R10: what comes behind the body was not there when the request was read."""
    start = get(LATEST, "Transfer-Encoding: chunked", method="POST", metadata=None) + b"2\r\n{}\r\n0\r\n"
    with service.wire(service.vm()) as wire:
        assert wire.ask(start + b"Metadata: true\r\n\r\n").status == 400


@pytest.mark.parametrize("size", [2001, 300_000, 5_000_000])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_over_the_limit_is_413_and_the_client_gets_to_read_it(
    strict: Running, size: int, is_chunked: bool
) -> None:
    body = b" " * size
    data = post(body)
    if is_chunked:
        data = get(LATEST, "Transfer-Encoding: chunked", method="POST") + b"%x\r\n%s\r\n0\r\n\r\n" % (size, body)
    answer = refusal(strict, data)
    assert (answer.status, answer.json) == (413, {"error": "Request body is larger than 2000 bytes"})


def test_a_body_at_the_limit_is_read(strict: Running) -> None:
    body = b'{"StartRequests":[]}'
    with strict.wire(strict.vm()) as wire:
        assert wire.ask(post(body + b" " * (2000 - len(body)))).status == 200


def test_more_start_requests_than_are_taken_are_400(service: Running, strict: Running) -> None:
    """R54: also two thousand of them, which the default refuses."""
    with strict.wire(strict.vm()) as wire:
        answer = wire.ask(post(b'{"StartRequests":[' + b"{}," * 20 + b"{}]}"))
        assert answer.json == {"error": "Bad request: . StartRequests has 21 elements: at most 20 are allowed"}
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        answer = wire.ask(post(approval(event_id, *[UNKNOWN] * 1999)))
        assert answer.json == {"error": "Bad request: . StartRequests has 2000 elements: at most 1000 are allowed"}
        assert wire.ask(post(approval(*[event_id] * 1000))).status == 200
    assert service.is_approved(event_id)


# No HTTP


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        get().replace(b"\r\n", b"\n"),
        get(LATEST, "X: a\x00b"),
        get(LATEST, "a b: c"),
        get(LATEST, ": c"),
        get(path="/\x00"),
        get(LATEST, "Content-Length: -1", method="POST"),
        get(LATEST, "Content-Length: 1, 2", method="POST"),
        get(LATEST, "Content-Length: 1", "Content-Length: 2", method="POST"),
        get(LATEST, "Content-Length: " + "9" * 30, method="POST"),
        get(LATEST, "Content-Length: 3", "Transfer-Encoding: chunked", method="POST") + b"0\r\n\r\n",
        get(LATEST, "Transfer-Encoding: chunked", method="POST") + b"zz\r\n",
        get(LATEST, "Transfer-Encoding: chunked, gzip", method="POST") + b"0\r\n\r\n",
        get(path="http://[/"),
    ],
)
def test_what_is_no_http_is_400_in_json_and_closed(service: Running, data: bytes) -> None:
    """R65: on a new connection and on one that was used."""
    assert refusal(service, data).body == MALFORMED
    with service.wire(service.vm()) as wire:
        assert wire.ask(get()).status == 200
        answer = wire.ask(data)
        assert (answer.status, answer.body, answer.closes) == (400, MALFORMED, True)
        assert wire.is_ended


def test_refusals_of_the_connection_are_counted_with_the_others(service: Running) -> None:
    counted = service.service.traffic.outcomes["other", "other", 400]
    refusal(service, b"no HTTP\r\n\r\n")
    assert service.service.traffic.outcomes["other", "other", 400] == counted + 1


def test_half_a_request_and_an_end_is_closed_without_an_answer(service: Running) -> None:
    for part in (b"", b"GET", get()[:-2], post(b"12345")[:-1]):
        with service.wire(service.vm()) as wire:
            wire.send(part)
            wire.end()
            assert wire.is_ended


def test_a_body_that_never_comes_does_not_keep_a_connection_open_whose_client_has_ended(service: Running) -> None:
    """Whether the request was answered before its end or not."""
    for request in (get(LATEST, "Content-Length: 1"), post(b"12345", metadata=None)[:-1]):
        with service.wire(service.vm()) as wire:
            assert wire.ask(request).status in {200, 400}
            wire.end()
            assert wire.is_ended


@pytest.mark.parametrize("part", [b"", get()[:30], get(), get() * 30, post(b"12345")[:-1]])
def test_a_reset_at_any_point_leaves_nothing_behind(service: Running, part: bytes) -> None:
    vm = service.vm()
    for _ in range(20):
        wire = service.wire(vm)
        wire.send(part)
        wire.reset()
    assert is_well(service)
    assert eventually(lambda: not service.is_connected(vm))
    caller = service.service.identity.resolve_caller(vm.address, "")
    assert caller is not None
    assert caller.usage.connections == 0


# Many


def crowd(service: Running, source: str | Vm, count: int, stack: contextlib.ExitStack) -> list[Wire]:
    return [stack.enter_context(service.wire(source)) for _ in range(count)]


@pytest.mark.parametrize("is_known", [True, False])
def test_connections_over_the_limit_of_one_vm_are_503_and_closed(strict: Running, is_known: bool) -> None:
    """W3: all unknown callers together have the room of one VM; other VMs have theirs."""
    assert eventually(lambda: strict.connection_count() == 0)
    source = strict.vm() if is_known else strict.stranger
    refused = strict.service.traffic.connections_refused
    with contextlib.ExitStack() as stack:
        crowd(strict, source, 10, stack)
        assert eventually(lambda: strict.connection_count() == 10)
        for _ in range(3):
            wire = stack.enter_context(strict.wire(source))
            answer = wire.read()
            assert (answer.status, answer.closes) == (503, True)
            assert answer.json == {"error": "Too many connections"}
            assert wire.is_ended
        assert is_well(strict)
        assert strict.service.traffic.connections_refused == refused + 3
    assert eventually(lambda: strict.connection_count() == 0)
    with strict.wire(source) as wire:
        assert wire.ask(get()).status == (200 if is_known else 404)


def test_connections_from_before_a_change_of_the_inventory_still_count_for_their_vm(tmp_path: Path) -> None:
    """Else a VM could hold its limit once for each change."""
    with running(tmp_path, connections_per_vm_max=3) as service, contextlib.ExitStack() as stack:
        vm = service.vm()
        changed = inventory()
        next(each for each in changed["vms"] if each["name"] == vm.name)["size"] = "Standard_D4"
        crowd(service, vm, 2, stack)
        assert eventually(lambda: service.connection_count() == 2)
        with service.operator() as operator:
            assert operator.put("/v1/inventory", json=changed).status_code == 200
        assert stack.enter_context(service.wire(vm)).ask(get()).status == 200
        assert refusal(service, b"", vm).status == 503


def test_connections_over_the_limit_of_all_are_503_and_closed(strict: Running) -> None:
    """W3: and there is room again once others have gone."""
    assert eventually(lambda: strict.connection_count() == 0)
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            crowd(strict, strict.vm(), 10, stack)
        assert eventually(lambda: strict.connection_count() == 40)
        assert refusal(strict, b"").status == 503
    assert eventually(lambda: strict.connection_count() == 0)
    assert is_well(strict)


@pytest.mark.slow
def test_ten_thousand_idle_connections_slow_nobody_down(tmp_path: Path) -> None:
    """W8: a few less where there are too few descriptors; the service and its clients share one process here.

    Looking through all of them for each request would make it hundreds of times as slow.
    """
    raise_descriptor_limit(21_000)
    count = min(100, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500) // 200)
    if count < 90:
        pytest.skip("needs 18,500 file descriptors in one process: raise the hard limit (ulimit -Hn)")
    with running(tmp_path, connections_per_vm_max=100) as service, contextlib.ExitStack() as stack:
        wire = stack.enter_context(service.wire(service.vm()))

        def ask() -> None:
            assert wire.ask(get()).status == 200

        ask()
        alone_s = typical_s(ask, 300)
        for _ in range(count):
            vm = service.vm()
            service.enable(vm)
            crowd(service, vm, 100, stack)
        assert eventually(lambda: service.connection_count() == 100 * count + 1)
        assert typical_s(ask, 300) < 10 * alone_s
        service.run(service.service.endpoint.stop())


# The end


def test_a_stop_answers_what_is_under_way_and_closes_the_rest(tmp_path: Path) -> None:
    """W3: an approval that was sent is approved, and its client hears of it."""
    with running(tmp_path) as service:
        busy, idle, slow = service.vm(), service.vm(), service.vm()
        event_id = service.event(busy)
        with service.wire(busy) as wire, service.wire(idle) as waiting, service.wire(slow) as unfinished:
            assert waiting.ask(get()).status == 200
            unfinished.send(get()[:30])
            assert wire.ask(get()).status == 200
            assert eventually(lambda: service.do(lambda: service.service.endpoint.connection_count) == 3)
            service.do(lambda: None)
            wire.send(post(approval(event_id)))
            assert eventually(lambda: bool(service.service.endpoint._state.tasks) or wire.has_more)
            service.run(service.service.endpoint.stop())
            assert wire.read().status == 200
            assert [each.is_ended for each in (wire, waiting, unfinished)] == [True] * 3
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(service.address, timeout=GUARD_S)
        assert service.is_approved(event_id)

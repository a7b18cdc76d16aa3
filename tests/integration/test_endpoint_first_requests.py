"""What has arrived of a client when its connection is accepted is handled alike in both ways (ADR 43).

While a test acts as a client, the service accepts nothing, so the whole of it has arrived when it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from forewarn.core.fault import InjectedFault
from forewarn.endpoint.gated_connection import GatedConnection
from forewarn.endpoint.messages import PositionReached
from forewarn.endpoint.position_gate import PositionGate
from forewarn.wire.exchange import Exchange
from tests.support.service import Running, Vm, eventually, running
from tests.support.ways import LOOPS, both_ways
from tests.support.wire import CLOSING, LATEST, Wire, approval, get, post

pytestmark = both_ways

# It asks for a condition, so it is never in the memo.
UNKNOWN = get(LATEST, 'If-None-Match: "999"')
NOTHING = b'{"StartRequests":[]}'


@pytest.fixture(scope="module", params=LOOPS)
def service(way: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that injects faults, on each of the event loops."""
    with running(tmp_path_factory.mktemp("service"), new_loop=request.param, fault_injection=True) as started:
        yield started


@pytest.fixture(autouse=True)
def _well_again(service: Running) -> Iterator[None]:
    yield
    service.do(service.service.faults.clear)


def stay(_: Wire) -> None:
    """Leave the connection open."""


LEAVING = pytest.mark.parametrize("leave", [stay, Wire.end, Wire.close], ids=["stays", "ends its side", "closes"])


def arrive(
    service: Running,
    vm: Vm,
    data: bytes,
    leave: Callable[[Wire], None] = stay,
    address: tuple[str, int] | None = None,
) -> Wire:
    """Connect, send and leave while the service accepts nothing."""

    def act() -> Wire:
        wire = Wire(address or service.address, vm.address)
        wire.send(data)
        leave(wire)
        return wire

    return service.do(act)


def journal(service: Running, vm: Vm, after: int) -> list[Exchange]:
    return service.service.journal.list_exchanges(after=after, vm=vm.name)


def newest(service: Running) -> int:
    return service.service.journal.newest_number


def is_quiet(service: Running, vm: Vm) -> bool:
    """Return whether nothing is left of the connections of that VM and of unknown callers."""
    unknown = service.do(service.service.traffic.unknown_connections.total)
    return (service.connection_count(), service.counted(vm), unknown) == (0, 0, 0)


# The journal


@LEAVING
@pytest.mark.parametrize(
    ("request_", "status"),
    [(get(), 200), (CLOSING, 200), (UNKNOWN, 200), (get("x"), 400)],
    ids=["kept", "closing", "unknown", "refused"],
)
def test_a_request_is_recorded_once_as_one_whose_client_was_there(
    service: Running, known: Vm, request_: bytes, status: int, leave: Callable[[Wire], None]
) -> None:
    """Also if the client has ended its side: nothing keeps the answer from it."""
    before = newest(service)
    with arrive(service, known, request_, leave) as wire:
        assert eventually(lambda: bool(journal(service, known, before)))
        if leave is not Wire.close:
            assert wire.read().status == status
        if leave is Wire.end:
            assert wire.is_ended
    assert eventually(lambda: is_quiet(service, known))
    [entry] = journal(service, known, before)
    assert (entry.source_address, entry.method, entry.status) == (known.address, "GET", status)
    assert (entry.is_client_gone, entry.fault) == (False, "")
    assert entry.answer or status != 200


@LEAVING
def test_an_approval_with_its_body_is_recorded_with_whether_its_client_was_there(
    service: Running, known: Vm, leave: Callable[[Wire], None]
) -> None:
    """R47: it takes a while, so the end of the client's side is seen before the answer."""
    event_id = service.event(known)
    before = newest(service)
    with arrive(service, known, post(approval(event_id)), leave) as wire:
        if leave is not Wire.close:
            assert wire.read().status == 200
        if leave is Wire.end:
            assert wire.is_ended
        assert eventually(lambda: bool(journal(service, known, before)))
    [entry] = journal(service, known, before)
    assert (entry.method, entry.status, entry.is_client_gone) == ("POST", 200, leave is not stay)
    assert service.is_approved(event_id)


def test_requests_are_recorded_in_the_order_of_their_connections(service: Running, known: Vm) -> None:
    others = [service.vm() for _ in range(5)]
    for vm in others:
        service.enable(vm)
    before = newest(service)

    def act() -> list[Wire]:
        wires = [service.wire(vm) for vm in others]
        for wire, request in zip(wires, [get(), CLOSING, get(), CLOSING, get()], strict=True):
            wire.send(request)
        return wires

    wires = service.do(act)
    assert [wire.read().status for wire in wires] == [200] * 5
    for wire in wires:
        wire.close()
    entries = service.service.journal.list_exchanges(after=before)
    assert [entry.vm for entry in entries] == [vm.name for vm in others]
    times = [entry.at for entry in entries]
    assert times == sorted(times)
    assert eventually(lambda: is_quiet(service, known))


# Pieces and heaps


@pytest.mark.parametrize("leave", [stay, Wire.end], ids=["stays", "ends its side"])
def test_requests_in_one_segment_are_answered_and_recorded_in_order(
    service: Running, known: Vm, leave: Callable[[Wire], None]
) -> None:
    """R6."""
    event_id = service.event(known)
    before = newest(service)
    requests = get() + get() + post(approval(event_id)) + get("x") + CLOSING
    with arrive(service, known, requests, leave) as wire:
        answers = [wire.read() for _ in range(5)]
        assert [answer.status for answer in answers] == [200, 200, 200, 400, 200]
        assert [answer.closes for answer in answers] == [False] * 4 + [True]
        assert wire.is_ended
    recorded = [(entry.method, entry.status) for entry in journal(service, known, before)]
    assert recorded == [("GET", 200), ("GET", 200), ("POST", 200), ("GET", 400), ("GET", 200)]
    assert eventually(lambda: is_quiet(service, known))


@LEAVING
@pytest.mark.parametrize("part", [get()[:-1], post(b"12345")[:-1], CLOSING[:3]], ids=["headers", "body", "method"])
def test_a_part_of_a_request_is_no_request(
    service: Running, known: Vm, part: bytes, leave: Callable[[Wire], None]
) -> None:
    before = newest(service)
    with arrive(service, known, part, leave) as wire:
        if leave is stay:
            assert eventually(lambda: service.counted(known) == 1)
            assert not wire.has_more
        elif leave is Wire.end:
            assert wire.is_ended
    with service.wire(known) as wire:
        assert wire.ask(get()).status == 200
    assert eventually(lambda: is_quiet(service, known))
    assert [entry.status for entry in journal(service, known, before)] == [200]


# Resets


@pytest.mark.parametrize(
    "data",
    [get(), CLOSING, UNKNOWN, get() + get(), post(NOTHING), get()[:30], b""],
    ids=["kept", "closing", "unknown", "two", "approval", "part", "nothing"],
)
def test_a_client_that_resets_its_connection_is_taken_for_no_other_and_leaves_nothing_behind(
    service: Running, known: Vm, data: bytes
) -> None:
    """R2: a request is recorded for its VM, or not at all."""
    before, strangers = newest(service), service.service.traffic.unknown_callers
    for _ in range(3):
        arrive(service, known, data, Wire.reset)
    # Connections are accepted in their order, so those before this one have been.
    with service.wire(known) as wire:
        assert [wire.ask(request).status for request in (get(), UNKNOWN)] == [200, 200]
    assert eventually(lambda: is_quiet(service, known))
    assert {entry.vm for entry in service.service.journal.list_exchanges(after=before)} == {known.name}
    assert service.service.traffic.unknown_callers == strangers


def test_a_reset_does_not_make_a_request_one_of_this_machine(service: Running, known: Vm) -> None:
    """R3: the check of Host is left out for a Unix socket, whose clients have no address either."""
    event_id = service.event(known)
    listening, address = service.listen_for(known)
    request = post(approval(event_id)).replace(b"Host: 169.254.169.254", b"Host: evil.example")
    with Wire(address, "127.0.0.1") as wire:
        assert wire.ask(request).status == 400
    arrive(service, Vm(known.name, "127.0.0.1"), request, Wire.reset, address)
    with Wire(address, "127.0.0.1") as wire:
        assert [wire.ask(each).status for each in (UNKNOWN, post(NOTHING))] == [200, 200]
    assert not service.is_approved(event_id)
    service.do(listening.close)


# Faults


def inject(service: Running, vm: Vm, kind: str, **how: Any) -> InjectedFault:  # noqa: ANN401 - of a fault
    return service.run(service.service.engine.faults.inject(kind, actor="operator:test", vms=[vm.name], **how))


@pytest.mark.parametrize("request_", [CLOSING, get(), UNKNOWN], ids=["closing", "kept", "unknown"])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("kind", "status"), [("refused", 0), ("503", 503)])
def test_a_fault_that_is_put_in_force_between_connection_and_request_strikes_once(
    service: Running, known: Vm, request_: bytes, is_first: bool, kind: str, status: int
) -> None:
    """R66: on a connection that has sent nothing, and on one whose first request was answered."""
    with service.wire(known) as wire:
        if not is_first:
            assert wire.ask(get()).status == 200
        before = newest(service)
        inject(service, known, kind, count=1)
        if kind == "refused":
            with pytest.raises(ConnectionResetError):  # noqa: PT012 - the reset may come before the request
                wire.sock.sendall(request_)
                wire.sock.recv(1)
        else:
            assert wire.ask(request_).status == status
        assert service.service.faults.all == ()
    assert [(entry.fault, entry.status) for entry in journal(service, known, before)] == [(kind, status)]
    with service.wire(known) as wire:
        assert wire.ask(request_).status == 200
    assert eventually(lambda: is_quiet(service, known))


@pytest.mark.parametrize("request_", [CLOSING, get(), b""], ids=["closing", "kept", "nothing"])
def test_a_connection_that_is_refused_by_a_fault_is_recorded_once_and_counts_for_nothing(
    service: Running, known: Vm, request_: bytes
) -> None:
    """R66."""
    before = newest(service)
    inject(service, known, "refused", count=1)
    with arrive(service, known, request_) as wire, pytest.raises(ConnectionResetError):
        wire.sock.recv(1)
    assert eventually(lambda: is_quiet(service, known))
    assert [(entry.fault, entry.status) for entry in journal(service, known, before)] == [("refused", 0)]
    with service.wire(known) as wire:
        assert wire.ask(CLOSING).status == 200


# With several processes


@pytest.mark.parametrize("request_", [CLOSING, get(), UNKNOWN], ids=["closing", "kept", "unknown"])
@LEAVING
def test_a_request_that_waits_for_what_is_published_is_answered_when_it_has_taken_effect(
    service: Running, known: Vm, request_: bytes, leave: Callable[[Wire], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if its client has ended its side meanwhile (ADR 41)."""
    published = memoryview(bytearray(8)).cast("Q")
    published[0] = 1
    gate = PositionGate(published, lambda _: None, lambda _: None)
    endpoint = service.service.endpoint
    monkeypatch.setattr(endpoint, "_make_connection", partial(GatedConnection, gate))
    monkeypatch.setattr(endpoint, "_is_current", gate.is_current)
    listening, address = service.listen_for(known)
    before = newest(service)
    with arrive(service, known, request_, leave, address) as wire:
        assert eventually(lambda: bool(service.do(lambda: list(gate._held))))
        assert journal(service, known, before) == []
        service.do(lambda: gate.add(PositionReached(1)))
        if leave is not Wire.close:
            assert wire.read().status == 200
        assert eventually(lambda: len(journal(service, known, before)) == 1)
        if leave is Wire.end or (leave is stay and request_ == CLOSING):
            assert wire.is_ended
    assert eventually(lambda: is_quiet(service, known))
    service.do(listening.close)

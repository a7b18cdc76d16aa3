"""The hot path answers what the app would answer, and nothing else (invariants 7 and 8 of the design, R28, W3, W8)."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from forewarn.wire.imds import VERSIONS
from tests.support.service import Running, Vm
from tests.support.ways import both_ways
from tests.support.wire import EVENTS, LATEST, Answer, Wire, approval, get, post

pytestmark = both_ways

ALL_VERSIONS = [version.name for version in VERSIONS]
NOTHING = b'{"StartRequests":[]}'

PLAIN = {
    **{f"version {name}": get(name) for name in ALL_VERSIONS},
    "first version without metadata": get("2017-03-01", metadata=None),
    "other case and trailing slash": get(path="/Metadata/ScheduledEvents/"),
    "absolute": get(path="http://169.254.169.254" + EVENTS),
    "more parameters": get(None, path=f"{EVENTS}?a=1&api-version=2019-01-01&b="),
    "curl": get(LATEST, "User-Agent: curl/8.5.0", "Accept: */*"),
    "requests": get(
        LATEST, "User-Agent: python-requests/2.32", "Accept-Encoding: gzip, deflate", "Connection: keep-alive"
    ),
    "host with a port": get().replace(b"169.254.169.254", b"localhost:8169"),
    "content type": get(LATEST, "Content-Type: application/json"),
    "cookie and referer": get(LATEST, "Cookie: a=b", "Referer: http://x/"),
    "metadata last and shouted": get(LATEST, "X: y", "METADATA:  TRUE ", metadata=None),
    "metadata twice": get(LATEST, "Metadata: True"),
    "empty lines before": b"\r\n\r\n" + get(),
}
CLOSING = {
    "close": get(LATEST, "Connection: close"),
    "close in a list": get(LATEST, "Connection: TE, Close"),
    "keep-alive, then close": get(LATEST, "Connection: keep-alive", "Connection: close"),
    "proxy-connection": get(LATEST, "Proxy-Connection: close"),
    "old": get().replace(b"HTTP/1.1", b"HTTP/1.0"),
    "old without host": get().replace(b"HTTP/1.1", b"HTTP/1.0").replace(b"Host: 169.254.169.254\r\n", b""),
    "old keep-alive": get(LATEST, "Connection: keep-alive").replace(b"HTTP/1.1", b"HTTP/1.0"),
}
NEVER = {
    "if-none-match": get(LATEST, 'If-None-Match: "9"'),
    "prefer": get(LATEST, "Prefer: wait=1"),
    "range": get(LATEST, "Range: bytes=0-1"),
    "empty body": get(LATEST, "Content-Length: 0"),
    "body": get(LATEST, "Content-Length: 2") + b"{}",
    "chunked body": get(LATEST, "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "expect": get(LATEST, "Expect: 100-continue"),
    "upgrade": get(LATEST, "Connection: Upgrade", "Upgrade: h2c"),
    "approval": post(NOTHING),
    "head": get(method="HEAD"),
    "another path": get(path="/metadata/x"),
    "the versions": get(None, path="/metadata/versions"),
    "the instance": get("2021-02-01", path="/metadata/instance"),
    "a bad version": get("2021-02-01"),
    "no version": get(None),
    "no metadata": get(metadata=None),
    "no host": get().replace(b"Host: 169.254.169.254\r\n", b""),
    "foreign host": get().replace(b"169.254.169.254", b"evil.example"),
    "two hosts": get(LATEST, "Host: evil.example"),
    "origin": get(LATEST, "Origin: http://evil.example"),
    "browser": get("2017-03-01", "Sec-Fetch-Site: cross-site", metadata=None),
    "contradicting metadata": get(LATEST, "Metadata: false"),
    "forwarded": get(LATEST, "X-Forwarded-For: 127.0.0.1"),
    "parameter twice": get(None, path=f"{EVENTS}?api-version={LATEST}&api-version={LATEST}"),
    "long": get(LATEST, "X: " + "x" * 2048),
    "two at once": get() + get(),
}


def memo(service: Running) -> set[bytes]:
    return set(service.service.traffic.memo)


def fast(service: Running) -> int:
    return sum(service.service.traffic.fast_path_counts)


# The same answer


@pytest.mark.parametrize("request_", PLAIN.values(), ids=PLAIN)
def test_the_second_answer_comes_from_memory_and_equals_the_first(service: Running, request_: bytes) -> None:
    """W8."""
    vm = service.vm()
    service.event(vm)
    service.forget()
    with service.wire(vm) as wire:
        before = fast(service)
        first = wire.ask(request_)
        assert (first.status, fast(service), memo(service)) == (200, before, {request_})
        second = wire.ask(request_)
        assert (second.lasting, fast(service)) == (first.lasting, before + 1)
    with service.wire(vm) as wire:
        assert wire.ask(request_).lasting == first.lasting
        assert fast(service) == before + 2
    recorded = {
        (entry.method, entry.target, tuple((name, value.strip()) for name, value in entry.headers))
        for entry in service.service.journal.list_exchanges(vm=vm.name)[-3:]
    }
    assert len(recorded) == 1, "requests answered from memory are recorded like the first"


@pytest.mark.parametrize("request_", CLOSING.values(), ids=CLOSING)
def test_a_request_that_closes_is_told_so_and_closed_on_either_path(service: Running, request_: bytes) -> None:
    """W3, W8."""
    vm = service.vm()
    service.enable(vm)
    service.forget()
    before = fast(service)
    answers: list[Answer] = []
    for _ in range(2):
        with service.wire(vm) as wire:
            answers.append(wire.ask(request_))
            assert answers[-1].closes
            assert wire.is_ended
    assert answers[0].lasting == answers[1].lasting
    assert fast(service) == before + 1


@pytest.mark.parametrize("request_", NEVER.values(), ids=NEVER)
def test_a_request_that_could_be_answered_otherwise_is_never_remembered(service: Running, request_: bytes) -> None:
    vm = service.vm()
    service.enable(vm)
    service.forget()
    before = fast(service)
    for _ in range(3):
        with service.wire(vm) as wire:
            first = wire.ask(request_)
            assert wire.ask(request_).lasting == first.lasting
    assert (memo(service), fast(service)) == (set(), before)


def test_the_enabling_request_itself_is_remembered(service: Running) -> None:
    """R67, W8."""
    service.forget()
    with service.wire(service.vm()) as wire:
        assert wire.ask(get()).status == 200
    assert memo(service) == {get()}


def test_an_unknown_caller_teaches_nothing_and_is_not_answered_from_memory(service: Running) -> None:
    """R2."""
    service.forget()
    with service.wire(service.stranger) as wire:
        assert [wire.ask(get()).status for _ in range(2)] == [404, 404]
    assert memo(service) == set()
    service.enable(service.vm())
    with service.wire(service.stranger) as wire:
        assert [wire.ask(get()).status for _ in range(2)] == [404, 404]


NAMES = [
    "Metadata",
    "Host",
    "Connection",
    "Proxy-Connection",
    "If-None-Match",
    "Prefer",
    "Expect",
    "Upgrade",
    "Range",
    "TE",
]
NAMES += [
    "X-Forwarded-For",
    "Content-Length",
    "Transfer-Encoding",
    "User-Agent",
    "Cookie",
    "metadata",
    "Keep-Alive",
    "X",
]
VALUES = [
    "true",
    "TRUE ",
    "false",
    "close",
    "keep-alive",
    "Upgrade",
    "h2c",
    "wait=0",
    "0",
    '"1"',
    "1",
    "*",
    "",
    "a, close",
]
VALUES += ["100-continue", "identity", "bytes=0-1", "\t", "é"]
HEADERS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=6)
TARGETS = [EVENTS, EVENTS + "/", "/metadata/scheduledEvents", "/metadata/versions", "/x"]
QUERIES = [f"?api-version={name}" for name in ["2017-03-01", LATEST, "2021-02-01"]] + [
    "",
    f"?api-version={LATEST}&api-version=x",
]


def outcome(service: Running, vm: Vm, data: bytes) -> bytes:
    """All that comes back on a fresh connection, but for the time, and for who ends the connection first."""
    with service.wire(vm) as wire:
        wire.send(data)
        wire.end()
        return re.sub(rb"(date|connection): [^\r]*\r\n", b"", wire.rest())


def check_memory_changes_nothing(service: Running, vm: Vm, data: bytes) -> None:
    service.forget()
    cold = outcome(service, vm, data)
    assert outcome(service, vm, data) == cold
    for name in ALL_VERSIONS:
        outcome(service, vm, get(name))
    assert outcome(service, vm, data) == cold
    with service.wire(vm) as wire:
        first = wire.ask(get())
        assert first.status == 200


@pytest.fixture(scope="module")
def settled(service: Running) -> Vm:
    """A VM that has an event."""
    vm = service.vm()
    service.event(vm)
    return vm


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    method=st.sampled_from(["GET", "GET", "GET", "HEAD", "POST", "PUT"]),
    target=st.sampled_from(TARGETS),
    query=st.sampled_from(QUERIES),
    headers=HEADERS,
    http=st.sampled_from(["1.1", "1.1", "1.0"]),
)
@example(
    method="GET",
    target=EVENTS,
    query=QUERIES[1],
    headers=[("Metadata", "true"), ("Proxy-Connection", "close")],
    http="1.1",
)
def test_what_was_asked_before_never_changes_an_answer(
    service: Running,
    settled: Vm,
    method: str,
    target: str,
    query: str,
    headers: list[tuple[str, str]],
    http: str,
) -> None:
    """Whatever is sent, a cold memo and a warm one answer the same."""
    assume(("Content-Length", "1") not in headers)  # whether the end comes before the answer is chance then
    lines = [f"{method} {target}{query} HTTP/{http}", *(f"{name}: {value}" for name, value in headers), "", ""]
    check_memory_changes_nothing(service, settled, "\r\n".join(lines).encode("latin-1"))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_was_asked_before_never_changes_the_answer_to_damaged_bytes(
    service: Running, settled: Vm, data: st.DataObject
) -> None:
    """A byte more, less or other, two requests in one, a request cut short: cold and warm answer the same."""
    original = data.draw(st.sampled_from([*PLAIN.values(), *CLOSING.values()]))
    start = data.draw(st.integers(0, len(original)))
    cut = data.draw(st.integers(0, 3))
    piece = data.draw(st.sampled_from([b"", b"\r\n", b"\n", b"\r", b"\x00", b" ", b":", b"GET ", get(), b"\xff"]))
    damaged = original[:start] + piece + original[start + cut :]
    check_memory_changes_nothing(service, settled, damaged + data.draw(st.sampled_from([b"", b"\r\n\r\n", get()])))


# Whose document


def test_equal_requests_of_two_vms_are_answered_with_their_own_documents(service: Running) -> None:
    """R2, invariant 8."""
    one, other = service.vm(), service.vm()
    ids = {vm.name: service.event(vm) for vm in (one, other)}
    with service.wire(one) as first, service.wire(other) as second:
        before = fast(service)
        for _ in range(10):
            for vm, wire in ((one, first), (other, second)):
                (event,) = wire.ask(get()).json["Events"]
                assert (event["EventId"], event["Resources"]) == (ids[vm.name], [vm.name])
        assert fast(service) >= before + 18


def test_the_same_incarnation_is_the_same_bytes_on_every_connection_and_path(service: Running) -> None:
    """R28, R42."""
    vm = service.vm()
    service.event(vm)
    for name in ALL_VERSIONS:
        bodies = set()
        for _ in range(3):
            with service.wire(vm) as wire:
                bodies |= {wire.ask(get(name)).body, wire.ask(get(name, 'If-None-Match: "0"')).body}
        assert len(bodies) == 1


def test_a_change_is_seen_by_the_very_next_request(service: Running) -> None:
    """R42, W5: approvals and GETs in turn on one connection."""
    vm = service.vm()
    service.enable(vm)
    with service.wire(vm) as wire:
        for turn in range(5):
            event_id = service.event(vm)
            assert wire.ask(get()).json["DocumentIncarnation"] == 2 + 3 * turn
            assert wire.ask(post(approval(event_id))).status == 200
            statuses = {event["EventId"]: event["EventStatus"] for event in wire.ask(get()).json["Events"]}
            assert statuses[event_id] == "Started"
            assert wire.ask(post(approval(event_id))).status == 200
            service.complete(vm)
            assert wire.ask(get()).json["Events"] == []


def test_a_learnt_request_keeps_its_scope_enabled(service: Running) -> None:
    """R69: the hot path notes when a VM last asked."""
    vm = service.vm()
    with service.wire(vm) as wire:
        wire.ask(get())
        channel = service.channel(vm)
        channel.last_polled_at = None
        assert wire.ask(get()).status == 200
        assert channel.last_polled_at is not None


# Limits


def test_one_vm_can_teach_only_a_few_requests(service: Running) -> None:
    one, other = service.vm(), service.vm()
    service.forget()
    with service.wire(one) as wire:
        for n in range(50):
            assert wire.ask(get(LATEST, f"X: {n}")).status == 200
    assert len(memo(service)) == 8
    with service.wire(other) as wire:
        for _ in range(2):
            assert wire.ask(get(LATEST, "X: 49")).status == 200
    assert len(memo(service)) == 9


def test_a_full_memo_begins_anew_and_everybody_may_teach_again(service: Running) -> None:
    vm = service.vm()
    traffic = service.service.traffic
    service.forget()
    with service.wire(vm) as wire:
        for n in range(8):
            wire.ask(get(LATEST, f"X: {n}"))
        for n in range(4096 - 8):
            service.service.traffic.remember_request(b"%d" % n, 0, closes=False, vm=f"other-{n // 8}")
        assert len(traffic.memo) == 4096
        with service.wire(service.vm()) as another:
            another.ask(get(LATEST, "X: more"))
        assert memo(service) == {get(LATEST, "X: more")}
        wire.ask(get(LATEST, "X: 0"))
        assert len(memo(service)) == 2
    service.forget()


def read_all(wire: Wire, count: int) -> list[Answer]:
    return [wire.read() for _ in range(count)]


def test_garbage_after_a_request_is_refused_after_its_answer(service: Running) -> None:
    """W3."""
    vm = service.vm()
    service.enable(vm)
    for turn in range(2):
        with service.wire(vm) as wire:
            answer = wire.ask(get() + b"garbage\r\n\r\n")
            assert (answer.status, answer.json["Events"], answer.closes) == (200, [], True), turn
            assert wire.is_ended
        with service.wire(vm) as wire:
            assert wire.ask(get()).status == 200
            answer = wire.ask(b"garbage\r\n\r\n")
            assert (answer.status, answer.closes) == (400, True)
            assert wire.is_ended

"""Strangers at the control address: what they can hold, and for how long, before anybody knows who they are."""

from __future__ import annotations

import contextlib
import gc
import resource
import socket
import ssl
import struct
import subprocess
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from forewarn.control.listener import ListenerConnection
from forewarn.control.stream_connection import StreamConnection
from forewarn.core.access import Role
from forewarn.net.tally import Tally
from tests.support.access import token_of
from tests.support.service import Running, eventually, running
from tests.support.spans import GUARD_S
from tests.support.wire import Answer, Wire, get

STRANGER = "127.0.7.7"
PROXY = "127.0.0.1"
HEADER_MAX = 1024
BODY_MAX = 2000
READ_AT_ONCE = 256 << 10


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with little patience."""
    with running(
        tmp_path_factory.mktemp("strict"),
        request_timeout=0.4,
        header_size_bytes_max=HEADER_MAX,
        body_size_bytes_max=BODY_MAX,
        control_idle_timeout=1,
        control_connections_max=24,
        control_unknown_connections_max=16,
        control_unknown_connections_per_address_max=8,
    ) as started:
        yield started


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service that ends nothing by itself, with little room."""
    with running(
        tmp_path_factory.mktemp("patient"),
        request_timeout=3600,
        header_size_bytes_max=HEADER_MAX,
        body_size_bytes_max=BODY_MAX,
        control_idle_timeout=3600,
        control_connections_max=24,
        control_unknown_connections_max=16,
        control_unknown_connections_per_address_max=8,
    ) as started:
        yield started


def address(service: Running) -> tuple[str, int]:
    parts = urlsplit(service.service.control_url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def wire(service: Running, source: str = STRANGER) -> Wire:
    return Wire(address(service), source)


def asked(path: str = "/v1/whoami", *headers: str, method: str = "GET", token: str = "") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: control", *headers]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def operator(service: Running) -> str:
    return service.service.tokens.operator_token


def open_connections(service: Running) -> list[ListenerConnection | StreamConnection]:
    return service.do(lambda: service.service.control.open_connections)


def unknown(service: Running) -> int:
    return service.do(lambda: service.service.control.pool.unknown_count)


def held_bytes(service: Running) -> int:
    return service.do(lambda: service.service.control.pool.unknown_size_bytes)


def is_refused(answer: Answer, status: int, code: str) -> bool:
    return (answer.status, answer.json["error"]["code"], answer.closes) == (status, code, True)


def settled(service: Running) -> None:
    assert eventually(lambda: not open_connections(service))


# Slow


@pytest.mark.parametrize(
    "start",
    [b"", b"G", asked()[:-1], b"\r\n\r\n", asked("/v1/vms", "Content-Length: 5", method="POST")],
    ids=["nothing", "a letter", "headers", "empty lines", "a body that does not come"],
)
def test_a_stranger_who_stays_silent_is_ended(strict: Running, start: bytes) -> None:
    with wire(strict) as silent:
        silent.send(start)
        silent.rest()
    settled(strict)


def test_a_request_that_trickles_is_ended(strict: Running) -> None:
    with wire(strict) as slow:
        for byte in asked("/v1/whoami", "X: " + "x" * 500):
            slow.send(bytes([byte]))
            if slow.has_more:
                break
            time.sleep(0.02)
        assert is_refused(slow.read(), 408, "request_timeout")
        assert slow.is_ended


def test_empty_lines_without_end_are_no_request(strict: Running) -> None:
    with wire(strict) as slow:
        ended = False
        for _ in range(1000):
            slow.send(b"\r\n")
            with contextlib.suppress(BlockingIOError):
                ended = slow.sock.recv(1, socket.MSG_DONTWAIT) == b""
            if ended:
                break
            time.sleep(0.01)
        assert ended


def test_a_body_that_trickles_is_ended_though_its_token_is_good(strict: Running) -> None:
    with wire(strict) as slow:
        slow.send(asked("/v1/vms/none/restart", "Content-Length: 1900", method="POST", token=operator(strict)))
        for _ in range(1000):
            slow.send(b" ")
            if slow.has_more:
                break
            time.sleep(0.02)
        assert is_refused(slow.read(), 408, "request_timeout")


def test_whoever_has_shown_a_token_may_be_silent_for_longer(strict: Running) -> None:
    """And a connection that was idle for its time is closed."""
    with wire(strict) as known, wire(strict) as silent:
        assert known.ask(asked(token=operator(strict))).status == 200
        assert silent.is_ended
        assert known.ask(asked(token=operator(strict))).status == 200
        assert known.is_ended


# Large


@pytest.mark.parametrize(
    "data",
    [
        asked("/v1/whoami", "X: " + "x" * 2000),
        asked("/v1/whoami", *(f"X-{n}: y" for n in range(300))),
        asked("/" + "x" * 3_000_000),
        b"GET /" + b"x" * 2000,
        asked("/v1/whoami", "X: " + "x" * 5_000_000)[:-2],
    ],
    ids=["header", "headers", "huge path", "path without end", "headers without end"],
)
def test_headers_over_the_limit_are_431(patient: Running, data: bytes) -> None:
    with wire(patient) as large:
        assert is_refused(large.ask(data), 431, "too_large")
        large.rest()


@pytest.mark.parametrize("has_end", [True, False])
def test_large_trailers_are_refused(patient: Running, has_end: bool) -> None:
    """They come behind the body, where nobody counts them as one."""
    start = asked("/v1/vms/none/restart", "Transfer-Encoding: chunked", method="POST", token=operator(patient))
    with wire(patient) as large:
        large.send(start + b"2\r\n{}\r\n0\r\n")
        large.send(b"X: y\r\n" * 20_000 + b"\r\n" if has_end else b"X: " + b"x" * 3_000_000)
        assert is_refused(large.read(), 431, "too_large")


def test_nothing_is_read_of_a_body_before_the_token_is_known(patient: Running) -> None:
    """Its sender is answered first; what it sends then is let go."""
    settled(patient)
    with wire(patient) as large:
        large.send(asked("/v1/inventory", "Content-Length: 50000000", method="PUT", token="wrong"))
        answer = large.read()
        assert is_refused(answer, 401, "unauthorized")
        (connection,) = open_connections(patient)
        assert isinstance(connection, ListenerConnection)
        large.send(b"x" * 500_000)
        assert eventually(lambda: patient.do(lambda: len(connection.cycle.body)) == 0)
        assert held_bytes(patient) <= READ_AT_ONCE
        large.send(b"x" * 2_000_000)
        large.rest()
    settled(patient)


def test_an_expected_body_is_not_asked_for_before_the_token_is_known(patient: Running) -> None:
    with wire(patient) as careful:
        answer = careful.ask(asked("/v1/inventory", "Content-Length: 9", "Expect: 100-continue", method="PUT"))
        assert answer.status == 401


@pytest.mark.parametrize("path", ["/login", "/logout", "/healthz", "/v2/none", "/schedule"])
def test_a_body_where_no_token_is_needed_is_small(patient: Running, path: str) -> None:
    with wire(patient) as large:
        head = asked(path, "Content-Length: 100000", "Origin: http://control", method="POST")
        large.send(head + b"x" * 100_000)
        assert large.read().status in {403, 404, 405, 413, 303}
    settled(patient)


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_over_the_limit_is_413(patient: Running, is_chunked: bool) -> None:
    size = 300_000
    length = "Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {size}"
    body = b"%x\r\n%s\r\n0\r\n\r\n" % (size, b" " * size) if is_chunked else b" " * size
    with wire(patient) as large:
        head = asked("/v1/vms/none/restart", length, method="POST", token=operator(patient))
        assert is_refused(large.ask(head + body), 413, "too_large")


def test_a_tenant_sends_no_inventory_that_is_larger_than_other_bodies(patient: Running) -> None:
    token = token_of(patient, Role.TENANT)
    with wire(patient) as large:
        head = asked("/v1/inventory", f"Content-Length: {BODY_MAX + 1}", method="PUT", token=token)
        assert is_refused(large.ask(head + b" " * (BODY_MAX + 1)), 413, "too_large")


def test_headers_that_strangers_leave_unfinished_are_bounded_together(tmp_path: Path) -> None:
    """The one that has waited longest makes room; whoever has shown a token stays."""
    with running(tmp_path, control_unknown_size_bytes_max=6000) as patient, contextlib.ExitStack() as stack:
        known = stack.enter_context(wire(patient))
        assert known.ask(asked(token=operator(patient))).status == 200
        crowd = [stack.enter_context(wire(patient, f"127.0.7.{n}")) for n in range(1, 11)]
        for each in crowd:
            each.send(asked("/v1/whoami", "X: " + "x" * 900)[:-2])
        assert eventually(lambda: len(open_connections(patient)) < 11)
        assert held_bytes(patient) <= 6000
        assert crowd[0].rest() == b""
        assert known.ask(asked(token=operator(patient))).status == 200
        stack.close()
        settled(patient)
        assert held_bytes(patient) == 0


# Many


def test_a_connection_that_was_refused_leaves_nothing_for_the_collector_of_cycles(patient: Running) -> None:
    """A flood would keep what it sent until the collector comes by, which is long after the flood."""
    settled(patient)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with contextlib.ExitStack() as stack:
            wires = [stack.enter_context(wire(patient)) for _ in range(8)]
            assert eventually(lambda: unknown(patient) == 8)
            opened = patient.do(lambda: patient.service.control.open_connections)
            left = [weakref.ref(each) for each in opened if not each._slot.is_known]
            del opened
            for each in wires:
                each.send(b"GET /v1/vms HTTP/1.1\r\nHost: control\r\n" + b"x: " + b"y" * 40_000 + b"\r\n")
                assert is_refused(each.read(), 431, "too_large")
        assert eventually(lambda: patient.do(lambda: [ref for ref in left if ref() is not None]) == [])
    finally:
        if was_enabled:
            gc.enable()
    settled(patient)


def test_connections_of_one_address_without_a_token_are_limited(patient: Running) -> None:
    """Others are served, and the log says which address it was, in one line."""
    settled(patient)
    refused = patient.service.control.pool.refused.total()
    patient.do(lambda: vars(patient.service.control._refused).update(vars(Tally())))  # it writes a line a minute
    with contextlib.ExitStack() as stack, capture_logs() as logs:
        for _ in range(8):
            stack.enter_context(wire(patient))
        assert eventually(lambda: unknown(patient) == 8)
        for _ in range(5):
            answer = stack.enter_context(wire(patient)).read()
            assert is_refused(answer, 503, "too_many_connections")
            assert int(answer.headers["retry-after"]) > 0
        with wire(patient, "127.0.7.8") as other:
            assert other.ask(asked(token=operator(patient))).status == 200
        assert patient.service.control.pool.refused.total() == refused + 5

        def told() -> list[dict[str, object]]:
            return [dict(line) for line in logs if "were refused" in line["event"]]

        assert eventually(lambda: len(told()) == 1)
        assert told()[0]["worst_address"] == STRANGER
    settled(patient)


def test_a_proxy_may_have_more_connections_than_an_address(patient: Running) -> None:
    settled(patient)
    with contextlib.ExitStack() as stack:
        for _ in range(12):
            stack.enter_context(wire(patient, PROXY))
        assert eventually(lambda: unknown(patient) == 12)
    settled(patient)


def test_strangers_from_everywhere_make_room_for_whoever_shows_a_token(patient: Running) -> None:
    settled(patient)
    with contextlib.ExitStack() as stack:
        crowd = [stack.enter_context(wire(patient, f"127.0.7.{n}")) for n in range(1, 17)]
        assert eventually(lambda: unknown(patient) == 16)
        known = stack.enter_context(wire(patient))
        assert known.ask(asked(token=operator(patient))).status == 200
        assert crowd[0].is_ended
        assert unknown(patient) == 15
    settled(patient)


def test_idle_strangers_at_the_control_address_do_not_take_the_connections_of_vms(patient: Running) -> None:
    settled(patient)
    with contextlib.ExitStack() as stack:
        for n in range(1, 100):
            stack.enter_context(wire(patient, f"127.0.7.{n}"))
        assert eventually(lambda: unknown(patient) == 16)
        vm = patient.vm()
        with patient.wire(vm) as asking:
            assert asking.ask(get()).status == 200
    settled(patient)


def test_running_out_of_descriptors_is_logged_and_is_over_when_there_are_some(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Captured until the service has ended: other services of this process may log first, and this one only then.
    with capture_logs() as logs, running(tmp_path) as service, contextlib.ExitStack() as stack:
        here = socket.socket()
        stack.callback(here.close)
        there = here.fileno()
        late = stack.enter_context(socket.socket())
        resource.setrlimit(resource.RLIMIT_NOFILE, (there, hard))
        try:
            late.connect(address(service))
            late.sendall(asked(token=operator(service)))
            assert eventually(lambda: any("cannot accept connections" in line["event"] for line in logs))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        late.settimeout(GUARD_S)
        assert late.recv(12) == b"HTTP/1.1 200"
    errors = [line for line in logs if line["log_level"] in {"error", "critical"}]
    assert all("cannot accept connections" in line["event"] for line in errors), errors


# TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", "key.pem", "-out", "certificate.pem", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], cwd=folder, check=True, capture_output=True)
    return folder / "certificate.pem", folder / "key.pem"


def test_a_tls_handshake_that_stalls_is_counted_and_ended(tmp_path: Path, certificate: tuple[Path, Path]) -> None:
    with running(
        tmp_path,
        tls_certificate=certificate[0],
        tls_key=certificate[1],
        request_timeout=1,
        control_unknown_connections_per_address_max=4,
    ) as service:
        with contextlib.ExitStack() as stack:
            crowd = [stack.enter_context(wire(service)) for _ in range(4)]
            assert eventually(lambda: unknown(service) == 4)
            with wire(service) as late:
                assert late.rest() == b""
            for each in crowd:
                each.rest()
        assert eventually(lambda: unknown(service) == 0)
        with wire(service) as nonsense:
            nonsense.send(b"GET / HTTP/1.1\r\n\r\n")
            nonsense.rest()
        assert eventually(lambda: unknown(service) == 0)


def test_under_tls_browsers_are_told_to_stay_with_it(
    tmp_path: Path, certificate: tuple[Path, Path], patient: Running
) -> None:
    context = ssl.create_default_context(cafile=str(certificate[0]))
    with running(tmp_path, tls_certificate=certificate[0], tls_key=certificate[1]) as service:
        for path, status in (("/login", 200), ("/v1/whoami", 401), ("/healthz", 200), ("/none", 404)):
            plain = socket.create_connection(address(service), timeout=GUARD_S)
            with Wire.over(context.wrap_socket(plain, server_hostname="localhost")) as secure:
                answer = secure.ask(asked(path).replace(b"Host: control", b"Host: localhost"))
                assert (answer.status, path) == (status, path)
                assert answer.headers["strict-transport-security"] == "max-age=31536000"
    with wire(patient) as clear:
        assert "strict-transport-security" not in clear.ask(asked("/login")).headers


# Pages of other sites


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", ["/v1/whoami", "/v1/vms/none/restart", "/metrics", "/healthz"])
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://control:1"])
def test_what_a_page_of_another_site_sends_is_refused(patient: Running, method: str, path: str, origin: str) -> None:
    with wire(patient) as page:
        answer = page.ask(asked(path, f"Origin: {origin}", method=method, token=operator(patient)))
        assert (answer.status, answer.json["error"]["code"]) == (403, "forbidden")


def test_a_page_of_this_service_may_call_the_api(patient: Running) -> None:
    with wire(patient) as page:
        assert page.ask(asked("/v1/whoami", "Origin: http://control", token=operator(patient))).status == 200


def test_a_reset_at_any_point_leaves_nothing_behind(patient: Running) -> None:
    settled(patient)
    whole = asked("/v1/vms", token=operator(patient))
    for part in (b"", whole[:20], whole, whole * 5, asked("/v1/watch", token=operator(patient))):
        for _ in range(5):
            reset = wire(patient)
            reset.send(part)
            reset.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reset.close()
    settled(patient)
    assert eventually(lambda: patient.do(lambda: len(patient.service.control.pool)) == 0)
    accounts = patient.service.context.admission.accounts
    assert eventually(lambda: patient.do(lambda: all(account.is_idle for account in accounts)))

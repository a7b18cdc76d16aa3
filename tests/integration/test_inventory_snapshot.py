"""The whole inventory, sent while it is read: one moment of it, at the pace of each client, within limits."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs

from forewarn.cli.connection import ControlConnection
from forewarn.cli.inventory_document import decode_pieces, format_yaml, parse_document
from forewarn.core.model import Host, VirtualMachine
from forewarn.errors import LimitExceeded, ServerUnreachable, StoreUnavailable
from forewarn.store.sql_reader import SqlReader
from tests.support.service import Running, eventually, inventory, running
from tests.support.spans import GUARD_S

VM_COUNT = 12_000
PATH = "/v1/inventory"


def large_inventory() -> dict[str, Any]:
    declared = inventory()
    # Names that do not compress, so that what is sent does not fit into the buffers of a connection.
    declared["vms"] += [
        {"name": f"more-{n:05d}", "host": "host-Web_0", "vm_id": str(hash_text(n))} for n in range(VM_COUNT)
    ]
    return declared


def hash_text(number: int) -> str:
    return "".join(f"{(number * 2654435761 + part * 40503) ** 3 % 16**16:016x}" for part in range(12))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("snapshot"), request_timeout=600) as started, started.operator() as api:
        assert api.put(PATH, json=large_inventory()).status_code == 200
        yield started


@contextmanager
def asked(service: Running, *headers: str) -> Iterator[socket.socket]:
    """A client that has asked for the inventory, and reads as little as it can."""
    parts = urlsplit(service.service.control_url)
    assert parts.hostname is not None
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(GUARD_S)
        sock.connect((parts.hostname, parts.port))
        token = service.service.tokens.operator_token
        lines = [f"GET {PATH} HTTP/1.1", f"Host: {parts.netloc}", f"Authorization: Bearer {token}", *headers]
        sock.sendall("\r\n".join(lines).encode() + b"\r\n\r\n")
        yield sock


def read_rest(sock: socket.socket) -> bytes:
    """What the server sends until it ends the response or the connection."""
    found = b""
    while not found.endswith(b"\r\n0\r\n\r\n"):
        piece = sock.recv(1 << 16)
        if not piece:
            break
        found += piece
    return found


def decode_chunks(response: bytes) -> bytes:
    body, found = response.partition(b"\r\n\r\n")[2], b""
    while body:
        size, _, body = body.partition(b"\r\n")
        found, body = found + body[: int(size, 16)], body[int(size, 16) + 2 :]
    return found


def count(service: Running) -> int:
    return service.do(lambda: service.service.context.inventory_snapshots.count)


def test_compressed_or_not_it_is_the_same_document(service: Running) -> None:
    with service.operator() as api:
        plain = api.get(PATH, headers={"accept-encoding": "identity"})
        packed = api.get(PATH, headers={"accept-encoding": "gzip"})
    assert (plain.headers.get("content-encoding"), packed.headers["content-encoding"]) == (None, "gzip")
    assert plain.content == packed.content
    assert plain.headers["content-type"] == packed.headers["content-type"] == "application/json"
    assert len(json.loads(plain.content)["vms"]) == len(large_inventory()["vms"])
    with asked(service, "Accept-Encoding: gzip") as sock:
        assert gzip.decompress(decode_chunks(read_rest(sock))) == plain.content


def test_a_client_that_stops_reading_sees_one_moment_and_holds_no_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads_in_progress: list[str] = []
    noted = note_reads(monkeypatch, reads_in_progress)
    with running(tmp_path, request_timeout=600) as service, service.operator() as api:
        assert api.put(PATH, json=large_inventory()).status_code == 200
        with asked(service) as sock:
            begun = sock.recv(1)
            assert eventually(lambda: noted == ["begun", "ended"])
            assert count(service) == 1
            assert api.put(PATH, json=inventory(), params={"remove_missing": True}).status_code == 200
            assert api.get("/v1/vms", params={"prefix": "more-"}).json()["items"] == []
            assert len(json.loads(decode_chunks(begun + read_rest(sock)))["vms"]) == len(large_inventory()["vms"])
        assert eventually(lambda: count(service) == 0)
        assert len(api.get(PATH).json()["vms"]) == len(inventory()["vms"])


def note_reads(monkeypatch: pytest.MonkeyPatch, noted: list[str]) -> list[str]:
    """Note when the VMs begin to be read, and when the transaction has read the last of them."""

    def iterate(self: SqlReader, kind: type[Any], original: Callable[..., Any] = SqlReader.iter_by_name) -> Any:  # noqa: ANN401
        if kind is VirtualMachine:
            noted.append("begun")
        yield from original(self, kind)
        if kind is VirtualMachine:
            noted.append("ended")

    monkeypatch.setattr(SqlReader, "iter_by_name", iterate)
    return noted


def test_clients_that_stop_reading_do_not_hold_up_others(service: Running) -> None:
    with service.operator() as api, asked(service), asked(service), asked(service):
        assert eventually(lambda: count(service) == 3)
        assert len(api.get(PATH).json()["vms"]) == len(large_inventory()["vms"])
        assert api.get("/v1/whoami").status_code == 200
        assert api.get("/v1/vms").status_code == 200
    assert eventually(lambda: count(service) == 0)


def test_one_caller_has_a_few_at_a_time_and_others_have_theirs(service: Running) -> None:
    with service.operator() as api:
        reader = api.post("/v1/tokens", json={"name": "reader", "role": "read-only"}).json()["token"]
        with asked(service), asked(service), asked(service), asked(service):
            assert eventually(lambda: count(service) == 4)
            refused = api.get(PATH)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, LimitExceeded.code)
            assert refused.headers["retry-after"] == "5"
            assert "4 whole inventories are being sent to" in refused.json()["error"]["message"]
            other = api.get(PATH, headers={"authorization": f"Bearer {reader}"})
            assert other.status_code == 200
        assert eventually(lambda: count(service) == 0)
        assert api.get(PATH).status_code == 200


def test_a_client_that_goes_away_leaves_nothing_behind(service: Running) -> None:
    with asked(service) as sock:
        assert sock.recv(1)
        assert eventually(lambda: count(service) == 1)
    assert eventually(lambda: count(service) == 0)


# An inventory that is cut off


def show(service: Running) -> tuple[str, type[Exception] | None]:
    """What a command reads, and the error it ends with."""
    token = service.service.tokens.operator_token
    found: list[str] = []
    with ControlConnection(service.service.control_url, environment={"FOREWARN_TOKEN": token}) as connection:
        try:
            for text in format_yaml(decode_pieces(parse_document(connection.stream_pieces(PATH)))):
                found.append(text)  # noqa: PERF402 - the error comes in the middle
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return "".join(found), type(error)
    return "".join(found), None


def test_a_client_that_takes_too_long_is_cut_off_and_knows_it(
    service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service.service.context.inventory_snapshots, "send_timeout_s", 0.0)
    assert show(service)[1] is ServerUnreachable
    with asked(service) as sock:
        assert not read_rest(sock).endswith(b"\r\n0\r\n\r\n")
    assert eventually(lambda: count(service) == 0)


def fail_after(count: int, self: SqlReader, kind: type[Any]) -> Iterator[list[Any]]:
    """Yield that many pieces of hosts, then fail."""
    for number in range(count):
        yield [Host(name=f"host-{number}")]
    raise StoreUnavailable("the disk is gone")


@pytest.mark.parametrize("pieces", [0, 3])
def test_a_read_that_fails_is_an_error_of_the_command(
    pieces: int, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqlReader, "iter_by_name", lambda self, kind: fail_after(pieces, self, kind))
    text, error = show(service)
    assert error is StoreUnavailable
    assert text.count("- name: host-") == pieces
    assert eventually(lambda: count(service) == 0)


def test_an_unexpected_fault_is_described_without_its_cause(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: SqlReader, _kind: type[Any]) -> Iterator[list[Any]]:
        yield [Host(name="host-1")]
        raise ZeroDivisionError("secret")

    monkeypatch.setattr(SqlReader, "iter_by_name", fail)
    with capture_logs() as logged, service.operator() as api:
        text = api.get(PATH).text
    assert [entry["event"] for entry in logged] == ["unexpected error while the inventory was read"]
    assert json.loads(text.splitlines()[-1])["error"]["code"] == "server_error"
    assert "secret" not in text


def test_without_room_for_the_file_nothing_is_sent(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("forewarn.control.inventory_snapshot.tempfile.TemporaryFile", fail)
    with service.operator() as api:
        refused = api.get(PATH)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, StoreUnavailable.code)
    assert "No space left" in refused.json()["error"]["message"]
    assert count(service) == 0


def test_reads_of_one_caller_take_turns_with_those_of_others(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_end = threading.Event(), threading.Event()
    waiting: list[object] = []
    read_long = service.service.engine.committer.read_long

    async def note(function: Any) -> Any:  # noqa: ANN401 - as `Committer.read_long`
        waiting.append(function)
        return await read_long(partial(hold, function))

    def hold(function: Any, reader: Any) -> Any:  # noqa: ANN401 - as above
        has_begun.set()
        assert may_end.wait(GUARD_S)
        return function(reader)

    monkeypatch.setattr(service.service.engine.committer, "read_long", note)
    with asked(service) as one, asked(service) as two:
        try:
            assert has_begun.wait(GUARD_S)
            assert eventually(lambda: count(service) == 2)
            assert len(waiting) == 1
        finally:
            may_end.set()
        assert read_rest(one).endswith(b"0\r\n\r\n")
        assert read_rest(two).endswith(b"0\r\n\r\n")

"""The process that answers VMs for `forewarn serve`: what passes between the two, and what happens when either is gone.

Real processes. What is halted or killed here is halted or killed by a signal, so that nothing depends on how fast this
machine is.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.ports import reserve_address
from tests.support.processes import Served, served, wait_for
from tests.support.served_vms import OPENED, Vm, halted, metric, operator, raw_post, schedule, workers_of
from tests.support.spans import GUARD_S

pytestmark = [pytest.mark.slow, pytest.mark.begins_first(200), pytest.mark.timeout(120)]

ONE, TWO = "127.0.8.1", "127.0.8.2"


def declared(**addresses: str) -> str:
    vms = [{"name": name, "host": "host-1", "addresses": [address]} for name, address in addresses.items()]
    return json.dumps({"hosts": [{"name": "host-1"}], "vms": vms})


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Connections of VMs end with the test, whatever becomes of it."""
    yield
    OPENED.close()


def child_of(service: Served) -> psutil.Process:
    """The process that answers VMs."""
    [found] = workers_of(service)
    return found


@pytest.fixture
def inventory(tmp_path: Path) -> list[str]:
    (tmp_path / "inventory.json").write_text(declared(one=ONE, two=TWO))
    return ["--inventory", str(tmp_path / "inventory.json")]


def test_an_operators_change_is_seen_by_every_get_that_begins_after_its_answer(
    tmp_path: Path, inventory: list[str]
) -> None:
    """Invariant 9: another process shows it, but never later than the operator is told."""
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        vm = Vm(service, ONE)
        assert vm.events == []
        for _ in range(30):
            id_ = schedule(http, "one")
            assert [each["EventStatus"] for each in vm.events] == ["Scheduled"]
            assert http.post(f"/v1/maintenance/{id_}/cancel", json={}).status_code == 200
            assert vm.events == []


def test_an_approval_is_on_disk_and_shown_when_it_is_answered(tmp_path: Path, inventory: list[str]) -> None:
    """R49, invariant 5."""
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        vm = Vm(service, ONE)
        assert vm.events == []
        id_ = schedule(http, "one")
        event = vm.events[0]["EventId"]
        assert vm.approve("11111111-2222-3333-4444-555555555555") == 400
        assert vm.approve(event) == 200
        assert [each["EventStatus"] for each in vm.events] == ["Started"]
        entries = http.get("/v1/audit-log", params={"limit": 100}).json()["items"]
        approved = next(entry for entry in entries if entry["kind"] == "approved")
        assert (approved["maintenance_id"], approved["vm"], approved["source_address"]) == (id_, "one", ONE)
        assert approved["api_version"] == "2020-07-01"


def test_a_held_request_is_answered_when_the_document_changes(tmp_path: Path, inventory: list[str]) -> None:
    """X1."""
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        vm = Vm(service, ONE)
        tag = vm.get().headers["etag"]
        answers: list[httpx.Response] = []
        held = threading.Thread(target=lambda: answers.append(vm.get(**{"if-none-match": tag, "prefer": "wait=60"})))
        held.start()
        wait_for(lambda: metric(http, "forewarn_connections") == 1)
        schedule(http, "one")
        held.join(GUARD_S)
        assert not held.is_alive()
        assert [(each.status_code, len(each.json()["Events"])) for each in answers] == [(200, 1)]


def test_an_inventory_change_says_who_calls_from_then_on(tmp_path: Path, inventory: list[str]) -> None:
    """R2: connections that are open are asked anew, and those of other VMs go on."""
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        one, two = Vm(service, ONE), Vm(service, TWO)
        assert (one.events, two.events) == ([], [])
        schedule(http, "two")
        assert len(two.events) == 1
        text = declared(three=ONE, two=TWO)
        assert http.put("/v1/inventory", content=text, headers={"content-type": "application/json"}).status_code == 200
        name = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
        assert one.http.get(name).text == "three"
        assert (one.events, len(two.events)) == ([], 1)
        assert http.put("/v1/inventory", content=declared(two=TWO)).status_code == 200
        assert one.get().status_code == 404
        assert len(two.events) == 1


def test_metrics_and_the_journal_tell_of_requests_that_another_process_has_answered(
    tmp_path: Path, inventory: list[str]
) -> None:
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        vm = Vm(service, ONE)
        for count in (1, 2, 3):
            assert vm.events == []
            gets = metric(http, 'forewarn_requests_total{method="GET",status="200",version="2020-07-01"}')
            kept = http.get("/v1/requests", params={"vm": "one"}).json()["items"]
            assert (gets, [each["number"] for each in kept]) == (count, list(range(1, count + 1)))
            assert (kept[-1]["source_address"], kept[-1]["status"]) == (ONE, 200)
        assert metric(http, "forewarn_connections") == 1
        assert Vm(service, "127.0.8.99").get().status_code == 404
        assert metric(http, "forewarn_unknown_callers_total") == 1


def test_who_asked_is_written_down_when_the_service_stops(tmp_path: Path, inventory: list[str]) -> None:
    """R69: a restart takes nobody for silent who has asked, whichever process was asked."""
    with served(tmp_path, *inventory) as service:
        one, two = Vm(service, ONE), Vm(service, TWO)
        assert one.events == []
        began = two.get().headers["date"]
        wait_for(lambda: one.get().headers["date"] != began)
    with closing(sqlite3.connect(tmp_path / "forewarn.db")) as database:
        asked = dict(database.execute("SELECT key, active_until FROM audience"))
    assert asked["vm:one"] > asked["vm:two"]


def test_a_service_that_is_halted_delays_no_get(tmp_path: Path, inventory: list[str]) -> None:
    """Whatever keeps the service busy: documents are answered, and approvals are not, since nobody can commit them."""
    limits = ("--set", "approvals_at_work_per_vm_max=2")
    with served(tmp_path, *inventory, *limits) as service, operator(service, tmp_path) as http:
        kept, tag = Vm(service, ONE), ""
        assert kept.events == []
        schedule(http, "one")
        event, tag = kept.events[0]["EventId"], kept.get().headers["etag"]
        with halted(service.process.pid):
            assert [each["EventId"] for each in kept.events] == [event]
            assert [each["EventId"] for each in Vm(service, ONE).events] == [event]
            assert kept.get(**{"if-none-match": tag}).status_code == 304
            waiting = [raw_post(service, ONE, event) for _ in range(3)]
            with selectors.DefaultSelector() as selector:
                for sock in waiting:
                    selector.register(sock, selectors.EVENT_READ)
                [refused] = [key.fileobj for key, _ in selector.select(GUARD_S)]
            assert isinstance(refused, socket.socket)
            answer = refused.recv(65536)
            assert answer.startswith(b"HTTP/1.1 429")
            assert b"\r\nretry-after: 1\r\n" in answer
            assert [each["EventStatus"] for each in kept.events] == ["Scheduled"]
        others = [sock for sock in waiting if sock is not refused]
        assert [sock.recv(65536).partition(b"\r\n")[0] for sock in others] == [b"HTTP/1.1 200 OK"] * 2
        assert [each["EventStatus"] for each in kept.events] == ["Started"]


def test_a_metadata_process_that_is_halted_is_told_of_by_readyz_and_holds_up_no_operator(
    tmp_path: Path, inventory: list[str]
) -> None:
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        vm = Vm(service, ONE)
        assert vm.events == []
        assert http.get("/readyz").status_code == 200
        with halted(child_of(service).pid):
            assert http.get("/readyz").json()["error"]["code"] == "endpoint_behind"
            ids = [schedule(http, "one") for _ in range(3)]
            assert http.get("/metrics").status_code == 200
            for id_ in ids[1:]:
                assert http.post(f"/v1/maintenance/{id_}/cancel", json={}).status_code == 200
        assert wait_for(lambda: http.get("/readyz").status_code == 200)
        assert len(vm.events) == 1


def test_a_metadata_process_that_hangs_is_killed_and_another_one_answers(tmp_path: Path, inventory: list[str]) -> None:
    words = [*inventory, "--set", "metadata_silence_max=3s"]
    with served(tmp_path, *words) as service, operator(service, tmp_path) as http:
        assert Vm(service, ONE).events == []
        schedule(http, "one")
        hung = child_of(service)
        os.kill(hung.pid, signal.SIGSTOP)
        assert [each["EventStatus"] for each in Vm(service, ONE).events] == ["Scheduled"]
        assert not hung.is_running()
        assert metric(http, "forewarn_metadata_process_restarts_total") >= 1
    assert "the metadata process does not answer, killing it" in (tmp_path / "serve.log").read_text()


def test_a_metadata_process_that_is_killed_is_started_again_and_nothing_is_lost(
    tmp_path: Path, inventory: list[str]
) -> None:
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        vm = Vm(service, ONE)
        assert (vm.events, Vm(service, TWO).events) == ([], [])
        schedule(http, "one")
        event = vm.events[0]["EventId"]
        assert vm.approve(event) == 200
        assert vm.events[0]["EventStatus"] == "Started"
        name = 'forewarn_requests_total{method="GET",status="200",version="2020-07-01"}'
        before, last = metric(http, name), http.get("/v1/requests").json()["items"][-1]["number"]
        killed = child_of(service)
        killed.kill()
        wait_for(lambda: not killed.is_running())
        assert Vm(service, ONE).events[0]["EventStatus"] == "Started", "it waits until the next process answers"
        assert child_of(service).pid != killed.pid
        assert wait_for(lambda: http.get("/readyz").status_code == 200)
        assert metric(http, "forewarn_metadata_process_restarts_total") == 1
        assert metric(http, name) == before + 1
        assert http.get("/v1/requests").json()["items"][-1]["number"] == last + 1
        schedule(http, "two")
        assert [each["EventStatus"] for each in Vm(service, TWO).events] == ["Scheduled"]


def test_when_the_service_is_killed_its_metadata_process_ends_and_the_port_is_free(
    tmp_path: Path, inventory: list[str]
) -> None:
    listen = reserve_address()
    with served(tmp_path, *inventory, metadata_listen=listen) as service, operator(service, tmp_path) as http:
        vm = Vm(service, ONE)
        assert vm.events == []
        schedule(http, "one")
        event, child = vm.events[0]["EventId"], child_of(service)
        service.process.send_signal(signal.SIGKILL)
        service.process.wait()
        wait_for(lambda: not child.is_running())
    with served(tmp_path, *inventory, metadata_listen=listen) as service:
        again = Vm(service, ONE)
        assert [each["EventId"] for each in again.events] == [event]
        assert again.approve(event) == 200


def test_what_waits_for_a_service_that_is_killed_leaves_no_trace_in_the_log(
    tmp_path: Path, inventory: list[str]
) -> None:
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        vm = Vm(service, ONE)
        assert vm.events == []
        schedule(http, "one")
        event, child = vm.events[0]["EventId"], child_of(service)
        service.process.send_signal(signal.SIGSTOP)
        ends: list[type[Exception]] = []

        def approve() -> None:
            try:
                vm.approve(event)
            except httpx.HTTPError as error:
                ends.append(type(error))

        waiting = threading.Thread(target=approve)
        waiting.start()
        wait_for(lambda: len(psutil.Process(child.pid).net_connections("tcp")) > 1)
        service.process.kill()
        service.process.wait()
        wait_for(lambda: not child.is_running())
        waiting.join(GUARD_S)
        assert ends, "it was answered"
    assert "Traceback" not in (tmp_path / "serve.log").read_text()


def _check_stop(stop: Callable[[Served], None], tmp_path: Path, arguments: list[str]) -> None:
    """A request that is held is answered, the exit status is 0, and no process is left."""
    with (
        served(tmp_path, *arguments, prefix=("setsid",)) as service,
        operator(service, tmp_path) as http,
    ):
        vm = Vm(service, ONE)
        tag, child = vm.get().headers["etag"], child_of(service)
        answers: list[int] = []
        headers = {"if-none-match": tag, "prefer": "wait=60"}
        held = threading.Thread(target=lambda: answers.append(vm.get(**headers).status_code))
        held.start()
        wait_for(lambda: metric(http, "forewarn_connections") == 1)
        stop(service)
        assert service.process.wait(GUARD_S) == 0
        held.join(GUARD_S)
        assert not held.is_alive()
        assert answers == [304]
        wait_for(lambda: not child.is_running())


def test_on_sigterm_requests_that_are_held_are_answered(tmp_path: Path, inventory: list[str]) -> None:
    _check_stop(lambda service: service.process.send_signal(signal.SIGTERM), tmp_path, inventory)


def test_an_interrupt_of_all_processes_of_a_terminal_stops_both_in_order(tmp_path: Path, inventory: list[str]) -> None:
    _check_stop(lambda service: os.killpg(service.process.pid, signal.SIGINT), tmp_path, inventory)


def test_signals_to_the_metadata_process_itself_are_for_the_service_to_act_on(
    tmp_path: Path, inventory: list[str]
) -> None:
    """An init system may send SIGTERM to every process of a unit."""

    def stop(service: Served) -> None:
        child_of(service).send_signal(signal.SIGTERM)
        child_of(service).send_signal(signal.SIGINT)
        assert Vm(service, TWO).events == []
        service.process.send_signal(signal.SIGTERM)

    _check_stop(stop, tmp_path, inventory)


@pytest.mark.parametrize(
    "arguments", [("--clock", "virtual"), ("--fault-injection",), ("--set", "metadata_process=shared")]
)
def test_a_virtual_clock_and_faults_are_of_one_process(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with served(tmp_path, *arguments) as service:
        assert psutil.Process(service.process.pid).children() == []
        assert Vm(service, "127.0.0.1").events == []


@pytest.mark.parametrize("place", ["own", "shared"])
def test_a_vm_over_a_limit_is_named_with_the_limit(place: str, tmp_path: Path, inventory: list[str]) -> None:
    arguments = (
        ("--set", "connections_per_vm_max=1", "--set", "metadata_process=shared")
        if place == "shared"
        else ("--set", "connections_per_vm_max=1")
    )
    with served(tmp_path, *inventory, *arguments) as service, operator(service, tmp_path) as http:
        assert Vm(service, TWO).events == []
        assert Vm(service, ONE).events == []
        for _ in range(2):
            refused = Vm(service, ONE).get()
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        items = http.get("/v1/limits").json()["items"]
        met = items[0]
        assert met.pop("limited_at").endswith("Z")
        assert met == {
            "name": "one",
            "role": "vm",
            "used": {},
            "most": {},
            "limited": {"connections_per_vm_max": 2},
        }
        assert "two" not in [item["name"] for item in items]
        assert metric(http, 'forewarn_over_limit_total{limit="connections_per_vm_max"}') == 2
        Vm(service, ONE).get()
        assert service.forewarn("limit", "list")[0]["limited"] == {"connections_per_vm_max": 3}
        printed = service.printed("limit", "list").splitlines()
        assert printed[1].split()[:2] == ["one", "vm"]
        assert "connections_per_vm" in printed[1]  # a narrow table breaks the name


def test_limits_that_vms_met_are_known_after_the_metadata_process_was_started_again(
    tmp_path: Path, inventory: list[str]
) -> None:
    with (
        served(tmp_path, *inventory, "--set", "connections_per_vm_max=1") as service,
        operator(service, tmp_path) as http,
    ):

        def met() -> dict[str, int]:
            found: dict[str, int] = http.get("/v1/limits").json()["items"][0]["limited"]
            return found

        first = Vm(service, ONE)
        assert first.events == []
        assert Vm(service, ONE).get().status_code == 503
        assert met() == {"connections_per_vm_max": 1}
        child_of(service).kill()
        wait_for(lambda: metric(http, "forewarn_metadata_process_restarts_total") == 1)
        again = Vm(service, ONE)
        assert again.events == []
        assert Vm(service, ONE).get().status_code == 503
        assert met() == {"connections_per_vm_max": 2}


def test_an_approval_that_the_service_has_no_room_for_is_counted_with_the_vm(
    tmp_path: Path, inventory: list[str]
) -> None:
    """The metadata process refuses it, and says so once the service listens again."""
    with served(tmp_path, *inventory, "--set", "commands_max=5") as service, operator(service, tmp_path) as http:
        assert Vm(service, ONE).events == []
        with halted(service.process.pid), selectors.DefaultSelector() as selector:
            for _ in range(6):
                selector.register(raw_post(service, ONE, str(uuid.uuid4())), selectors.EVENT_READ)
            [(key, _)] = selector.select(60)
            assert isinstance(key.fileobj, socket.socket)
            answer = key.fileobj.recv(4096)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in answer
        assert metric(http, 'forewarn_over_limit_total{limit="commands_max"}') == 1
        item = http.get("/v1/limits").json()["items"][0]
        assert (item["name"], item["role"], item["limited"]) == ("one", "vm", {"commands_max": 1})

"""Several processes that answer VMs for `forewarn serve --workers N`.

Real processes, killed and halted by signals. The kernel chooses the process by the address of the caller.
"""

from __future__ import annotations

import json
import selectors
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.support.processes import Served, served, wait_for
from tests.support.served_vms import OPENED, PATH, Vm, halted, metric, operator, raw_post, schedule, workers_of
from tests.support.spans import GUARD_S

pytestmark = [pytest.mark.slow, pytest.mark.begins_first(200), pytest.mark.timeout(120)]

ADDRESSES = [f"127.0.9.{number}" for number in range(1, 9)]
GETS = 'forewarn_requests_total{method="GET",status="200",version="2020-07-01"}'


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    """Connections of VMs end with the test, whatever becomes of it."""
    yield
    OPENED.close()


@pytest.fixture
def inventory(tmp_path: Path) -> list[str]:
    """One VM for each address, all in one scope: an event of one is shown to all."""
    vms = [
        {"name": f"vm-{at}", "host": "host-1", "scope": "all", "addresses": [address]}
        for at, address in enumerate(ADDRESSES)
    ]
    scopes = [{"name": "all", "kind": "availability-set"}]
    (tmp_path / "inventory.json").write_text(json.dumps({"hosts": [{"name": "host-1"}], "scopes": scopes, "vms": vms}))
    return ["--inventory", str(tmp_path / "inventory.json"), "--workers", "2"]


def worker_of(service: Served, vm: Vm) -> psutil.Process:
    """The process that holds the open connections from a VM's address."""
    [found] = [
        worker
        for worker in workers_of(service)
        if any(each.raddr[:1] == (vm.address,) for each in worker.net_connections("tcp"))
    ]
    return found


def one_vm_of_each(service: Served) -> list[Vm]:
    """Return two VMs that two different processes answer."""
    by_worker: dict[int, Vm] = {}
    for address in ADDRESSES:
        vm = Vm(service, address)
        assert vm.get().status_code == 200
        by_worker.setdefault(worker_of(service, vm).pid, vm)
    assert len(by_worker) == 2
    return list(by_worker.values())


def cancel(http: httpx.Client, id_: str) -> None:
    assert http.post(f"/v1/maintenance/{id_}/cancel", json={}).status_code == 200


def test_all_connections_of_one_address_reach_one_process_and_different_addresses_reach_all(
    tmp_path: Path, inventory: list[str]
) -> None:
    with served(tmp_path, *inventory) as service:
        assert len(workers_of(service)) == 2
        used = set()
        for address in ADDRESSES:
            connections = [Vm(service, address) for _ in range(5)]
            assert [vm.statuses for vm in connections] == [[]] * 5
            used.add(worker_of(service, connections[0]).pid)
        assert used == {worker.pid for worker in workers_of(service)}


def test_an_approval_through_one_process_is_shown_by_the_other_at_once(tmp_path: Path, inventory: list[str]) -> None:
    """R49, R50: 200 means that every VM of the scope sees it."""
    with (
        served(tmp_path, *inventory, "--set", "simulate_complete_after=0.1s") as service,
        operator(service, tmp_path) as http,
    ):
        pair = one_vm_of_each(service)
        for round_ in range(20):
            approver, other = pair if round_ % 2 else pair[::-1]
            schedule(http, "vm-0")
            wait_for(lambda: "Scheduled" in pair[0].statuses)  # once the previous one has completed
            [event] = [each["EventId"] for each in other.document()["Events"]]
            assert approver.approve(event) == 200
            assert "Scheduled" not in other.statuses
            assert "Scheduled" not in approver.statuses


def test_an_operators_change_is_seen_through_every_process_after_its_answer(
    tmp_path: Path, inventory: list[str]
) -> None:
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        pair = one_vm_of_each(service)
        for _ in range(20):
            id_ = schedule(http, "vm-0")
            assert [vm.statuses for vm in pair] == [["Scheduled"]] * 2
            cancel(http, id_)
            assert [vm.statuses for vm in pair] == [[]] * 2


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_documents_never_go_back_from_one_process_to_another(
    connection: str, tmp_path: Path, inventory: list[str]
) -> None:
    """Each GET begins after the answer to the one before, through the other process."""
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        pair = one_vm_of_each(service)
        is_over = threading.Event()
        seen: list[int] = []

        def poll() -> None:
            while not is_over.is_set():
                seen.extend(vm.document(Connection=connection)["DocumentIncarnation"] for vm in pair)

        polling = threading.Thread(target=poll)
        polling.start()
        try:
            for _ in range(40):
                cancel(http, schedule(http, "vm-0"))
        finally:
            is_over.set()
            polling.join(GUARD_S)
        assert seen == sorted(seen)
        assert len(set(seen)) > 2


def test_a_process_that_is_late_makes_its_callers_wait_instead_of_showing_what_is_old(
    tmp_path: Path, inventory: list[str]
) -> None:
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        one, two = one_vm_of_each(service)
        late = worker_of(service, two)
        with halted(late.pid):
            schedule(http, "vm-0")
            wait_for(lambda: one.statuses == ["Scheduled"])
            answers: list[list[str]] = []
            waiting = threading.Thread(target=lambda: answers.append(two.statuses))
            waiting.start()
            assert http.get("/readyz").json()["error"]["code"] == "endpoint_behind"
            # The other process accepts the connections from its socket meanwhile.
            assert Vm(service, two.address).statuses == ["Scheduled"]
        waiting.join(GUARD_S)
        assert answers == [["Scheduled"]]
        assert wait_for(lambda: http.get("/readyz").status_code == 200)


def test_when_one_process_is_killed_the_other_answers_its_vms_until_it_is_back(
    tmp_path: Path, inventory: list[str]
) -> None:
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        one, two = one_vm_of_each(service)
        id_ = schedule(http, "vm-0")
        killed, stays = worker_of(service, one), worker_of(service, two)
        # While the service is halted, no new process is started, and connections wait in the queue of the dead one.
        with halted(service.process.pid):
            killed.kill()
            waiting = httpx.Client(
                base_url=service.metadata_url,
                transport=httpx.HTTPTransport(local_address=one.address),
                headers={"metadata": "true"},
                timeout=GUARD_S,
            )
            OPENED.callback(waiting.close)
            answers: list[int] = []
            asking = threading.Thread(target=lambda: answers.append(waiting.get(PATH).status_code))
            asking.start()
            assert two.statuses == ["Scheduled"]
        asking.join(GUARD_S)
        assert answers == [200]
        assert two.statuses == ["Scheduled"], "its connection is the same"
        wait_for(lambda: len(workers_of(service)) == 2 and http.get("/readyz").status_code == 200)
        assert metric(http, "forewarn_metadata_process_restarts_total") == 1
        again = Vm(service, one.address)
        assert again.statuses == ["Scheduled"]
        assert worker_of(service, two).pid == stays.pid
        cancel(http, id_)
        assert [vm.statuses for vm in (again, two)] == [[], []]


def test_while_processes_are_killed_every_poll_on_a_new_connection_is_answered(
    tmp_path: Path, inventory: list[str]
) -> None:
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        pair = one_vm_of_each(service)
        is_over = threading.Event()
        failures: list[Exception] = []
        statuses: list[int] = []

        def poll(address: str) -> None:
            while not is_over.is_set():
                with httpx.Client(
                    transport=httpx.HTTPTransport(local_address=address),
                    headers={"metadata": "true", "connection": "close"},
                    timeout=GUARD_S,
                ) as client:
                    try:
                        statuses.append(client.get(service.metadata_url + PATH).status_code)
                    except httpx.HTTPError as error:
                        failures.append(error)

        polling = [threading.Thread(target=poll, args=(vm.address,)) for vm in pair]
        for thread in polling:
            thread.start()
        try:
            for count in range(1, 4):
                workers_of(service)[0].kill()
                wait_for(lambda wanted=count: metric(http, "forewarn_metadata_process_restarts_total") == wanted)
                assert wait_for(lambda: http.get("/readyz").status_code == 200)
        finally:
            is_over.set()
            for thread in polling:
                thread.join(GUARD_S)
        assert set(statuses) == {200}
        # A kill ends the connections that the process had accepted: one for each poller at most.
        assert len(failures) <= 3 * len(polling)


def test_metrics_are_summed_and_the_journal_is_merged_in_the_order_of_time(
    tmp_path: Path, inventory: list[str]
) -> None:
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        pair = one_vm_of_each(service)
        gets = metric(http, GETS)
        before = http.get("/v1/requests", params={"limit": 1000}).json()["items"][-1]["number"]
        asked = []
        for at in range(20):
            vm = pair[at % 2]
            assert vm.statuses == []
            asked.append(vm.address)
            if at % 5 == 0:
                http.get("/v1/requests")
        assert metric(http, GETS) == gets + 20
        kept = http.get("/v1/requests", params={"limit": 1000}).json()["items"]
        newest = [each for each in kept if each["number"] > before]
        assert [each["source_address"] for each in newest] == asked
        assert [each["number"] for each in newest] == list(range(before + 1, before + 21))
        assert metric(http, "forewarn_connections") == len(ADDRESSES)
        workers_of(service)[0].kill()
        wait_for(lambda: metric(http, "forewarn_metadata_process_restarts_total") == 1)
        wait_for(lambda: http.get("/readyz").status_code == 200)
        assert metric(http, GETS) == gets + 20, "what the dead process had counted stays counted"


def test_a_limit_for_the_connections_of_one_vm_holds_exactly(tmp_path: Path, inventory: list[str]) -> None:
    with (
        served(tmp_path, *inventory, "--set", "connections_per_vm_max=2") as service,
        operator(service, tmp_path) as http,
    ):
        for address in ADDRESSES:
            assert [Vm(service, address).get().status_code for _ in range(4)] == [200, 200, 503, 503]
        assert metric(http, 'forewarn_over_limit_total{limit="connections_per_vm_max"}') == 2 * len(ADDRESSES)


def test_a_limit_for_the_approvals_of_one_vm_holds_exactly_while_none_can_be_decided(
    tmp_path: Path, inventory: list[str]
) -> None:
    limits = ("--set", "approvals_at_work_per_vm_max=2")
    with served(tmp_path, *inventory, *limits) as service, operator(service, tmp_path) as http:
        pair = one_vm_of_each(service)
        schedule(http, "vm-0")
        [event] = pair[0].document()["Events"]
        waiting: dict[str, list[socket.socket]] = {}
        refused: dict[str, socket.socket] = {}
        with halted(service.process.pid):
            assert [vm.statuses for vm in pair] == [["Scheduled"]] * 2, "a halted service delays no GET"
            for vm in pair:
                waiting[vm.address] = [raw_post(service, vm.address, event["EventId"]) for _ in range(3)]
                with selectors.DefaultSelector() as selector:
                    for sock in waiting[vm.address]:
                        selector.register(sock, selectors.EVENT_READ)
                    [found] = [key.fileobj for key, _ in selector.select(GUARD_S)]
                assert isinstance(found, socket.socket)
                assert found.recv(65536).startswith(b"HTTP/1.1 429")
                refused[vm.address] = found
        for vm in pair:
            others = [sock for sock in waiting[vm.address] if sock is not refused[vm.address]]
            assert [sock.recv(65536).partition(b"\r\n")[0] for sock in others] == [b"HTTP/1.1 200 OK"] * 2
        assert [vm.statuses for vm in pair] == [["Started"]] * 2


def test_all_connections_together_keep_to_the_limit(tmp_path: Path, inventory: list[str]) -> None:
    with served(tmp_path, *inventory, "--set", "connections_max=4") as service, operator(service, tmp_path) as http:
        opened = [Vm(service, address).get().status_code for address in ADDRESSES]
        assert opened.count(200) == 4
        assert opened.count(503) == 4
        assert metric(http, "forewarn_connections") == 4


def test_an_inventory_change_says_who_calls_whichever_process_is_asked(tmp_path: Path, inventory: list[str]) -> None:
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        pair = one_vm_of_each(service)
        for round_ in range(5):
            vms = [
                {"name": f"new-{round_}-{at}", "host": "host-1", "addresses": [address]}
                for at, address in enumerate(ADDRESSES)
            ]
            text = json.dumps({"hosts": [{"name": "host-1"}], "vms": vms})
            answer = http.put("/v1/inventory", params={"remove_missing": "true"}, content=text)
            assert answer.status_code == 200, answer.text
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            names = [vm.http.get(path).text for vm in pair]
            assert names == [f"new-{round_}-{ADDRESSES.index(vm.address)}" for vm in pair]


def test_a_held_request_is_answered_through_either_process_and_all_end_with_the_service(
    tmp_path: Path, inventory: list[str]
) -> None:
    """X1."""
    with served(tmp_path, *inventory) as service, operator(service, tmp_path) as http:
        pair = one_vm_of_each(service)

        def hold() -> tuple[list[threading.Thread], list[int]]:
            answers: list[int] = []
            tag = pair[0].get().headers["etag"]
            held = [
                threading.Thread(
                    target=lambda vm=vm: answers.append(
                        vm.get(**{"if-none-match": tag, "prefer": "wait=60"}).status_code
                    )
                )
                for vm in pair
            ]
            for each in held:
                each.start()
            return held, answers

        held, answers = hold()
        schedule(http, "vm-0")
        for each in held:
            each.join(GUARD_S)
        assert answers == [200, 200]
        held, answers = hold()
        workers = workers_of(service)
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(GUARD_S) == 0
        for each in held:
            each.join(GUARD_S)
        wait_for(lambda: not any(worker.is_running() for worker in workers))
        assert set(answers) <= {200, 304}
        assert len(answers) == 2


def test_a_second_service_on_the_same_address_is_refused(tmp_path: Path, inventory: list[str]) -> None:
    """Sockets with SO_REUSEPORT would let it take half of the connections."""
    with served(tmp_path, *inventory) as service:
        place = service.metadata_url.removeprefix("http://")
        (tmp_path / "second").mkdir()
        with pytest.raises(AssertionError), served(tmp_path / "second", *inventory, metadata_listen=place):
            pass
        assert "Address already in use" in (tmp_path / "second" / "serve.log").read_text()


@pytest.mark.parametrize(
    "arguments", [("--clock", "virtual"), ("--fault-injection",), ("--set", "metadata_process=shared")]
)
def test_several_processes_are_refused_with_what_needs_one(arguments: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(AssertionError), served(tmp_path, "--workers", "2", *arguments):
        pass
    assert "more than one worker needs" in (tmp_path / "serve.log").read_text()


def test_ipv6_callers_are_answered_by_several_processes(tmp_path: Path, inventory: list[str]) -> None:
    with (
        served(tmp_path, *inventory, metadata_listen="[::1]:0") as service,
        socket.create_connection(("::1", int(service.metadata_url.rpartition(":")[2])), GUARD_S) as sock,
    ):
        sock.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nMetadata: true\r\n\r\n".encode())
        assert sock.recv(4096).startswith(b"HTTP/1.1 404")

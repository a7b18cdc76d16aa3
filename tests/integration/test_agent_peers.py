"""`all-prepared`: real agents of the VMs of one event, which tell each other when they are prepared (R50, R103).

Whatever becomes of one of them, the others approve at the deadline at the latest; and nobody approves what one wants
held.
"""

from __future__ import annotations

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from forewarn.agent.configuration import parse_configuration
from forewarn.agent.peer_exchange import PATH, read_secret
from forewarn.agent.signing import SIGNATURE, MessageSigner, PeerQuery
from forewarn.errors import ConfigError
from tests.support.documents import ROOT, files_in
from tests.support.namespaces import METADATA_ADDRESS, Network, missing, network
from tests.support.peered import SECRET, AgentProcess, approvals, group_of, operate, schedule
from tests.support.processes import Served, served, wait_for
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.begins_first(200)

DEADLINE_S = 5.0
STAGGER_S = 1.5
SETTINGS = {"deadline": "5s", "stagger": "1500ms"}
NEVER = "6h"
"""A deadline past everything a test waits for: an approval that comes has not waited for it."""

QUIET_S = 1.5
"""Long enough for an approval that must not come: peers speak to each other every second."""

SETS = 60


def _inventory() -> dict[str, object]:
    """Availability sets of three VMs in one update domain, each set on a host of its own."""
    vms = [
        {"name": f"s{n}-{m}", "host": f"host-{n}", "scope": f"set-{n}", "addresses": [f"127.0.{40 + n}.{m}"]}
        for n in range(SETS)
        for m in (1, 2, 3)
    ]
    scopes = [{"name": f"set-{n}", "kind": "availability-set"} for n in range(SETS)]
    return {"hosts": [{"name": f"host-{n}"} for n in range(SETS)], "scopes": scopes, "vms": vms}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "inventory.json").write_text(json.dumps(_inventory()))
    with served(folder, "--inventory", str(folder / "inventory.json")) as running:
        yield running


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return iter(range(SETS))


Making = Callable[..., AbstractContextManager[list[AgentProcess]]]


@pytest.fixture
def group(service: Served, numbers: Iterator[int], tmp_path: Path) -> Making:
    """Agents of as many VMs as are asked for, of an availability set that no test has used."""

    def make(size: int = 2, **together: str) -> AbstractContextManager[list[AgentProcess]]:
        n = next(numbers)
        vms = {f"s{n}-{m}": f"127.0.{40 + n}.{m}" for m in range(1, size + 1)}
        return group_of(tmp_path, service.metadata_url, vms, SETTINGS | together)

    return make


def start(*agents: AgentProcess) -> None:
    for agent in agents:
        agent.start()


def announce(service: Served, *agents: AgentProcess, notice_s: int = 900) -> str:
    """Announce an event of these VMs, and wait until every agent that runs prepares."""
    maintenance_id = schedule(service, *(agent.vm for agent in agents), notice_s=notice_s)
    for agent in agents:
        if agent.process is not None:
            wait_for(lambda agent=agent: agent.has_begun)
    return maintenance_id


def wait_approved(service: Served, maintenance_id: str) -> tuple[str, datetime]:
    """Who approved first, and when."""
    found = wait_for(lambda: approvals(service, maintenance_id))
    return found[0].vm, found[0].at


def assert_nobody_approves(service: Served, maintenance_id: str, for_s: float = QUIET_S) -> None:
    time.sleep(for_s)
    assert approvals(service, maintenance_id) == []


def at_deadline(agent: AgentProcess, place: int = 0) -> datetime:
    """When that agent steps in, being so far from the front of Resources."""
    return agent.seen_at + timedelta(seconds=DEADLINE_S + place * STAGGER_S)


def ended(agent: AgentProcess) -> datetime:
    moment = agent.prepared_at
    assert moment is not None
    return moment


# All are well


@pytest.mark.slow
def test_the_leader_approves_at_once_when_the_last_one_is_prepared(service: Served, group: Making) -> None:
    with group(deadline=NEVER) as (first, second):
        start(first, second)
        maintenance_id = announce(service, first, second)
        first.finish_preparing()
        assert_nobody_approves(service, maintenance_id)
        second.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= ended(second)
        time.sleep(2 * STAGGER_S)
        assert [approval.vm for approval in approvals(service, maintenance_id)] == [first.vm]


@pytest.mark.slow
def test_it_does_not_matter_that_the_leader_itself_is_the_last(service: Served, group: Making) -> None:
    with group(deadline=NEVER) as (first, second):
        start(first, second)
        maintenance_id = announce(service, first, second)
        second.finish_preparing()
        wait_for(lambda: first.has_heard(second.vm, "prepared"))
        first.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= ended(first)


@pytest.mark.slow
def test_of_three_all_are_waited_for(service: Served, group: Making) -> None:
    with group(3, deadline=NEVER) as agents:
        start(*agents)
        maintenance_id = announce(service, *agents)
        for agent in (agents[2], agents[0]):
            agent.finish_preparing()
        assert_nobody_approves(service, maintenance_id)
        agents[1].finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == agents[0].vm
        assert at >= ended(agents[1])


@pytest.mark.slow
def test_vms_without_anything_to_prepare_need_no_time(service: Served, group: Making) -> None:
    with group(deadline=NEVER) as (first, second):
        for agent in (first, second):
            agent.has_preparation = False
            agent.start()
        maintenance_id = schedule(service, first.vm, second.vm)
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        wait_for(lambda: first.records)
        assert at >= max(first.seen_at, second.seen_at)


@pytest.mark.slow
def test_nothing_is_said_while_there_is_no_event(service: Served, group: Making) -> None:
    with group() as (first, second), intercepted(second) as tap:
        first.peers[second.vm] = tap.url
        start(first, second)
        time.sleep(QUIET_S)
        assert tap.questions == []
        maintenance_id = announce(service, first, second)
        wait_for(lambda: tap.questions)
        operate(service, f"/v1/maintenance/{maintenance_id}/cancel", {"reason": "a test"})
        wait_for(lambda: not first.has_begun)
        asked = len(tap.questions)
        time.sleep(QUIET_S)
        assert len(tap.questions) <= asked + 1


# One is dead or hangs


@pytest.mark.slow
def test_the_next_one_approves_when_the_leader_was_never_there(service: Served, group: Making) -> None:
    with group() as (first, second):
        second.start()
        maintenance_id = announce(service, first, second)
        second.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == second.vm
        assert at >= at_deadline(second, place=1)
        assert second.lines(f"no state from peer {first.vm}")


@pytest.mark.slow
def test_the_leader_does_not_wait_past_the_deadline_for_a_peer_that_was_never_there(
    service: Served, group: Making
) -> None:
    with group() as (first, second):
        first.start()
        maintenance_id = announce(service, first, second)
        first.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= at_deadline(first)


@pytest.mark.slow
def test_a_leader_that_is_killed_once_all_are_prepared_is_replaced_before_the_deadline(
    service: Served, group: Making
) -> None:
    with group(deadline=NEVER) as (first, second):
        start(first, second)
        maintenance_id = announce(service, first, second)
        first.finish_preparing()
        wait_for(lambda: second.has_heard(first.vm, "prepared"))
        first.kill()
        second.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == second.vm
        assert at >= ended(second) + timedelta(seconds=STAGGER_S)


@pytest.mark.slow
@pytest.mark.parametrize("hung", [0, 1], ids=["leader", "other"])
def test_a_vm_that_hangs_makes_nobody_wait_past_the_deadline(service: Served, group: Making, hung: int) -> None:
    with group() as agents:
        start(*agents)
        maintenance_id = announce(service, *agents)
        agents[hung].send(signal.SIGSTOP)
        alive = agents[1 - hung]
        alive.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == alive.vm
        assert at >= at_deadline(alive, place=1 - hung)
        assert alive.lines("no answer within")


@pytest.mark.slow
def test_a_vm_that_hangs_delays_no_other_and_is_heard_at_once_when_it_goes_on(service: Served, group: Making) -> None:
    with group(3, deadline=NEVER) as (first, second, third):
        start(first, second, third)
        maintenance_id = announce(service, first, second, third)
        for agent in (first, second):
            agent.finish_preparing()
        wait_for(lambda: first.has_heard(second.vm, "prepared"))
        second.send(signal.SIGSTOP)
        time.sleep(QUIET_S)
        third.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= ended(third)  # its last word was that it is prepared


@pytest.mark.slow
def test_a_vm_that_goes_on_after_it_hung_is_heard_soon(service: Served, group: Making) -> None:
    with group(deadline=NEVER) as (first, second):
        start(first, second)
        maintenance_id = announce(service, first, second)
        second.send(signal.SIGSTOP)
        first.finish_preparing()
        (second.folder / "go").touch()
        assert_nobody_approves(service, maintenance_id, 4)
        second.send(signal.SIGCONT)
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= ended(second)


# One wants it held


@pytest.mark.slow
@pytest.mark.parametrize("failing", [0, 1], ids=["leader", "other"])
def test_what_one_wants_held_starts_at_not_before_and_nobody_approves_it(
    service: Served, group: Making, failing: int
) -> None:
    """`on_failure` is hold unless a rule says otherwise."""
    with group(deadline="2s", stagger="500ms") as agents:
        start(*agents)
        maintenance_id = announce(service, *agents, notice_s=10)
        other = agents[1 - failing]
        agents[failing].finish_preparing(has_failed=True)
        wait_for(lambda: other.has_heard(agents[failing].vm, "held"))
        other.finish_preparing()
        wait_for(lambda: operate(service, f"/v1/maintenance/{maintenance_id}")["started_at"])
        shown = operate(service, f"/v1/maintenance/{maintenance_id}")
        assert approvals(service, maintenance_id) == []
        assert datetime.fromisoformat(shown["started_at"]) >= datetime.fromisoformat(shown["not_before"])


@pytest.mark.slow
def test_an_agent_that_starts_after_its_deadline_asks_before_it_approves(service: Served, group: Making) -> None:
    """Else every restart would overrule a peer that wants it held."""
    with group(deadline="2s", stagger="200ms") as (first, second):
        start(first, second)
        maintenance_id = announce(service, first, second)
        second.finish_preparing(has_failed=True)
        wait_for(lambda: first.has_heard(second.vm, "held"))
        first.finish_preparing()
        first.kill()
        time.sleep(2.5)
        first.start()
        wait_for(lambda: len(first.lines(f"peer {second.vm} reports: held")) > 1)
        assert_nobody_approves(service, maintenance_id)


@pytest.mark.slow
def test_an_agent_that_starts_after_its_deadline_does_not_wait_for_the_dead(service: Served, group: Making) -> None:
    with group(deadline="2s", stagger="200ms") as (first, second):
        first.start()
        maintenance_id = announce(service, first, second)
        first.kill()
        time.sleep(2.5)
        first.start()
        first.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= ended(first)


# They come and go


@pytest.mark.slow
@pytest.mark.parametrize("restarting", [0, 1], ids=["leader", "other"])
def test_a_restart_in_between_loses_nothing(service: Served, group: Making, restarting: int) -> None:
    with group(deadline=NEVER) as agents:
        start(*agents)
        maintenance_id = announce(service, *agents)
        once, last = agents[restarting], agents[1 - restarting]
        once.finish_preparing()
        wait_for(lambda: last.has_heard(once.vm, "prepared"))
        once.kill()
        once.start()
        assert_nobody_approves(service, maintenance_id)
        last.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == agents[0].vm
        assert at >= ended(last)


@pytest.mark.slow
def test_a_vm_that_sees_the_event_later_is_waited_for(service: Served, group: Making) -> None:
    with group(deadline=NEVER) as (first, second):
        first.start()
        maintenance_id = announce(service, first, second)
        first.finish_preparing()
        assert_nobody_approves(service, maintenance_id)
        second.start()
        wait_for(lambda: second.has_begun)
        assert_nobody_approves(service, maintenance_id, 0.5)
        second.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= ended(second)


@pytest.mark.slow
def test_a_vm_that_never_sees_the_event_is_waited_for_until_the_deadline(service: Served, group: Making) -> None:
    """Its agent runs and answers, but its endpoint shows it nothing."""
    with group() as (first, second):
        second.source_address = "127.0.8.8"  # of no VM
        start(first, second)
        maintenance_id = schedule(service, first.vm, second.vm)
        wait_for(lambda: first.has_begun)
        first.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= at_deadline(first)
        assert first.lines("no state from peer") == []


@pytest.mark.slow
def test_a_vm_that_is_not_among_the_peers_is_waited_for_until_the_deadline(service: Served, group: Making) -> None:
    with group(3) as (first, second, third):
        for agent in (first, second):
            del agent.peers[third.vm]
            agent.start()
        maintenance_id = announce(service, first, second, third)
        first.finish_preparing()
        second.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= at_deadline(first)
        assert len(first.lines(f"{third.vm} is not in together.peers")) == 1


@pytest.mark.slow
def test_a_vm_that_takes_itself_for_another_is_silent(service: Served, group: Making) -> None:
    """As after a renaming that its agent does not know of."""
    with group() as (first, second):
        second.vm, name = f"{second.vm}-old", second.vm
        start(first, second)
        maintenance_id = schedule(service, first.vm, name)
        wait_for(lambda: first.has_begun)
        first.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= at_deadline(first)
        assert first.lines(f"it is {second.vm}, not {name}")


# Who does not know the secret


@pytest.mark.slow
def test_a_vm_with_another_secret_is_silent_and_both_say_so(service: Served, group: Making) -> None:
    with group() as (first, second):
        second.secret = "another secret of more than 16 bytes"
        start(first, second)
        maintenance_id = announce(service, first, second)
        first.finish_preparing()
        second.finish_preparing()
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= at_deadline(first)
        for agent, other in ((first, second), (second, first)):
            assert agent.lines(f"no state from peer {other.vm}: it answered 401")
            assert len(agent.lines(f"refused a query that claims to come from {other.vm}")) == 1
        assert SECRET not in first.log + second.log


@dataclass
class Tap:
    """Somebody between two agents, who reads everything and may answer in the other's place.

    Attributes:
        questions: Body and signature of each that came by.
        answers: The same, as they were given.
        forged: What it answers instead; None while it only listens.
    """

    url: str
    there: str
    questions: list[tuple[bytes, str]] = field(default_factory=list)
    answers: list[tuple[bytes, str]] = field(default_factory=list)
    forged: Callable[[bytes], tuple[bytes, str]] | None = None

    def pass_on(self, body: bytes, signature: str) -> tuple[int, bytes, str]:
        self.questions.append((body, signature))
        if self.forged is not None:
            return 200, *self.forged(body)
        status, said, signed = post(self.there, body, signature)
        self.answers.append((said, signed))
        return status, said, signed


def post(url: str, body: bytes, signature: str) -> tuple[int, bytes, str]:
    """A question to an agent: status, body and signature of its answer."""
    try:
        answer = httpx.post(url + PATH, content=body, headers={SIGNATURE: signature}, timeout=GUARD_S, trust_env=False)
    except httpx.TransportError:
        return 502, b"", ""
    return answer.status_code, answer.content, answer.headers.get(SIGNATURE, "")


@contextmanager
def intercepted(agent: AgentProcess) -> Iterator[Tap]:
    """Somebody in front of that agent."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, said, signature = tap.pass_on(body, self.headers.get(SIGNATURE, ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(said)))
            self.send_header(SIGNATURE, signature)
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tap = Tap(f"http://127.0.0.1:{server.server_address[1]}", agent.url)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield tap
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
def test_an_impostor_without_the_secret_gets_nothing_and_changes_nothing(service: Served, group: Making) -> None:
    with group() as (first, second), intercepted(second) as tap:
        first.peers[second.vm] = tap.url
        guess = MessageSigner(b"a guess of more than sixteen bytes")

        def forge(body: bytes) -> tuple[bytes, str]:
            """What the peer would say if it were prepared, as well as somebody can who reads the question."""
            question = json.loads(body)
            said = {"from": second.vm, "to": first.vm, "nonce": question["nonce"], "version": "x"}
            forged = json.dumps(said | {"standings": dict.fromkeys(question["events"], "prepared")}).encode()
            return forged, guess.sign_message(PeerQuery(sender="", receiver="", nonce="0" * 32, version=""))[1]

        tap.forged = forge
        start(first, second)
        maintenance_id = announce(service, first, second)
        first.finish_preparing()
        event_id = first.records[0]["event"]["id"]
        for _ in range(5):
            asking = PeerQuery(sender=second.vm, receiver=first.vm, nonce="0" * 32, version="x", events=(event_id,))
            body, signature = guess.sign_message(asking)
            status, said, _ = post(first.url, body, signature)
            assert status == 401
            assert event_id.encode() not in said
            assert post(first.url, body, "")[0] == 401
        assert len(first.lines("refused a query")) == 1
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= at_deadline(first)


@pytest.mark.slow
def test_genuine_messages_that_were_recorded_change_nothing_when_they_are_played_back(
    service: Served, group: Making
) -> None:
    """The peer was prepared, and said so. Then it lost its disk, and prepares anew."""
    with group(deadline="12s") as (first, second), intercepted(second) as tap, intercepted(first) as other_tap:
        first.peers[second.vm], second.peers[first.vm] = tap.url, other_tap.url
        start(first, second)
        maintenance_id = announce(service, first, second)
        second.finish_preparing()
        wait_for(lambda: first.has_heard(second.vm, "prepared"))
        recorded = next(answer for answer in tap.answers if b"prepared" in answer[0])
        second.kill()
        second.hold_back()
        second.forget()
        second.start()
        wait_for(lambda: first.has_heard(second.vm, "preparing"))
        tap.forged = lambda _: recorded
        for question in list(other_tap.questions):
            assert post(first.url, *question)[0] == 200
        first.finish_preparing()
        for question in list(other_tap.questions):
            post(first.url, *question)
        vm, at = wait_approved(service, maintenance_id)
        assert vm == first.vm
        assert at >= first.seen_at + timedelta(seconds=12)
        assert first.lines("its answer belongs to another query")


# The secret and the address


def test_a_secret_is_read_without_the_white_space_around_it(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"  0123456789abcdef\r\n")
    path.chmod(0o600)
    assert read_secret(path) == b"0123456789abcdef"


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (b"0123456789abcdef", 0o640, "is accessible to other users: run chmod 600"),
        (b"0123456789abcdef", 0o604, "is accessible to other users: run chmod 600"),
        (b"0123456789abcde\n", 0o600, "has 15 bytes, expected 16 to 4096"),
        (b"", 0o600, "has 0 bytes"),
        (b"x" * 5000, 0o600, "expected 16 to 4096"),
    ],
)
def test_a_secret_that_is_none_is_refused(tmp_path: Path, content: bytes, mode: int, reason: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=reason) as caught:
        read_secret(path)
    assert "0123456789" not in caught.value.message


def test_a_secret_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_secret(tmp_path / "secret")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_secret(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["secret", "address"])
def test_an_agent_that_cannot_speak_to_its_peers_says_so_and_does_not_start(
    service: Served, group: Making, tmp_path: Path, trouble: str
) -> None:
    with group() as (first, _):
        if trouble == "secret":
            first.secret = "short"
        else:
            first.address = "192.0.2.1"
        with pytest.raises(AssertionError, match="forewarn: "):
            first.start()
        expected = "expected 16 to 4096" if trouble == "secret" else "cannot listen on 192.0.2.1"
        assert first.lines(expected)
        assert "Traceback" not in first.log


def test_the_configurations_of_the_guide_are_such() -> None:
    files = files_in(ROOT / "docs/how-to/agent-several-vms.md")
    modes = {name.removesuffix(".toml"): parse_configuration(text).together.mode for name, text in files.items()}
    assert set(modes) == {"leader", "each", "primary", "secondary", "all-prepared"}
    assert all(name == mode for name, mode in modes.items())


# One is cut off


apart = pytest.mark.skipif(missing() is not None, reason=f"network namespaces need {missing()}")
FIRST, SECOND = "10.9.0.11", "10.9.0.12"


@dataclass
class Cloud:
    """Two VMs with networks of their own, of one availability set."""

    net: Network
    service: Served
    folder: Path

    @contextmanager
    def agents(self, **together: str) -> Iterator[list[AgentProcess]]:
        addresses = {"web-1": FIRST, "web-2": SECOND}
        prefixes = {name: self.net.in_vm(address) for name, address in addresses.items()}
        endpoint = f"http://{METADATA_ADDRESS}"
        with group_of(self.folder, endpoint, addresses, SETTINGS | together, prefixes) as made:
            yield made

    def part(self) -> None:
        """What the VMs send each other gets lost, without a word; each still reaches the endpoint."""
        for here, there in ((FIRST, SECOND), (SECOND, FIRST)):
            nowhere = ("lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent")
            self._in_vm(here, "ip", "neigh", "replace", there, *nowhere)

    def heal(self) -> None:
        for here, there in ((FIRST, SECOND), (SECOND, FIRST)):
            self._in_vm(here, "ip", "neigh", "del", there, "dev", "eth0")

    def refuse(self) -> None:
        """The VMs have no route to each other, and know it."""
        for here, there in ((FIRST, SECOND), (SECOND, FIRST)):
            self._in_vm(here, "ip", "route", "add", "blackhole", f"{there}/32")

    def _in_vm(self, address: str, *command: str) -> None:
        subprocess.run(self.net.in_vm(address, *command), check=True, capture_output=True, timeout=GUARD_S)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    vms = [
        {"name": f"web-{n}", "host": "host-1", "scope": "web", "addresses": [address]}
        for n, address in enumerate((FIRST, SECOND), start=1)
    ]
    inventory = {"hosts": [{"name": "host-1"}], "scopes": [{"name": "web", "kind": "availability-set"}], "vms": vms}
    (tmp_path / "inventory.json").write_text(json.dumps(inventory))
    listen = f"{METADATA_ADDRESS}:80"
    with (
        network([FIRST, SECOND]) as net,
        served(
            tmp_path,
            *("--inventory", str(tmp_path / "inventory.json")),
            prefix=net.on_host(),
            metadata_listen=listen,
        ) as running,
    ):
        yield Cloud(net, running, tmp_path)


@pytest.mark.namespaces
@apart
@pytest.mark.parametrize("how", ["lost", "refused"])
def test_a_vm_that_is_cut_off_from_its_peer_does_not_wait_past_the_deadline(cloud: Cloud, how: str) -> None:
    with cloud.agents() as (first, second):
        start(first, second)
        cloud.part() if how == "lost" else cloud.refuse()
        maintenance_id = announce(cloud.service, first, second)
        first.finish_preparing()
        second.finish_preparing()
        vm, at = wait_approved(cloud.service, maintenance_id)
        assert vm == first.vm
        assert at >= at_deadline(first)
        assert not first.has_heard(second.vm, "prepared")


@pytest.mark.namespaces
@apart
def test_a_vm_that_is_cut_off_while_they_talk_is_heard_soon_after_the_network_is_back(cloud: Cloud) -> None:
    with cloud.agents(deadline=NEVER) as (first, second):
        start(first, second)
        maintenance_id = announce(cloud.service, first, second)
        wait_for(lambda: first.has_heard(second.vm, "preparing"))
        cloud.part()
        first.finish_preparing()
        second.finish_preparing()
        assert_nobody_approves(cloud.service, maintenance_id, 6)
        assert first.lines(f"no state from peer {second.vm}")
        cloud.heal()
        vm, _ = wait_approved(cloud.service, maintenance_id)
        assert vm == first.vm
        assert first.lines(f"peer {second.vm} answers again")


@pytest.mark.namespaces
@apart
def test_whoever_knows_that_all_are_prepared_approves_when_the_leader_cannot_know(cloud: Cloud) -> None:
    with cloud.agents(deadline=NEVER) as (first, second):
        start(first, second)
        maintenance_id = announce(cloud.service, first, second)
        first.finish_preparing()
        wait_for(lambda: second.has_heard(first.vm, "prepared"))
        cloud.part()
        second.finish_preparing()
        vm, at = wait_approved(cloud.service, maintenance_id)
        assert vm == second.vm
        assert at >= ended(second) + timedelta(seconds=STAGGER_S)


@pytest.mark.namespaces
@apart
def test_what_a_vm_wants_held_stays_held_when_it_is_cut_off_afterwards(cloud: Cloud) -> None:
    with cloud.agents(deadline="2s", stagger="200ms") as (first, second):
        start(first, second)
        maintenance_id = announce(cloud.service, first, second)
        second.finish_preparing(has_failed=True)
        wait_for(lambda: first.has_heard(second.vm, "held"))
        cloud.part()
        first.finish_preparing()
        assert_nobody_approves(cloud.service, maintenance_id, 5)

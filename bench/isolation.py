"""Part 16: the effect of one faulty, flooding or silent caller on the other callers.

The calls of well-behaved callers are measured before each attack and during it. During the attack, the p95 of each call
must stay below ten times the p95 before it plus 50 ms. Unauthenticated callers must cost the service less than 64 MiB
of memory.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from bench.document import PATH
from bench.fleet import address_of, host_name, token_of, vm_name, write_fleet
from bench.process import LOAD_CORE, ROOT, SERVER_CORE, BenchError, Child, python_child
from bench.result import Effort, Result, Row, percentile

__all__ = ["PAGE", "Service", "allowed_ms", "measure", "serve", "write_page"]

PAGE = ROOT / "docs/explanation/security.md"
"""The page that lists the threats and the measured attacks."""

_PREFACE = (
    '`make bench ARGS="--only isolation"` measures what each attack costs other callers, with the service on one core. '
    "Before and during each attack, other callers make several kinds of calls, such as `list` (get the list of "
    "maintenances) and `dashboard` (get the overview). The columns *before* and *during* give the p95 latency of one "
    "kind before and during the attack, in milliseconds. Latency counts from the moment at which a call was due to be "
    "sent. *Allowed* is the limit for *during*: ten times *before*, plus 50 ms. Each row shows one kind, the *worst "
    "call*: its latency during the attack came nearest to the limit. *Failed calls* counts the failed calls of other "
    "callers. *Memory* is the growth of the service's memory. *Strangers* are callers without a token."
)
_BEGIN, _END = "<!-- measured attacks: begin -->", "<!-- measured attacks: end -->"

_FACTOR, _SPARE_MS = 10.0, 50.0
_MEMORY_MIB = 64.0
_HEADER_BYTES = 1_500_000_000
_READY_S = 120.0
_SETTLE_S = 1.0
_IN_A_PROCESS = "test_a_large_inventory_is_read_in_a_process_of_its_own"
_BY_HOST = "test_a_change_of_one_host_reads_that_host_only"
_JSON = {"Content-Type": "application/json"}
_ATTACKER, _VICTIM = 1, 30
"""Numbers of two VMs on different hosts and with different owners."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One attack, and the calls of other callers that are measured during it.

    Attributes:
        name: Name of the attack in `bench.attack`.
        title: Title in the table.
        calls: Names of the measured calls.
        work: Parameters of the attack besides port and time.
        is_at_endpoint: Whether the attack is on the metadata endpoint.
        has_changes: Whether an operator makes changes during the attack.
        memory: Whether the memory of the service is measured as well.
        test: Test of the limit that protects other callers from the attack.
    """

    name: str
    title: str
    test: str
    calls: tuple[str, ...]
    work: dict[str, Any] = field(default_factory=dict)
    is_at_endpoint: bool = False
    has_changes: bool = False
    memory: bool = False


def allowed_ms(calm_ms: float) -> float:
    """Return the allowed p95 of a call during an attack, from its p95 before the attack."""
    return _FACTOR * calm_ms + _SPARE_MS


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Run each attack, and measure the calls of well-behaved callers."""
    result = Result(title="What one caller costs the others: p95 under attack")
    small, large = folder / "small", folder / "large"
    small.mkdir()
    large.mkdir()
    with serve(small, log, write_fleet(small, 1000)) as service:
        for attack in _attacks(service):
            _run(attack, service, effort, log, result)
    with serve(large, log, write_fleet(large, effort.attacked_vms)) as service:
        for attack in _inventories(service, large):
            _run(attack, service, effort, log, result)
    return result


def write_page(part: dict[str, Any]) -> None:
    """Write a table of the measured attacks between the markers of the page.

    Args:
        part: Stored results of this part of the benchmark.
    """
    lines = [
        _PREFACE,
        "",
        "| they try | worst call | before | during | allowed | failed calls | memory | test |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for attack in part["raw"]["attacks"]:
        calm, hit = attack["calm"]["took_ms"], attack["hit"]["took_ms"]
        worst = max(hit, key=lambda name: hit[name]["p95"] / allowed_ms(calm[name]["p95"]))
        figures = (calm[worst]["p95"], hit[worst]["p95"], allowed_ms(calm[worst]["p95"]))
        failed = sum(attack["hit"]["wrong"].values())
        grown = f"{max(attack['grown_bytes'], 0) / (1 << 20):.0f} MiB" if attack["has_memory"] else ""
        cells = [attack["title"], worst, *(f"{figure:.0f}" for figure in figures), str(failed), grown]
        cells.append(f"`tests/integration/{attack['test']}`")
        lines.append(f"| {' | '.join(cells)} |")
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    PAGE.write_text(f"{before}{_BEGIN}\n" + "\n".join(lines) + f"\n{_END}{after}", encoding="utf-8")


class Service:
    """The attacked service.

    Attributes:
        child: Processes of the service.
        metadata_port, control_port: Ports of the service.
        calls: Calls of well-behaved callers, by name.
    """

    def __init__(self, child: Child, folder: Path, ready: str) -> None:
        self.child = child
        metadata, control = re.findall(r"http://[^,\s]+", ready)[:2]
        self.metadata_port, self.control_port = urlsplit(metadata).port or 0, urlsplit(control).port or 0
        self._control = control
        self._operator = {"Authorization": f"Bearer {(folder / 'operator.token').read_text(encoding='utf-8').strip()}"}
        event_id = self._event(vm_name(_VICTIM))
        self.calls = self._calls(event_id)

    def ask(self, method: str, path: str, content: object = None) -> Any:  # noqa: ANN401 - JSON
        """Call the control API as the operator."""
        body = None if content is None else json.dumps(content).encode()
        request = urllib.request.Request(self._control + path, body, self._operator | _JSON, method=method)
        with urllib.request.urlopen(request, timeout=_READY_S) as answer:
            return json.loads(answer.read())

    def tenant(self, name: str, vm: str) -> dict[str, str]:
        """Create a tenant that owns the VM; return the headers of its requests."""
        made = self.ask("POST", "/v1/tokens", {"name": name, "role": "tenant", "vms": [vm]})
        return {"Authorization": f"Bearer {made['token']}"}

    def cookie(self, token: str) -> dict[str, str]:
        """Log in to the dashboard; return the headers with the session's cookie."""
        headers = {"Origin": self._control, "Content-Type": "application/x-www-form-urlencoded"}
        form = urlencode({"token": token}).encode()
        opener = urllib.request.build_opener(_NoRedirect)
        request = urllib.request.Request(self._control + "/login", form, headers, method="POST")
        try:
            answer = opener.open(request, timeout=_READY_S)
        except urllib.error.HTTPError as error:  # the redirect after the login
            answer = error
        return {"Cookie": (answer.headers["set-cookie"] or "").partition(";")[0]}

    @property
    def operator(self) -> dict[str, str]:
        """Headers of the operator's requests."""
        return dict(self._operator)

    def _event(self, vm: str) -> str:
        """Announce an event to a VM; return the event's id."""
        made = self.ask("POST", "/v1/maintenance", {"vms": [vm], "type": "Reboot", "notice_s": 6 * 3600})
        found: str = made["items"][0]["events"][0]["id"]
        return found

    def _calls(self, event_id: str) -> dict[str, dict[str, Any]]:
        vm = {"port": self.metadata_port, "path": PATH, "address": address_of(_VICTIM)}
        metadata = {"Metadata": "true"}
        control = {"port": self.control_port, "headers": self.operator}
        session = self.cookie(self._operator["Authorization"].removeprefix("Bearer "))
        approval = json.dumps({"StartRequests": [{"EventId": event_id}]})
        return {
            "GET": {**vm, "headers": metadata},
            "GET, new connection": {**vm, "headers": metadata, "fresh": True},
            "POST": {**vm, "method": "POST", "headers": metadata, "body": approval},
            "dashboard": {"port": self.control_port, "path": "/", "headers": session},
            "list": {**control, "path": "/v1/maintenance?limit=10"},
            "host watch": {
                "port": self.control_port,
                "path": f"/v1/hosts/{host_name(3)}/watch",
                "headers": {"Authorization": f"Bearer {token_of(host_name(3))}"},
                "stream": True,
                "every_s": 0.5,
            },
        }


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Do not follow redirects."""


@contextmanager
def serve(folder: Path, log: Path, url: str) -> Iterator[Service]:
    """Run `forewarn serve` with its default settings, on one core."""
    command = [sys.executable, "-m", "forewarn", "serve", "--database-url", url, "--state-dir", str(folder)]
    command += ["--metadata-listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]
    with Child(command, core=SERVER_CORE, log=log) as child:
        yield Service(child, folder, child.hear_line(_READY_S))


def _attacks(service: Service) -> list[Attack]:
    vm = vm_name(_ATTACKER)
    tenant = service.tenant("attacker", vm)
    session = service.cookie(tenant["Authorization"].removeprefix("Bearer "))
    stolen = {"Authorization": f"Bearer {token_of(host_name(0))}"}
    vms = ("GET", "GET, new connection", "POST")
    everybody = (*vms, "list", "dashboard")
    return [
        Attack(
            name="approve",
            title="one VM approves 1,000 unknown ids over 200 connections",
            test="test_endpoint_shares.py::test_the_approval_of_a_vm_does_not_wait_for_the_backlog_of_another",
            calls=everybody,
            work={"address": address_of(_ATTACKER)},
            is_at_endpoint=True,
        ),
        Attack(
            name="streams",
            title="500 streams of one tenant",
            test="test_control_budgets.py::test_a_caller_who_goes_on_after_refusals_is_refused_unread_and_only_that_kind_of_request",
            calls=everybody,
            work={"headers": tenant},
            has_changes=True,
        ),
        Attack(
            name="pages",
            title="60 live pages of one tenant",
            test="test_dashboard_live.py::test_sixty_pages_of_one_tenant_come_in_turn_with_the_page_of_another",
            calls=everybody,
            work={"headers": session},
            has_changes=True,
        ),
        Attack(
            name="requests",
            title="eight callers ask for the list of recent requests",
            test="test_control_requests.py::test_while_requests_are_listed_others_are_answered_and_a_second_listing_waits",
            calls=everybody,
            work={"headers": service.operator},
        ),
        Attack(
            name="watches",
            title="205 watches with one stolen host token",
            test="test_control_budgets.py::test_a_host_that_begins_watches_without_end_is_refused_and_others_are_not",
            calls=(*everybody, "host watch"),
            work={"headers": stolen, "host": host_name(0)},
        ),
        Attack(
            name="restarts",
            title="one tenant restarts and cancels without a pause",
            test="test_control_budgets.py::test_a_loop_of_changes_of_a_tenant_is_ended_and_does_not_end_those_of_others",
            calls=everybody,
            work={"headers": tenant, "vm": vm},
        ),
        Attack(
            name="idle",
            title="1,500 idle strangers",
            test="test_control_hostile.py::test_strangers_from_everywhere_make_room_for_whoever_shows_a_token",
            calls=everybody,
            memory=True,
        ),
        Attack(
            name="guess",
            title="100 strangers try tokens without a pause",
            test="test_control_budgets.py::test_a_stranger_who_goes_on_is_refused_unread_and_known_callers_of_that_address_are_not",
            calls=everybody,
            memory=True,
        ),
        Attack(
            name="trickle",
            title="200 strangers send a byte a second",
            test="test_control_hostile.py::test_a_request_that_trickles_is_ended",
            calls=everybody,
            memory=True,
        ),
        Attack(
            name="headers",
            title="200 strangers send 1.5 GB of headers",
            test="test_control_hostile.py::test_a_connection_that_was_refused_leaves_nothing_for_the_collector_of_cycles",
            calls=everybody,
            work={"bytes": _HEADER_BYTES},
            memory=True,
        ),
    ]


def _inventories(service: Service, folder: Path) -> list[Attack]:
    """Return attacks with a refused large inventory, an accepted one with one change, and one changed VM of a host."""
    inventory = service.ask("GET", "/v1/inventory")
    size = len(inventory["vms"])
    inventory["vms"][0]["tags"] = {"change": "@@"}
    first = [vm for vm in inventory["vms"] if vm["host"] == inventory["vms"][0]["host"]]
    texts = {
        "accepted": inventory,
        "refused": inventory | {"vms": [*inventory["vms"], inventory["vms"][-1]]},
        "host": {"vms": first},
    }
    for name, content in texts.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    host = inventory["vms"][0]["host"]

    def work(name: str, path: str) -> dict[str, Any]:
        return {"text": str(folder / f"{name}.json"), "path": path, "headers": service.operator | _JSON}

    calls = ("GET", "GET, new connection", "POST", "list")
    return [
        Attack(
            name="inventory",
            title=f"{title} ({size:,} VMs), again and again",
            test=f"test_inventory_cost.py::{test}",
            calls=calls,
            work=work(name, path),
        )
        for name, title, path, test in (
            ("refused", "an inventory that is refused", "/v1/inventory", _IN_A_PROCESS),
            ("accepted", "an inventory that is accepted", "/v1/inventory", _IN_A_PROCESS),
            ("host", "one changed VM of one host", f"/v1/hosts/{host}/vms", _BY_HOST),
        )
    ]


def _run(attack: Attack, service: Service, effort: Effort, log: Path, result: Result) -> None:
    """Measure the calls before the attack and during it."""
    port = service.metadata_port if attack.is_at_endpoint else service.control_port
    work = json.dumps({"port": port, "seconds": effort.attack_s + 2 * _SETTLE_S} | attack.work)
    calls = {name: service.calls[name] for name in attack.calls}
    with python_child("bench.probe", core=LOAD_CORE, log=log) as probe:
        calm = probe.ask(do="measure", calls=calls, seconds=effort.attack_s, timeout_s=300)
        before = service.child.rss_bytes()
        with python_child("bench.attack", attack.name, work, core=LOAD_CORE, log=log) as attacker:
            attacker.hear()
            time.sleep(_SETTLE_S)
            with _changing(service, is_on=attack.has_changes):
                hit = probe.ask(do="measure", calls=calls, seconds=effort.attack_s, timeout_s=600)
            grown = service.child.rss_bytes() - before
            done = attacker.hear(300)
    if not service.child.is_running:
        raise BenchError(f"the service ended under {attack.title}")
    for name in attack.calls:
        calm_ms, hit_ms = percentile(calm["took_ms"][name], 95), percentile(hit["took_ms"][name], 95)
        note = f"before the attack {calm_ms:.1f} ms"
        result.rows.append(
            Row(what=f"{attack.title}: {name}", value=hit_ms, unit="ms", target=allowed_ms(calm_ms), note=note)
        )
    asked, failed = sum(map(len, hit["took_ms"].values())), sum(hit["wrong"].values())
    note = ", ".join(f"{count} {what}" for what, count in sorted(hit["wrong"].items()))
    result.rows.append(
        Row(
            what=f"{attack.title}: calls of others that failed",
            value=100 * failed / asked,
            unit="%",
            target=0,
            note=note,
        )
    )
    if attack.memory:
        mib = max(grown, 0) / (1 << 20)
        result.rows.append(Row(what=f"{attack.title}: memory", value=mib, unit="MiB", target=_MEMORY_MIB))
    result.raw.setdefault("attacks", []).append(
        {
            "title": attack.title,
            "test": attack.test,
            "calm": _kept(calm),
            "hit": _kept(hit),
            "done": done,
            "grown_bytes": grown,
            "has_memory": attack.memory,
        }
    )
    worst = max(attack.calls, key=lambda name: percentile(hit["took_ms"][name], 95))
    figures = f"{percentile(calm['took_ms'][worst], 95):.1f} -> {percentile(hit['took_ms'][worst], 95):.1f} ms"
    print(f"  {attack.title}: {worst} {figures}; attack {done}; wrong {hit['wrong']}", flush=True)


def _kept(measured: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a measurement that is stored: percentiles instead of all times."""
    took_ms = {
        name: {"count": len(values), "p50": percentile(values, 50), "p95": percentile(values, 95), "max": max(values)}
        for name, values in measured["took_ms"].items()
    }
    return {"took_ms": took_ms, "wrong": measured["wrong"]}


@contextmanager
def _changing(service: Service, *, is_on: bool) -> Iterator[None]:
    """Let an operator announce and cancel an event, five times a second."""
    if not is_on:
        yield
        return
    end = threading.Event()

    def change() -> None:
        while not end.wait(0.2):
            content = {"vms": [vm_name(_VICTIM + 20)], "type": "Freeze"}
            made = service.ask("POST", "/v1/maintenance", content)
            service.ask("POST", f"/v1/maintenance/{made['items'][0]['id']}/cancel", {})

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()

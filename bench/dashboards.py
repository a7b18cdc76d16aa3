"""Part 13: the dashboard with a large inventory, many viewers and many changes."""

from __future__ import annotations

import http.client
import threading
import time
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

from bench.document import service_child
from bench.fleet import vm_name, write_fleet
from bench.operator import Operator
from bench.process import LOAD_CORE, BenchError, Child, python_child
from bench.result import Effort, Result, Row, median, percentile

__all__ = ["measure"]

_TARGET_MS = 100.0
_VMS = 100_000
_PAUSE_S = 1.2
_BUSY_S = 15.0
_PATIENCE_S = 300.0
_EVERY_S = 0.1


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Open pages one after the other, then let many viewers watch one page."""
    vms = _VMS if effort.dashboards >= 1000 else 10_000
    url = write_fleet(folder, vms)
    with service_child(folder, log, database_url=url, inventory=None) as service:
        told = service.hear(_PATIENCE_S)
        names = [vm_name(number) for number in range(effort.shown)]
        service.ask(do="schedule", vms=names, lead_s=3600.0, apart_s=1.0, timeout_s=_PATIENCE_S)
        browser = _Browser(told["control"], folder)
        operator = Operator(told["control"], folder)
        found: dict[str, Any] = {"vms": vms, "active": effort.shown, "pages_ms": _pages(browser, operator, effort)}
        print(f"  overview: p99 {percentile(found['pages_ms']['overview'], 99):.0f} ms", flush=True)
        port = str(urlsplit(told["control"]).port)
        with python_child(
            "bench.lookers", port, browser.cookie, str(effort.dashboards), core=LOAD_CORE, log=log
        ) as crowd:
            found |= _crowd(service, crowd, operator, browser, effort)
    return Result(title=_title(effort, vms), rows=_rows(found, effort), raw=found)


def _title(effort: Effort, vms: int) -> str:
    return f"The dashboard: {vms:,} VMs, {effort.shown:,} active maintenances, {effort.dashboards:,} viewers"


def _rows(found: dict[str, Any], effort: Effort) -> list[Row]:
    rows = []
    for name, took_ms in found["pages_ms"].items():
        rows += [
            Row(what=f"page {name}, p50", value=percentile(took_ms, 50), unit="ms"),
            Row(what=f"page {name}, p99", value=percentile(took_ms, 99), unit="ms", target=_TARGET_MS),
        ]
    return [
        *rows,
        Row(what="memory for each viewer", value=found["kib_each"], unit="KiB"),
        Row(
            what=f"a change, request until the last of {effort.dashboards:,} viewers sees it, median",
            value=median(found["last_ms"]),
            unit="ms",
            note=f"the page has {found['page_bytes'] / 1024:.0f} KiB",
        ),
        Row(what="ten changes a second: CPU time of the service", value=found["busy_percent"], unit="% of a core"),
        Row(what="ten changes a second: updates that each viewer sees", value=found["pages_per_s"], unit="a second"),
        Row(
            what="ten changes a second: request to answer of the control API, p99",
            value=found["busy_p99_ms"],
            unit="ms",
        ),
    ]


class _Browser:
    """A viewer who has logged in, on one connection."""

    def __init__(self, url: str, folder: Path) -> None:
        token = (folder / "operator.token").read_text(encoding="utf-8").strip()
        address = urlsplit(url)
        self._connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        headers = {"Origin": url, "Content-Type": "application/x-www-form-urlencoded"}
        self._connection.request("POST", "/login", urlencode({"token": token}), headers)
        answer = self._connection.getresponse()
        answer.read()
        self.cookie = (answer.headers["set-cookie"] or "").partition(";")[0]

    def open(self, path: str) -> float:
        """Open a page; return the milliseconds until it is complete."""
        before_s = time.monotonic()
        self._connection.request("GET", path, headers={"Cookie": self.cookie})
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != http.client.OK or b"</html>" not in body:
            raise BenchError(f"page {path} was answered {answer.status}")
        return (time.monotonic() - before_s) * 1000


class _Changes:
    """Schedules and cancels maintenance in a separate thread, ten times a second."""

    def __init__(self, operator: Operator, first: int) -> None:
        self._operator = operator
        self._next = first
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.took_ms: list[float] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(_EVERY_S):
            self.took_ms.append(change(self._operator, self._next))
            self._next += 1


def change(operator: Operator, number: int) -> float:
    """Announce a Freeze to a VM and cancel it; return the milliseconds for both requests."""
    before_s = time.monotonic()
    made = operator.post("/v1/maintenance", {"vms": [vm_name(number)], "type": "Freeze"})
    operator.post(f"/v1/maintenance/{made['items'][0]['id']}/cancel", {})
    return (time.monotonic() - before_s) * 1000


def _pages(browser: _Browser, operator: Operator, effort: Effort) -> dict[str, list[float]]:
    """Open each page many times while the data changes; return the milliseconds by page."""
    one = operator.post("/v1/maintenance", {"vms": [vm_name(effort.shown + 1)], "type": "Freeze"})["items"][0]
    paths = {
        "overview": "/",
        "search": "/search?q=0999",
        "maintenance": f"/maintenance/{one['id']}",
        "vms": f"/vms?after={vm_name(5000)}",
        "audit-log": "/audit-log",
    }
    took: dict[str, list[float]] = {name: [] for name in paths}
    with _Changes(operator.again(), effort.shown + 10):
        for _ in range(effort.opened):
            for name, path in paths.items():
                took[name].append(browser.open(path))
            time.sleep(0.03)
    return took


def _crowd(service: Child, crowd: Child, operator: Operator, browser: _Browser, effort: Effort) -> dict[str, Any]:
    before = service.ask(do="rss", timeout_s=_PATIENCE_S)["rss_bytes"]
    joined = crowd.ask(do="join", timeout_s=_PATIENCE_S)
    after = service.ask(do="rss", timeout_s=_PATIENCE_S)["rss_bytes"]
    found: dict[str, Any] = {
        "kib_each": (after - before) / effort.dashboards / 1024,
        "page_bytes": joined["page_bytes"],
        "last_ms": [],
    }
    for number in range(effort.heard // 2):
        crowd.ask(do="rest", seconds=_PAUSE_S)
        crowd.ask(do="expect")
        before_s = time.monotonic()
        operator.post("/v1/maintenance", {"vms": [vm_name(3000 + number)], "type": "Freeze"})
        moments = crowd.hear(_PATIENCE_S)["moments_s"]
        found["last_ms"].append((moments[-1] - before_s) * 1000)
    print(f"  {effort.dashboards:,} see a change after {median(found['last_ms']):.0f} ms", flush=True)
    spent_s, began_s = service.cpu_s(), time.monotonic()
    with _Changes(operator.again(), 4000) as changes:
        heard = crowd.ask(do="rest", seconds=_BUSY_S, timeout_s=_PATIENCE_S)
    took_s = time.monotonic() - began_s
    found["busy_percent"] = (service.cpu_s() - spent_s) / took_s * 100
    found["pages_per_s"] = heard["pages"] / took_s / effort.dashboards
    found["busy_p99_ms"] = percentile(changes.took_ms, 99)
    found["busy_overview_ms"] = [browser.open("/") for _ in range(10)]
    return found

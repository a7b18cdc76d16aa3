"""Part 9: the time from the control API until a VM sees a change, through PostgreSQL, a replica and the host endpoint.

There are two replicas. The operator sends requests to the first one. The host watches either the same replica, or the
other one, which learns of the commit from the database. The VM holds a long poll. The host endpoint writes each change
to its disk before it shows the change.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.document import fetch, service_child
from bench.operator import Operator
from bench.postgresql import databases
from bench.process import LOAD_CORE, SERVER_CORE, BenchError, Child, python_child
from bench.result import Effort, Result, Row, percentile
from bench.sight import change, delays_ms

__all__ = ["measure"]

_TARGET_MS = 100.0
_WAYS = {"same": "the host watches the replica that gets the request", "other": "the host watches another replica"}
_READY = re.compile(r"metadata (http://\S+:(\d+))")
_PATIENCE_S = 30.0


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Change the document of one VM many times, with the host at the first replica and at the second one."""
    result = Result(
        title="From a request to the control API, through PostgreSQL, replica and host endpoint, until a VM sees it"
    )
    with (
        databases(folder) as url,
        service_child(folder, log, database_url=url) as first,
    ):
        asked = first.hear()
        with service_child(folder, log, database_url=url) as second:
            watched = {"same": asked, "other": second.hear()}
            operator = Operator(asked["control"], folder)
            token = operator.post("/v1/hosts/host-1/tokens", {})["token"]
            for way, words in _WAYS.items():
                with _endpoint(folder, way, token, watched[way]["control"], log) as port:
                    found = _watch(first, port, operator, effort.through, log)
                result.raw[way] = found
                result.rows += _rows(words, found)
                p50, p99 = (percentile(found["from_request_ms"], percent) for percent in (50, 99))
                print(f"  {words}: p50 {p50:.1f} ms, p99 {p99:.1f} ms", flush=True)
    return result


def _rows(words: str, found: dict[str, Any]) -> list[Row]:
    request_ms, commit_ms = found["from_request_ms"], found["from_commit_ms"]
    return [
        Row(what=f"{words}, request until seen, p50", value=percentile(request_ms, 50), unit="ms"),
        Row(
            what=f"{words}, request until seen, p99",
            value=percentile(request_ms, 99),
            unit="ms",
            target=_TARGET_MS,
            note=f"of {len(request_ms)} changes",
        ),
        Row(what=f"{words}, commit until seen, p50", value=percentile(commit_ms, 50), unit="ms"),
        Row(what=f"{words}, commit until seen, p99", value=percentile(commit_ms, 99), unit="ms"),
    ]


@contextmanager
def _endpoint(folder: Path, way: str, token: str, control_url: str, log: Path) -> Iterator[int]:
    """Run `forewarn endpoint` for the host; yield its port for VMs once it answers."""
    token_file = folder / "host.token"
    token_file.write_text(token, encoding="utf-8")
    words = ["endpoint", "--host", "host-1", "--token-file", str(token_file), "--control-url", control_url]
    words += ["--metadata-listen", "127.0.0.1:0", "--listen", "", "--state-file", str(folder / f"{way}.json")]
    with Child([sys.executable, "-m", "forewarn", *words], core=SERVER_CORE, log=log) as endpoint:
        told = _READY.search(line := endpoint.hear_line())
        if told is None:
            raise BenchError(f"the endpoint said {line!r}")
        deadline_s = time.monotonic() + _PATIENCE_S
        while (status := fetch(told[1]).status) != 200:
            if time.monotonic() > deadline_s:
                raise BenchError(f"the endpoint answers {status}")
            time.sleep(0.1)
        yield int(told[2])


def _watch(first: Child, port: int, operator: Operator, count: int, log: Path) -> dict[str, Any]:
    """Announce and cancel events with random pauses; return when the VM saw each change."""
    before = len(first.ask(do="changes_seen")["changes"])
    with python_child("bench.client", "hold", str(port), core=LOAD_CORE, log=log) as vm:
        vm.hear()
        asked_s = change(operator, count, (0.05, 0.15))
        vm.tell()  # ends the VM's process, after the next change
        made = operator.post("/v1/maintenance", {"vms": ["vm-1"], "type": "Freeze"})
        seen: dict[int, float] = dict(vm.hear()["seen"])
    operator.post(f"/v1/maintenance/{made['items'][0]['id']}/cancel", {})
    changes = first.ask(do="changes_seen")["changes"][before : before + len(asked_s)]
    return delays_ms(changes, seen, asked_s)

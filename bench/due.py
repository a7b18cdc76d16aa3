"""Part 4: a thousand maintenances that are due in the same second."""

from __future__ import annotations

import time
from pathlib import Path

from bench.document import service_child
from bench.fleet import vm_name, write_fleet
from bench.process import BenchError
from bench.result import Effort, Result, Row, percentile

__all__ = ["measure"]

_TARGET_MS = 250.0
_PATIENCE_S = 60.0
_ROUNDS = 3


def measure(effort: Effort, folder: Path, log: Path) -> Result:
    """Schedule one maintenance for each VM, all with the same NotBefore. No VM approves."""
    shown_ms: list[float] = []
    committed_ms: list[float] = []
    for number in range(1, _ROUNDS + 1):
        place = folder / str(number)
        place.mkdir()
        for start in _once(effort.due, place, log):
            shown_ms.append(start["shown"] * 1000)
            committed_ms.append(start["committed"] * 1000)
        latest = shown_ms[-effort.due :]
        print(f"  round {number}: p50 {percentile(latest, 50):.0f} ms, max {max(latest):.0f} ms", flush=True)
    result = Result(title=f"{effort.due:,} maintenances due in the same second")
    result.raw = {"due": effort.due, "shown_ms": shown_ms, "committed_ms": committed_ms}
    result.rows = [
        Row(what="lateness of the Started document, p50", value=percentile(shown_ms, 50), unit="ms"),
        Row(what="lateness of the Started document, p99", value=percentile(shown_ms, 99), unit="ms", target=_TARGET_MS),
        Row(what="lateness of the Started document, maximum", value=max(shown_ms), unit="ms"),
        Row(
            what="lateness of the commit, minimum (never early)",
            value=min(committed_ms),
            unit="ms",
            target=0,
            is_floor=True,
        ),
    ]
    return result


def _once(count: int, place: Path, log: Path) -> list[dict[str, float]]:
    url = write_fleet(place, count)
    with service_child(place, log, database_url=url, inventory=None) as service:
        service.hear()
        vms = [vm_name(number) for number in range(count)]
        answer = service.ask(do="schedule", vms=vms, lead_s=3 + count * 0.012, timeout_s=_PATIENCE_S)
        if answer["left_s"] < 1:
            raise BenchError(f"scheduling took too long: {answer['left_s']:.1f} s were left until NotBefore")
        time.sleep(answer["left_s"] + 2)
        deadline_s = time.monotonic() + _PATIENCE_S
        starts: list[dict[str, float]] = []
        while len(starts) < count and time.monotonic() < deadline_s:
            starts = service.ask(do="started")["starts"]
            time.sleep(0.1)
    if len(starts) != count:
        raise BenchError(f"{len(starts)} of {count} maintenances have started")
    return starts

"""What carries maintenance out in a run: a script that writes down when it began and when it ended."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from tests.faultrun.records import Run

__all__ = ["actuator_settings", "read_runs"]

_RECORD = "actuator.record"
_SCRIPT = """#!/bin/sh
echo "$FOREWARN_MAINTENANCE_ID start $(date +%s.%N) $REPLICA" >> {record}
sleep 0.4
echo "$FOREWARN_MAINTENANCE_ID end $(date +%s.%N) $REPLICA" >> {record}
"""
_OBSERVE = """#!/bin/sh
grep -q "^$FOREWARN_MAINTENANCE_ID end" {record} && exit 0
grep -q "^$FOREWARN_MAINTENANCE_ID start" {record} && exit 3
exit 4
"""


def actuator_settings(folder: Path) -> dict[str, str]:
    """Environment variables of a replica whose actuator is the script, which is put into that folder."""
    record = folder / _RECORD
    record.touch()
    for name, text in {"carry-out": _SCRIPT, "observe": _OBSERVE}.items():
        (folder / name).write_text(text.format(record=record))
        (folder / name).chmod(0o700)
    return {
        "NO_COLOR": "1",
        "FOREWARN_ACTUATOR_RETRY": "0.5s",
        "FOREWARN_ACTUATOR": "exec",
        "FOREWARN_EXEC_COMMAND": str(folder / "carry-out"),
        "FOREWARN_EXEC_OBSERVE_COMMAND": str(folder / "observe"),
        "FOREWARN_ACTUATOR_LOOK_EVERY": "0.3s",
    }


def read_runs(folder: Path) -> list[Run]:
    """What the actuator did, from the file that its script wrote."""
    runs: list[Run] = []
    for line in (folder / _RECORD).read_text().splitlines():
        id_, word, seconds, _ = line.split(" ")
        moment = datetime.fromtimestamp(float(seconds), UTC)
        if word == "start":
            runs.append(Run(maintenance_id=id_, started_at=moment))
        else:
            place = next(n for n, run in enumerate(runs) if run.maintenance_id == id_ and run.ended_at is None)
            runs[place] = Run(maintenance_id=id_, started_at=runs[place].started_at, ended_at=moment)
    return runs

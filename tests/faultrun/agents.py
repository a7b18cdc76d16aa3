"""VMs with Forewarn's agent: a real process for each, whose hooks write down when they begin and end."""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path

from tests.faultrun.nursery import Nursery
from tests.faultrun.parts import Part
from tests.faultrun.records import Step

__all__ = ["UNDOING", "AgentVm", "list_undone", "read_steps"]

_HOOK = """\
#!/bin/sh
echo "$FOREWARN_STEP begin $FOREWARN_EVENT_ID $(date +%s.%N)" >> "$1"
sleep "$2"
echo "$FOREWARN_STEP end $FOREWARN_EVENT_ID $(date +%s.%N)" >> "$1"
"""

_CONFIGURATION = """\
endpoint = "http://{host}:{port}"
name = "{vm}"
source_address = "{address}"
state_file = "{folder}/{vm}.json"
listen = ""
wait = "1s"
poll_interval = "300ms"

[[rule]]
prepare = [["sh", "{folder}/hook.sh", "{folder}/{vm}.steps", "0.4"]]
recover = [["sh", "{folder}/hook.sh", "{folder}/{vm}.steps", "0.1"]]
"""


class AgentVm:
    """One VM and its agent.

    Args:
        vm: Its name.
        address: Its address.
        endpoint: Address and port of its host's endpoint.
        nursery: Makes the process.
        folder: For its files.
        namespace: Network namespace of its host; None if there are none.

    Attributes:
        part: The agent's process.
    """

    def __init__(
        self, vm: str, address: str, endpoint: tuple[str, int], nursery: Nursery, folder: Path, namespace: str | None
    ) -> None:
        self.vm = vm
        host, port = endpoint
        (folder / "hook.sh").write_text(_HOOK)
        configuration = folder / f"{vm}.toml"
        configuration.write_text(_CONFIGURATION.format(host=host, port=port, vm=vm, address=address, folder=folder))
        self._record = folder / f"{vm}.steps"
        words = ["agent", "run", "--config", str(configuration)]
        self.part = Part(f"agent-{vm}", nursery, folder, words, {}, namespace, says_ready=False)

    @property
    def steps(self) -> list[Step]:
        """Steps that its hooks have written down."""
        return read_steps(self.vm, self._record.read_text() if self._record.exists() else "")


def read_steps(vm: str, record: str) -> list[Step]:
    """Return the steps of a record, in order; a step that was killed has no end."""
    steps: list[Step] = []
    open_steps: dict[tuple[str, str], list[Step]] = defaultdict(list)
    for line in record.splitlines():
        name, what, event_id, moment = line.split(" ")
        at = datetime.fromtimestamp(float(moment), UTC)
        if what == "begin":
            step = Step(vm=vm, name=name, event_id=event_id, begun_at=at)
            steps.append(step)
            open_steps[name, event_id].append(step)
        elif begun := open_steps[name, event_id]:
            begun.pop(0).ended_at = at
    return steps


def list_undone(steps: list[Step]) -> list[Step]:
    """Return the preparations that have ended and were not undone."""
    undone = {(step.vm, step.event_id) for step in steps if step.name in UNDOING and step.ended_at is not None}
    return [
        step
        for step in steps
        if step.name == "prepare" and step.ended_at is not None and (step.vm, step.event_id) not in undone
    ]


UNDOING = frozenset({"recover", "canceled"})
"""Names of the steps that undo a preparation."""

"""The two acts of the demo: title, promise, claims, and the sentences for each audit log entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forewarn.demo.claims import ANNOUNCED, UNANNOUNCED, Claim
from forewarn.demo.lanes import Mark
from forewarn.demo.vms import HOST

__all__ = ["FAILURE", "MIGRATION", "Act"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act.

    Attributes:
        promise: One sentence that announces what is going to happen.
        path: Control API path of the operator's request.
        body: Body of the operator's request; None to send none.
        opening: Sentence that describes the operator's request.
        state: Expected state of the maintenance in the response.
        sentences: Sentence of the platform for each kind of audit log entry.
        claims: Claims that must hold throughout the act.
    """

    title: str
    promise: str
    path: str
    body: Mapping[str, object] | None = None
    opening: str
    mark: Mark = Mark.ACTS
    state: str
    sentences: Mapping[str, str]
    claims: tuple[Claim, ...]


MIGRATION = Act(
    title="Act 1: a live migration is announced",
    promise=(
        f"Every VM on {HOST} is warned 15 minutes ahead, and the migration waits for both tenants: "
        "it starts as soon as the last VM has approved."
    ),
    path="/v1/maintenance",
    body={"hosts": [HOST], "type": "Freeze"},
    opening=f"announces a live migration of {HOST}",
    state="scheduled",
    sentences={
        "scheduled": "creates one event per VM, waits for approvals",
        "started": "starts: all three events together",
        "impacted": "impact: the VMs are paused (simulated)",
        "completed": "completes, and removes the events",
    },
    claims=ANNOUNCED,
)

FAILURE = Act(
    title=f"Act 2: {HOST} fails",
    promise=(
        "Hardware fails without notice: the event is already Started when it is first seen, there is nothing "
        "to approve, and its removal is the signal to recover."
    ),
    path=f"/v1/hosts/{HOST}/fail",
    opening=f"reports that {HOST} has failed",
    mark=Mark.FAILS,
    state="started",
    sentences={
        "started": "creates one event per VM, already Started",
        "impacted": "impact: the VMs are restarted (simulated)",
        "completed": "completes, and removes the events",
    },
    claims=UNANNOUNCED,
)

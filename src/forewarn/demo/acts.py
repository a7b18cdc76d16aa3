"""The two acts: what each promises, claims, and how the platform tells it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forewarn.demo.cast import HOST
from forewarn.demo.claims import ANNOUNCED, UNANNOUNCED, Claim
from forewarn.demo.lanes import Mark

__all__ = ["FAILURE", "MIGRATION", "Act"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act.

    Attributes:
        promise: What is going to happen, in one sentence.
        path: Of the control API, where the operator sets it off.
        body: What the operator sends; None for nothing.
        opening: What the operator says.
        state: Of the maintenance that the service answers with.
        sentences: What the platform says to each kind of ledger entry.
        claims: What has to hold throughout.
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
        f"Every VM on {HOST} will be told 15 minutes ahead, and the migration will wait for both tenants: "
        "it starts as soon as the last VM has approved."
    ),
    path="/v1/maintenance",
    body={"hosts": [HOST], "type": "Freeze"},
    opening=f"announces a live migration of {HOST}",
    state="scheduled",
    sentences={
        "scheduled": "makes one event for each VM, waits for approvals",
        "started": "starts: all three events together",
        "impacted": "impact: the VMs are paused (simulated)",
        "completed": "has completed, and removes the events",
    },
    claims=ANNOUNCED,
)

FAILURE = Act(
    title=f"Act 2: {HOST} fails",
    promise=(
        "Hardware fails without notice: the event will be Started when it is first seen, there will be nothing "
        "to approve, and its removal will be the signal to recover."
    ),
    path=f"/v1/hosts/{HOST}/fail",
    opening=f"reports that {HOST} has failed",
    mark=Mark.FAILS,
    state="started",
    sentences={
        "started": "makes one event for each VM, Started at once",
        "impacted": "impact: the VMs are restarted (simulated)",
        "completed": "has completed, and removes the events",
    },
    claims=UNANNOUNCED,
)

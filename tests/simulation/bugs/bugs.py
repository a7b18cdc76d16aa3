"""The planted bugs: each is a change of a few lines of the source."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["BUGS", "SOURCE", "Bug"]

SOURCE = Path(__file__).parents[3] / "src" / "forewarn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A planted bug.

    Attributes:
        name: Short name.
        what: What goes wrong, in a sentence.
        file: File below the package.
        edits: Text in the file, which is there once, and the text that takes its place.
    """

    name: str
    what: str
    file: str
    edits: tuple[tuple[str, str], ...]

    def apply(self, package: Path) -> None:
        """Change a copy of the package.

        Raises:
            ValueError: The file has changed, so the text is not there once.
        """
        file = package / self.file
        text = file.read_text()
        for before, after in self.edits:
            if text.count(before) != 1:
                raise ValueError(f"{self.name}: {before.strip()!r} is {text.count(before)} times in {self.file}")
            text = text.replace(before, after)
        file.write_text(text)


BUGS = (
    Bug(
        name="wait-by-machine-clock",
        what="The leader waits for deadlines by its machine's clock, which may be set, not by the database's.",
        file="server/backend.py",
        edits=(
            (
                "            shared_clock=shared_clock,\n        )\n        self.engine",
                "        )\n        self.engine",
            ),
            ("            committer.clock,\n", "            clock,\n"),
        ),
    ),
    Bug(
        name="lost-wake-up",
        what="The scheduler forgets a change that is committed while it looks for what is due.",
        file="scheduling/scheduler.py",
        edits=(
            ("        self._woken.clear()  # before anything is read", "        # before anything is read"),
            (
                "        until = min(self._housekeeping_at",
                "        self._woken.clear()\n        until = min(self._housekeeping_at",
            ),
        ),
    ),
    Bug(
        name="claim-not-committed",
        what="The call of an actuator that cannot be observed is not committed before it is made.",
        file="scheduling/scheduler.py",
        edits=(
            (
                "await self._engine.deadlines.claim_maintenances(unclaimed) if unclaimed else set[str]()",
                "set(unclaimed)",
            ),
        ),
    ),
    Bug(
        name="execute-without-observing",
        what="A new leader carries out what its predecessor has begun.",
        file="scheduling/scheduler.py",
        edits=(
            ("progress = None if is_claimed else await self._actuator.observe(maintenance, now)", "progress = None"),
        ),
    ),
    Bug(
        name="begin-after-the-lease",
        what="The actuator does not know until when it may begin, so a replica that was halted begins after its lease.",
        file="scheduling/scheduler.py",
        edits=(("                    BEGIN_BEFORE_S.set(self._engine.leadership.until_s)\n", ""),),
    ),
    Bug(
        name="lease-without-end",
        what="A leader that cannot renew its lease takes itself for the leader for ten times as long.",
        file="engine/leader_election.py",
        edits=(
            (
                "                    self._note_lease(term, began_s)\n",
                "                    self._note_lease(term, began_s + 9 * self._span.total_seconds())\n",
            ),
        ),
    ),
    Bug(
        name="leads-again-unnoticed",
        what="The scheduler is not woken if a replica takes its lease again after it had ended unnoticed.",
        file="engine/leader_election.py",
        edits=(("        self._was_held = self._was_held and self.is_held\n", ""),),
    ),
    Bug(
        name="one-approval-for-all",
        what="The approval of one scope counts for all scopes of a maintenance.",
        file="core/maintenance/settlement.py",
        edits=(("bool(votes) and all(event.is_approved", "bool(votes) and any(event.is_approved"),),
    ),
    Bug(
        name="start-beside-another",
        what="A maintenance starts while another one of the same VM is in progress.",
        file="core/maintenance/settlement.py",
        edits=(("if at <= draft.now and is_held(", "if at > draft.now and is_held("),),
    ),
    Bug(
        name="start-before-notice",
        what="An unapproved maintenance starts a minute before NotBefore.",
        file="core/maintenance/settlement.py",
        edits=(
            (
                "    if not is_approved_by_all(events):\n        return maintenance.not_before",
                "    if not is_approved_by_all(events):\n        return maintenance.not_before - timedelta(minutes=1)",
            ),
            ("from datetime import datetime\n", "from datetime import datetime, timedelta\n"),
        ),
    ),
    Bug(
        name="quiet-hours-ignored",
        what="NotBefore is not moved out of the quiet hours.",
        file="core/maintenance/tenancy.py",
        edits=(
            (
                "    if not respects_quiet_hours(maintenance):\n        return AllowedStart",
                "    if draft:\n        return AllowedStart",
            ),
        ),
    ),
    Bug(
        name="approval-answered-too-early",
        what="An approval is answered with 200 before it is committed.",
        file="engine/local_authority.py",
        edits=(
            (
                (
                    "        return await self._approvals.submit(\n"
                    "            (ids, approver, self._committer.tracing.current_span()), owner=owner, weight=weight\n"
                    "        )"
                ),
                (
                    "        import asyncio\n\n"
                    "        submitted = self._approvals.submit((ids, approver, None), owner=owner, weight=weight)\n"
                    "        asyncio.ensure_future(submitted)\n"
                    "        return ApprovalResult(approved=ids)"
                ),
            ),
        ),
    ),
    Bug(
        name="approval-lost-on-the-way",
        what="A host endpoint answers an approval with 200 although the control plane could not be reached.",
        file="host/remote_authority.py",
        edits=(
            (
                "            result = await self._control_plane.approve(event_ids, approver)\n",
                (
                    "            try:\n"
                    "                result = await self._control_plane.approve(event_ids, approver)\n"
                    "            except ControlUnreachable:\n"
                    "                return ApprovalResult(approved=tuple(event_ids))\n"
                ),
            ),
        ),
    ),
    Bug(
        name="documents-go-back",
        what="An older document takes the place of a newer one.",
        file="publishing/feed.py",
        edits=(
            (
                (
                    "        if (audience.epoch, audience.incarnation) < (self.epoch, self.incarnation):\n"
                    "            return\n"
                ),
                "",
            ),
        ),
    ),
    Bug(
        name="published-before-the-commit",
        what="VMs are shown a document before it is committed.",
        file="engine/transaction.py",
        edits=(
            (
                "                if not done:\n",
                (
                    "                for changes in (some for number in done for some in found[number].changes):\n"
                    "                    self.feed.publish_documents(changes.documents)\n"
                    "                if not done:\n"
                ),
            ),
        ),
    ),
    Bug(
        name="follower-skips-a-change",
        what="A replica's position moves past a change of another one that it has not published.",
        file="engine/publisher.py",
        edits=(("        self.position = changes.position\n", "        self.position = changes.position + 2\n"),),
    ),
    Bug(
        name="own-commit-hides-another",
        what="After its own commit, a replica does not read the commit that another replica has made just before.",
        file="engine/transaction.py",
        edits=(
            (
                "        if result.numbers is not None and result.numbers[0] == publisher.position:\n",
                "        if result.numbers is not None:\n",
            ),
        ),
    ),
    Bug(
        name="follower-trusts-hints",
        what="A replica reads the changes of others only after a hint, which may be lost.",
        file="engine/follower.py",
        edits=(
            (
                "                    if is_known and loop.time() - read_s < _POLL_S:\n",
                "                    if announced is None or is_known:\n",
            ),
        ),
    ),
    Bug(
        name="watch-drops-a-change",
        what="The stream to a host endpoint loses what is committed while it starts over.",
        file="publishing/host_watch.py",
        edits=(
            (
                "            for watch in watches:\n                watch.queue_change(change)",
                (
                    "            for watch in watches:\n"
                    "                if not watch._is_woken:\n"
                    "                    watch.queue_change(change)"
                ),
            ),
        ),
    ),
    Bug(
        name="endpoint-keeps-no-copy",
        what="A host endpoint shows an update that it has not written to its disk.",
        file="host/remote_authority.py",
        edits=(
            ("            if self._save is not None:\n", "            if self._save is not None and not updates:\n"),
        ),
    ),
    Bug(
        name="agent-forgets",
        what="An agent does not write its state, so after a crash it does not know what it has prepared.",
        file="agent/agent.py",
        edits=(
            (
                (
                    "        if self._registry.is_dirty and not self._registry.is_save_failing:\n"
                    "            self._save_records()\n"
                ),
                "",
            ),
            (
                "        if self._registry.is_dirty:\n            looks.append",
                "        if False:\n            looks.append",
            ),
        ),
    ),
    Bug(
        name="agent-approves-unprepared",
        what="An agent approves before its preparation has ended.",
        file="agent/judgement.py",
        edits=(
            (
                (
                    '        return Judgement(f"step {record.running_step} is running", '
                    "judge_again_at=None if is_late else cutoff)\n"
                ),
                "        return None\n",
            ),
        ),
    ),
    Bug(
        name="group-approves-for-the-unprepared",
        what="In a group of agents, the report of a VM that still prepares counts as prepared.",
        file="agent/agreement.py",
        edits=(("or reports[name].state is not PeerState.PREPARED]", "or reports[name].state is None]"),),
    ),
    Bug(
        name="agent-recovers-early",
        what="An agent takes up work again when the maintenance starts, not when it is over.",
        file="agent/judgement.py",
        edits=(("        judgement = _judge_started(record)\n", "        judgement = _judge_gone(record)\n"),),
    ),
    Bug(
        name="agent-never-undoes-a-cancel",
        what="An agent does not undo its preparation when an event is cancelled.",
        file="agent/judgement.py",
        edits=(
            (
                "BeginStep(step) if _requires_step(record, step) else ForgetEvent()",
                "BeginStep(step) if step is EventStep.RECOVER and _requires_step(record, step) else ForgetEvent()",
            ),
        ),
    ),
    Bug(
        name="cursor-skips",
        what="The cursor of a subscription moves past a notification that failed.",
        file="notifications/delivery_worker.py",
        edits=(
            ("            if entry.sequence in left:\n                break\n", ""),
            ("        done.stored[kept.key] = kept\n", ""),
        ),
    ),
    Bug(
        name="notifications-overtake",
        what="A notification is sent while an earlier one of the same event waits for its retry.",
        file="notifications/delivery_worker.py",
        edits=(
            (
                "        blocked = {delivery.subject for delivery in outbox.waiting} - outbox.due\n",
                "        blocked = set[str]()\n",
            ),
            ("        return kept.state is DeliveryState.DEAD\n", "        return True\n"),
            ("        self._queue_behind_waiting(done)\n", ""),
        ),
    ),
    Bug(
        name="rollout-over-its-budget",
        what="A rollout begins one host more than it may.",
        file="core/rollout/rollout_decision.py",
        edits=(
            (
                "else rollout.spec.hosts_at_once) - len(in_flight)",
                "else rollout.spec.hosts_at_once + 1) - len(in_flight)",
            ),
        ),
    ),
    Bug(
        name="tenants-see-all",
        what="A tenant that lists events is shown those of other tenants.",
        file="control/event.py",
        edits=(
            ("selection=selection, owned=caller.ownership)", "selection=selection, owned=None)"),
            ("caller.redact_events(m, events.get(m.id, ()))", "events.get(m.id, ())"),
        ),
    ),
)
"""All planted bugs."""

"""Properties of every run, whichever faults it had.

Each property is a function of the outcome. It yields a line for each time that it was broken.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from forewarn.agent.agreement import TogetherSettings
from forewarn.agent.rule import EventStep
from forewarn.core.maintenance.actuator_result import RetryPolicy
from forewarn.core.model import EntryKind, Event, EventSource, MaintenanceState
from forewarn.testing.simulation.machine_clock import START
from forewarn.testing.simulation.outcome import Outcome
from forewarn.testing.simulation.trace import Fact

__all__ = ["PROPERTIES", "find_complaints", "find_missing_notifications"]

Property = Callable[[Outcome], Iterator[str]]

_NOTIFIED = {EntryKind.STARTED, EntryKind.COMPLETED, EntryKind.CANCELED, EntryKind.FAILED}
"""Kinds of entries of which each event of the maintenance makes a notification, of the same name."""

_NEVER = datetime.max.replace(tzinfo=UTC)

_PROMPT = timedelta(seconds=2)
"""Maximum lateness of a start or an end while no fault can delay it, apart from the time that the database takes."""

_RECOVERY = timedelta(seconds=10)
"""Time after a fault in which a start or an end may still be late: a lease has to end, or a replica to start."""

_REQUESTS = 40
"""Number of requests to the database for which a start or an end may have to wait; each has an answer."""

_REQUESTS_PER_S_MAX = 100
_REQUESTS_PER_S_AND_VM_MAX = 20
"""Maximum number of requests to the database in one second; a replica that works properly sends half of it at most."""

_HARMLESS = {
    "kill-endpoint",
    "strand-endpoint",
    "kill-agent",
    "cut-network",
    "isolate",
    "trouble-network",
    "vm-clock",
    "fail-steps",
    "fill-disk",
    "fail-hypervisor",
    "fail-receiver",
    "kill-receiver",
}
"""Kinds of faults that do not delay a start: a replica needs only the database for it."""

_VM_CLOCKS = {"vm-clock", "clock-drift"}
"""Kinds of faults of the clocks of VMs."""

_RANKS = {"scheduled": 0, "started": 1, "completed": 2, "canceled": 2, "failed": 2}
"""Order of the notifications of one event."""

_DOCUMENTS = {"document", "published"}
"""Kinds of facts about a document: a VM is shown it, or a replica or host endpoint begins to show it."""

_UNDOING = {EventStep.RECOVER.value, EventStep.CANCELED.value}


def everything_ends(outcome: Outcome) -> Iterator[str]:
    """Once everything is healed, each maintenance ends and each agent comes to rest."""
    yield from outcome.left


def agents_and_endpoints_never_fail(outcome: Outcome) -> Iterator[str]:
    """No fault ends an agent or a host endpoint; a replica may end if it starts without its database."""
    for fact in outcome.facts:
        if fact.kind == "failed" and not fact.subject.startswith("replica-"):
            yield f"{fact.subject}: ended at {fact.at_s:.3f} s with {fact.details['error']}"


def accepted_approvals_are_kept(outcome: Outcome) -> Iterator[str]:
    """An approval that was answered with 200 is in the audit log (invariant 5)."""
    stored = {entry.event_id for entry in outcome.entries if entry.kind is EntryKind.APPROVED}
    for fact in outcome.facts:
        if fact.kind != "approved" or fact.details["event"] in stored:
            continue
        maintenance = outcome.by_event.get(fact.details["event"])
        # An event that has started or was canceled needs no approval any more, but it is still answered 200 (R49, R55).
        answered_at = outcome.find_true_time(fact.at_s)
        is_over = maintenance is not None and (maintenance.ended_at or _NEVER) <= answered_at
        if maintenance is None or (maintenance.started_at is None and not is_over):
            yield f"{fact.subject}: the approval of {fact.details['event']} at {fact.at_s:.3f} s is lost"


def documents_never_go_back(outcome: Outcome) -> Iterator[str]:
    """The incarnation of a document never falls (R42), and no event goes from Started to Scheduled.

    This holds for what each VM is shown, and for what each replica and each host endpoint would show.
    """
    newest: dict[tuple[str, str], tuple[int, ...]] = {}
    started: dict[tuple[str, str], set[str]] = defaultdict(set)
    for fact in outcome.facts:
        if fact.kind not in _DOCUMENTS:
            continue
        key = fact.subject, fact.details.get("audience", "")
        version = _get_version(fact)
        if version < newest.get(key, version):
            yield f"{fact.subject}: document {version[-1]} at {fact.at_s:.3f} s after {newest[key][-1]}"
        newest[key] = max(newest.get(key, version), version)
        for event_id, (status, _) in fact.details["events"].items():
            if status == "Started":
                started[key].add(event_id)
            elif event_id in started[key]:
                yield f"{fact.subject}: event {event_id} is Scheduled again at {fact.at_s:.3f} s"


def documents_show_what_is_committed(outcome: Outcome) -> Iterator[str]:
    """No document has an event that the database does not have; documents of one incarnation are the same (R42).

    This holds for what each VM is shown, and for what each replica and each host endpoint would show.
    """
    contents: dict[tuple[object, ...], Mapping[str, object]] = {}
    for fact in outcome.facts:
        if fact.kind not in _DOCUMENTS:
            continue
        events, version = fact.details["events"], _get_version(fact)
        for event_id, (status, _) in events.items():
            maintenance = outcome.by_event.get(event_id)
            if maintenance is None:
                yield f"{fact.subject}: event {event_id} at {fact.at_s:.3f} s was never committed"
            elif status == "Started" and maintenance.started_at is None:
                yield f"{fact.subject}: event {event_id} is Started at {fact.at_s:.3f} s, and it never started"
        audience = fact.details.get("audience") or outcome.visible[fact.subject]
        if contents.setdefault((audience, version), events) != events:
            yield f"{fact.subject}: document {version[-1]} at {fact.at_s:.3f} s is not what it was"


def _get_version(fact: Fact) -> tuple[int, ...]:
    """Return epoch and incarnation of a document; a VM is not shown the epoch."""
    return tuple(fact.details["version"]) if fact.kind == "published" else (fact.details["incarnation"],)


def endpoints_keep_answering(outcome: Outcome) -> Iterator[str]:
    """A host endpoint that has shown its VM a document goes on to do so, with or without the control plane."""
    served: set[str] = set()
    for fact in outcome.facts:
        if fact.kind == "document":
            served.add(fact.subject)
        elif fact.kind == "refused" and fact.details["method"] == "GET" and fact.subject in served:
            yield f"{fact.subject}: was answered {fact.details['status']} at {fact.at_s:.3f} s"


def documents_show_the_own_scope_only(outcome: Outcome) -> Iterator[str]:
    """A VM, and the tenant that owns it, are shown events of its scope only (invariant 8)."""
    for fact in outcome.facts:
        if fact.kind not in ("document", "view"):
            continue
        for event_id, shown in fact.details["events"].items():
            resources = shown[1] if fact.kind == "document" else shown
            if not outcome.visible[fact.subject].issuperset(resources):
                yield f"{fact.subject}: event {event_id} of {', '.join(resources)} at {fact.at_s:.3f} s"


def starts_wait_for_approval(outcome: Outcome) -> Iterator[str]:
    """Nothing starts before NotBefore unless every event is approved (invariant 4)."""
    for maintenance in outcome.maintenances:
        started_at, not_before = maintenance.started_at, maintenance.not_before
        if started_at is None or not_before is None or started_at >= not_before:
            continue
        for event in outcome.events.get(maintenance.id, ()):
            if event.approved_at is None:
                yield f"maintenance {maintenance.id} started at {started_at} without approval of {event.id}"


def quiet_hours_hold(outcome: Outcome) -> Iterator[str]:
    """Platform maintenance starts in quiet hours only if every event is approved, and not by a policy."""
    for maintenance in outcome.maintenances:
        if maintenance.source is not EventSource.PLATFORM or outcome.quiet_vms.isdisjoint(maintenance.vms):
            continue
        if maintenance.not_before is not None and _is_quiet(outcome, maintenance.not_before):
            yield f"maintenance {maintenance.id}: NotBefore {maintenance.not_before} is in quiet hours"
        if maintenance.started_at is not None and _is_quiet(outcome, maintenance.started_at):
            events = outcome.events.get(maintenance.id, ())
            if not events or any(event.approved_at is None for event in events):
                yield f"maintenance {maintenance.id}: start at {maintenance.started_at} in quiet hours"


def _is_quiet(outcome: Outcome, moment: datetime) -> bool:
    return outcome.quiet_from <= moment < outcome.quiet_until


def rollouts_keep_their_budget(outcome: Outcome) -> Iterator[str]:
    """No more hosts of a rollout are in progress at the same time than it allows."""
    for rollout in outcome.rollouts:
        changes: list[tuple[datetime, int]] = []
        for host in rollout.hosts:
            parts = [outcome.by_id[key] for key in host.maintenance_ids if key in outcome.by_id]
            begun = [part.started_at for part in parts if part.started_at is not None]
            ended = [part.ended_at for part in parts if part.ended_at is not None]
            if begun and ended:
                changes += [(min(begun), 1), (max(ended), -1)]
        busy = 0
        # At the same moment, an end comes before a start.
        for moment, change in sorted(changes):
            busy += change
            if busy > rollout.spec.hosts_at_once:
                yield f"rollout {rollout.id}: {busy} hosts in progress at {moment}"


def maintenances_are_carried_out_once(outcome: Outcome) -> Iterator[str]:
    """Nothing is carried out twice, whichever replicas die and whichever answers are lost (invariant 3)."""
    counts: dict[str, int] = defaultdict(int)
    for fact in outcome.facts:
        if fact.kind == "execute":
            counts[fact.details["maintenance"]] += 1
            if counts[fact.details["maintenance"]] > 1:
                yield f"maintenance {fact.details['maintenance']}: begun again at {fact.at_s:.3f} s"


def vms_have_one_maintenance_at_a_time(outcome: Outcome) -> Iterator[str]:
    """No two maintenances of one VM are in progress at the same time."""
    spans: dict[str, list[tuple[datetime, datetime, str]]] = defaultdict(list)
    for maintenance in outcome.maintenances:
        if maintenance.started_at is not None:
            for vm in maintenance.vms:
                spans[vm].append((maintenance.started_at, maintenance.ended_at or _NEVER, maintenance.id))
    for vm, found in spans.items():
        for (_, end, one), (begin, _, other) in pairwise(sorted(found)):
            if begin < end:
                yield f"{vm}: {other} started at {begin}, during {one}"


def starts_are_prompt(outcome: Outcome) -> Iterator[str]:
    """A maintenance starts at NotBefore or with the last approval, once its VMs are free (R76).

    Only faults of the replicas, of their clocks and of the database may delay it, while they last and shortly after.
    """
    disturbed = list(_find_disturbed_spans(outcome, _HARMLESS))
    for maintenance in outcome.maintenances:
        if maintenance.started_at is None or maintenance.not_before is None:
            continue
        approvals = [event.approved_at for event in outcome.events.get(maintenance.id, ())]
        ready_at = maintenance.not_before
        if approvals and None not in approvals:
            ready_at = min(ready_at, max(moment for moment in approvals if moment is not None))
        before = [
            other.ended_at
            for other in outcome.maintenances
            if other.ended_at is not None
            and other.ended_at <= maintenance.started_at
            and not set(other.vms).isdisjoint(maintenance.vms)
        ]
        free_at = max([ready_at, *before])
        late = _measure_delay(free_at, maintenance.started_at, disturbed)
        if late > _PROMPT + timedelta(seconds=_REQUESTS * outcome.delay_s_max):
            yield f"maintenance {maintenance.id} started {late.total_seconds():.1f} s late"


def ends_are_prompt(outcome: Outcome) -> Iterator[str]:
    """A maintenance ends when its actuator has completed it, so its VMs learn at once that it is over (R82).

    Only the faults that may delay a start, and the pause after a failed call, may delay it. It is not checked for an
    actuator of a user.
    """
    if not outcome.has_own_actuator:
        return
    disturbed = list(_find_disturbed_spans(outcome, _HARMLESS))
    ended_at: dict[str | None, datetime | None] = {each.id: each.ended_at for each in outcome.maintenances}
    failures: dict[str | None, list[datetime]] = defaultdict(list)
    for entry in outcome.entries:
        if entry.kind is EntryKind.ATTEMPT_FAILED:
            failures[entry.maintenance_id].append(entry.at)
        elif entry.kind is EntryKind.IMPACTED and entry.at != ended_at.get(entry.maintenance_id):
            # A call has succeeded, so the pauses are short again. One that also finds the end follows a long pause.
            failures.pop(entry.maintenance_id, None)
    completed = {
        fact.details["maintenance"]: outcome.find_true_time(fact.at_s)
        for fact in outcome.facts
        if fact.subject == "hypervisor" and fact.kind == "complete"
    }
    for maintenance in outcome.maintenances:
        completed_at = completed.get(maintenance.id)
        if maintenance.state is not MaintenanceState.COMPLETED or completed_at is None or maintenance.ended_at is None:
            continue
        asked_at = completed_at
        if failed := failures[maintenance.id]:
            asked_at = max(completed_at, failed[-1] + RetryPolicy().compute_pause(len(failed)))
        late = _measure_delay(asked_at, maintenance.ended_at, disturbed)
        if late > _PROMPT + timedelta(seconds=_REQUESTS * outcome.delay_s_max):
            yield f"maintenance {maintenance.id} ended {late.total_seconds():.1f} s late"


def _measure_delay(
    expected_at: datetime, happened_at: datetime, disturbed: Sequence[tuple[datetime, datetime]]
) -> timedelta:
    """Return how late something happened, without the time in which a fault may have delayed it."""
    delay = happened_at - expected_at
    for begin, end in disturbed:
        delay -= max(min(end, happened_at) - max(begin, expected_at), timedelta(0))
    return delay


def _find_disturbed_spans(outcome: Outcome, harmless: AbstractSet[str]) -> Iterator[tuple[datetime, datetime]]:
    """Yield the spans in which a fault that is not harmless may delay something; they do not overlap."""
    active, begin, end = 0, _NEVER, START
    for fact in outcome.facts:
        if fact.subject != "chaos" or fact.kind == "kinds":
            continue
        at = outcome.find_true_time(fact.at_s)
        if fact.kind == "heal" and active:
            active, end = 0, at + _RECOVERY
        elif fact.kind == "over" and fact.details["fault"] not in harmless:
            active -= 1
            end = at + _RECOVERY
        elif fact.kind not in harmless and fact.kind not in {"over", "heal"}:
            if not active and begin < at and end < at:
                yield begin, end
                begin = at
            begin = min(begin, at)
            active += 1
    if begin < _NEVER:
        yield begin, end


def recoveries_wait_for_the_end(outcome: Outcome) -> Iterator[str]:
    """No agent takes up work again while its maintenance is in progress."""
    for fact in outcome.facts:
        if fact.kind != "step" or fact.details["step"] not in _UNDOING:
            continue
        maintenance = outcome.by_event.get(fact.details["event"])
        if maintenance is None or maintenance.started_at is None or maintenance.ended_at is None:
            continue
        if maintenance.started_at <= outcome.find_true_time(fact.at_s) < maintenance.ended_at:
            yield f"{fact.subject}: {fact.details['step']} of {fact.details['event']} at {fact.at_s:.3f} s"


def replicas_spare_the_database(outcome: Outcome) -> Iterator[str]:
    """No replica asks its database again and again without a pause."""
    most = max(_REQUESTS_PER_S_MAX, _REQUESTS_PER_S_AND_VM_MAX * len(outcome.visible))
    if outcome.requests_per_s_max > most:
        yield f"a replica sent {outcome.requests_per_s_max} requests to its database in one second"


def find_missing_notifications(outcome: Outcome) -> Iterator[str]:
    """Yield a line for each notification of a start or an end that never arrived."""
    arrived = {(fact.details["about"], fact.details["type"]) for fact in outcome.facts if fact.kind == "webhook"}
    withdrawn = {entry.event_id for entry in outcome.entries if entry.kind is EntryKind.WITHDRAWN}
    for entry in outcome.entries:
        if entry.kind not in _NOTIFIED or entry.maintenance_id is None:
            continue
        events = [event.id for event in outcome.events.get(entry.maintenance_id, ())]
        for subject in events or [entry.maintenance_id]:
            if subject not in withdrawn and (subject, entry.kind.value) not in arrived:
                yield f"{subject} {entry.kind.value} at {entry.at} was not notified"


def notifications_arrive(outcome: Outcome) -> Iterator[str]:
    """Each start and each end is notified at least once."""
    yield from find_missing_notifications(outcome)


def notifications_arrive_in_order(outcome: Outcome) -> Iterator[str]:
    """The notifications of one event arrive in order; a repeated one may come later."""
    seen: set[str] = set()
    ranks: dict[str, int] = defaultdict(int)
    for fact in outcome.facts:
        if fact.kind != "webhook" or fact.details["type"] not in _RANKS or fact.details["id"] in seen:
            continue
        seen.add(fact.details["id"])
        subject, rank = fact.details["about"], _RANKS[fact.details["type"]]
        if rank < ranks[subject]:
            yield f"{subject}: {fact.details['type']} arrived at {fact.at_s:.3f} s, after a later one"
        ranks[subject] = max(rank, ranks[subject])


def impacts_follow_starts(outcome: Outcome) -> Iterator[str]:
    """No VM is interrupted unless its maintenance has started (invariant 3)."""
    started = {maintenance.id for maintenance in outcome.maintenances if maintenance.started_at is not None}
    for fact in outcome.facts:
        if fact.kind == "impact" and fact.details["maintenance"] not in started:
            yield f"maintenance {fact.details['maintenance']}: impact at {fact.at_s:.3f} s without a start"


def impacts_wait_for_preparation(outcome: Outcome) -> Iterator[str]:
    """No VM is interrupted while its agent prepares for that, unless NotBefore has passed."""
    preparing: dict[tuple[str, str], None] = {}
    for fact in outcome.facts:
        match fact.kind:
            case "step" if fact.details["step"] == EventStep.PREPARE.value:
                preparing[fact.subject, fact.details["event"]] = None
            case "step-end" if fact.details["step"] == EventStep.PREPARE.value:
                preparing.pop((fact.subject, fact.details["event"]), None)
            case "kill" | "failed":
                preparing = {key: None for key in preparing if key[0] != fact.subject}
            case "impact":
                maintenance = outcome.by_id[fact.details["maintenance"]]
                not_before = maintenance.not_before
                if not_before is None or outcome.find_true_time(fact.at_s) >= not_before:
                    continue
                waits = {event.id for event in outcome.events.get(maintenance.id, ()) if _waits_for_all(outcome, event)}
                for vm, event_id in preparing:
                    if event_id in waits and vm in fact.details["vms"]:
                        yield f"{vm}: impact of {event_id} at {fact.at_s:.3f} s while it prepares"


def _waits_for_all(outcome: Outcome, event: Event) -> bool:
    """Return whether the approval of an event has to wait for all VMs that it names."""
    if len(event.resources) == 1 or not outcome.group_mode:
        return True
    # In other modes one VM approves for all. And after the deadline, which a VM counts by its own clock, too.
    if outcome.group_mode != "all-prepared" or not _VM_CLOCKS.isdisjoint(outcome.kinds):
        return False
    maintenance = outcome.by_event[event.id]
    if event.approved_at is None or maintenance.announced_at is None:
        return True
    return event.approved_at - maintenance.announced_at < TogetherSettings().deadline


def preparations_are_undone(outcome: Outcome) -> Iterator[str]:
    """Each preparation that succeeded is undone after the event, unless the VM died while its disk was full."""
    prepared: dict[tuple[str, str], float] = {}
    unsaved: set[str] = set()
    for fact in outcome.facts:
        match fact.kind:
            case "not-saved":
                unsaved.add(fact.subject)
            case "saved":
                unsaved.discard(fact.subject)
            case "kill" if fact.subject in unsaved:
                # Nothing on the disk says what was prepared.
                prepared = {key: at_s for key, at_s in prepared.items() if key[0] != fact.subject}
                unsaved.discard(fact.subject)
        if fact.kind != "step-end" or fact.details["how"] != "done":
            continue
        key = fact.subject, fact.details["event"]
        if fact.details["step"] == EventStep.PREPARE.value:
            prepared[key] = fact.at_s
        elif fact.details["step"] in _UNDOING:
            prepared.pop(key, None)
    for (vm, event_id), at_s in prepared.items():
        yield f"{vm}: the preparation for {event_id} at {at_s:.3f} s was never undone"


PROPERTIES: tuple[Property, ...] = (
    everything_ends,
    agents_and_endpoints_never_fail,
    accepted_approvals_are_kept,
    documents_never_go_back,
    documents_show_what_is_committed,
    endpoints_keep_answering,
    documents_show_the_own_scope_only,
    starts_wait_for_approval,
    quiet_hours_hold,
    rollouts_keep_their_budget,
    maintenances_are_carried_out_once,
    vms_have_one_maintenance_at_a_time,
    starts_are_prompt,
    ends_are_prompt,
    recoveries_wait_for_the_end,
    replicas_spare_the_database,
    impacts_follow_starts,
    impacts_wait_for_preparation,
    preparations_are_undone,
    notifications_arrive,
    notifications_arrive_in_order,
)
"""All properties."""


def find_complaints(outcome: Outcome) -> list[str]:
    """Check every property, and return a line for each time that one was broken."""
    return [f"{each.__name__}: {line}" for each in PROPERTIES for line in each(outcome)]

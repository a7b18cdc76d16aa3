"""Holds what VMs and operators were told against what the service says, and against what the actuator did.

Each check is a function of the account that hands back a line for each violation, and names the invariant of the
design or the requirement that it stands for.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any

from forewarn.core.causes import CAUSES
from tests.faultrun.agents import UNDOING, list_undone
from tests.faultrun.records import CLOSING, Account, Command, Sight

__all__ = ["CHECKS", "check"]

_ONCE = ("scheduled", "queued", "started", "impacted", "completed", "canceled", "failed")
_FINAL = frozenset({"completed", "canceled", "failed"})
_ENDS = {"cancel": "canceled", "complete": "completed", "start": "started"}
_REFUSALS = frozenset({None, 503})
"""What an approval of a shown event may get instead of 200."""

_NOT_FOUND = 404
_UNAVAILABLE = 503


def check(account: Account) -> list[str]:
    """Every violation, in words."""
    return [f"{function.__name__}: {line}" for function in CHECKS for line in function(account)]


def actuator_told_once(account: Account) -> Iterator[str]:
    """Invariant 3: at most once for each maintenance, and exactly once for what the actuator completed."""
    counts = Counter(run.maintenance_id for run in account.runs)
    for id_, count in counts.items():
        if count > 1:
            yield f"maintenance {id_} was carried out {count} times"
        if account.maintenances.get(id_, {}).get("started_at") is None:
            yield f"maintenance {id_} was carried out and never started"
    ended = {run.maintenance_id for run in account.runs if run.ended_at is not None}
    for entry in _entries(account, "completed"):
        if entry["actor"] == "actuator" and entry["maintenance_id"] not in ended:
            yield f"maintenance {entry['maintenance_id']} is said to be completed, and was not carried out"


def steps_taken_once(account: Account) -> Iterator[str]:
    """R75: no maintenance reaches a state twice, nor ends twice; and the audit log's numbers grow."""
    counts = Counter((e["maintenance_id"], e["kind"]) for e in account.entries if e["kind"] in _ONCE)
    for (id_, kind), count in counts.items():
        if count > 1:
            yield f"maintenance {id_} was {kind} {count} times"
    ends = Counter(e["maintenance_id"] for e in account.entries if e["kind"] in _FINAL)
    yield from (f"maintenance {id_} ended {count} times" for id_, count in ends.items() if count > 1)
    numbers = [e["sequence"] for e in account.entries]
    if numbers != sorted(set(numbers)):
        yield "the audit log's numbers do not grow"


def approvals_kept(account: Account) -> Iterator[str]:
    """R49, invariant 5: what got 200 is in the audit log, unless the event had started or ended before; once each."""
    in_audit_log = Counter(e["event_id"] for e in _entries(account, "approved"))
    yield from (f"event {id_} was approved {count} times" for id_, count in in_audit_log.items() if count > 1)
    of_event = {event["id"]: m for m in account.maintenances.values() for event in m["events"]}
    for vote in account.votes:
        for each in vote.tries:
            is_passing = each.status == _NOT_FOUND and vote.vm in account.passing
            if each.status != 200 and each.status not in _REFUSALS and not is_passing:
                yield f"{vote.vm} got {each.status} for approving {vote.event_id}, which it was shown"
        told_at = vote.acknowledged_at
        if told_at is None or vote.event_id in in_audit_log:
            continue
        maintenance = of_event.get(vote.event_id)
        over = None if maintenance is None else maintenance["started_at"] or maintenance["ended_at"]
        if over is None or _at(over) > told_at:
            yield f"the approval of {vote.event_id} by {vote.vm} got 200 at {told_at} and was lost"


def agents_prepare_before_they_approve(account: Account) -> Iterator[str]:
    """R102: an agent approves only what its VM has prepared for."""
    prepared_at: dict[tuple[str, str], datetime] = {}
    for step in account.steps:
        if step.name == "prepare" and step.ended_at is not None:
            prepared_at.setdefault((step.vm, step.event_id), step.ended_at)
    for entry in _entries(account, "approved"):
        vm = entry["actor"].removeprefix("vm:")
        if vm not in account.agent_starts:
            continue
        at = prepared_at.get((vm, entry["event_id"]))
        if at is None or at > _at(entry["at"]):
            yield f"the agent of {vm} approved {entry['event_id']} at {entry['at']}, and had prepared at {at}"


def agents_undo_each_preparation(account: Account) -> Iterator[str]:
    """R100, R104: each preparation is undone after its event; once, unless the agent was killed meanwhile."""
    of_event = {event["id"]: m for m in account.maintenances.values() for event in m["events"]}
    yield from (
        f"{step.vm} prepared for {step.event_id} at {step.ended_at} and never undid it"
        for step in list_undone(account.steps)
    )
    counts: Counter[tuple[str, str]] = Counter()
    for step in account.steps:
        if step.name not in UNDOING:
            continue
        counts[step.vm, step.event_id] += 1
        ended_at = of_event[step.event_id]["ended_at"]
        if ended_at is None or step.begun_at < _at(ended_at):
            yield f"{step.vm} undid its preparation for {step.event_id} at {step.begun_at}, before {ended_at}"
    for (vm, event_id), count in counts.items():
        if count > 1 and account.agent_starts.get(vm) == 1:
            yield f"{vm} undid its preparation for {event_id} {count} times"


def nothing_started_early(account: Account) -> Iterator[str]:
    """Invariant 4, R76, R83: not before NotBefore, unless all have approved, an operator forced it, or it failed."""
    approved_at = {e["event_id"]: _at(e["at"]) for e in _entries(account, "approved")}
    forced = {e["maintenance_id"] for e in _entries(account, "started") if e["actor"].startswith("operator:")}
    for m in account.maintenances.values():
        if m["started_at"] is None or m["not_before"] is None or m["id"] in forced:
            continue
        started_at = _at(m["started_at"])
        if started_at >= _at(m["not_before"]):
            continue
        missing = [e["id"] for e in m["events"] if approved_at.get(e["id"], started_at) > started_at]
        missing += [e["id"] for e in m["events"] if e["id"] not in approved_at]
        if missing or not m["events"]:
            yield f"maintenance {m['id']} started at {m['started_at']}, before {m['not_before']}, without {missing}"
    begun = {m["id"]: _at(m["started_at"]) for m in account.maintenances.values() if m["started_at"]}
    for run in account.runs:
        if run.maintenance_id in begun and run.started_at < begun[run.maintenance_id]:
            yield f"the actuator began {run.maintenance_id} at {run.started_at}, before it had started"


def times_given_hold(account: Account) -> Iterator[str]:
    """R70a, R71: NotBefore is never nearer than the notice, counted from the announcement, whoever asks for events."""
    announced_at = {e["maintenance_id"]: _at(e["at"]) for e in _entries(account, "scheduled")}
    for m in account.maintenances.values():
        is_free = not m["events"] and (m["source"] == "User" or m["cause"] == "spot-eviction")
        if m["id"] not in announced_at or m["not_before"] is None or is_free:
            continue
        if _at(m["not_before"]) < announced_at[m["id"]] + timedelta(seconds=m["notice_s"]):
            yield f"maintenance {m['id']} was announced for {m['not_before']}, and has {m['notice_s']} s of notice"


def incarnations_grow(account: Account) -> Iterator[str]:
    """R42, invariant 6: what one VM sees never goes back; no run is long enough for a new epoch (R46, R69)."""
    for vm, sights in _by_vm(account.sights).items():
        waiting = deque(sorted(sights, key=lambda sight: sight.first_at))
        newest: Sight | None = None
        for sight in sorted(sights, key=lambda sight: sight.last_at):
            while waiting and waiting[0].first_at < sight.last_at:
                other = waiting.popleft()
                if newest is None or _incarnation(other.body) > _incarnation(newest.body):
                    newest = other
            new, old = _incarnation(sight.body), 0 if newest is None else _incarnation(newest.body)
            if newest is not None and new < old:
                yield f"{vm} saw incarnation {old} at {newest.first_at} and {new} at {sight.last_at}"


def documents_equal(account: Account) -> Iterator[str]:
    """R42, R44: one audience, one incarnation, one version: one document, byte for byte, whoever shows it to whom."""
    shown: dict[tuple[str, int, str], bytes] = {}
    for vm, version, body in _bodies(account):
        incarnation = _incarnation(body)
        known = shown.setdefault((account.places[vm].label, incarnation, version), body)
        if known != body:
            yield f"{vm} saw another incarnation {incarnation} than others did: {body!r} and {known!r}"


def versions_agree(account: Account) -> Iterator[str]:
    """R18 to R20, R42: all versions of one incarnation tell of the same events; only Freeze and Reboot happen here."""
    shown: dict[tuple[str, int], list[tuple[str, str, str, list[str]]]] = {}
    for vm, version, body in _bodies(account):
        events = [
            (e["EventId"], e["EventStatus"], e["EventType"], [_bare(name) for name in e["Resources"]])
            for e in json.loads(body)["Events"]
        ]
        known = shown.setdefault((account.places[vm].label, _incarnation(body)), events)
        if known != events:
            yield f"{vm} saw in version {version} of incarnation {_incarnation(body)} {events}, others {known}"


def scopes_kept_apart(account: Account) -> Iterator[str]:
    """R58, R85, invariant 8: nobody sees an event, or a name, of another scope."""
    label_of = {event["id"]: event["scope"] for m in account.maintenances.values() for event in m["events"]}
    for vm, _, body in _bodies(account):
        label = account.places[vm].label
        for event in json.loads(body)["Events"]:
            owner = label_of.get(event["EventId"])
            if owner != label:
                yield f"{vm} of {label} saw event {event['EventId']} of {owner or 'nobody'}"
            mine = {name for name, place in account.places.items() if place.label == label}
            foreign = sorted({_bare(name) for name in event["Resources"]} - mine)
            if foreign:
                yield f"{vm} of {label} saw the names {foreign}"


def statuses_go_forward(account: Account) -> Iterator[str]:
    """R75, R79: Scheduled, Started, gone; what is gone does not come again."""
    for (vm, _), sights in _by_vm_and_version(account.sights).items():
        at: dict[str, int] = {}
        newest = 0
        for sight in sights:
            document = json.loads(sight.body)
            if document["DocumentIncarnation"] < newest:
                continue  # an old document, which `incarnations_grow` tells of
            newest = document["DocumentIncarnation"]
            now = {event["EventId"]: event["EventStatus"] for event in document["Events"]}
            for id_, status in now.items():
                rank = {"Scheduled": 0, "Started": 1}.get(status, -1)
                if rank < at.get(id_, 0):
                    yield f"{vm} saw event {id_} {status} at {sight.first_at}, after it had started or gone"
                at[id_] = max(rank, at.get(id_, 0))
            at.update({id_: 2 for id_ in at if id_ not in now})


def commands_done_once(account: Account) -> Iterator[str]:
    """What was acknowledged happened exactly once, and whatever else was asked once at most (Idempotency-Key)."""
    by_reason: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for m in account.maintenances.values():
        by_reason[m["force_reason"] or ""].append(m)
    for command in account.commands:
        if command.verb in _ENDS:
            yield from _check_ending(account, command)
            continue
        made = by_reason[command.key]
        requests = {m["request_id"] for m in made}
        if len(requests) > 1:
            yield f"{command.verb} {command.key} was done {len(requests)} times"
        if command.is_acknowledged and {m["id"] for m in made} != command.made:
            yield f"{command.verb} {command.key} was answered with {sorted(command.made)}, which is not what there is"
        is_passing = command.status == _NOT_FOUND and bool(_named(command) & account.passing)
        if (command.status or 0) >= 400 and command.status not in {409, 422} and not is_passing:
            yield f"{command.verb} {command.key} got {command.status}: {command.answer}"


def _check_ending(account: Account, command: Command) -> Iterator[str]:
    kind = _ENDS[command.verb]
    done = [e for e in _entries(account, kind) if e["maintenance_id"] == command.target]
    mine = [e for e in done if e["actor"].startswith("operator:")]
    if command.is_acknowledged and len(mine) != 1:
        yield f"{command.verb} of {command.target} was acknowledged, and the audit log has it {len(mine)} times"
    if command.is_acknowledged and kind in _FINAL and account.maintenances[command.target]["state"] != kind:
        yield f"{command.target} was {kind}, and is {account.maintenances[command.target]['state']}"


def fault_domains_apart(account: Account) -> Iterator[str]:
    """R61: routine maintenance is never Started at two fault domains of a set at the same time."""
    spans = []
    for m in account.maintenances.values():
        cause = CAUSES[m["cause"]]
        if m["started_at"] is None or not cause.is_routine or m["source"] != "Platform":
            continue
        domains = {(p.label, p.fault_domain) for name in m["vms"] if (p := account.places[name]).is_spread}
        spans.append((m["id"], _at(m["started_at"]), m["ended_at"] and _at(m["ended_at"]), domains))
        if len({label for label, _ in domains}) < len(domains):
            yield f"maintenance {m['id']} struck several fault domains of one set"
    for (one, start, end, mine), (other, start_2, end_2, theirs) in combinations(spans, 2):
        is_together = (end_2 is None or start < end_2) and (end is None or start_2 < end)
        if is_together and any(a[0] == b[0] and a[1] != b[1] for a in mine for b in theirs):
            yield f"maintenances {one} and {other} struck two fault domains of one set at once"


def vms_struck_singly(account: Account) -> Iterator[str]:
    """R82: two impacts at once on one VM would be one that nobody announced; a failure asks nobody."""
    started = [m for m in account.maintenances.values() if m["started_at"] and not CAUSES[m["cause"]].is_immediate]
    for one, other in combinations(started, 2):
        shared = set(one["vms"]) & set(other["vms"])
        ends = [m["ended_at"] and _at(m["ended_at"]) for m in (one, other)]
        starts = [_at(m["started_at"]) for m in (one, other)]
        is_together = (ends[1] is None or starts[0] < ends[1]) and (ends[0] is None or starts[1] < ends[0])
        if shared and is_together:
            yield f"maintenances {one['id']} and {other['id']} struck {sorted(shared)} at once"


def everything_ended(account: Account) -> Iterator[str]:
    """R76, R79: once nothing fails any more, everything comes to its end, and by no failure."""
    for m in account.maintenances.values():
        if m["force_reason"] != CLOSING and m["state"] not in _FINAL:
            yield f"maintenance {m['id']} is {m['state']} after everything was healed"
        if m["state"] == "failed":
            yield f"maintenance {m['id']} has failed, and nothing was wrong with the actuator"
    kept = {(vote.vm, vote.event_id) for vote in account.votes if vote.acknowledged_at is not None}
    for vote in account.votes:
        if (vote.vm, vote.event_id) not in kept and vote.vm not in account.gone:
            yield f"{vote.vm} never got 200 for {vote.event_id}, also after everything was healed"
    for command in account.commands:
        if command.answer is None:
            yield f"{command.verb} {command.key} never got an answer, also after everything was healed"


def endpoints_show_the_truth(account: Account) -> Iterator[str]:
    """Invariant 9: after healing, every endpoint and every replica shows what the control plane says."""
    listed = defaultdict(list)
    for m in account.maintenances.values():
        for event in m["events"]:
            if event["status"] in {"Scheduled", "Started"}:
                listed[event["scope"]].append((event["id"], event["status"]))
    for showing in account.showings:
        if showing.status != 200:
            yield f"{showing.by} answers {showing.vm} with {showing.status}"
            continue
        document = json.loads(showing.body)
        shown = [(event["EventId"], event["EventStatus"]) for event in document["Events"]]
        if sorted(shown) != sorted(listed[account.places[showing.vm].label]):
            yield f"{showing.by} shows {showing.vm} the events {shown}"
        wanted = account.incarnations.get(showing.vm)
        if document["DocumentIncarnation"] != wanted:
            yield f"{showing.by} shows {showing.vm} incarnation {document['DocumentIncarnation']}, not {wanted}"


def clocks_told(account: Account) -> Iterator[str]:
    """Invariant 4: a replica whose clock is off says so, and carries nothing out."""
    for reading in account.readings:
        words = f"{reading.replica}, whose clock is {reading.ahead_s:+.1f} s off,"
        if reading.status != _UNAVAILABLE or "clock" not in reading.text:
            yield f"{words} says of itself {reading.status}: {reading.text}"
        if reading.is_leader:
            yield f"{words} carries out what is due"


def inventory_kept(account: Account) -> Iterator[str]:
    """Idempotency-Key: the inventory is the one that was acknowledged last."""
    for vm in sorted(account.wanted.keys() | account.declared.keys()):
        wanted, declared = account.wanted.get(vm), account.declared.get(vm)
        if wanted != declared:
            yield f"{vm} should be on {wanted or 'no host'}, and is declared on {declared or 'no host'}"


def strangers_refused(account: Account) -> Iterator[str]:
    """R2, invariant 8: a host answers no VM that is not on it any more."""
    for showing in account.strangers:
        if showing.status != _NOT_FOUND:
            yield f"{showing.by} answers {showing.vm}, which is not there, with {showing.status}"


CHECKS: tuple[Callable[[Account], Iterable[str]], ...] = (
    actuator_told_once,
    steps_taken_once,
    approvals_kept,
    agents_prepare_before_they_approve,
    agents_undo_each_preparation,
    nothing_started_early,
    times_given_hold,
    incarnations_grow,
    documents_equal,
    versions_agree,
    scopes_kept_apart,
    statuses_go_forward,
    commands_done_once,
    fault_domains_apart,
    vms_struck_singly,
    everything_ended,
    endpoints_show_the_truth,
    clocks_told,
    inventory_kept,
    strangers_refused,
)
"""All of them."""


def _entries(account: Account, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in account.entries if entry["kind"] == kind]


def _by_vm(sights: Iterable[Sight]) -> dict[str, list[Sight]]:
    found: dict[str, list[Sight]] = defaultdict(list)
    for sight in sights:
        found[sight.vm].append(sight)
    return found


def _by_vm_and_version(sights: Iterable[Sight]) -> dict[tuple[str, str], list[Sight]]:
    """In the order in which they were seen."""
    found: dict[tuple[str, str], list[Sight]] = defaultdict(list)
    for sight in sorted(sights, key=lambda sight: sight.first_at):
        found[sight.vm, sight.version].append(sight)
    return found


def _bodies(account: Account) -> Iterator[tuple[str, str, bytes]]:
    yield from ((sight.vm, sight.version, sight.body) for sight in account.sights)
    showings = [*account.showings, *account.strangers]
    yield from ((showing.vm, showing.version, showing.body) for showing in showings if showing.status == 200)


def _incarnation(body: bytes) -> int:
    return int(json.loads(body)["DocumentIncarnation"])


def _bare(name: str) -> str:
    """Without what the oldest version puts before it (R20)."""
    return name.removeprefix("_")


def _named(command: Command) -> set[str]:
    """VMs that it is about."""
    return {*command.body.get("vms", []), *command.path.split("/")}


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)

"""What must hold of a run, whatever happened in it: read from the histories and the audit log, not from the agents."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from forewarn.agent.record import ApprovalState, EventRecord, StepRunState
from forewarn.agent.rule import EventStep, Rule, find_first_match
from forewarn.agent.state import AgentState
from forewarn.core.model import EntryKind, Event, Maintenance
from forewarn.wire.document import Event as Shown
from tests.support.agents.history import Began, Died, Heard, Leaving, Saved, StepBegan, StepEnded
from tests.support.agents.machine import Machine
from tests.support.agents.region import Region
from tests.support.agents.story import Story
from tests.support.world import NOW

__all__ = ["Findings", "check"]

_SEE_S = 15.0
"""How long an agent to which nothing happens needs to see a change."""

_SEND_S = 30.0
"""How long it needs to send an approval that is due, and to send it again when the last was not taken."""

_CLOCK_S = 5.0
"""How far off its idea of the time may be."""

_AT_ONCE_S = 0.001
"""Less than anything takes, and more than nothing."""

_STOP_S = 12.0
"""How long a step may take to end that was told to."""


@dataclass(slots=True)
class Findings:
    """What came of the checks.

    Attributes:
        complaints: What must not be.
        figures: How often each thing was seen, for whoever asks whether the run was worth anything.
        stories: By VM and event.
    """

    complaints: list[str] = field(default_factory=list)
    figures: Counter[str] = field(default_factory=Counter)
    stories: dict[tuple[str, str], Story] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """An event on one of the VMs that it names, with its times in seconds.

    Attributes:
        peers: What was done about it on the others.
        siblings: What was done on this VM about other events.
    """

    machine: Machine
    story: Story
    peers: tuple[Story, ...]
    siblings: tuple[Story, ...]
    event: Event
    maintenance: Maintenance
    announced_s: float
    not_before_s: float
    started_s: float | None
    ended_s: float

    @property
    def cutoff_s(self) -> float:
        return self.not_before_s - self.machine.configuration.margin.total_seconds()

    @property
    def waiting_until_s(self) -> float:
        """Until when it was Scheduled."""
        return self.ended_s if self.started_s is None else self.started_s

    @property
    def name(self) -> str:
        return f"{self.machine.name}, event {self.event.id}"

    def is_sound(self, begin_s: float, end_s: float) -> bool:
        return self.machine.health.is_sound(begin_s, end_s)

    def has_answered_before(self, at_s: float) -> bool:
        """Whether the agent that ran then had had an answer."""
        began_s = max(fact.at_s for fact in self.machine.history if isinstance(fact, Began) and fact.at_s <= at_s)
        return any(began_s <= fact.at_s <= at_s for fact in self.machine.history if isinstance(fact, Heard))

    def is_long(self, begin_s: float, end_s: float) -> bool:
        """Whether the agent could see what there was, some time between the two."""
        return any(b - a > _SEE_S for a, b in self.sound_spans(begin_s, end_s))

    @property
    def in_the_way(self) -> list[tuple[float, float]]:
        """When an older recovery was under way: its own, or one of another event that has the same handler.

        Its own is in the way also while it has failed and waits to be mended.
        """
        handlers = self.story.rule.handlers
        crossing = [each for each in self.siblings if any(handler in each.rule.handlers for handler in handlers)]
        return [*self.story.undoing, *(span for each in (self.story, *crossing) for span in each.undo_running)]

    def sound_spans(self, begin_s: float, end_s: float) -> list[tuple[float, float]]:
        """When the agent could do all that it should, of that time."""
        spans = [(max(a, begin_s), min(b, end_s)) for a, b in self.machine.health.spans]
        return [(a, b) for a, b in spans if a < b]

    def approving_spans(self, begin_s: float, end_s: float) -> list[tuple[float, float]]:
        """Those without the times in which the disk did not know what was prepared."""
        spans = self.sound_spans(begin_s, end_s)
        for hole_begin_s, hole_end_s in self.machine.disk.behind:
            parts = [part for a, b in spans for part in ((a, min(b, hole_begin_s)), (max(a, hole_end_s), b))]
            spans = [(a, b) for a, b in parts if a < b]
        return spans


def check(region: Region) -> Findings:
    """Everything."""
    findings = Findings()
    findings.complaints += [f"at the end: {left}" for left in region.left]
    events = region.events()
    maintenances = {m.id: m for m in region.maintenances()}
    announced = {e.maintenance_id: e.at for e in region.audit_log() if e.kind is EntryKind.SCHEDULED}
    shown = {event.id: _shown(event, maintenances[event.maintenance_id]) for each in events.values() for event in each}
    for machine in region.machines.values():
        findings.complaints += machine.broken
        _replay(machine, shown, findings)
    for story in findings.stories.values():
        story.end(region.ended_s)
        findings.complaints += story.complaints
    for event in (event for each in events.values() for event in each):
        maintenance = maintenances[event.maintenance_id]
        announced_at = announced.get(maintenance.id, maintenance.created_at)
        machines = [region.machines[name] for name in event.resources]
        stories = [
            findings.stories.get((each.name, event.id)) or Story(each.name, event.id, _rule(each, shown[event.id]))
            for each in machines
        ]
        for machine, story in zip(machines, stories, strict=True):
            peers = tuple(each for each in stories if each is not story)
            siblings = tuple(
                each for (name, _), each in findings.stories.items() if name == machine.name and each is not story
            )
            _check_case(_case(machine, story, peers, siblings, event, maintenance, announced_at), findings)
    return findings


def _shown(event: Event, maintenance: Maintenance) -> Shown:
    return Shown(
        id=event.id,
        type=maintenance.type.value,
        status="Scheduled",
        resources=event.resources,
        description=maintenance.description,
        source=maintenance.source.value,
        duration_s=maintenance.duration_s,
    )


def _rule(machine: Machine, event: Shown) -> Rule:
    return find_first_match(machine.rules, event, machine.name, NOW)


def _case(
    machine: Machine,
    story: Story,
    peers: tuple[Story, ...],
    siblings: tuple[Story, ...],
    event: Event,
    maintenance: Maintenance,
    announced_at: datetime,
) -> _Case:
    def seconds(moment: datetime) -> float:
        return (moment - NOW).total_seconds()

    assert maintenance.ended_at is not None
    not_before = maintenance.not_before or maintenance.started_at
    assert not_before is not None
    return _Case(
        machine=machine,
        story=story,
        peers=peers,
        siblings=siblings,
        event=event,
        maintenance=maintenance,
        announced_s=seconds(announced_at),
        not_before_s=seconds(not_before),
        started_s=None if maintenance.started_at is None else seconds(maintenance.started_at),
        ended_s=seconds(maintenance.ended_at),
    )


# Replaying a history


def _replay(machine: Machine, shown: dict[str, Shown], findings: Findings) -> None:  # noqa: C901, PLR0912 - one branch for each kind of fact
    stories: dict[str, Story] = {}
    saved = AgentState()
    for fact in machine.history:
        match fact:
            case Began(state=state):
                if state != saved:
                    findings.complaints.append(f"{machine.name}: an agent found another state than was saved")
            case Heard(document=document):
                for event in document.events:
                    if event.id not in stories:
                        stories[event.id] = Story(machine.name, event.id, _rule(machine, shown[event.id]))
                for story in stories.values():
                    story.hear(fact)
            case Saved(state=state):
                findings.complaints += [
                    f"{fact.at_s:.3f} s: {machine.name}, event {text}" for text in _forgotten(saved, state)
                ]
                saved = state
                _take_reports(state, stories, fact.at_s)
                for story in stories.values():
                    story.save()
            case Died(reported=reported):
                for event_id, story in stories.items():
                    # What stands in its log counts, even where the disk was full.
                    story.is_reported |= event_id in reported
                    story.die(fact.at_s)
            case Leaving():
                for story in stories.values():
                    story.leave()
            case _:
                story = stories[fact.event_id]
                story.take(fact)
                if isinstance(fact, StepBegan):
                    findings.figures[f"step {fact.step}"] += 1
                elif isinstance(fact, StepEnded) and not fact.is_out:
                    findings.complaints += [
                        f"{fact.at_s:.3f} s: {machine.name}, event {each.event_id}: the VM is in service again"
                        for each in stories.values()
                        if each.keeps_out
                    ]
    if machine.is_out and not any(story.is_undone_in_part for story in stories.values()):
        findings.complaints.append(f"at the end: {machine.name}: nobody has put it back into service")
    findings.stories.update({(machine.name, event_id): story for event_id, story in stories.items()})


def _take_reports(state: AgentState, stories: dict[str, Story], at_s: float) -> None:
    """What the agent says of itself, which nobody else can know."""
    known = {record.event.id for record in state.records}
    for event_id, story in stories.items():
        story.is_on_disk = event_id in known
    for record in state.records:
        story = stories[record.event.id]
        story.is_reported |= record.is_reported_unprepared
        is_other = record.rule != story.rule
        story.has_other_rule = is_other and state.vm == story.vm
        story.is_misnamed = is_other and state.vm != story.vm
        story.has_acted_by_it |= is_other and bool(record.runs)
        run = record.runs.get(EventStep.PREPARE)
        story.is_begun_on_disk = run is not None and run.state is StepRunState.RUNNING
        if run is not None and run.state is StepRunState.FAILED:
            story.note_failed(at_s, run)
        elif run is not None and run.state is StepRunState.STOPPING:
            story.note_stopping()
    for finished in state.finished:
        if finished.was_prepared is False:
            stories[finished.event.id].is_reported = True


def _forgotten(before: AgentState, after: AgentState) -> list[str]:
    """What was saved, and is not there any more."""
    records = {(record.event.id, record.seen_at): record for record in after.records}
    finished = {(each.event.id, each.seen_at) for each in after.finished}
    found: list[str] = []
    for record in before.records:
        key = (record.event.id, record.seen_at)
        if key in records:
            found += [f"{record.event.id}: {text}" for text in _lost(record, records[key])]
        elif key not in finished:
            found.append(f"{record.event.id}: the disk has forgotten it")
    return found


def _lost(before: EventRecord, after: EventRecord) -> list[str]:
    lost = [
        f"{step} was done, and is {after.runs[step].state if step in after.runs else 'forgotten'}"
        for step in before.runs
        if before.is_done(step) and not after.is_done(step)
    ]
    lost += [
        f"{name} was {getattr(before, name)}, and is {getattr(after, name)}"
        for name in ("started_at", "is_reported_unprepared")
        if getattr(before, name) and getattr(before, name) != getattr(after, name)
    ]
    if before.approval is ApprovalState.ACCEPTED and after.approval is not ApprovalState.ACCEPTED:
        lost.append("its approval was accepted, and is not any more")
    lost += [f"what the handler at {place} remembers is gone" for place in before.memory if place not in after.memory]
    if before.rule != after.rule and before.runs:
        lost.append("its rule is another one, though something was done by it")
    return lost


# Events


def _check_case(case: _Case, findings: Findings) -> None:
    story, figures = case.story, findings.figures
    figures["events on VMs"] += 1
    figures["approvals sent"] += len(story.posted)
    if story.is_excused:
        figures["excused: the disk was full when the power went"] += 1
        return
    if story.has_acted_by_it or story.is_misnamed:
        figures["excused: it was known under a wrong name"] += 1
        return
    if story.has_other_rule:
        findings.complaints.append(f"{case.name}: another rule decided")
        return
    checks = [_check_start(case, figures), _check_approval(case, figures)]
    if story.rule.has_preparation:
        checks += [_check_promptness(case, figures), _check_stops(case)]
    findings.complaints += [f"{case.name}: {text}" for found in checks for text in found]


def _check_start(case: _Case, figures: Counter[str]) -> list[str]:  # noqa: C901, PLR0911 - one return for each way in which it may have started
    """Prepared before it started, or reported as not, or never seen."""
    story = case.story
    if case.started_s is None:
        figures["never started"] += 1
        return []
    if not story.rule.has_preparation:
        figures["started: nothing to prepare"] += 1
        return []
    if story.is_prepared_at(case.started_s):
        figures["started: prepared"] += 1
        return []
    if story.is_reported:
        figures["started: reported as not prepared"] += 1
        return []
    if story.is_undoing_at(case.started_s):
        figures["excused: an older document, and then a recovery that did not end"] += 1
        return []
    late_s = story.prepared_after(case.started_s)
    if late_s is not None and all(late_s < at_s for at_s, _ in story.started_seen):  # noqa: SIM102 - each condition has its own reason
        if not case.is_long(case.started_s, late_s):
            figures["excused: prepared before it was seen started, and after it had"] += 1
            return []
    # It is to report when it has seen the event started, and lived on for a moment.
    deaths = {fact.process: fact.at_s for fact in case.machine.history if isinstance(fact, Died)}
    if any(deaths[process] > at_s + 1.0 and not story.is_undoing_at(at_s) for at_s, process in story.started_seen):
        return ["it started unprepared, was seen started, and was not reported"]
    spans = case.sound_spans(case.started_s, case.ended_s)
    if any(end_s > _free_from(story.undoing, begin_s) + _SEE_S for begin_s, end_s in spans):
        return ["it started unprepared, could have been seen, and was not reported"]
    figures["started: nobody could see it"] += 1
    # Who sees it gone, after its time, knows that it started, and recovers from it.
    over_s = min((at_s for at_s in story.endings if at_s >= case.ended_s), default=0.0)
    is_known = case.is_sound(over_s, over_s + _AT_ONCE_S) and over_s > case.not_before_s + _CLOCK_S
    if is_known and not story.prepared:
        return ["it started unprepared, was known to be over by its time, and was not reported"]
    return []


def _check_promptness(case: _Case, figures: Counter[str]) -> list[str]:
    """Where nothing is wrong with an agent, it prepares while there is time, and otherwise once it has started."""
    story = case.story
    begins = [begin for begin, _, _ in story.running]
    found: list[str] = []
    if story.is_marked:
        return found
    if case.started_s is not None:
        figures["prepared for after the start"] += any(at_s > case.started_s for at_s in begins)
        found += _late(case, begins, case.started_s, case.ended_s)
    if story.given_up_s is not None:
        if story.given_up_s < case.cutoff_s - _CLOCK_S:
            if case.is_sound(story.given_up_s - 1.0, story.given_up_s):
                found.append(f"it was given up at {story.given_up_s:.0f} s, with time until {case.cutoff_s:.0f} s")
            elif case.has_answered_before(story.given_up_s):
                figures["excused: the clock was set wrong, and nobody had told the time yet"] += 1
            else:
                found.append(f"it was given up at {story.given_up_s:.0f} s, after a start")
        return found
    return found + _late(case, begins, case.announced_s, min(case.waiting_until_s, case.cutoff_s - _CLOCK_S))


def _late(case: _Case, begins: list[float], from_s: float, until_s: float) -> list[str]:
    """When nothing was wrong with the agent between the two, and it did not prepare."""
    found: list[str] = []
    for begin_s, end_s in case.sound_spans(from_s, until_s):
        due_s = _free_from(case.in_the_way, begin_s) + _SEE_S
        if end_s > due_s and not any(at_s <= due_s for at_s in begins):
            found.append(f"from {begin_s:.0f} to {end_s:.0f} s nothing was wrong, and it was not prepared for")
    return found


def _free_from(spans: list[tuple[float, float]], at_s: float) -> float:
    """The first moment, from the given one on, at which none of them has begun within the time to see a change."""
    for begin_s, end_s in sorted(spans):
        if begin_s <= at_s + _SEE_S and end_s > at_s:
            at_s = end_s
    return at_s


def _check_stops(case: _Case) -> list[str]:
    """A preparation is stopped when there is no time left, and not before."""
    found: list[str] = []
    for begin_s, end_s, how in case.story.running:
        is_waiting = case.waiting_until_s > end_s
        if how == "stopped" and is_waiting and end_s < case.cutoff_s - _CLOCK_S:
            is_gone = case.story.was_absent_between(begin_s, end_s)
            if not is_gone and case.is_sound(max(begin_s, end_s - _STOP_S), end_s):
                found.append(f"preparing was stopped at {end_s:.0f} s, with time until {case.cutoff_s:.0f} s")
        late_s = case.cutoff_s + _CLOCK_S
        if begin_s > late_s:
            if begin_s < case.waiting_until_s and case.is_sound(begin_s - 1.0, begin_s):
                found.append(f"preparing began at {begin_s:.0f} s, with time until {case.cutoff_s:.0f} s")
        elif min(end_s, case.waiting_until_s) > late_s + _STOP_S:  # noqa: SIM102 - each condition has its own reason
            if case.is_sound(case.cutoff_s - _CLOCK_S, late_s + _STOP_S):
                found.append(f"preparing went on until {end_s:.0f} s, with time until {case.cutoff_s:.0f} s")
    return found


def _check_approval(case: _Case, figures: Counter[str]) -> list[str]:
    """Where nothing is wrong with an agent, and it is its turn, it approves."""
    story = case.story
    found: list[str] = []
    for ready_s, until_s in _ready(case):
        due_s = _due(case, ready_s)
        if due_s is None:
            continue
        for begin_s, end_s in case.approving_spans(max(due_s, ready_s), min(until_s, case.waiting_until_s)):
            has_accepted = any(ready_s <= at_s <= begin_s + _SEND_S for at_s in story.accepted)
            has_posted = any(begin_s <= at_s <= begin_s + _SEND_S for at_s in story.posted)
            if end_s - begin_s <= _SEND_S or story.is_undoing_at(begin_s + _SEND_S):
                continue
            figures["approvals that were due"] += 1
            if not (has_accepted or has_posted):
                text = f"ready at {ready_s:.0f} s, sound from {begin_s:.0f} to {end_s:.0f} s, and it did not approve"
                found.append(text)
    return found


def _ready(case: _Case) -> list[tuple[float, float]]:
    """From when until when the VM would approve for itself."""
    story, rule = case.story, case.story.rule
    if rule.before_approval or story.shown_s is None:
        return []
    spans = story.prepared if rule.has_preparation else [(story.shown_s, case.ended_s)]
    if rule.approve in {"never", "by-hand"}:
        spans = [(max(begin, min(story.told)), end) for begin, end in spans] if story.told else []
    return spans


def _due(case: _Case, ready_s: float) -> float | None:  # noqa: PLR0911 - one return for each mode
    """When it is this VM's turn at the latest; None: perhaps never."""
    names, vm = case.event.resources, case.machine.name
    if names == (vm,):
        return ready_s
    if case.story.told:
        return max(ready_s, min(case.story.told))
    together = case.machine.configuration.together
    match together.mode:
        case "each" | "primary":
            return ready_s
        case "leader":
            return ready_s if names[0] == vm else None
        case "secondary":
            is_its = case.maintenance.source.value in together.secondary_sources
            return ready_s + together.secondary_after.total_seconds() + _CLOCK_S if is_its else None
        case "all-prepared":
            if any(peer.may_hold for peer in case.peers):
                return None
            # Who was shown an older document begins to count anew.
            seen_s = max((at_s for at_s in case.story.appearances if at_s <= case.waiting_until_s), default=ready_s)
            late_s = names.index(vm) * together.stagger.total_seconds()
            deadline_s = seen_s + together.deadline.total_seconds()
            return min(deadline_s, case.cutoff_s) + late_s + _CLOCK_S

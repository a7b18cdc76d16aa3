"""The checker of the fault run sees each violation, and sees none where there is none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.faultrun import checker
from tests.faultrun.records import CLOSING, Account, Command, Place, Reading, Run, Showing, Sight, Step, Try, Vote

T0 = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def text(seconds: float | None) -> str | None:
    return None if seconds is None else at(seconds).isoformat()


def maintenance(id_: str, vm: str, span: tuple[float | None, float | None], **more: Any) -> dict[str, Any]:  # noqa: ANN401 - any member
    start, end = span
    state = "completed" if end is not None else "started" if start is not None else "scheduled"
    status = {"completed": "Completed", "started": "Started", "scheduled": "Scheduled"}[state]
    return {
        "id": id_,
        "request_id": id_,
        "state": state,
        "cause": "live-migration",
        "source": "Platform",
        "force_reason": f"key-{id_}",
        "not_before": text(5),
        "notice_s": 4.0,
        "started_at": text(start),
        "ended_at": text(end),
        "vms": [vm],
        "events": [{"id": f"E-{id_}", "scope": "web", "status": status}],
    } | more


def entry(sequence: int, kind: str, id_: str, actor: str = "forewarn", moment: float = 1) -> dict[str, Any]:
    return {
        "sequence": sequence,
        "kind": kind,
        "maintenance_id": id_,
        "event_id": f"E-{id_}",
        "actor": actor,
        "at": text(moment),
    }


def body(incarnation: int, *events: tuple[str, str, str]) -> bytes:
    shown = [
        {"EventId": id_, "EventStatus": status, "EventType": "Freeze", "Resources": [vm]} for id_, status, vm in events
    ]
    return json.dumps({"DocumentIncarnation": incarnation, "Events": shown}).encode()


def sight(vm: str, moment: float, content: bytes, version: str = "2020-07-01") -> Sight:
    return Sight(vm=vm, version=version, first_at=at(moment), last_at=at(moment + 0.5), body=content)


def showing(vm: str, by: str, status: int, content: bytes) -> Showing:
    return Showing(vm=vm, by=by, version="2020-07-01", status=status, body=content)


def tried(*statuses: int | None, moment: float = 2) -> list[Try]:
    return [Try(sent_at=at(moment), answered_at=at(moment + 0.1), status=status) for status in statuses]


SCHEDULED = body(2, ("E-a", "Scheduled", "web-0"))
STARTED = body(3, ("E-a", "Started", "web-0"))


def sound() -> Account:
    """A run in which everything went as it should: one maintenance, approved, told after an answer was lost."""
    command = Command(key="key-a", verb="schedule", path="/v1/maintenance", body={}, tries=tried(None, 201, moment=0.5))
    command.answer = {"items": [{"id": "a"}]}
    vms = ("web-0", "web-1", "db")
    incarnations = {"web-0": 4, "web-1": 4, "db": 1}
    return Account(
        places={
            "web-0": Place(host="h0", label="web", fault_domain=0, is_spread=True),
            "web-1": Place(host="h1", label="web", fault_domain=1, is_spread=True),
            "db": Place(host="h1", label="db"),
        },
        maintenances={"a": maintenance("a", "web-0", (3, 4))},
        entries=[
            entry(1, "scheduled", "a", "operator:local"),
            entry(2, "approved", "a", "vm:web-1", 2),
            entry(3, "started", "a", "vm:web-1", 3),
            entry(4, "impacted", "a", "actuator", 3.5),
            entry(5, "completed", "a", "actuator", 4),
        ],
        incarnations=dict(incarnations),
        runs=[Run(maintenance_id="a", started_at=at(3.2), ended_at=at(3.8))],
        sights=[
            *(sight("web-1", n, content) for n, content in enumerate((body(1), SCHEDULED, STARTED, body(4)))),
            *(sight("web-0", n, content) for n, content in enumerate((body(1), STARTED, body(4)))),
            sight("db", 1, body(1)),
        ],
        votes=[Vote(vm="web-1", event_id="E-a", tries=tried(None, 503, 200))],
        commands=[command],
        showings=[showing(vm, "replica-0", 200, body(incarnations[vm])) for vm in vms],
        wanted={"web-0": "h0", "web-1": "h1", "db": "h1"},
        declared={"web-0": "h0", "web-1": "h1", "db": "h1"},
        strangers=[showing("old", "endpoint-h0", 404, b"")],
        readings=[Reading(replica="replica-0", ahead_s=3, status=503, text="clock is off", is_leader=False)],
        statuses={200: 8},
        agent_starts={"web-1": 1},
        steps=[
            Step(vm="web-1", name="prepare", event_id="E-a", begun_at=at(1), ended_at=at(1.8)),
            Step(vm="web-1", name="recover", event_id="E-a", begun_at=at(4.5), ended_at=at(4.6)),
        ],
    )


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert checker.check(sound()) == []


def _and(account: Account, made: dict[str, Any]) -> None:
    account.maintenances[made["id"]] = made


def told_twice(account: Account) -> None:
    account.runs.append(Run(maintenance_id="a", started_at=at(3.9), ended_at=at(4)))


def completed_without_a_run(account: Account) -> None:
    account.runs.clear()


def completed_by_half_a_run(account: Account) -> None:
    account.runs[0] = replace(account.runs[0], ended_at=None)


def carried_out_unstarted(account: Account) -> None:
    _and(account, maintenance("b", "db", (None, None), force_reason=CLOSING))
    account.runs.append(Run(maintenance_id="b", started_at=at(3)))


def started_twice(account: Account) -> None:
    account.entries.append(entry(6, "started", "a"))


def ended_twice(account: Account) -> None:
    account.entries.append(entry(6, "canceled", "a"))


def numbered_backwards(account: Account) -> None:
    account.entries[0]["sequence"] = 9


def approval_lost(account: Account) -> None:
    account.entries = [each for each in account.entries if each["kind"] != "approved"]


def approved_twice(account: Account) -> None:
    account.entries.append(entry(6, "approved", "a", "vm:web-0", 2.5))


def shown_and_refused(account: Account) -> None:
    account.votes[0].tries[:0] = tried(400)


def started_early(account: Account) -> None:
    account.maintenances["a"]["events"].append({"id": "E-other", "scope": "db", "status": "Completed"})


def unwarned_at_once(account: Account) -> None:
    _and(account, maintenance("b", "db", (6, 7), not_before=text(6), events=[]))
    account.entries += [entry(6, "scheduled", "b", "operator:local", 6), entry(7, "started", "b", "forewarn", 6)]


def approved_too_late(account: Account) -> None:
    account.entries[1]["at"] = text(3.5)


def begun_before_its_start(account: Account) -> None:
    account.runs[0] = replace(account.runs[0], started_at=at(2.9))


def gone_back(account: Account) -> None:
    account.sights.append(sight("web-0", 5, STARTED))


def gone_back_in_another_version(account: Account) -> None:
    account.sights.append(sight("web-0", 5, STARTED, "2019-08-01"))


def gone_back_while_another_version_was_asked(account: Account) -> None:
    account.sights.append(replace(sight("web-0", 0.1, body(1), "2019-08-01"), last_at=at(9)))


def versions_disagree(account: Account) -> None:
    account.sights.append(sight("web-1", 2.1, body(3, ("E-a", "Scheduled", "web-0")), "2019-08-01"))


def two_documents_of_one_incarnation(account: Account) -> None:
    account.sights.append(sight("web-1", 5, body(4) + b" "))


def another_document_by_a_replica(account: Account) -> None:
    account.showings[0] = replace(account.showings[0], body=body(4) + b" ")


def foreign_event(account: Account) -> None:
    account.sights.append(sight("db", 5, body(2, ("E-a", "Scheduled", "db"))))


def foreign_name(account: Account) -> None:
    account.sights[1] = sight("web-1", 1, body(2, ("E-a", "Scheduled", "db")))


def unknown_event(account: Account) -> None:
    account.sights.append(sight("db", 5, body(2, ("E-nobody", "Scheduled", "db"))))


def scheduled_again(account: Account) -> None:
    account.sights.insert(3, sight("web-1", 2.5, body(3, ("E-a", "Scheduled", "web-0"))))


def come_again(account: Account) -> None:
    account.sights.append(sight("web-0", 5, body(5, ("E-a", "Started", "web-0"))))


def completed_shown(account: Account) -> None:
    account.sights.append(sight("web-0", 5, body(5, ("E-a", "Completed", "web-0"))))


def command_lost(account: Account) -> None:
    account.commands[0].answer = {"items": [{"id": "z"}]}


def command_done_twice(account: Account) -> None:
    _and(account, maintenance("b", "db", (6, 7), force_reason="key-a"))


def command_not_understood(account: Account) -> None:
    account.commands.append(Command(key="key-b", verb="restart", path="", body={}, tries=tried(404), answer={}))


def cancel_forgotten(account: Account) -> None:
    command = Command(key="key-c", verb="cancel", path="", body={}, target="a", tries=tried(200), answer={"id": "a"})
    account.commands.append(command)


def completed_and_not(account: Account) -> None:
    command = Command(key="key-c", verb="complete", path="", body={}, target="b", tries=tried(200), answer={"id": "b"})
    account.commands.append(command)
    _and(account, maintenance("b", "db", (6, 7), state="failed"))
    account.entries.append(entry(6, "completed", "b", "operator:local"))


def domains_together(account: Account) -> None:
    _and(account, maintenance("b", "web-1", (3.5, 5), not_before=text(3)))


def one_over_two_domains(account: Account) -> None:
    account.maintenances["a"]["vms"].append("web-1")


def one_vm_twice_at_once(account: Account) -> None:
    _and(account, maintenance("b", "web-0", (3.5, 5), cause="user-restart", source="User", not_before=text(3)))


def never_ended(account: Account) -> None:
    account.maintenances["a"] |= {"state": "started", "ended_at": None}


def failed(account: Account) -> None:
    account.maintenances["a"]["state"] = "failed"


def never_answered(account: Account) -> None:
    account.votes.append(Vote(vm="web-0", event_id="E-a", tries=tried(None, 503)))


def command_never_answered(account: Account) -> None:
    account.commands.append(Command(key="key-d", verb="restart", path="", body={}, tries=tried(None)))


def not_shown(account: Account) -> None:
    _and(account, maintenance("b", "web-0", (None, None), force_reason=CLOSING))


def shown_of_old(account: Account) -> None:
    account.showings[0] = replace(account.showings[0], body=body(3))


def not_answered(account: Account) -> None:
    account.showings[2] = replace(account.showings[2], status=503, body=b"")


def clock_not_told(account: Account) -> None:
    account.readings[0] = replace(account.readings[0], status=200)


def led_with_a_clock_that_is_off(account: Account) -> None:
    account.readings[0] = replace(account.readings[0], is_leader=True)


def moved_back(account: Account) -> None:
    account.declared["db"] = "h0"


def removed_and_declared(account: Account) -> None:
    del account.wanted["db"]


def stranger_answered(account: Account) -> None:
    account.strangers[0] = replace(account.strangers[0], vm="db", status=200, body=body(1))


def never_answered_elsewhere_either(account: Account) -> None:
    account.votes += [Vote(vm="web-0", event_id="E-a", tries=tried(503)), Vote(vm="web-0", event_id="E-a")]


def not_found_and_stayed(account: Account) -> None:
    account.votes[0].tries[:0] = tried(404)


def approved_while_preparing(account: Account) -> None:
    account.steps[0].ended_at = at(2.5)


def approved_after_a_preparation_that_was_killed(account: Account) -> None:
    account.steps[0].ended_at = None


def never_undone(account: Account) -> None:
    account.steps[1].ended_at = None


def undone_early(account: Account) -> None:
    account.steps[1].begun_at = at(3.9)


def undone_before_the_end(account: Account) -> None:
    account.maintenances["a"]["ended_at"] = None


def undone_twice(account: Account) -> None:
    account.steps.append(account.steps[1])


@pytest.mark.parametrize(
    ("spoil", "found_by"),
    [
        (approved_while_preparing, "agents_prepare_before_they_approve"),
        (approved_after_a_preparation_that_was_killed, "agents_prepare_before_they_approve"),
        (never_undone, "agents_undo_each_preparation"),
        (undone_early, "agents_undo_each_preparation"),
        (undone_before_the_end, "agents_undo_each_preparation"),
        (undone_twice, "agents_undo_each_preparation"),
        (told_twice, "actuator_told_once"),
        (completed_without_a_run, "actuator_told_once"),
        (completed_by_half_a_run, "actuator_told_once"),
        (carried_out_unstarted, "actuator_told_once"),
        (started_twice, "steps_taken_once"),
        (ended_twice, "steps_taken_once"),
        (numbered_backwards, "steps_taken_once"),
        (approval_lost, "approvals_kept"),
        (approved_twice, "approvals_kept"),
        (shown_and_refused, "approvals_kept"),
        (started_early, "nothing_started_early"),
        (unwarned_at_once, "times_given_hold"),
        (approved_too_late, "nothing_started_early"),
        (begun_before_its_start, "nothing_started_early"),
        (gone_back, "incarnations_grow"),
        (gone_back_in_another_version, "incarnations_grow"),
        (gone_back_while_another_version_was_asked, "incarnations_grow"),
        (versions_disagree, "versions_agree"),
        (two_documents_of_one_incarnation, "documents_equal"),
        (another_document_by_a_replica, "documents_equal"),
        (foreign_event, "scopes_kept_apart"),
        (foreign_name, "scopes_kept_apart"),
        (unknown_event, "scopes_kept_apart"),
        (scheduled_again, "statuses_go_forward"),
        (come_again, "statuses_go_forward"),
        (completed_shown, "statuses_go_forward"),
        (command_lost, "commands_done_once"),
        (command_done_twice, "commands_done_once"),
        (command_not_understood, "commands_done_once"),
        (cancel_forgotten, "commands_done_once"),
        (completed_and_not, "commands_done_once"),
        (domains_together, "fault_domains_apart"),
        (one_over_two_domains, "fault_domains_apart"),
        (one_vm_twice_at_once, "vms_struck_singly"),
        (never_ended, "everything_ended"),
        (failed, "everything_ended"),
        (never_answered, "everything_ended"),
        (command_never_answered, "everything_ended"),
        (not_shown, "endpoints_show_the_truth"),
        (shown_of_old, "endpoints_show_the_truth"),
        (not_answered, "endpoints_show_the_truth"),
        (clock_not_told, "clocks_told"),
        (led_with_a_clock_that_is_off, "clocks_told"),
        (moved_back, "inventory_kept"),
        (removed_and_declared, "inventory_kept"),
        (stranger_answered, "strangers_refused"),
        (never_answered_elsewhere_either, "everything_ended"),
        (not_found_and_stayed, "approvals_kept"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_each_violation_is_found(spoil: Callable[[Account], None], found_by: str) -> None:
    account = sound()
    spoil(account)
    assert found_by in {line.partition(":")[0] for line in checker.check(account)}


def test_an_approval_of_what_had_started_before_need_not_be_in_the_audit_log() -> None:
    """R49."""
    account = sound()
    account.votes.append(Vote(vm="web-0", event_id="E-b", tries=tried(200, moment=7)))
    _and(account, maintenance("b", "web-0", (6, 8)))
    assert checker.check(account) == []


def test_what_an_operator_forced_may_start_early() -> None:
    """Invariant 4."""
    account = sound()
    account.entries[1:2] = []
    account.votes.clear()
    account.entries[1]["actor"] = "operator:local"
    assert checker.check(account) == []


def test_versions_may_take_turns_as_long_as_nothing_goes_back() -> None:
    """R42."""
    account = sound()
    account.sights.append(replace(sight("web-0", 2.1, body(4), "2019-08-01"), last_at=at(9)))
    assert checker.check(account) == []


def test_the_oldest_version_may_put_a_line_before_names() -> None:
    """R20."""
    account = sound()
    account.sights.append(sight("web-1", 2.1, body(3, ("E-a", "Started", "_web-0")), "2017-03-01"))
    assert checker.check(account) == []


def test_what_a_vm_began_on_one_host_it_may_end_on_another() -> None:
    """Its approval found nobody while it moved, and was taken where it is now."""
    account = sound()
    account.passing.add("web-1")
    account.votes.insert(0, Vote(vm="web-1", event_id="E-a", tries=tried(404)))
    assert checker.check(account) == []


def test_a_vm_that_was_removed_need_not_get_an_answer() -> None:
    account = sound()
    account.passing.add("old")
    account.gone.add("old")
    account.votes.append(Vote(vm="old", event_id="E-a", tries=tried(404)))
    account.commands.append(
        Command(key="key-b", verb="restart", path="/v1/vms/old/restart", body={}, tries=tried(404), answer={})
    )
    assert checker.check(account) == []


def test_every_check_can_fail() -> None:
    names = {mark.args[1][n][1] for mark in test_each_violation_is_found.pytestmark for n in range(len(mark.args[1]))}  # type: ignore[attr-defined] # pytest puts it there
    assert names == {function.__name__ for function in checker.CHECKS}

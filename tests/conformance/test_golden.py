"""The golden transcripts: what every api-version answers, byte for byte, through the lives of fixed maintenances.

`golden/<api-version>.txt` holds, life by life, one line for each step: the exact body of a GET in that version, with
all switches at their defaults. After a wanted change of the wire, write the files anew, and read the difference before
it is committed:

    .venv/bin/python -m tests.conformance.test_golden
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.causes import CAUSES
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.maintenance.lifecycle import Trigger, apply_trigger
from forewarn.core.model import Audience, Event, Maintenance, MaintenanceState
from forewarn.wire.imds import VERSIONS, Dialect, Version, encode_document

GOLDEN = Path(__file__).parent / "golden"

NOW = datetime(2026, 3, 1, 23, 50, 5, tzinfo=UTC)

MEMBERS = [
    "EventId",
    "EventStatus",
    "EventType",
    "ResourceType",
    "Resources",
    "NotBefore",
    "Description",
    "EventSource",
    "DurationInSeconds",
]
MEMBER_COUNT = {
    "2017-03-01": 6,
    "2017-08-01": 6,
    "2017-11-01": 6,
    "2019-01-01": 6,
    "2019-04-01": 7,
    "2019-08-01": 8,
    "2020-07-01": 9,
}


def planned(number: int, cause: str, notice: timedelta) -> Maintenance:
    """A maintenance that was not announced yet, with the defaults of its cause."""
    row = CAUSES[cause]
    return Maintenance(
        id=f"m{number}",
        sequence=number,
        request_id=f"r{number}",
        cause=cause,
        type=row.type,
        impact=row.type,
        source=row.source,
        description=row.description,
        duration_s=row.duration_s,
        state=MaintenanceState.QUEUED,
        created_at=NOW,
        notice=notice,
        not_before=NOW + notice,
    )


MAINTENANCES = [
    planned(1, "live-migration", timedelta(minutes=15)),
    planned(2, "user-restart", timedelta(minutes=15)),
    planned(3, "host-maintenance", timedelta(minutes=15)),
    planned(4, "spot-eviction", timedelta(seconds=30)),
    planned(5, "scale-set-delete", timedelta(minutes=5)),
    planned(6, "hardware-failure", timedelta(0)),
]
MIGRATION, RESTART, HOST, EVICTION, DELETE, FAILURE = (maintenance.id for maintenance in MAINTENANCES)


@dataclass(frozen=True, kw_only=True)
class Life:
    """What one audience lives through.

    Attributes:
        number: Stands in the ids of its events, so that no two lives share one.
        events: Id of the maintenance and names of the VMs of each event, in order of creation.
        steps: Words for each change of the document, and what makes it: triggers by the id of a maintenance.
    """

    number: int
    title: str
    events: tuple[tuple[str, tuple[str, ...]], ...]
    steps: tuple[tuple[str, dict[str, Trigger]], ...]
    is_iaas: bool = True

    def documents(self) -> Iterator[tuple[str, AudienceDocument]]:
        """The words and the document of each step; the first document is empty."""
        events = [
            Event(
                id=f"{self.number:08X}-ABCD-4EF0-8123-{sequence:012X}",
                sequence=sequence,
                maintenance_id=maintenance_id,
                audience=self.title,
                update_domain=sequence,
                resources=names,
                is_iaas=self.is_iaas,
            )
            for sequence, (maintenance_id, names) in enumerate(self.events, start=10)
        ]
        audience = Audience(key=self.title, enabled_at=NOW, epoch=1, incarnation=1, active_until=NOW)
        current: dict[str, Maintenance] = {}
        yield "empty", AudienceDocument(audience=audience)
        for words, triggers in self.steps:
            for maintenance in MAINTENANCES:
                if maintenance.id in triggers:
                    before = current.get(maintenance.id)
                    state = before.state if before is not None else None
                    current[maintenance.id] = apply_trigger(before or maintenance, state, triggers[maintenance.id], NOW)
            audience = replace(audience, incarnation=audience.incarnation + 1)
            items = [(event, current[event.maintenance_id]) for event in events if event.maintenance_id in current]
            yield words, AudienceDocument(audience=audience, items=tuple(item for item in items if item[1].is_active))


def whole(number: int, title: str, *events: tuple[str, tuple[str, ...]], is_iaas: bool = True) -> Life:
    """A life with one maintenance from announcement to end."""
    ids = {maintenance_id for maintenance_id, _ in events}
    steps = (
        ("scheduled", dict.fromkeys(ids, Trigger.ANNOUNCE)),
        ("started", dict.fromkeys(ids, Trigger.START)),
        ("removed", dict.fromkeys(ids, Trigger.COMPLETE)),
    )
    return Life(number=number, title=title, events=events, steps=steps, is_iaas=is_iaas)


LIVES = [
    whole(1, "live migration of two VMs of one update domain", (MIGRATION, ("WestNO_0", "WestNO_2"))),
    whole(2, "restart of a standalone VM by its user", (RESTART, ("db",))),
    whole(
        3,
        "host maintenance on two update domains of a cloud service",
        (HOST, ("FrontEnd_IN_0", "BackEnd_IN_0")),
        (HOST, ("FrontEnd_IN_1",)),
        is_iaas=False,
    ),
    whole(4, "eviction of a Spot VM", (EVICTION, ("myspotvm",))),
    whole(5, "delete of an instance of a scale set", (DELETE, ("Pool_3",))),
    Life(
        number=6,
        title="hardware failure under two VMs of one update domain",
        events=((FAILURE, ("WestNO_0", "WestNO_2")),),
        steps=(("started", {FAILURE: Trigger.STRIKE}), ("removed", {FAILURE: Trigger.COMPLETE})),
    ),
    Life(
        number=7,
        title="several at once in a scale set",
        events=((EVICTION, ("Pool_0",)), (MIGRATION, ("Pool_1",)), (DELETE, ("Pool_2",)), (RESTART, ("Pool_3",))),
        steps=(
            ("eviction scheduled", {EVICTION: Trigger.ANNOUNCE}),
            ("live migration and delete scheduled", {MIGRATION: Trigger.ANNOUNCE, DELETE: Trigger.ANNOUNCE}),
            ("eviction started, restart scheduled", {EVICTION: Trigger.START, RESTART: Trigger.ANNOUNCE}),
            ("live migration canceled", {MIGRATION: Trigger.CANCEL}),
            ("eviction removed, delete started", {EVICTION: Trigger.COMPLETE, DELETE: Trigger.START}),
            ("delete removed, restart started", {DELETE: Trigger.COMPLETE, RESTART: Trigger.START}),
            ("restart failed", {RESTART: Trigger.FAIL}),
        ),
    ),
]


def bodies(life: Life, version: Version) -> list[bytes]:
    """What that version answers at each step."""
    return [encode_document(document, version, Dialect()) for _, document in life.documents()]


def transcript(version: Version) -> bytes:
    """The content of the version's golden file."""
    lines = [f"api-version {version.name}".encode()]
    for life in LIVES:
        lines += [b"", f"== {life.title}".encode()]
        for (words, _), body in zip(life.documents(), bodies(life, version), strict=True):
            lines += [f"-- {words}".encode(), body]
    return b"\n".join(lines) + b"\n"


all_versions = pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
all_lives = pytest.mark.parametrize("life", LIVES, ids=lambda life: life.title.replace(" ", "-"))


@all_versions
def test_every_step_is_answered_with_the_golden_bytes(version: Version) -> None:
    """R16, R18 to R21, R25, R26, R28 to R30, R32 to R42, R71, R73, R77 to R79."""
    assert transcript(version) == (GOLDEN / f"{version.name}.txt").read_bytes()


def test_every_version_has_a_golden_file_and_no_other_has() -> None:
    """R16."""
    assert sorted(path.name for path in GOLDEN.iterdir()) == [f"{version.name}.txt" for version in VERSIONS]


@all_versions
@all_lives
def test_no_event_shows_more_or_less_than_the_members_of_its_version(life: Life, version: Version) -> None:
    """R18, W1."""
    shown = [event for body in bodies(life, version) for event in json.loads(body)["Events"]]
    assert [list(event) for event in shown] == [MEMBERS[: MEMBER_COUNT[version.name]]] * len(shown)


@all_versions
@all_lives
def test_the_incarnation_grows_by_one_from_step_to_step(life: Life, version: Version) -> None:
    """R19, R42, R45, A5: also where the version leaves the changed event out."""
    incarnations = [json.loads(body)["DocumentIncarnation"] for body in bodies(life, version)]
    assert incarnations == list(range(1, len(life.steps) + 2))


@all_versions
@all_lives
def test_an_event_keeps_all_but_status_and_not_before(life: Life, version: Version) -> None:
    """R30, R36, R40, R75: and it goes from Scheduled to Started, never back."""
    documents = [_by_id(body) for body in bodies(life, version)]
    assert not documents[0]
    for before, after in pairwise(documents):
        for event_id in before.keys() & after.keys():
            old, new = before[event_id], after[event_id]
            changed = {name for name in new if new[name] != old[name]}
            assert changed in (set(), {"EventStatus", "NotBefore"})
            assert (old["EventStatus"], new["EventStatus"]) != ("Started", "Scheduled")
            assert (new["NotBefore"] == "") == (new["EventStatus"] == "Started")


@all_versions
@all_lives
def test_every_life_ends_with_an_empty_document(life: Life, version: Version) -> None:
    """R25, R27, R79: what completed, failed or was canceled is gone."""
    assert bodies(life, version)[-1] == f'{{"DocumentIncarnation":{len(life.steps) + 1},"Events":[]}}'.encode()


def _by_id(body: bytes) -> dict[str, dict[str, Any]]:
    return {event["EventId"]: event for event in json.loads(body)["Events"]}


if __name__ == "__main__":
    for row in VERSIONS:
        (GOLDEN / f"{row.name}.txt").write_bytes(transcript(row))

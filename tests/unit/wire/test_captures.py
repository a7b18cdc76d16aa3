"""Answers that the real endpoint gave, against ours for the same values (SPEC, part 3).

What a capture does not tell (an id, a name) is that of the builders.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

from forewarn.core.model import Event, EventSource, EventType, Maintenance
from forewarn.wire.imds import Dialect
from tests.unit.wire.builders import EVENT, MAINTENANCE, STARTED, encode, events


def event(name: str, id: str = EVENT.id) -> Event:
    return replace(EVENT, id=id, resources=(name,))


def maintenance(type: EventType, not_before: datetime = MAINTENANCE.created_at, description: str = "") -> Maintenance:
    source = EventSource.USER if type is EventType.REBOOT else EventSource.PLATFORM
    return replace(MAINTENANCE, type=type, source=source, description=description, not_before=not_before)


def test_capture_1_has_a_prefixed_name_and_under_its_switch_an_rfc_1123_time() -> None:
    """C1 (2017-04-17, preview): R20, A1."""
    dialect = Dialect(notbefore_2017_03_01="rfc1123")
    redeploy = maintenance(EventType.REDEPLOY, datetime(2017, 4, 17, 18, 40, 6, tzinfo=UTC))
    item = event("mysrv", id="762D06A2-8289-469B-AB27-4D26C9C745B3"), redeploy
    assert events(encode(item, name="2017-03-01", dialect=dialect)) == [
        {
            "EventId": "762D06A2-8289-469B-AB27-4D26C9C745B3",
            "EventStatus": "Scheduled",
            "EventType": "Redeploy",
            "ResourceType": "VirtualMachine",
            "Resources": ["_mysrv"],
            "NotBefore": "Mon, 17 Apr 2017 18:40:06 GMT",
        }
    ]


def test_capture_2_has_two_events_of_one_vm_each_with_the_same_not_before() -> None:
    """C2 (2018-01): R33, R34, R41."""
    reboot = maintenance(EventType.REBOOT, datetime(2018, 1, 24, 21, 20, 44, tzinfo=UTC))
    assert encode(name="2017-08-01", incarnation=190) == b'{"DocumentIncarnation":190,"Events":[]}'
    body = encode((event("sample_4"), reboot), (event("sample_1"), reboot), name="2017-08-01", incarnation=192)
    assert json.loads(body)["DocumentIncarnation"] == 192
    assert [(e["EventType"], e["Resources"], e["NotBefore"]) for e in events(body)] == [
        ("Reboot", ["sample_4"], "Wed, 24 Jan 2018 21:20:44 GMT"),
        ("Reboot", ["sample_1"], "Wed, 24 Jan 2018 21:20:44 GMT"),
    ]


def test_capture_3_is_met_byte_for_byte() -> None:
    """C3 (2018-11, 2017-08-01): R16, R21, R26, W1."""
    reboot = maintenance(EventType.REBOOT, datetime(2018, 11, 26, 10, 52, 34, tzinfo=UTC))
    item = event("aks-nodepool1-34166363-1", id="8A506C35-679A-4F78-9D76-C16DBE65EE6F"), reboot
    assert encode(item, name="2017-08-01", incarnation=1) == (
        b'{"DocumentIncarnation":1,"Events":[{"EventId":"8A506C35-679A-4F78-9D76-C16DBE65EE6F",'
        b'"EventStatus":"Scheduled","EventType":"Reboot","ResourceType":"VirtualMachine",'
        b'"Resources":["aks-nodepool1-34166363-1"],"NotBefore":"Mon, 26 Nov 2018 10:52:34 GMT"}]}'
    )


def test_capture_4_has_a_large_incarnation_and_a_freeze() -> None:
    """C4 (2019-09): R21, R26, R41; the capture does not tell its version."""
    freeze = maintenance(EventType.FREEZE, datetime(2019, 9, 26, 15, 15, 21, tzinfo=UTC))
    body = encode((EVENT, freeze), name="2017-08-01", incarnation=279)
    assert body.startswith(b'{"DocumentIncarnation":279,"Events":[{"EventId":"')
    assert b'"EventStatus":"Scheduled","EventType":"Freeze","ResourceType":"VirtualMachine",' in body
    assert body.endswith(b'"NotBefore":"Thu, 26 Sep 2019 15:15:21 GMT"}]}')


def test_capture_5_begins_with_the_same_bytes() -> None:
    """C5 (2021-02, 2019-08-01): R16, R26; the capture ends within the name."""
    item = event("aks-tomato_0", id="C37355DB-2C23-4195-90CA-1A712A85650C"), maintenance(EventType.TERMINATE)
    assert encode(item, name="2019-08-01", incarnation=1).startswith(
        b'{"DocumentIncarnation":1,"Events":[{"EventId":"C37355DB-2C23-4195-90CA-1A712A85650C",'
        b'"EventStatus":"Scheduled","EventType":"Terminate","ResourceType":"VirtualMachine","Resources":["aks-tom'
    )


def test_capture_6_is_met_byte_for_byte() -> None:
    """C6 (2021-03, 2019-08-01): R16, R37, R38, W1."""
    preempt = maintenance(EventType.PREEMPT, datetime(2021, 3, 16, 0, 58, 46, tzinfo=UTC))
    item = event("myspotvm", id="A123BC45-1234-5678-AB90-ABCDEF123456"), preempt
    assert encode(item, name="2019-08-01", incarnation=1) == (
        b'{"DocumentIncarnation":1,"Events":[{"EventId":"A123BC45-1234-5678-AB90-ABCDEF123456",'
        b'"EventStatus":"Scheduled","EventType":"Preempt","ResourceType":"VirtualMachine","Resources":["myspotvm"],'
        b'"NotBefore":"Tue, 16 Mar 2021 00:58:46 GMT","Description":"","EventSource":"Platform"}]}'
    )


def test_capture_7_is_empty_then_a_restart_then_empty() -> None:
    """C7 (2021-07-22, 2020-07-01): R25, R37, R39, R45."""
    reboot = maintenance(EventType.REBOOT, datetime(2021, 7, 22, 4, 50, 17, tzinfo=UTC))
    assert encode(incarnation=1) == b'{"DocumentIncarnation":1,"Events":[]}'
    assert encode((event("a"), reboot), incarnation=2) == (
        b'{"DocumentIncarnation":2,"Events":[{"EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123",'
        b'"EventStatus":"Scheduled","EventType":"Reboot","ResourceType":"VirtualMachine","Resources":["a"],'
        b'"NotBefore":"Thu, 22 Jul 2021 04:50:17 GMT","Description":"","EventSource":"User","DurationInSeconds":-1}]}'
    )
    assert encode(incarnation=4) == b'{"DocumentIncarnation":4,"Events":[]}'


def test_capture_8_has_its_members_in_that_order() -> None:
    """C8 (2023-03-16): R16, R26, R37, R38, R39."""
    words = "Virtual machine is going to be restarted as requested by authorized user."
    reboot = maintenance(EventType.REBOOT, datetime(2023, 3, 16, 14, 1, 28, tzinfo=UTC), words)
    (shown,) = events(encode((event("a"), reboot)))
    assert list(shown.items()) == [
        ("EventId", "C7061BAC-AFDC-4513-B24B-AA5F13A16123"),
        ("EventStatus", "Scheduled"),
        ("EventType", "Reboot"),
        ("ResourceType", "VirtualMachine"),
        ("Resources", ["a"]),
        ("NotBefore", "Thu, 16 Mar 2023 14:01:28 GMT"),
        ("Description", words),
        ("EventSource", "User"),
        ("DurationInSeconds", -1),
    ]


def test_capture_9_shows_a_started_freeze_without_not_before() -> None:
    """C9 (2023-06): R35, R36, R39."""
    words = "Host server is undergoing maintenance."
    freeze = replace(STARTED, type=EventType.FREEZE, source=EventSource.PLATFORM, description=words, duration_s=30)
    long = encode((event("a"), freeze), incarnation=31)
    assert long.endswith(
        b'"EventStatus":"Started","EventType":"Freeze","ResourceType":"VirtualMachine","Resources":["a"],"NotBefore":"",'
        b'"Description":"Host server is undergoing maintenance.","EventSource":"Platform","DurationInSeconds":30}]}'
    )
    short = encode((event("a"), replace(freeze, duration_s=6)), incarnation=32)
    assert short == long.replace(b'"DocumentIncarnation":31', b'"DocumentIncarnation":32').replace(b":30}", b":6}")


def test_capture_10_shows_a_preempt_with_an_empty_description_and_no_duration() -> None:
    """C10 (2020-07-01): R37, R38, R39."""
    preempt = replace(maintenance(EventType.PREEMPT), duration_s=-1)
    (shown,) = events(encode((event("a"), preempt)))
    members = [shown[name] for name in ("EventType", "EventStatus", "Description", "EventSource", "DurationInSeconds")]
    assert members == ["Preempt", "Scheduled", "", "Platform", -1]

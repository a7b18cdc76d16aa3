"""The bytes of a document: members, their order and form, in each api-version."""

from __future__ import annotations

import json
import locale
import re
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.model import Event, EventSource, EventType, Maintenance
from forewarn.wire.imds import CONTENT_TYPE, Dialect
from tests.unit.wire.builders import EVENT, MAINTENANCE, NOT_BEFORE, STARTED, VERSION_NAMES, encode, events

FIRST_MEMBERS = ["EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore"]
LATER_MEMBERS = ["Description", "EventSource", "DurationInSeconds"]


def body(
    *maintenances: Maintenance,
    name: str = "2020-07-01",
    event: Event = EVENT,
    incarnation: int = 2,
    dialect: Dialect | None = None,
) -> bytes:
    items = [(event, maintenance) for maintenance in maintenances]
    return encode(*items, name=name, incarnation=incarnation, dialect=dialect)


@pytest.mark.parametrize("name", VERSION_NAMES)
def test_an_empty_document_has_an_incarnation_and_an_empty_array(name: str) -> None:
    """R25, R26."""
    assert body(name=name, incarnation=1) == b'{"DocumentIncarnation":1,"Events":[]}'


def test_the_newest_version_shows_nine_members_in_compact_json() -> None:
    """R26, R32, R33, R35 to R39."""
    assert body(MAINTENANCE, incarnation=7) == (
        b'{"DocumentIncarnation":7,"Events":[{"EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123",'
        b'"EventStatus":"Scheduled","EventType":"Reboot","ResourceType":"VirtualMachine","Resources":["WestNO_0"],'
        b'"NotBefore":"Mon, 19 Sep 2016 18:29:47 GMT",'
        b'"Description":"Virtual machine is going to be restarted as requested by authorized user.",'
        b'"EventSource":"User","DurationInSeconds":-1}]}'
    )


def test_the_preview_shows_six_members_with_a_prefixed_name_and_an_iso_time() -> None:
    """R16, R20, R21, A1."""
    assert body(MAINTENANCE, name="2017-03-01", incarnation=7) == (
        b'{"DocumentIncarnation":7,"Events":[{"EventId":"C7061BAC-AFDC-4513-B24B-AA5F13A16123",'
        b'"EventStatus":"Scheduled","EventType":"Reboot","ResourceType":"VirtualMachine","Resources":["_WestNO_0"],'
        b'"NotBefore":"2016-09-19T18:29:47Z"}]}'
    )


@pytest.mark.parametrize(
    ("name", "later"),
    [
        ("2017-03-01", 0),
        ("2017-08-01", 0),
        ("2017-11-01", 0),
        ("2019-01-01", 0),
        ("2019-04-01", 1),
        ("2019-08-01", 2),
        ("2020-07-01", 3),
    ],
)
def test_an_event_holds_exactly_the_members_of_its_version(name: str, later: int) -> None:
    """R16, R18, W1: a member more kills a client."""
    assert list(events(body(MAINTENANCE, name=name))[0]) == FIRST_MEMBERS + LATER_MEMBERS[:later]


@pytest.mark.parametrize("name", VERSION_NAMES)
@pytest.mark.parametrize(
    ("type_", "since"),
    [
        (EventType.FREEZE, "2017-03-01"),
        (EventType.REBOOT, "2017-03-01"),
        (EventType.REDEPLOY, "2017-03-01"),
        (EventType.PREEMPT, "2017-11-01"),
        (EventType.TERMINATE, "2019-01-01"),
    ],
)
def test_a_type_is_left_out_of_versions_older_than_itself(name: str, type_: EventType, since: str) -> None:
    """R19, A5: omitted rather than renamed."""
    shown = [event["EventType"] for event in events(body(replace(MAINTENANCE, type=type_), name=name))]
    assert shown == ([type_.value] if name >= since else [])


@pytest.mark.parametrize("name", VERSION_NAMES)
def test_the_incarnation_is_shared_by_versions_that_leave_an_event_out(name: str) -> None:
    """R19, A5."""
    terminate = replace(MAINTENANCE, type=EventType.TERMINATE)
    assert json.loads(body(terminate, MAINTENANCE, name=name, incarnation=41))["DocumentIncarnation"] == 41


def test_what_remains_after_leaving_an_event_out_is_still_an_array_without_gaps() -> None:
    """R19, R25."""
    terminate = replace(MAINTENANCE, type=EventType.TERMINATE)
    assert body(terminate, MAINTENANCE, terminate, name="2017-08-01") == body(MAINTENANCE, name="2017-08-01")


def test_events_stand_in_the_order_of_the_document() -> None:
    """R29."""
    types = [EventType.REDEPLOY, EventType.FREEZE, EventType.TERMINATE, EventType.REBOOT]
    shown = events(body(*(replace(MAINTENANCE, type=type_) for type_ in types)))
    assert [event["EventType"] for event in shown] == [type_.value for type_ in types]


def test_an_event_has_the_same_id_in_every_version() -> None:
    """R23, R30, W6: so a client may read with one version and approve with another."""
    assert {events(body(MAINTENANCE, name=name))[0]["EventId"] for name in VERSION_NAMES} == {EVENT.id}


def test_the_same_document_gives_the_same_bytes_again() -> None:
    """R28."""
    assert body(MAINTENANCE, STARTED) == body(MAINTENANCE, STARTED)


@pytest.mark.parametrize("name", VERSION_NAMES)
def test_only_status_and_not_before_change_when_an_event_starts(name: str) -> None:
    """R30, R36, R40, A23."""
    scheduled, started = events(body(MAINTENANCE, STARTED, name=name))
    assert scheduled | {"EventStatus": "Started", "NotBefore": ""} == started
    assert list(scheduled) == list(started)


def test_resources_keep_their_order_and_case() -> None:
    """R33, W7."""
    event = replace(EVENT, resources=("web_1", "Web_0", "WEB_2"))
    assert events(body(MAINTENANCE, event=event))[0]["Resources"] == ["web_1", "Web_0", "WEB_2"]


@pytest.mark.parametrize("name", VERSION_NAMES)
def test_role_instances_of_a_cloud_service_are_never_prefixed(name: str) -> None:
    """R20."""
    event = replace(EVENT, resources=("FrontEnd_IN_0", "BackEnd_IN_0"), is_iaas=False)
    assert events(body(MAINTENANCE, event=event, name=name))[0]["Resources"] == ["FrontEnd_IN_0", "BackEnd_IN_0"]


@pytest.mark.parametrize("name", VERSION_NAMES)
def test_every_iaas_name_is_prefixed_in_the_preview_only(name: str) -> None:
    """R16, R20: also a name that begins with an underscore itself."""
    event = replace(EVENT, resources=("WestNO_0", "_odd"))
    expected = ["_WestNO_0", "__odd"] if name == "2017-03-01" else ["WestNO_0", "_odd"]
    assert events(body(MAINTENANCE, event=event, name=name))[0]["Resources"] == expected


@pytest.mark.parametrize("name", VERSION_NAMES)
def test_not_before_is_iso_in_the_preview_and_rfc_1123_ever_after(name: str) -> None:
    """R21, A1."""
    expected = "2016-09-19T18:29:47Z" if name == "2017-03-01" else "Mon, 19 Sep 2016 18:29:47 GMT"
    assert events(body(MAINTENANCE, name=name))[0]["NotBefore"] == expected


@pytest.mark.parametrize("name", VERSION_NAMES)
def test_the_switch_makes_not_before_rfc_1123_in_every_version(name: str) -> None:
    """A1."""
    content = body(MAINTENANCE, name=name, dialect=Dialect(notbefore_2017_03_01="rfc1123"))
    assert events(content)[0]["NotBefore"] == "Mon, 19 Sep 2016 18:29:47 GMT"


def test_a_day_of_one_digit_is_padded() -> None:
    """R21."""
    maintenance = replace(MAINTENANCE, not_before=datetime(2026, 3, 1, 4, 5, 6, tzinfo=UTC))
    assert events(body(maintenance))[0]["NotBefore"] == "Sun, 01 Mar 2026 04:05:06 GMT"


@pytest.mark.parametrize("name", VERSION_NAMES)
def test_not_before_is_a_string_even_when_there_is_no_moment(name: str) -> None:
    """R36: clients read it without asking whether it is there."""
    assert events(body(replace(MAINTENANCE, not_before=None), name=name))[0]["NotBefore"] == ""


@pytest.mark.parametrize(
    "zone", [ZoneInfo("UTC"), timezone(timedelta(0), "Z"), timezone(timedelta(hours=5, minutes=30))]
)
@pytest.mark.parametrize(
    ("name", "expected"), [("2017-03-01", "2016-09-19T18:29:47Z"), ("2020-07-01", "Mon, 19 Sep 2016 18:29:47 GMT")]
)
def test_not_before_is_in_utc_whatever_the_zone_of_the_value(zone: tzinfo, name: str, expected: str) -> None:
    """R21: a moment that an operator named may still carry the operator's zone."""
    maintenance = replace(MAINTENANCE, not_before=NOT_BEFORE.astimezone(zone))
    assert events(body(maintenance, name=name))[0]["NotBefore"] == expected


@given(st.datetimes(min_value=datetime(1970, 1, 1), max_value=datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001
def test_not_before_has_whole_seconds_only(moment: datetime) -> None:
    """R21, R71: what it says is the moment's own second."""
    maintenance = replace(MAINTENANCE, not_before=moment)
    iso = events(body(maintenance, name="2017-03-01"))[0]["NotBefore"]
    rfc = events(body(maintenance))[0]["NotBefore"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", iso)
    assert re.fullmatch(r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", rfc)
    assert datetime.fromisoformat(iso) == moment.replace(microsecond=0)


class GermanDatetime(datetime):
    """A moment that spells days and months as `strftime` would in a German process."""

    def strftime(self, format: str) -> str:  # noqa: A002 - the name in the base class
        return super().strftime(format.replace("%a", "Mi").replace("%b", "Okt"))


def test_names_of_days_and_months_do_not_come_from_strftime() -> None:
    """R21: `strftime` follows the locale of the process, so it must not be asked for names."""
    moment = GermanDatetime(2026, 10, 7, 1, 2, 3, tzinfo=UTC)
    assert moment.strftime("%a %b") == "Mi Okt"
    assert events(body(replace(MAINTENANCE, not_before=moment)))[0]["NotBefore"] == "Wed, 07 Oct 2026 01:02:03 GMT"


def test_names_of_days_and_months_are_english_in_every_locale_of_this_machine() -> None:
    """R21: a machine without foreign locales checks its own, and the test above does the rest."""
    before = locale.setlocale(locale.LC_ALL)
    bodies: dict[str, tuple[bytes, bytes]] = {}
    try:
        for language in ("C", "de_DE.UTF-8", "it_IT.UTF-8", "ru_RU.UTF-8", "zh_CN.UTF-8", "ar_EG.UTF-8"):
            with suppress(locale.Error):
                locale.setlocale(locale.LC_ALL, language)
                bodies[language] = body(MAINTENANCE), body(MAINTENANCE, name="2017-03-01")
    finally:
        locale.setlocale(locale.LC_ALL, before)
    assert set(bodies.values()) == {bodies["C"]}
    assert b'"Mon, 19 Sep 2016 18:29:47 GMT"' in bodies["C"][0]
    assert b'"2016-09-19T18:29:47Z"' in bodies["C"][1]


@pytest.mark.parametrize("duration_s", [-1, 0, 5, 86400])
def test_the_duration_is_a_json_integer(duration_s: int) -> None:
    """R39."""
    assert f'"DurationInSeconds":{duration_s}}}'.encode() in body(replace(MAINTENANCE, duration_s=duration_s))


@pytest.mark.parametrize("source", list(EventSource))
def test_the_source_is_platform_or_user(source: EventSource) -> None:
    """R38."""
    assert events(body(replace(MAINTENANCE, source=source)))[0]["EventSource"] == source.value


def test_an_empty_description_is_an_empty_string() -> None:
    """R37."""
    assert b'"Description":"","EventSource"' in body(replace(MAINTENANCE, description=""))


def test_a_description_is_escaped_as_json_and_otherwise_plain_utf_8() -> None:
    """R8, R37."""
    maintenance = replace(MAINTENANCE, description='for "Müller"\n重启 \\')
    assert '"Description":"for \\"Müller\\"\\n重启 \\\\"'.encode() in body(maintenance)


@given(
    description=st.text(),
    resources=st.lists(st.text(min_size=1), min_size=1),
    incarnation=st.integers(min_value=1),
    name=st.sampled_from(VERSION_NAMES),
)
def test_whatever_the_texts_are_the_document_reads_back(
    description: str, resources: list[str], incarnation: int, name: str
) -> None:
    """R25, R33, R37, R41."""
    event = replace(EVENT, resources=tuple(resources), is_iaas=False)
    content = body(replace(MAINTENANCE, description=description), event=event, incarnation=incarnation, name=name)
    document = json.loads(content)
    assert list(document) == ["DocumentIncarnation", "Events"]
    assert document["DocumentIncarnation"] == incarnation
    assert document["Events"][0]["Resources"] == resources
    assert document["Events"][0].get("Description", description) == description


def test_the_content_type_is_json_in_utf_8() -> None:
    """R8, W2."""
    assert CONTENT_TYPE == "application/json; charset=utf-8"

"""What a host is told, line by line: it shows the same bytes as the control plane, and nonsense is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience, EventSource, EventType, Host, MaintenanceState
from forewarn.wire.hostfeed import (
    ALIVE,
    BadFeedLine,
    HostFeedState,
    encode_document_line,
    encode_state_line,
    parse_line,
)
from forewarn.wire.imds import Dialect, encode_documents
from tests.support.world import NOW
from tests.unit.core.builders import an_event, availability_set, maintenance, scale_set, vm

TEXTS = st.text(max_size=20).filter(lambda text: "\x00" not in text)
ITEMS = st.builds(
    lambda number, state, kind, description, resources, source, duration_s, is_approved, is_iaas: (
        replace(
            an_event(
                *resources,
                id=f"00000000-0000-4000-8000-{number:012X}",
                sequence=number,
                approved_at=NOW if is_approved else None,
            ),
            is_iaas=is_iaas,
        ),
        replace(
            maintenance(type=kind, source=source, state=state, not_before=NOW + timedelta(seconds=number)),
            description=description,
            duration_s=duration_s,
        ),
    ),
    st.integers(1, 2**37),  # seconds too; more end after the year 9999
    st.sampled_from([MaintenanceState.SCHEDULED, MaintenanceState.STARTED]),
    st.sampled_from(EventType),
    TEXTS,
    st.lists(st.text("abcWestÄ_-0", min_size=1, max_size=8), min_size=1, max_size=3),
    st.sampled_from(EventSource),
    st.integers(-1, 10**9),
    st.booleans(),
    st.booleans(),
)
DOCUMENTS = st.builds(
    lambda incarnation, epoch, is_enabled, items: AudienceDocument(
        audience=Audience(
            key="scope:web",
            scope="web",
            enabled_at=NOW if is_enabled else None,
            epoch=epoch,
            incarnation=incarnation,
        ),
        items=tuple(items),
    ),
    st.integers(0, 2**60),
    st.integers(0, 2**60),
    st.booleans(),
    st.lists(ITEMS, max_size=4),
)
VERSIONS = Dialect().list_versions()


@given(DOCUMENTS)
def test_a_document_that_was_told_is_shown_with_the_same_bytes(document: AudienceDocument) -> None:
    """R25 to R41, invariant 7."""
    line = encode_document_line(document)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    told = parse_line(line)
    assert isinstance(told, AudienceDocument)
    assert encode_documents(told, VERSIONS, Dialect()) == encode_documents(document, VERSIONS, Dialect())
    was, now = document.audience, told.audience
    assert (now.key, now.scope, now.epoch, now.incarnation) == (was.key, was.scope, was.epoch, was.incarnation)
    assert (now.enabled_at is None) == (was.enabled_at is None)
    assert [e.is_approved for e, _ in told.items] == [e.is_approved for e, _ in document.items]


def test_a_state_that_was_told_is_the_state() -> None:
    vms = (
        replace(vm("web-0", scope="web"), addresses=("10.9.0.1", "fd00::1"), tags=(("a", "b"),)),
        replace(vm("gpu-0", scope="gpu", size="Standard_NC6"), addresses=()),
        vm("db"),
    )
    hosts = tuple(Host(name=name) for name in sorted({each.host for each in vms}))
    state = HostFeedState(
        host="host-1",
        position=17,
        inventory=Inventory(
            hosts=hosts, scopes=(availability_set("web"), scale_set("gpu", fault_domain_count=1)), vms=vms
        ),
        dialect=Dialect(cloud="china", unknown_event=404),
        first_answer_delay_s=1.5,
        documents=(AudienceDocument(audience=Audience(key="vm:db", epoch=1, incarnation=3, enabled_at=NOW)),),
    )
    told = parse_line(encode_state_line(state))
    assert isinstance(told, HostFeedState)
    assert (told.host, told.position, told.dialect, told.first_answer_delay_s) == ("host-1", 17, state.dialect, 1.5)
    assert set(told.inventory.vms) == set(vms)
    assert set(told.inventory.scopes) == set(state.inventory.scopes)
    assert [d.audience.incarnation for d in told.documents] == [3]


def test_a_state_leaves_out_what_is_as_its_default_says() -> None:
    state = HostFeedState(
        host="host-1",
        inventory=Inventory(hosts=(Host(name="host-1"),), vms=(vm("db", size=""),)),
        dialect=Dialect(),
        first_answer_delay_s=0.0,
        documents=(),
    )
    shown = json.loads(encode_state_line(state))["inventory"]
    assert shown == {"hosts": [{"name": "host-1"}], "vms": [{"name": "db", "host": "host-1"}]}


def test_a_line_may_only_say_that_somebody_is_there() -> None:
    assert parse_line(ALIVE) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"", "the line: "),
        (b"{", "the line: "),
        (b"[]", "the line: "),
        (b"{}", "the line: "),
        (b'{"kind":"other"}', "the line: "),
        (b'{"kind":"document"}', "document.audience: Field required"),
        (b"\xff\xfe", "the line: "),
    ],
)
def test_anything_else_is_refused(line: bytes, expected: str) -> None:
    with pytest.raises(BadFeedLine, match=expected):
        parse_line(line)


def test_what_a_newer_control_plane_adds_is_left_alone() -> None:
    line = encode_document_line(AudienceDocument(audience=Audience(key="vm:db", epoch=1))).replace(
        b'"kind"', b'"new":{"a":1},"kind"'
    )
    assert isinstance(parse_line(line), AudienceDocument)

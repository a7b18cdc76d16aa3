"""Documents as ready-made bytes, and who waits for the next ones."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience, Event, Maintenance, MaintenanceState
from forewarn.publishing.feed import Feed
from forewarn.wire.imds import Dialect
from tests.support.world import NOW, minutes
from tests.unit.core.builders import an_event, maintenance, vm

pytestmark = pytest.mark.anyio

WEB = Audience(key="scope:web", scope="web", enabled_at=NOW, epoch=1, incarnation=1, active_until=NOW)
SCHEDULED = maintenance(vm("web-0"), not_before=NOW + minutes(15))
STARTED = replace(SCHEDULED, state=MaintenanceState.STARTED, started_at=NOW)
EVENT = an_event()


def document(incarnation: int = 1, epoch: int = 1, *, is_empty: bool = True) -> AudienceDocument:
    audience = replace(WEB, incarnation=incarnation, epoch=epoch)
    return AudienceDocument(audience=audience, items=() if is_empty else ((EVENT, SCHEDULED),))


def disabled(epoch: int = 1, incarnation: int = 1) -> AudienceDocument:
    return AudienceDocument(
        audience=replace(WEB, enabled_at=None, active_until=None, epoch=epoch, incarnation=incarnation)
    )


@pytest.fixture
def feed() -> Feed:
    return Feed(Dialect())


def test_a_channel_that_nobody_enabled_has_no_replies(feed: Feed) -> None:
    channel = feed.channel("scope:web")
    assert (channel.is_enabled, channel.replies) == (False, ())
    assert feed.channel("scope:web") is channel
    assert feed.enabled_count == 0


def test_a_document_is_rendered_once_for_each_version(feed: Feed) -> None:
    """R8, R16, W2, W3; invariant 7."""
    feed.publish_documents([document(7, is_empty=False)])
    channel = feed.channel("scope:web")
    assert len(channel.replies) == len(feed.versions)
    for reply in channel.replies:
        assert json.loads(reply.body)["DocumentIncarnation"] == 7
        head = b'content-type: application/json; charset=utf-8\r\netag: "7"\r\ncontent-length: %d\r\n' % len(reply.body)
        assert reply.keep_alive_bytes == head + b"\r\n" + reply.body
        assert reply.closing_bytes == head + b"connection: close\r\n\r\n" + reply.body
    assert feed.documents_published == 1
    assert feed.enabled_count == 1


def test_empty_documents_of_one_incarnation_share_their_bytes(feed: Feed) -> None:
    other = replace(document(3), audience=replace(WEB, key="vm:db", incarnation=3))
    feed.publish_documents([document(3), other])
    assert feed.channel("scope:web").replies is feed.channel("vm:db").replies


def test_an_older_document_is_ignored(feed: Feed) -> None:
    """Invariant 6: never back."""
    feed.publish_documents([document(5), document(4, is_empty=False)])
    assert feed.channel("scope:web").incarnation == 5
    feed.publish_documents([document(1, epoch=2)])
    feed.publish_documents([document(9, epoch=1)])
    channel = feed.channel("scope:web")
    assert (channel.epoch, channel.incarnation) == (2, 1)


def test_a_disabled_audience_is_shown_nothing_and_may_be_enabled_anew(feed: Feed) -> None:
    """R46, R70."""
    feed.publish_documents([document(5, is_empty=False), disabled(incarnation=5)])
    channel = feed.channel("scope:web")
    assert (channel.is_enabled, channel.replies) == (False, ())
    feed.publish_documents([document(1, epoch=2)])
    assert channel.is_enabled


def test_reloading_shows_exactly_what_is_given(feed: Feed) -> None:
    """Invariant 9: whatever was missed, the store is the truth."""
    gone = replace(document(), audience=replace(WEB, key="vm:gone"))
    feed.publish_documents([document(2, is_empty=False), gone])
    feed.replace_documents([document(3)])
    assert feed.channel("scope:web").incarnation == 3
    channel = feed.channel("vm:gone")
    assert (channel.is_enabled, channel.replies, channel.settled) == (False, (), frozenset())


def test_when_an_audience_asked_is_known_while_it_is_enabled(feed: Feed) -> None:
    """R69."""
    channel = feed.channel("scope:web")
    channel.last_polled_at = NOW
    assert feed.last_polls() == {}
    feed.publish_documents([document()])
    assert feed.last_polls() == {"scope:web": NOW}
    assert feed.last_polled_at("scope:web") == NOW
    assert feed.last_polled_at("vm:unknown") is None
    feed.publish_documents([disabled()])
    assert feed.last_polls() == {}


def test_an_approval_that_is_on_disk_settles_an_event_as_long_as_it_is_shown(feed: Feed) -> None:
    """R49, W5: clients approve again with every poll."""
    feed.publish_documents([document(2, is_empty=False)])
    channel = feed.channel("scope:web")
    assert channel.settled == frozenset()
    channel.mark_settled([EVENT.id, "unknown"])
    assert channel.settled == {EVENT.id}
    feed.publish_documents([document(2, is_empty=False)])
    assert channel.settled == {EVENT.id}
    feed.publish_documents([document(3)])
    assert channel.settled == frozenset()


@pytest.mark.parametrize("item", [(EVENT, STARTED), (replace(EVENT, approved_at=NOW), SCHEDULED)])
def test_a_started_or_approved_event_is_settled_from_the_first(item: tuple[Event, Maintenance], feed: Feed) -> None:
    feed.publish_documents([replace(document(2), items=(item,))])
    assert feed.channel("scope:web").settled == {EVENT.id}


async def test_who_waits_is_woken_by_another_incarnation_and_by_nothing_else(feed: Feed) -> None:
    """X1."""
    feed.publish_documents([document(2)])
    channel = feed.channel("scope:web")
    waiter = channel.add_waiter()
    feed.publish_documents([document(2)])
    feed.publish_documents([document(1)])
    assert not waiter.done()
    feed.publish_documents([document(3)])
    assert waiter.done()
    channel.remove_waiter(waiter)


async def test_who_waits_is_woken_when_the_audience_is_disabled(feed: Feed) -> None:
    feed.publish_documents([document(2)])
    channel = feed.channel("scope:web")
    first = channel.add_waiter()
    feed.publish_documents([disabled(incarnation=2)])
    assert first.done()
    feed.publish_documents([document(1, epoch=2)])
    second = channel.add_waiter()
    feed.replace_documents([])
    assert second.done()


async def test_who_stopped_waiting_is_not_woken(feed: Feed) -> None:
    channel = feed.channel("scope:web")
    let_go, canceled = channel.add_waiter(), channel.add_waiter()
    channel.remove_waiter(let_go)
    channel.remove_waiter(let_go)
    canceled.cancel()
    channel.wake_waiters()
    assert not let_go.done()
    with pytest.raises(asyncio.CancelledError):
        await canceled

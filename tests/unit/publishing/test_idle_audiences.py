"""Audiences of which no VM asked this process: they are in memory without a channel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience
from forewarn.publishing.feed import Feed
from forewarn.publishing.idle_audiences import IdleAudiences
from forewarn.wire.imds import Dialect
from tests.support.world import NOW, minutes
from tests.unit.core.builders import an_event, maintenance, vm

DB = Audience(key="vm:db", enabled_at=NOW, epoch=1, incarnation=4, active_until=NOW)
ITEM = (an_event(), maintenance(vm("db"), not_before=NOW + minutes(15)))


@pytest.fixture
def feed() -> Feed:
    return Feed(Dialect())


def publish(feed: Feed, audience: Audience, *items: object) -> AudienceDocument:
    document = AudienceDocument(audience=audience, items=items)  # type: ignore[arg-type] # events with maintenances
    feed.publish_documents([document])
    return document


def test_an_empty_document_gets_no_channel_until_a_vm_asks(feed: Feed) -> None:
    """A million VMs that never ask must not have a million channels."""
    document = publish(feed, DB)
    assert feed._channels == {}
    assert feed.find_document("vm:db") == document
    assert feed.find_audience("vm:db") == DB
    assert feed.enabled_count == 1
    assert feed.all_documents() == [document]
    channel = feed.channel("vm:db")
    assert (channel.epoch, channel.incarnation, channel.is_enabled) == (1, 4, True)
    assert channel.replies == feed.encode_document(document)
    assert feed.find_document("vm:db") == document
    assert feed.enabled_count == 1
    assert feed.all_documents() == [document]


def test_a_document_with_events_has_a_channel(feed: Feed) -> None:
    publish(feed, DB)
    document = publish(feed, replace(DB, incarnation=5), ITEM)
    assert list(feed._channels) == ["vm:db"]
    assert feed.channel("vm:db").document is document
    assert feed.all_documents() == [document]


def test_an_idle_audience_never_goes_back(feed: Feed) -> None:
    """Invariant 6."""
    publish(feed, DB)
    publish(feed, replace(DB, incarnation=3))
    assert feed.find_audience("vm:db") == DB
    # Also if the older document has events: then it gets a channel, which shows the newer one.
    publish(feed, replace(DB, incarnation=3), ITEM)
    assert feed.find_audience("vm:db") == DB
    assert feed.channel("vm:db").incarnation == 4


def test_a_document_is_new_if_the_idle_audience_differs(feed: Feed) -> None:
    assert feed.is_new(AudienceDocument(audience=DB))
    document = publish(feed, DB)
    assert not feed.is_new(document)
    assert feed.is_new(AudienceDocument(audience=replace(DB, incarnation=5)))
    assert feed.is_new(AudienceDocument(audience=replace(DB, enabled_at=None)))


def test_reloading_disables_idle_audiences_that_are_gone(feed: Feed) -> None:
    """Invariant 9; a late, older document is still recognized."""
    publish(feed, DB)
    publish(feed, replace(DB, key="vm:web"))
    said: list[AudienceDocument] = []
    feed.listeners.append(said.append)
    feed.replace_documents([AudienceDocument(audience=replace(DB, key="vm:web"))])
    gone = Audience(key="vm:db", epoch=1, incarnation=4)
    assert said == [AudienceDocument(audience=replace(DB, key="vm:web")), AudienceDocument(audience=gone)]
    assert feed.find_audience("vm:db") == gone
    assert feed.enabled_count == 1
    publish(feed, replace(DB, incarnation=3))
    assert feed.find_audience("vm:db") == gone


def test_a_process_begins_with_idle_audiences_as_they_are(feed: Feed) -> None:
    """A million empty documents that nothing waits for are not published one by one."""
    heard: list[AudienceDocument] = []
    begun: list[list[AudienceDocument]] = []
    feed.listeners.append(heard.append)
    feed.begin_listeners.append(lambda: begun.append(feed.all_documents()))
    shown = AudienceDocument(audience=replace(DB, key="vm:web"), items=(ITEM,))
    feed.replace_documents([shown], IdleAudiences.of_enabled([DB]))
    assert heard == [shown]
    assert begun == [[shown, AudienceDocument(audience=DB)]]
    assert feed.documents_published == 2
    assert feed.enabled_count == 2
    assert feed.channel("vm:db").incarnation == 4


def test_reloading_publishes_only_the_idle_audiences_that_differ(feed: Feed) -> None:
    """After a commit in doubt, everything is read again; an audience never goes back (invariant 6)."""
    asked, other = replace(DB, key="vm:asked"), replace(DB, key="vm:other")
    older, busy = replace(DB, key="vm:older"), replace(DB, key="vm:busy")
    feed.replace_documents([], IdleAudiences.of_enabled([DB, asked, other, older]))
    feed.publish_documents([AudienceDocument(audience=busy, items=(ITEM,))])
    feed.channel("vm:asked")
    heard: list[str] = []
    feed.listeners.append(lambda document: heard.append(document.audience.key))
    feed.begin_listeners.append(lambda: heard.append("begun again"))
    newer = [replace(each, incarnation=5) for each in (other, asked, busy)]
    feed.replace_documents([], IdleAudiences.of_enabled([*newer, DB, replace(older, incarnation=3)]))
    assert sorted(heard) == ["vm:asked", "vm:busy", "vm:older", "vm:other"]
    assert [feed.find_audience(each.key) for each in (*newer, DB, older)] == [*newer, DB, older]
    assert feed.channel("vm:asked").is_enabled
    assert feed.enabled_count == 5


def test_a_released_channel_leaves_what_the_vm_saw(feed: Feed) -> None:
    """Invariant 6: when the VM asks again, it gets the same bytes, and an older document is still ignored."""
    publish(feed, DB)
    before = feed.channel("vm:db")
    before.last_polled_at = NOW
    replies = before.replies
    assert feed.release_channel("vm:db")
    assert feed._channels == {}
    assert feed.find_audience("vm:db") == DB
    assert feed.last_polls() == {"vm:db": NOW}
    assert feed.enabled_count == 1
    publish(feed, replace(DB, incarnation=3))
    again = feed.channel("vm:db")
    assert again is not before
    assert (again.epoch, again.incarnation, again.last_polled_at) == (1, 4, NOW)
    assert [each.keep_alive_bytes for each in again.replies] == [each.keep_alive_bytes for each in replies]


def test_a_released_audience_sees_the_next_document(feed: Feed) -> None:
    publish(feed, DB)
    feed.channel("vm:db")
    feed.release_channel("vm:db")
    document = publish(feed, replace(DB, incarnation=5), ITEM)
    assert feed.channel("vm:db").document is document


@pytest.mark.anyio
async def test_a_channel_that_is_needed_is_not_released(feed: Feed) -> None:
    publish(feed, DB, ITEM)
    assert not feed.release_channel("vm:db")
    publish(feed, replace(DB, key="vm:held"))
    waiter = feed.channel("vm:held").add_waiter()
    assert not feed.release_channel("vm:held")
    feed.channel("vm:held").remove_waiter(waiter)
    assert feed.release_channel("vm:held")
    feed.channel("vm:new")
    publish(feed, replace(DB, key="vm:off", enabled_at=None))
    feed.channel("vm:off")
    assert [feed.release_channel(name) for name in ("vm:new", "vm:off", "vm:unknown")] == [False] * 3


def test_when_an_idle_audience_asked_another_process_is_known(feed: Feed) -> None:
    """R69."""
    feed.merge_polls({"vm:db": NOW})
    assert feed.last_polled_at("vm:db") is None  # not known yet: such a report comes again
    publish(feed, DB)
    feed.merge_polls({"vm:db": NOW + minutes(2)})
    feed.merge_polls({"vm:db": NOW + minutes(1)})
    assert feed.last_polled_at("vm:db") == NOW + minutes(2)
    assert feed.last_polls() == {"vm:db": NOW + minutes(2)}
    assert feed.channel("vm:db").last_polled_at == NOW + minutes(2)
    assert feed.last_polls() == {"vm:db": NOW + minutes(2)}


def test_a_disabled_idle_audience_has_no_last_request(feed: Feed) -> None:
    publish(feed, DB)
    feed.merge_polls({"vm:db": NOW})
    publish(feed, replace(DB, enabled_at=None))
    assert feed.last_polls() == {}
    assert feed.enabled_count == 0


def test_last_requests_come_in_parts_of_the_size_asked_for(feed: Feed) -> None:
    for number in range(5):
        publish(feed, replace(DB, key=f"vm:{number}"))
    feed.merge_polls({f"vm:{number}": NOW for number in range(5)})
    feed.channel("vm:0")
    parts = list(feed.last_polls_in_parts(2))
    assert [len(part) for part in parts] == [1, 2, 2]
    assert {key for part in parts for key in part} == {f"vm:{number}" for number in range(5)}


def test_the_count_of_enabled_audiences_follows_every_change() -> None:
    idle = IdleAudiences()
    idle.put(DB)
    idle.put(replace(DB, incarnation=5))
    idle.put(replace(DB, key="vm:off", enabled_at=None))
    assert idle.enabled_count == 1
    assert idle.pop("vm:off") == (replace(DB, key="vm:off", enabled_at=None), None)
    assert idle.enabled_count == 1
    assert idle.pop("vm:db") == (replace(DB, incarnation=5), None)
    assert (idle.enabled_count, list(idle), idle.pop("vm:db")) == (0, [], None)

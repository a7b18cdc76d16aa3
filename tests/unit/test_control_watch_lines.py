"""A host's watch, as the control API holds it: what it hears, and that it is forgotten however it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from forewarn.control.context import Context
from forewarn.control.host_endpoint import _WatchResponse
from forewarn.core.access import FILE_OPERATOR
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience, Host
from forewarn.publishing.feed import Feed
from forewarn.publishing.host_watch import HostWatches
from forewarn.publishing.identity import Identity
from forewarn.wire.hostfeed import HostFeedState, parse_line
from forewarn.wire.imds import Dialect
from tests.support.spans import GUARD_S
from tests.support.world import NOW
from tests.unit.core.builders import vm

if TYPE_CHECKING:
    from starlette.types import Message

pytestmark = pytest.mark.anyio
HOST = vm("db").host


@dataclass
class Place:
    """What of a service a watch needs, and the connection that it is held on."""

    hub: HostWatches
    is_stopping: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_gone: asyncio.Event = field(default_factory=asyncio.Event)
    sent: asyncio.Queue[Message] = field(default_factory=asyncio.Queue)

    def hold(self) -> asyncio.Task[None]:
        lines = _WatchResponse(cast("Any", self), self.hub.begin_watch(HOST), FILE_OPERATOR)
        return asyncio.create_task(lines({"type": "http"}, self.receive, self.sent.put))

    async def receive(self) -> Message:
        await self.is_gone.wait()
        return {"type": "http.disconnect"}

    async def next(self) -> Message:
        return await asyncio.wait_for(self.sent.get(), GUARD_S)


@pytest.fixture
def feed() -> Feed:
    return Feed(Dialect())


@pytest.fixture
def place(feed: Feed) -> Place:
    identity = Identity(feed)
    hub = HostWatches(feed, identity, 0.0, lambda: 7, 10)
    identity.load_inventory(Inventory(hosts=(Host(name=HOST),), vms=(vm("db"),)))
    return Place(hub)


async def test_the_state_comes_first_and_then_what_changes(place: Place, feed: Feed) -> None:
    held = place.hold()
    start = await place.next()
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    headers = dict(start["headers"])
    assert headers[b"content-type"] == b"application/x-ndjson"
    assert b"content-length" not in headers
    state = parse_line((await place.next())["body"])
    assert isinstance(state, HostFeedState)
    assert [each.name for each in state.inventory.vms] == ["db"]
    feed.publish_documents([AudienceDocument(audience=Audience(key="vm:db", enabled_at=NOW, epoch=1, incarnation=5))])
    told = await place.next()
    document = parse_line(told["body"])
    assert isinstance(document, AudienceDocument)
    assert (document.audience.incarnation, told["more_body"]) == (5, True)
    assert len(place.hub) == 1
    place.is_gone.set()
    await asyncio.wait_for(held, GUARD_S)
    assert len(place.hub) == 0


async def test_when_the_service_stops_the_stream_ends(place: Place) -> None:
    held = place.hold()
    await place.next()
    await place.next()
    Context.end_streams(cast("Any", place))
    assert await place.next() == {"type": "http.response.body"}
    await asyncio.wait_for(held, GUARD_S)
    assert len(place.hub) == 0


async def test_one_who_has_gone_before_it_was_answered_is_forgotten(place: Place) -> None:
    place.is_gone.set()
    held = place.hold()
    await asyncio.wait_for(held, GUARD_S)
    assert len(place.hub) == 0


async def test_one_that_is_cut_off_is_forgotten(place: Place) -> None:
    held = place.hold()
    await place.next()
    await place.next()
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    assert len(place.hub) == 0

"""A host's watch, as the control API holds it: what it hears, what it costs, and that it is forgotten in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest
from structlog.testing import capture_logs

from forewarn.control.admission import WatchCharge
from forewarn.control.context import Context
from forewarn.control.host_endpoint import _StreamResponse
from forewarn.control.host_streams import HostStream, HostStreams
from forewarn.control.stream_connection import StreamConnection, StreamSource
from forewarn.core.access import FILE_OPERATOR, Principal, Role
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience, Host
from forewarn.core.usage_limits import UsageAccount, UsageLimits, UseKind
from forewarn.errors import LimitExceeded, StoreUnavailable
from forewarn.publishing.feed import Feed
from forewarn.publishing.host_watch import HostWatches
from forewarn.publishing.identity import Identity
from forewarn.wire.hostfeed import ALIVE, HostFeedState, parse_line
from forewarn.wire.imds import Dialect
from tests.support.spans import GUARD_S
from tests.support.world import NOW
from tests.unit.core.builders import vm

if TYPE_CHECKING:
    from starlette.types import Message, Scope

pytestmark = pytest.mark.anyio
HOST = vm("db").host
CALLER = Principal(actor="host:h", role=Role.HOST, host=HOST, token_id="t-1")
END = b"(end)"


def make_budget(most: int) -> UsageLimits:
    return UsageLimits(**dict.fromkeys(UsageLimits.__slots__, most))


@dataclass
class Client:
    """The client's end of a watch: stands for both connections, the one of the request and the one of its stream."""

    is_gone: bool = False
    is_writable: bool = True
    sent: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    source: StreamSource | None = None

    @property
    def scope(self) -> Scope:
        return {"type": "http", "state": {"connection": self}}

    def begin_stream(self, source: StreamSource) -> StreamConnection | None:
        self.source = source
        return None if self.is_gone else cast("StreamConnection", self)

    def write(self, lines: bytes) -> None:
        self.sent.put_nowait(lines)

    def finish(self) -> None:
        self.sent.put_nowait(END)

    async def next(self) -> Any:  # noqa: ANN401 - a message of ASGI or bytes
        return await asyncio.wait_for(self.sent.get(), GUARD_S)

    async def receive(self) -> Message:
        raise AssertionError("a stream reads nothing")


class Place:
    """What of a service a watch needs."""

    def __init__(self) -> None:
        self.feed = Feed(Dialect())
        identity = Identity(self.feed)
        self.hub = HostWatches(self.feed, identity, 0.0, lambda: 7, 10)
        identity.load_inventory(Inventory(hosts=(Host(name=HOST),), vms=(vm("db"),)))
        self.invalid: set[Principal] = set()
        self.is_store_down = False
        self.host_streams = HostStreams(self.hub, self._find_invalid)
        self.is_stopping = asyncio.Event()
        self.changed = asyncio.Event()
        self.account = UsageAccount(name="host:h", role=Role.HOST, budget=make_budget(9))

    async def _find_invalid(self, callers: Collection[Principal]) -> Collection[Principal]:
        if self.is_store_down:
            raise StoreUnavailable("the database is down")
        return self.invalid & set(callers)

    async def hold(self, client: Client, caller: Principal = FILE_OPERATOR) -> None:
        """Begin a watch, as the route does."""
        self.account.acquire(UseKind.WATCHES, 0.0)
        charge = WatchCharge(self.account)
        await _StreamResponse(HostStream(self.host_streams, HOST, caller, charge))(
            client.scope, client.receive, client.sent.put
        )
        charge.release_with_request()

    async def hold_heard(self, client: Client, caller: Principal = FILE_OPERATOR) -> None:
        """Begin a watch that has heard everything up to now."""
        await self.hold(client, caller)
        await client.next()
        await client.next()

    def publish(self, incarnation: int) -> None:
        audience = Audience(key="vm:db", enabled_at=NOW, epoch=1, incarnation=incarnation)
        self.feed.publish_documents([AudienceDocument(audience=audience)])

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Watches, streams, and what is charged to the account and can be ended."""
        used = self.account.used[UseKind.WATCHES]
        return len(self.hub), len(self.host_streams), used, len(self.account.watches)


@pytest.fixture
async def place() -> Place:
    return Place()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """All streams have a turn at once, and tokens are checked at each turn."""
    monkeypatch.setattr("forewarn.control.host_streams._ALIVE_S", 0.0)
    monkeypatch.setattr("forewarn.control.host_streams._CHECKED_TURNS", 1)


async def test_the_state_comes_first_and_then_what_changes(place: Place) -> None:
    client = Client()
    await place.hold(client)
    start = await client.next()
    assert (start["type"], start["status"]) == ("http.response.start", 200)
    headers = dict(start["headers"])
    assert headers[b"content-type"] == b"application/x-ndjson"
    assert headers[b"connection"] == b"close"
    assert b"content-length" not in headers
    state = parse_line(await client.next())
    assert isinstance(state, HostFeedState)
    assert [each.name for each in state.inventory.vms] == ["db"]
    place.publish(5)
    document = parse_line(await client.next())
    assert isinstance(document, AudienceDocument)
    assert document.audience.incarnation == 5
    assert place.counts == (1, 1, 1, 1)


async def test_a_watch_has_no_task_and_no_timer(place: Place) -> None:
    before = len(asyncio.all_tasks())
    clients = [Client() for _ in range(5)]
    for client in clients:
        await place.hold_heard(client)
    assert place.counts == (5, 5, 5, 5)
    assert len(asyncio.all_tasks()) == before + 1  # the one that writes `alive` lines for all of them


async def test_changes_reach_more_watches_than_are_written_at_once(place: Place) -> None:
    place.hub._watches_max = 200
    place.account.budget = make_budget(200)
    clients = [Client() for _ in range(150)]
    for client in clients:
        await place.hold_heard(client)
    place.publish(1)
    place.publish(2)
    for client in clients:
        document = parse_line(await client.next())
        assert isinstance(document, AudienceDocument)
        assert document.audience.incarnation == 2
        assert client.sent.empty()


@pytest.mark.usefixtures("quick")
async def test_a_watch_of_which_nothing_changes_hears_that_the_service_is_alive(place: Place) -> None:
    client = Client()
    await place.hold_heard(client)
    assert [await client.next() for _ in range(3)] == [ALIVE] * 3


@pytest.mark.usefixtures("quick")
async def test_nothing_is_written_to_a_client_that_does_not_read_until_it_does(place: Place) -> None:
    slow, other = Client(), Client()
    await place.hold_heard(slow)
    await place.hold_heard(other)
    slow.is_writable = False
    while not slow.sent.empty():
        slow.sent.get_nowait()
    for incarnation in range(1, 4):
        place.publish(incarnation)
    for _ in range(3):
        while await other.next() != ALIVE:
            pass
    assert slow.sent.empty()
    slow.is_writable = True
    assert slow.source is not None
    slow.source.resume()
    lines = [await slow.next()]
    while lines[-1] == ALIVE:
        lines.append(await slow.next())
    document = parse_line(lines[-1])
    assert isinstance(document, AudienceDocument)
    assert document.audience.incarnation == 3


@pytest.mark.usefixtures("quick")
async def test_a_watch_ends_when_its_token_is_revoked_and_others_go_on(place: Place) -> None:
    mine, other = Client(), Client()
    await place.hold_heard(mine, CALLER)
    await place.hold_heard(other)
    place.invalid.add(CALLER)
    while await mine.next() != END:
        pass
    assert place.counts == (1, 1, 1, 1)
    assert await other.next() == ALIVE


@pytest.mark.usefixtures("quick")
async def test_an_outage_of_the_database_ends_no_watch_and_its_end_lets_tokens_be_checked(place: Place) -> None:
    client = Client()
    place.is_store_down = True
    with capture_logs() as logs:
        await place.hold_heard(client, CALLER)
        while not logs:
            assert await client.next() == ALIVE
    assert logs[0]["error"] == "the database is down"
    assert place.counts == (1, 1, 1, 1)
    place.invalid.add(CALLER)
    place.is_store_down = False
    while await client.next() != END:
        pass
    assert place.counts == (0, 0, 0, 0)


async def test_when_the_service_stops_the_stream_ends_and_later_ones_do_at_once(place: Place) -> None:
    client, late = Client(), Client()
    await place.hold_heard(client)
    Context.end_streams(cast("Any", place))
    assert await client.next() == END
    await place.hold(late)
    await late.next()
    assert await late.next() == END
    assert place.counts == (0, 0, 0, 0)


async def test_one_that_makes_room_for_a_newer_watch_releases_its_charge_at_once(place: Place) -> None:
    client = Client()
    await place.hold_heard(client)
    (end,) = place.account.watches.values()
    end()
    assert place.counts == (0, 0, 0, 0)
    assert await client.next() == END


async def test_one_whose_connection_is_lost_is_forgotten(place: Place) -> None:
    client = Client()
    await place.hold_heard(client)
    place.publish(1)
    assert client.source is not None
    client.source.close()
    client.source.close()
    assert place.counts == (0, 0, 0, 0)
    await asyncio.sleep(0)
    assert client.sent.empty()


async def test_one_that_has_gone_before_it_was_answered_is_forgotten(place: Place) -> None:
    await place.hold(Client(is_gone=True))
    assert place.counts == (0, 0, 0, 0)


async def test_one_that_is_cut_off_before_its_head_is_sent_is_forgotten(place: Place) -> None:
    async def hang(_message: Message) -> None:
        await asyncio.Event().wait()

    client = Client()
    response = _StreamResponse(HostStream(place.host_streams, HOST, CALLER, None))
    held = asyncio.create_task(response(client.scope, client.receive, hang))
    await asyncio.sleep(0)
    assert len(place.hub) == 1
    held.cancel()
    with pytest.raises(asyncio.CancelledError):
        await held
    assert place.counts == (0, 0, 0, 0)


async def test_a_stream_that_cannot_be_written_ends_and_the_others_are_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, other = Client(), Client()
    await place.hold_heard(broken)
    await place.hold_heard(other)

    def fail(_lines: bytes) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(broken, "write", fail)
    with capture_logs() as logs:
        place.publish(1)
        assert isinstance(parse_line(await other.next()), AudienceDocument)
    assert [each["event"] for each in logs] == ["cannot write to the endpoint on a host"]
    assert await broken.next() == END
    assert place.counts == (1, 1, 1, 1)


async def test_too_many_watches_are_refused_before_a_stream_begins(place: Place) -> None:
    place.hub._watches_max = 1
    await place.hold_heard(Client())
    with pytest.raises(LimitExceeded, match="watches_max"):
        HostStream(place.host_streams, HOST, CALLER, None)
    assert place.counts == (1, 1, 1, 1)

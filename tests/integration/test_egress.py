"""Posting to a real receiver: to the address that was looked at, and to no other."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from forewarn.egress import Answer, Poster, Resolve, Terms
from tests.support.receiver import Receiver, receiver
from tests.support.world import NOW

pytestmark = pytest.mark.anyio


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def resolving(*answers: Sequence[str]) -> Resolve:
    """A name that leads elsewhere each time."""
    left = iter(answers)

    async def resolve(_host: str, _port: int) -> Sequence[str]:
        return next(left)

    return resolve


async def post(poster: Poster, url: str) -> Answer:
    return await poster.post(url, b"{}", {"webhook-id": "1-E"}, NOW)


async def test_the_connection_is_made_to_the_address_that_was_looked_at(hook: Receiver) -> None:
    """No other look at the name is taken: it has no address at all."""
    poster = Poster(Terms(), resolving(["127.0.0.1"], ["169.254.169.254"], ["::ffff:169.254.169.254"]))
    url = f"http://receiver.invalid:{hook.port}/hook"
    assert (await post(poster, url)).is_taken
    for _ in range(2):
        answer = await post(poster, url)
        assert (answer.status, answer.words) == (
            None,
            "receiver.invalid may not be asked: 169.254.169.254 is where machines find their metadata",
        )
    await poster.close()
    (got,) = hook.got
    assert got.headers["host"] == f"receiver.invalid:{hook.port}"


async def test_of_several_addresses_those_that_may_not_be_asked_are_left_out(hook: Receiver) -> None:
    poster = Poster(Terms(), resolving(["169.254.169.254", "0.0.0.0", "127.0.0.1"]))
    assert (await post(poster, f"http://receiver.invalid:{hook.port}/hook")).is_taken
    await poster.close()


async def test_the_next_address_is_tried_where_nobody_answers_at_one(hook: Receiver) -> None:
    poster = Poster(Terms(), resolving(["127.0.0.2", "127.0.0.1"]))
    assert (await post(poster, f"http://receiver.invalid:{hook.port}/hook")).is_taken
    await poster.close()


async def test_the_next_address_is_tried_in_time_where_one_takes_no_connections(hook: Receiver) -> None:
    with socket.create_server(("127.0.0.3", hook.port), backlog=0) as silent:
        waiting = []
        for _ in range(4):  # its queue is full from here on
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(silent.getsockname())
        poster = Poster(Terms(deadline=timedelta(seconds=1)), resolving(["127.0.0.3", "127.0.0.1"]))
        answer = await post(poster, f"http://receiver.invalid:{hook.port}/hook")
        await poster.close()
        for each in waiting:
            each.close()
    assert answer.is_taken


async def test_a_name_that_is_not_known_is_a_try_that_failed() -> None:
    poster = Poster(Terms())
    answer = await post(poster, "https://receiver.invalid/")
    assert answer.words.startswith("the name receiver.invalid is not known")
    await poster.close()


@pytest.mark.parametrize("host", ["2852039166", "0xa9fea9fe"])
async def test_an_address_written_in_another_way_is_the_same_address(host: str) -> None:
    poster = Poster(Terms())
    assert "may not be asked" in (await post(poster, f"http://{host}/")).words
    await poster.close()

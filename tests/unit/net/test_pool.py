"""How many connections a listener takes, and which of them makes room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.net.pool import Pool, PoolLimit, PoolLimits, Slot, get_counting_key, parse_networks


def pool(**limits: int) -> Pool:
    most = {"connections_max": 6, "unknown_max": 4, "per_address_max": 2, "unknown_size_bytes_max": 100} | limits
    return Pool(PoolLimits(**most, proxies=parse_networks("127.0.0.1, fd00::/8")))


def entered(kept: Pool, address: str, closed: list[Slot] | None = None) -> Slot:
    slot = kept.admit(address)
    assert isinstance(slot, Slot)
    if closed is not None:
        slot.close = lambda: closed.append(slot)
    return slot


def addresses() -> Iterator[str]:
    return (f"10.0.0.{number}" for number in range(1, 250))


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_what_one_customer_has_counts_as_one_address(one: str, other: str, is_same: bool) -> None:
    assert (get_counting_key(one) == get_counting_key(other)) is is_same


def test_an_address_has_so_many_and_one_that_speaks_for_many_more() -> None:
    kept = pool()
    for _ in range(2):
        entered(kept, "10.0.0.1")
    assert kept.admit("10.0.0.1") is PoolLimit.ADDRESS
    for _ in range(3):
        entered(kept, "127.0.0.1")
    assert kept.refused[PoolLimit.ADDRESS] == 1


def test_whoever_is_known_counts_no_more_to_their_address() -> None:
    kept = pool()
    for _ in range(5):
        entered(kept, "10.0.0.1").make_known()
    assert (len(kept), kept.unknown_count) == (5, 0)


def test_the_unknown_one_that_has_waited_longest_makes_room() -> None:
    kept, closed, names = pool(), list[Slot](), addresses()
    slots = [entered(kept, next(names), closed) for _ in range(4)]
    slots[0].make_known()
    entered(kept, next(names), closed)
    entered(kept, next(names), closed)
    assert closed == [slots[1]]
    assert (len(kept), kept.unknown_count) == (5, 4)


def test_over_the_limit_of_all_strangers_make_room_and_the_known_do_not() -> None:
    kept, closed, names = pool(), list[Slot](), addresses()
    for _ in range(5):
        entered(kept, next(names), closed).make_known()
    stranger = entered(kept, next(names), closed)
    entered(kept, next(names), closed).make_known()
    assert closed == [stranger]
    assert kept.admit(next(names)) is PoolLimit.ALL


def test_bytes_of_strangers_are_bounded_together() -> None:
    kept, closed, names = pool(), list[Slot](), addresses()
    first, second = (entered(kept, next(names), closed) for _ in range(2))
    first.set_held_bytes(60)
    first.set_held_bytes(50)
    second.set_held_bytes(50)
    assert (kept.unknown_size_bytes, closed) == (100, [])
    second.set_held_bytes(51)
    assert (kept.unknown_size_bytes, closed) == (51, [first])
    second.make_known()
    assert kept.unknown_size_bytes == 0


def test_the_oldest_makes_room_also_where_it_holds_too_little() -> None:
    kept, closed, names = pool(), list[Slot](), addresses()
    silent, small, large = (entered(kept, next(names), closed) for _ in range(3))
    small.set_held_bytes(10)
    large.set_held_bytes(95)
    assert (kept.unknown_size_bytes, closed) == (95, [silent, small])
    large.set_held_bytes(101)
    assert (len(kept), kept.unknown_size_bytes, closed) == (0, 0, [silent, small, large])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=200))
def test_whatever_happens_limits_hold_and_nothing_is_left_behind(steps: list[tuple[int, int]]) -> None:
    kept, slots = pool(), list[Slot]()
    for what, number in steps:
        if what <= 1:
            slot = kept.admit(f"10.0.0.{number}")
            slots += [slot] if isinstance(slot, Slot) else []
        elif slots:
            slot = slots[number % len(slots)]
            steps_of: list[Callable[[], None]] = [
                slot.make_known,
                slot.release,
                partial(slot.set_held_bytes, number * 10),
            ]
            steps_of[what - 2]()
        assert len(kept) <= 6
        assert kept.unknown_count <= 4
        assert 0 <= kept.unknown_size_bytes <= 100
    for slot in slots:
        slot.release()
    assert (len(kept), kept.unknown_count, kept.unknown_size_bytes, len(kept._by_address)) == (0, 0, 0, 0)

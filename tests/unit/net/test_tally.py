"""One line a minute about what may happen thousands of times in it."""

from __future__ import annotations

from forewarn.net.tally import Tally, TallyLine


def test_a_line_names_the_count_and_the_worst_and_the_next_comes_a_minute_later() -> None:
    tally = Tally()
    assert tally.take_line(0.0) is None
    for name in ("a", "b", "b"):
        tally.count_occurrence(name)
    assert tally.take_line(1.0) == TallyLine(count=3, worst="b", worst_count=2)
    tally.count_occurrence("c")
    assert tally.take_line(60.9) is None
    tally.count_occurrence("c")
    assert tally.take_line(61.0) == TallyLine(count=2, worst="c", worst_count=2)
    assert tally.take_line(500.0) is None


def test_so_many_names_are_counted_apart() -> None:
    tally = Tally()
    for number in range(100_000):
        tally.count_occurrence(str(number))
    assert len(tally._names) == 1000
    told = tally.take_line(0.0)
    assert told is not None
    assert told.count == 100_000

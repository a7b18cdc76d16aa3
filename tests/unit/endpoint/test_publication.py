"""How far updates are published when several processes show them."""

from __future__ import annotations

import random

from forewarn.endpoint.publication import Publication


def joined(*processes: int) -> Publication:
    made = Publication()
    for process in processes:
        made.join(process, made.queued)
    return made


def test_without_a_process_everything_is_published_at_once() -> None:
    publication = Publication()
    assert [publication.queue(), publication.queue()] == [2, 3]
    assert publication.published == 3


def test_an_update_is_published_once_every_process_has_received_it() -> None:
    publication = joined(0, 1)
    position = publication.queue()
    publication.confirm(0, position)
    assert publication.published == position - 1
    publication.confirm(1, position)
    assert publication.published == position


def test_a_process_that_is_gone_or_late_holds_up_nothing() -> None:
    publication = joined(0, 1, 2)
    position = publication.queue()
    publication.confirm(0, position)
    publication.leave(1)
    assert publication.published == position - 1
    assert publication.end_wait(position) == [2]
    assert (publication.published, publication.late) == (position, {2})
    later = publication.queue()
    publication.confirm(0, later)
    assert publication.published == later
    assert publication.end_wait(later) == [], "it is late already"


def test_a_late_process_is_waited_for_again_once_it_has_nearly_caught_up() -> None:
    publication = joined(0, 1)
    first = publication.queue()
    publication.end_wait(first)
    assert publication.late == {0, 1}
    publication.confirm(0, first)
    assert publication.late == {1}
    for _ in range(150):
        publication.confirm(0, publication.queue())
    newest = publication.queued
    assert publication.published == newest
    publication.confirm(1, first)
    assert publication.late == {1}
    publication.confirm(1, newest - 100)
    assert publication.late == set()
    publication.confirm(0, publication.queue())
    assert publication.published == newest
    publication.confirm(1, newest + 1)
    assert publication.published == newest + 1


def test_a_process_that_confirms_more_than_there_is_publishes_nothing_else() -> None:
    publication = joined(0)
    publication.confirm(0, 1 << 60)
    position = publication.queue()
    assert publication.published == position - 1


def test_a_process_that_has_not_joined_confirms_nothing() -> None:
    publication = joined(0)
    position = publication.queue()
    publication.confirm(7, position)
    assert (publication.published, publication.late) == (position - 1, set())


def test_the_published_position_never_goes_back_and_never_passes_what_was_queued() -> None:
    chance = random.Random(41)
    publication = Publication()
    before = publication.published
    for _ in range(5000):
        process, position = chance.randrange(4), chance.randrange(publication.queued + 2)
        step = chance.randrange(5)
        if step == 0:
            publication.queue()
        elif step == 1:
            publication.join(process, position)
        elif step == 2:
            publication.leave(process)
        elif step == 3:
            publication.end_wait(position)
        else:
            publication.confirm(process, position)
        assert before <= publication.published <= publication.queued
        before = publication.published

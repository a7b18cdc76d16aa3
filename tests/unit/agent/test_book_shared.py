"""Two events at the same time that take the same thing out of service: it comes back with the last of them."""

from __future__ import annotations

from forewarn.agent.handlers import FileHandler
from forewarn.agent.record import StepRunState
from forewarn.agent.registry import EventRegistry
from forewarn.agent.rule import EventStep, Rule
from tests.support.occasion import an_event
from tests.support.records import A, B, a_book, after, document

HANDLER = FileHandler(remove="/srv/ok")
WAS = {"existed": True, "content": "fine"}
FOUND = {"existed": False}


def two_prepared(second: Rule | None = None) -> EventRegistry:
    """Both events are prepared; the second found the file removed."""
    book = a_book(Rule(name="drain", handlers=(HANDLER,)))
    book.observe_document(document(an_event(id=A), an_event(id=B)), after())
    if second is not None:
        book.update_record(B, rule=second)
    for seconds, (event_id, memory) in enumerate(((A, WAS), (B, FOUND))):
        book.begin_run(event_id, EventStep.PREPARE, after(seconds=seconds))
        book.update_run(event_id, EventStep.PREPARE, state=StepRunState.DONE)
        book.update_record(event_id, memory={"0": memory})
    return book


def end(book: EventRegistry, event_id: str) -> None:
    book.update_record(event_id, gone_at=after(minutes=1))
    book.begin_run(event_id, EventStep.RECOVER, after(minutes=1))


def test_the_event_that_stays_takes_over_how_things_were() -> None:
    book = two_prepared()
    end(book, A)
    assert (book[A].memory, book[B].memory) == ({"0": {}}, {"0": WAS})
    end(book, B)
    assert book[B].memory == {"0": WAS}


def test_an_event_that_only_found_it_so_leaves_it_to_the_first() -> None:
    book = two_prepared()
    end(book, B)
    assert (book[A].memory, book[B].memory) == ({"0": WAS}, {"0": {}})
    end(book, A)
    assert book[A].memory == {"0": WAS}


def test_two_that_looked_before_either_acted_do_not_put_back_what_the_other_needs() -> None:
    book = two_prepared()
    book.update_record(B, memory={"0": WAS})
    end(book, B)
    assert (book[A].memory, book[B].memory) == ({"0": WAS}, {"0": {}})
    end(book, A)
    assert book[A].memory == {"0": WAS}


def test_a_handler_with_other_settings_is_not_the_same() -> None:
    book = two_prepared(Rule(name="other", handlers=(FileHandler(remove="/srv/other"),)))
    end(book, A)
    assert (book[A].memory, book[B].memory) == ({"0": WAS}, {"0": FOUND})


def test_the_place_in_the_rule_may_differ() -> None:
    book = two_prepared(Rule(name="other", handlers=(FileHandler(touch="/run/drain"), HANDLER)))
    end(book, A)
    assert book[B].memory == {"0": FOUND, "1": WAS}


def test_an_event_that_failed_to_prepare_takes_over_what_it_has_seen() -> None:
    """It is undone as well, and would remove the file for good."""
    book = two_prepared()
    book.update_run(B, EventStep.PREPARE, state=StepRunState.FAILED)
    end(book, A)
    assert (book[A].memory, book[B].memory) == ({"0": {}}, {"0": WAS})


def test_an_event_that_has_not_looked_yet_takes_nothing_over() -> None:
    book = a_book(Rule(name="drain", handlers=(HANDLER,)))
    book.observe_document(document(an_event(id=A), an_event(id=B)), after())
    book.begin_run(A, EventStep.PREPARE, after())
    book.update_record(A, memory={"0": WAS})
    book.begin_run(B, EventStep.PREPARE, after(seconds=1))
    end(book, A)
    assert (book[A].memory, book[B].memory) == ({"0": WAS}, {})


def test_of_two_that_end_together_the_last_puts_things_back() -> None:
    book = two_prepared()
    book.observe_document(document(), after(minutes=1))
    end(book, A)
    end(book, B)
    assert (book[A].memory, book[B].memory) == ({"0": {}}, {"0": WAS})

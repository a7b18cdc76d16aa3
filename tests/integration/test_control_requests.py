"""`/v1/requests`: the journal is read beside everything else, one listing at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.support.service import Running, Vm, eventually
from tests.support.ways import both_ways
from tests.support.wire import LATEST, get

pytestmark = both_ways


class _HeldJournal:
    """A journal whose listing waits until it is released.

    Attributes:
        listings: How many listings have begun.
    """

    def __init__(self, journal: Any) -> None:  # noqa: ANN401 - whatever a journal has
        self._journal = journal
        self.listings = 0
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - as above
        return getattr(self._journal, name)

    def list_exchanges(self, **terms: Any) -> Any:  # noqa: ANN401 - as above
        self.listings += 1
        self.has_begun.set()
        assert self.may_end.wait(60)
        return self._journal.list_exchanges(**terms)


def test_while_requests_are_listed_others_are_answered_and_a_second_listing_waits(service: Running, vm: Vm) -> None:
    context = service.service.context
    held = _HeldJournal(context.journal)
    with ThreadPoolExecutor() as threads, service.operator() as first, service.operator() as second:
        service.do(lambda: setattr(context, "journal", held))
        try:
            listings = [threads.submit(each.get, "/v1/requests") for each in (first, second)]
            assert held.has_begun.wait(60)
            with service.wire(vm) as wire:
                assert wire.ask(get()).status == 200
            with service.operator() as other:
                assert other.get("/v1/vms").status_code == 200
            assert held.listings == 1
            held.may_end.set()
            answers = [each.result(60) for each in listings]
        finally:
            held.may_end.set()
            service.do(lambda: setattr(context, "journal", held._journal))
    assert [answer.status_code for answer in answers] == [httpx.codes.OK] * 2
    assert held.listings == 2


def test_a_request_whose_client_has_left_is_marked(service: Running, vm: Vm) -> None:
    """A long poll that its client gives up: the status is the one of the answer that it did not get."""
    with service.operator() as operator:

        def list_exchanges() -> list[tuple[int, bool]]:
            items = operator.get("/v1/requests", params={"vm": vm.name}).json()["items"]
            return [(exchange["status"], exchange["is_client_gone"]) for exchange in items]

        with service.wire(vm) as wire:
            assert wire.ask(get()).status == 200
        with service.wire(vm) as wire:
            wire.send(get(LATEST, 'If-None-Match: "1"', "Prefer: wait=300"))
        assert eventually(lambda: (304, True) in list_exchanges())
        assert (200, False) in list_exchanges()
        assert (200, True) not in list_exchanges()

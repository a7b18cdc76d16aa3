"""Reads of a whole inventory take seconds where much is declared; nobody else waits for them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from forewarn.wire.inventory_lines import encode_inventory_lines
from tests.support.service import Running


def test_however_many_read_the_inventory_others_are_answered(service: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def slowly(*declared: object) -> Iterator[bytes]:
        has_begun.set()
        assert may_end.wait(60)
        return encode_inventory_lines(*declared)  # type: ignore[arg-type] # as they came

    monkeypatch.setattr("forewarn.control.inventory_snapshot.encode_inventory_lines", slowly)
    with (
        ThreadPoolExecutor() as threads,
        service.operator() as one,
        service.operator() as two,
        service.operator() as me,
    ):
        try:
            reading = [threads.submit(each.get, "/v1/inventory") for each in (one, two, one)]
            assert has_begun.wait(60)
            assert me.get("/v1/vms").status_code == 200
            assert me.get("/v1/whoami").status_code == 200
        finally:
            may_end.set()
        assert [each.result(60).status_code for each in reading] == [200] * 3

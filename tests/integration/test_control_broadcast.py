"""New audit log entries are read once, however many streams follow them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from forewarn.control import broadcast
from tests.support.service import Running, Vm, eventually

STREAMS = 20


def entry(lines: Iterator[str]) -> dict[str, Any]:
    """The next entry of a stream."""
    found: dict[str, Any] = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
    return found


def newest(api: httpx.Client) -> int:
    sequence: int = api.get("/v1/audit-log", params={"newest": True, "limit": 1}).json()["items"][0]["sequence"]
    return sequence


@pytest.fixture
def api(service: Running) -> Iterator[httpx.Client]:
    """A client with room for as many connections as streams."""
    with service.operator() as client:
        yield client


def test_a_change_is_read_once_for_all_streams(api: httpx.Client, service: Running, vm: Vm) -> None:
    service.enable(vm)
    shared = service.service.context.entry_broadcast
    with ExitStack() as stack:
        streams = [stack.enter_context(api.stream("GET", "/v1/watch")) for _ in range(STREAMS)]
        lines = [stream.iter_lines() for stream in streams]
        assert [next(each) for each in lines] == [": watching"] * STREAMS
        assert eventually(lambda: shared.stream_count == STREAMS)
        before = shared.read_count
        service.event(vm)
        kinds = {entry(each)["kind"] for each in lines}
        reads = shared.read_count - before
    assert kinds == {"scheduled"}
    assert 1 <= reads <= 3
    assert eventually(lambda: shared.stream_count == 0)


def test_a_stream_that_is_far_behind_reads_the_store_and_misses_nothing(
    api: httpx.Client, service: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcast, "_KEPT_ENTRIES_MAX", 2)
    monkeypatch.setattr(broadcast, "_BATCH_ENTRIES", 2)
    start = newest(api)
    with api.stream("GET", "/v1/watch") as early:
        told = early.iter_lines()
        assert next(told) == ": watching"
        for _ in range(4):
            service.event(service.vm())
        whole = api.get("/v1/audit-log", params={"after": str(start), "limit": 1000}).json()["items"]
        assert [entry(told) for _ in whole] == whole
    with api.stream("GET", "/v1/watch", params={"after": str(start)}) as late:
        lines = late.iter_lines()
        assert [entry(lines) for _ in whole] == whole


def test_a_selection_chooses_the_same_entries_from_memory_as_from_the_store(
    api: httpx.Client, service: Running
) -> None:
    chosen, other = service.vm(), service.vm()
    start = newest(api)
    with api.stream("GET", "/v1/watch", params={"vm": chosen.name}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": watching"
        service.event(other)
        service.event(chosen)
        expected = api.get("/v1/audit-log", params={"after": str(start), "vm": chosen.name}).json()["items"]
        assert expected
        assert [entry(lines) for _ in expected] == expected

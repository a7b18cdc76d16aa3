"""Recordings and replays for tests, in threads of their own."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from forewarn.client import Pace
from forewarn.client.transport import AsyncHttpTransport
from forewarn.clock import RealClock, VirtualClock
from forewarn.net.listen_address import bind_listener, build_socket_url
from forewarn.testing.transcript.transcript import (
    EndReason,
    Transcript,
    TranscriptEntry,
    TranscriptWriter,
    load_transcript,
)
from forewarn.testing.transcript.transcript_recorder import Recorder
from forewarn.testing.transcript.transcript_replay import ReplayedApproval, ReplayServer
from tests.support.service import Running, Vm, eventually
from tests.support.spans import GUARD_S
from tests.support.wire import LATEST, approval, post

__all__ = ["PACE", "PATIENT", "Recording", "live", "record", "recording", "replayed", "stepped", "wait_for_entries"]

PACE = Pace(poll_interval_s=0.02, first_timeout_s=0.3, timeout_s=0.3, retry_min_s=0.02, retry_max_s=0.02)
PATIENT = replace(PACE, first_timeout_s=GUARD_S, timeout_s=GUARD_S)
"""For what answers, if late on a machine that is busy: a time-out would be an entry of its own."""
_STOP_S = GUARD_S
_DWELL_S = 0.15


class Recording:
    """A recording under way.

    Attributes:
        entries: What was new so far.
    """

    def __init__(
        self,
        url: str,
        path: Path,
        source: str | None = None,
        pace: Pace = PACE,
        **options: Any,  # noqa: ANN401 - of the writer
    ) -> None:
        self.entries: list[TranscriptEntry] = []
        self._pace = pace
        self._url = url
        self._path = path
        self._source = source
        self._options = options
        self._stop = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, for_s: float | None = None) -> EndReason:
        """Record until stopped, or for so long."""
        self._loop = asyncio.get_running_loop()
        transport = AsyncHttpTransport(self._url, self._source)
        try:
            with self._path.open("xb", buffering=0) as file:
                now = RealClock().now()
                writer = TranscriptWriter(file, api_version=LATEST, began=now, interval_s=0.02, **self._options)
                recorder = Recorder(transport, writer, LATEST, pace=self._pace, on_entry=self._note)
                return await recorder.record(self._stop, for_s)
        finally:
            await transport.close()

    def stop(self) -> None:
        """End it, from another thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)

    def _note(self, entry: TranscriptEntry, is_new: bool) -> None:
        if is_new:
            self.entries.append(entry)


@contextmanager
def recording(url: str, path: Path, source: str | None = None, pace: Pace = PACE) -> Iterator[Recording]:
    """Record until the block ends."""
    made = Recording(url, path, source, pace)
    thread = threading.Thread(target=lambda: asyncio.run(made.run()), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.stop()
        thread.join(_STOP_S)
        assert not thread.is_alive()


def record(url: str, path: Path, is_enough: Callable[[Recording], bool], pace: Pace = PATIENT) -> Transcript:
    """A recording that is ended when it is enough."""
    with recording(url, path, pace=pace) as made:
        assert eventually(lambda: is_enough(made)), made.entries
    return load_transcript(path)


def wait_for_entries(made: Recording, count: int) -> None:
    """Wait until so many answers were new."""
    assert eventually(lambda: len(made.entries) >= count), made.entries


@contextmanager
def replayed(transcript: Transcript, **options: Any) -> Iterator[tuple[str, list[ReplayedApproval]]]:  # noqa: ANN401 - of the replay
    """A replay until the block ends: its URL, and what is approved."""
    with _replaying(transcript, options) as (url, approved, _):
        yield url, approved


@contextmanager
def stepped(
    transcript: Transcript,
    **options: Any,  # noqa: ANN401 - of the replay
) -> Iterator[tuple[str, list[ReplayedApproval], Callable[[float], None]]]:
    """As `replayed`, on a clock that stands still; the third is called with the seconds by which it moves on."""
    clock = VirtualClock()
    with _replaying(transcript, options | {"clock": clock}) as (url, approved, loop):

        async def move(by_s: float) -> None:
            clock.advance(timedelta(seconds=by_s))

        def advance(by_s: float) -> None:
            asyncio.run_coroutine_threadsafe(move(by_s), loop).result(GUARD_S)

        yield url, approved, advance


@contextmanager
def _replaying(
    transcript: Transcript, options: dict[str, Any]
) -> Iterator[tuple[str, list[ReplayedApproval], asyncio.AbstractEventLoop]]:
    approved: list[ReplayedApproval] = []
    ready = threading.Event()
    places: list[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        stop = asyncio.Event()
        with bind_listener("127.0.0.1", 0) as sock:
            async with ReplayServer(transcript, on_approval=approved.append, **options).serving(sock):
                places.append((build_socket_url("http", sock), asyncio.get_running_loop(), stop))
                ready.set()
                await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(_STOP_S), "the replay did not start"
    url, loop, stop = places[0]
    try:
        yield url, approved, loop
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(_STOP_S)
        assert not thread.is_alive()


def live(service: Running, vm: Vm, path: Path) -> tuple[Transcript, str]:
    """The transcript of a maintenance that is approved, starts and ends; and the id of its event."""
    with recording(service.url, path, vm.address, PATIENT) as made:
        wait_for_entries(made, 1)
        time.sleep(_DWELL_S)
        service.schedule(vm)
        wait_for_entries(made, 2)
        shown = made.entries[1].parse_document(LATEST)
        assert shown is not None
        time.sleep(_DWELL_S)
        with service.wire(vm) as wire:
            assert wire.ask(post(approval(shown.events[0].id))).status == 200
        wait_for_entries(made, 3)
        time.sleep(_DWELL_S)
        service.complete(vm)
        wait_for_entries(made, 4)
    return load_transcript(path), shown.events[0].id

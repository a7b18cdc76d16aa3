"""What an endpoint knows: shown when it is on disk, and never taken back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from forewarn.clock import RealClock
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Audience, Host
from forewarn.errors import ConfigError
from forewarn.host import remote_authority
from forewarn.host.control_plane_client import ControlPlaneClient
from forewarn.host.remote_authority import RemoteAuthority, build_empty_state, read_state
from forewarn.util.files import replace_file
from forewarn.wire.hostfeed import HostFeedState, encode_document_line, encode_state_line
from forewarn.wire.imds import Dialect
from tests.support.spans import GUARD_S
from tests.support.world import NOW
from tests.unit.core.builders import vm

pytestmark = pytest.mark.anyio

VM = replace(vm("db"), host="host-1", addresses=("10.0.0.1",))


def document(incarnation: int, *, epoch: int = 1, is_enabled: bool = True) -> AudienceDocument:
    audience = Audience(key="vm:db", enabled_at=NOW if is_enabled else None, epoch=epoch, incarnation=incarnation)
    return AudienceDocument(audience=audience)


def state(*documents: AudienceDocument, position: int = 0) -> HostFeedState:
    return HostFeedState(
        host="host-1",
        position=position,
        inventory=Inventory(hosts=(Host(name="host-1"),), vms=(VM,)),
        dialect=Dialect(),
        first_answer_delay_s=0.0,
        documents=documents,
    )


@asynccontextmanager
async def remote(
    file: Path | None = None, save: Callable[[bytes], None] | None = None
) -> AsyncIterator[RemoteAuthority]:
    """One that saves as it is told."""
    link = ControlPlaneClient("host-1", ["http://127.0.0.1:1"], "token")
    known = None if file is None else read_state(file, "host-1")
    if file is not None:
        save = partial(replace_file, file)
    made = RemoteAuthority(link, known or build_empty_state("host-1"), RealClock(), save)
    saving = asyncio.create_task(made.save_updates())
    yield made
    saving.cancel()
    await asyncio.gather(saving, return_exceptions=True)
    await link.close()


async def until_shown(made: RemoteAuthority, incarnation: int | None) -> None:
    channel = made.feed.channel("vm:db")
    async with asyncio.timeout(GUARD_S):
        while (channel.incarnation if channel.is_enabled else None) != incarnation:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


async def test_what_is_shown_is_on_disk(tmp_path: Path) -> None:
    """R42, invariant 6: an endpoint that is killed and started anew shows nothing older."""
    file = tmp_path / "state.json"
    async with remote(file) as made:
        made._receive_line(encode_state_line(state(document(1))))
        assert not made.feed.channel("vm:db").is_enabled
        await until_shown(made, 1)
        for incarnation in range(2, 30):
            made._receive_line(encode_document_line(document(incarnation)))
            await until_shown(made, incarnation)
            kept = read_state(file, "host-1")
            assert kept is not None
            assert kept.documents[0].audience.incarnation >= incarnation
    async with remote(file) as again:
        assert again.feed.channel("vm:db").incarnation == 29


async def test_an_older_document_changes_neither_what_is_shown_nor_the_file(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    async with remote(file) as made:
        made._receive_line(encode_state_line(state(document(7), position=10)))
        await until_shown(made, 7)
        made._receive_line(encode_document_line(document(6)))
        made._receive_line(encode_state_line(state(document(5), position=9)))
        made._receive_line(encode_state_line(state(position=9)))
        made._receive_line(encode_document_line(document(8)))
        await until_shown(made, 8)
        kept = read_state(file, "host-1")
        assert kept is not None
        assert [d.audience.incarnation for d in kept.documents] == [8]
        assert kept.position == 10


async def test_what_a_replica_that_has_caught_up_does_not_show_is_hidden(tmp_path: Path) -> None:
    async with remote(tmp_path / "state.json") as made:
        made._receive_line(encode_state_line(state(document(7), position=10)))
        await until_shown(made, 7)
        made._receive_line(encode_state_line(state(position=11)))
        await until_shown(made, None)
        assert not made.feed.channel("vm:db").is_enabled


async def test_one_without_a_file_shows_at_once_what_it_is_told() -> None:
    async with remote() as made:
        made._receive_line(encode_state_line(state(document(3))))
        await until_shown(made, 3)
        assert made.age_s is not None


async def test_a_file_that_is_damaged_is_left_out_of_account_and_that_of_another_host_refused(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    assert read_state(file, "host-1") is None
    file.write_bytes(encode_state_line(state(document(1)))[:100])
    assert read_state(file, "host-1") is None
    file.write_bytes(encode_state_line(replace(state(document(1)), host="host-2")))
    with pytest.raises(ConfigError, match="belongs to host 'host-2'"):
        read_state(file, "host-1")


async def test_an_outage_is_one_warning_however_long_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[int] = []
    async with remote() as made:  # its only replica is unreachable

        def note_attempt(attempt: int) -> float:
            attempts.append(attempt)
            return 0.0

        monkeypatch.setattr(made._control_plane, "compute_pause_s", note_attempt)
        with capture_logs() as logs:
            watching = asyncio.create_task(made.watch())
            async with asyncio.timeout(GUARD_S):
                while len(attempts) < 4:  # noqa: ASYNC110 - nobody tells
                    await asyncio.sleep(0.001)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    assert attempts[:4] == [1, 2, 3, 4]
    warnings = [line for line in logs if line["log_level"] == "warning"]
    assert [line["event"] for line in warnings] == ["the control plane is unreachable"]


async def test_the_stream_is_not_read_on_while_a_disk_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the disk has a limit."""
    monkeypatch.setattr(remote_authority, "_PENDING_MAX", 3)
    may_write = threading.Event()

    def save(_state: bytes) -> None:
        may_write.wait(GUARD_S)

    async with remote(save=save) as made:
        made._receive_line(encode_state_line(state(document(1))))
        await asyncio.sleep(0)  # the first is being written
        for incarnation in (2, 3, 4):
            await asyncio.wait_for(made._wait_for_room(), GUARD_S)
            made._receive_line(encode_document_line(document(incarnation)))
        waiting = asyncio.create_task(made._wait_for_room())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        may_write.set()
        await asyncio.wait_for(waiting, GUARD_S)
        await until_shown(made, 4)


class HeldLink(ControlPlaneClient):
    """Passes an approval on when it is let, and remembers whose it was."""

    def __init__(self) -> None:
        super().__init__("host-1", ["http://127.0.0.1:1"], "token")
        self.passed: list[str | None] = []
        self.may = asyncio.Semaphore(0)

    async def approve(self, event_ids: Sequence[str], approver: Approver) -> ApprovalResult:
        self.passed.append(approver.vm)
        await self.may.acquire()
        return ApprovalResult(approved=tuple(event_ids))


async def test_the_approval_of_a_vm_does_not_wait_for_the_backlog_of_another() -> None:
    link = HeldLink()
    made = RemoteAuthority(link, state(), RealClock())

    def begin(name: str) -> asyncio.Task[ApprovalResult]:
        return asyncio.create_task(made.approve(["E1"], Approver(actor=f"vm:{name}", vm=name)))

    tasks = [begin("greedy") for _ in range(100)]
    while len(link.passed) < 64:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    tasks.append(begin("db"))
    await asyncio.sleep(0)
    for _ in range(2):
        link.may.release()
    while len(link.passed) < 66:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    assert "db" in link.passed[64:]
    for _ in tasks:
        link.may.release()
    await asyncio.gather(*tasks)
    await link.close()

"""Updates that wait to be sent to one metadata process.

They leave in order. While the process does not read, only the latest document of each audience is kept, and when too
many updates wait, a full snapshot replaces them: the queue is bounded.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import Scope, VirtualMachine
from forewarn.endpoint import messages
from forewarn.endpoint.pipe import Pipe
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.publishing.inventory_index import InventoryDelta

__all__ = ["Declared", "QueuedUpdate", "UpdateQueue"]

# These bound the work between two chances of the service to do something else.
_SENT_AT_ONCE = 100
_COMPARED_AT_ONCE = 2000
_WAITING_MAX = 1000
# Each is a copy of both tables of the inventory, so only a few may wait.
_INVENTORIES_MAX = 2

T = TypeVar("T")
Declared = tuple[dict[str, VirtualMachine], dict[str, Scope]]


@dataclass(slots=True)
class QueuedUpdate:
    """One item of the queue.

    Attributes:
        content: Documents by audience, a whole inventory, a small change of it, or an encoded message.
        position: Position that the process has reached with it; 0 if it ends no numbered update.
    """

    content: dict[str, AudienceDocument] | Declared | InventoryDelta | bytes
    position: int = 0


class UpdateQueue:
    """Queue of one process.

    Args:
        feed: Current documents.
        identity: Current inventory.

    Attributes:
        items: Waiting items, the next one first.
        position: Position of the newest update that was offered; 0 if updates are not numbered.
        is_open: True while there is a process to send to; a closed queue takes nothing.
    """

    def __init__(self, feed: Feed, identity: Identity) -> None:
        self.items: deque[QueuedUpdate] = deque()
        self.position = 0
        self.is_open = False
        self._feed = feed
        self._identity = identity
        self._has_items = asyncio.Event()
        self._sent_inventory: Declared = ({}, {})

    def open(self, position: int = 0) -> None:
        """Begin with the full state, for a process that has none.

        Args:
            position: Position of the newest update; 0 if updates are not numbered.
        """
        self.is_open = True
        self.position = position
        self._sent_inventory = ({}, {})
        self.items.clear()
        self._add_snapshot()

    def close(self) -> None:
        """Drop everything: the next process begins with the full state."""
        self.is_open = False
        self.items.clear()

    def add_document(self, document: AudienceDocument, position: int = 0) -> None:
        """Add a published document."""
        self.position = position
        if not self.is_open:
            return
        # Merge only into the last item, so that the stream keeps its order.
        last = self.items[-1] if self.items else None
        if last is not None and isinstance(last.content, dict):
            last.content[document.audience.key] = document
            last.position = position
            self._has_items.set()
        else:
            self._add(QueuedUpdate({document.audience.key: document}, position))

    def add_inventory(self, delta: InventoryDelta | None, position: int = 0) -> None:
        """Add a change of the inventory; None for a new one."""
        self.position = position
        if not self.is_open:
            return
        if delta is not None and len(delta.before.vms) + len(delta.after.vms) <= _SENT_AT_ONCE:
            self._add(QueuedUpdate(delta, position))
        elif sum(isinstance(each.content, tuple) for each in self.items) >= _INVENTORIES_MAX:
            self._add_snapshot()  # snapshots are large: replace the waiting ones
        else:
            self._add(QueuedUpdate(self._identity.snapshot(), position))

    def add_message(self, message: bytes) -> None:
        """Add an encoded message, which is sent after all updates before it."""
        if self.is_open:
            self._add(QueuedUpdate(message))

    def _add(self, item: QueuedUpdate) -> None:
        self.items.append(item)
        # Answers do not count: pending calls have limits of their own, and a snapshot cannot replace an answer.
        if (
            len(self.items) > _WAITING_MAX
            and sum(not isinstance(each.content, bytes) for each in self.items) > _WAITING_MAX
        ):
            self._add_snapshot()
        self._has_items.set()

    def _add_snapshot(self) -> None:
        """Add a full snapshot in place of the waiting updates; waiting answers and questions go behind it."""
        answers = [each for each in self.items if isinstance(each.content, bytes)]
        self.items.clear()
        self.items.append(QueuedUpdate(self._identity.snapshot()))
        documents = {document.audience.key: document for document in self._feed.all_documents()}
        self.items.append(QueuedUpdate(documents, self.position))
        self.items.extend(answers)
        self._has_items.set()

    # Sending

    async def send(self, pipe: Pipe) -> None:
        """Send the items as they come, until cancelled."""
        while True:
            while self.items:
                item = self.items.popleft()
                await self._send_content(pipe, item)
                if item.position:
                    pipe.send(messages.encode(messages.PositionReached(item.position)))
                await pipe.drain()
            # There is no await between the check for an empty queue and this, so that no item can be missed.
            self._has_items.clear()
            await self._has_items.wait()

    async def _send_content(self, pipe: Pipe, item: QueuedUpdate) -> None:
        content = item.content
        if isinstance(content, bytes):
            pipe.send(content)
        elif isinstance(content, dict):
            await _send_documents(pipe, content)
        elif isinstance(content, InventoryDelta):
            self._send_inventory_delta(pipe, content)
        else:
            await self._send_inventory(pipe, content)

    async def _send_inventory(self, pipe: Pipe, declared: Declared) -> None:
        """Send what is new, changed or gone since the last declaration, yielding in between."""
        (vms_before, scopes_before), (vms, scopes) = self._sent_inventory, declared
        for names in _split_into_parts(list(vms_before), _COMPARED_AT_ONCE):
            removed = [name for name in names if name not in vms]
            if removed:
                await _send_and_yield(pipe, messages.InventoryPart(removed_vms=removed))
        for part in _split_into_parts(list(vms.items()), _COMPARED_AT_ONCE):
            changed = [messages.encode_sparse(vm) for name, vm in part if vms_before.get(name) != vm]
            for piece in _split_into_parts(changed, _SENT_AT_ONCE):
                await _send_and_yield(pipe, messages.InventoryPart(vms=piece))
            await asyncio.sleep(0)
        for part_of_scopes in _split_into_parts(list(scopes.items()), _SENT_AT_ONCE):
            moved = [
                messages.encode_sparse(scope) for name, scope in part_of_scopes if scopes_before.get(name) != scope
            ]
            if moved:
                await _send_and_yield(pipe, messages.InventoryPart(scopes=moved))
        gone = [name for name in scopes_before if name not in scopes]
        await _send_and_yield(pipe, messages.InventoryPart(removed_scopes=gone, is_last=True))
        # Only now: if the pipe breaks earlier, this record is dropped together with the process.
        self._sent_inventory = declared

    def _send_inventory_delta(self, pipe: Pipe, delta: InventoryDelta) -> None:
        """Send a small change at once."""
        # The record of what was sent is changed in place, so that the cost depends on the delta and not on the
        # inventory.
        before, after = delta.before, delta.after
        vms, scopes = self._sent_inventory
        for vm in before.vms:
            vms.pop(vm.name, None)
        for scope in before.scopes:
            scopes.pop(scope.name, None)
        vms.update({vm.name: vm for vm in after.vms})
        scopes.update({scope.name: scope for scope in after.scopes})
        message = messages.InventoryPart(
            vms=[messages.encode_sparse(vm) for vm in after.vms],
            scopes=[messages.encode_sparse(scope) for scope in after.scopes],
            removed_vms=[vm.name for vm in before.vms if vm.name not in vms],
            removed_scopes=[scope.name for scope in before.scopes if scope.name not in scopes],
            is_last=True,
        )
        pipe.send(messages.encode(message))


async def _send_documents(pipe: Pipe, documents: dict[str, AudienceDocument]) -> None:
    if len(documents) <= _SENT_AT_ONCE:
        pipe.send(messages.encode(messages.build_document_update(documents.values())))
        return
    for part in _split_into_parts(list(documents.values()), _SENT_AT_ONCE):
        await _send_and_yield(pipe, messages.build_document_update(part))


def _split_into_parts(items: list[T], size: int) -> Iterator[list[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))


async def _send_and_yield(pipe: Pipe, message: messages.FromService) -> None:
    """Send one of many messages, and yield."""
    pipe.send(messages.encode(message))
    await pipe.drain()
    await asyncio.sleep(0)

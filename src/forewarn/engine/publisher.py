"""Publication of what was committed, in the order of the commits, to VMs, hosts and listeners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any

from forewarn.core.inventory import Inventory, extract_changes
from forewarn.core.maintenance.decision import AudienceDocument, ChangeSet
from forewarn.observability.tracing import Tracing
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity
from forewarn.publishing.idle_audiences import IdleAudiences
from forewarn.publishing.inventory_index import InventoryIndex, compare_with_index
from forewarn.store.contract import Reader

__all__ = ["InventoryUpdate", "Publisher", "RemoteChanges", "Snapshot", "plan_update"]

_CHANGED_MAX = 2000
"""Most changed VMs that the event loop applies one by one; more are indexed on another thread and swapped in."""

_FREED_AT_ONCE = 10_000
"""Inventories with more VMs are freed on a thread of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Complete state of the endpoint.

    Attributes:
        position: Number of the last change that it includes.
        index: Inventory.
        documents: Documents that show events.
        idle: Enabled audiences that see an empty document.
    """

    position: int
    index: InventoryIndex
    documents: Sequence[AudienceDocument]
    idle: IdleAudiences


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryUpdate:
    """Change of the inventory, to be published after the commit.

    Attributes:
        before: Part of the inventory that is replaced.
        after: Replacement of that part.
        index: Index of the whole inventory, if the part is too large to apply it VM by VM; None otherwise.
        missed: Documents that other replicas have committed and that may not be published here yet. A VM that moves
            must see nothing on its new host that is older than what it saw on the old one, so they are published
            before the inventory.
    """

    before: Inventory
    after: Inventory
    index: InventoryIndex | None = None
    missed: Sequence[AudienceDocument] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteChanges:
    """Changes that other replicas have committed.

    Attributes:
        position: Number of the last change that is included.
        inventory: Change of the inventory; None if it stays.
        documents: Documents that changed.
    """

    position: int
    inventory: InventoryUpdate | None
    documents: Sequence[AudienceDocument]


class Publisher:
    """Publishes commits. Nothing else may change the feed and the identity while one of its reads is under way.

    Args:
        feed: Feed that documents are published to.
        identity: Index that takes over inventory changes.
        tracing: Tracing of publications.

    Attributes:
        position: Number of the store's counter up to which everything is published.
        listeners: Called with the changes of each commit, once their documents are published.
    """

    def __init__(self, feed: Feed, identity: Identity, tracing: Tracing) -> None:
        self.position = 0
        self.listeners: list[Callable[[ChangeSet], None]] = []
        self._feed = feed
        self._identity = identity
        self._tracing = tracing

    # On a reader's thread

    def read_snapshot(self, reader: Reader) -> Snapshot:
        """Read the complete state from the store."""
        documents, empty = reader.get_documents()
        return Snapshot(
            position=reader.get_position(),
            index=self.index_inventory(reader.get_inventory(self._identity.index.vms)),
            documents=documents,
            idle=IdleAudiences.of_enabled(empty),
        )

    def read_remote_changes(self, reader: Reader) -> RemoteChanges:
        """Read what was committed after `position`."""
        changes = reader.get_feed_changes(self.position, self._identity.index.vms)
        update = None
        if changes.inventory is not None:
            update = self._find_difference(changes.inventory)
        elif changes.hosts:
            before = tuple(vm for host in changes.hosts for vm in self._identity.vms_of(host))
            after = tuple(vm for vms in changes.hosts.values() for vm in vms)
            less, more = extract_changes(Inventory(vms=before), Inventory(vms=after))
            # Without a difference it was a commit of this process, and is published already.
            update = InventoryUpdate(before=less, after=more) if less.vms or more.vms else None
        return RemoteChanges(position=changes.position, inventory=update, documents=changes.documents)

    def index_inventory(self, inventory: Inventory) -> InventoryIndex:
        """Index an inventory that will replace the current one, and compare them, unless there is none yet."""
        current = self._identity.index
        return InventoryIndex.of(inventory, current if current.vms else None)

    def _find_difference(self, inventory: Inventory) -> InventoryUpdate:
        current = self._identity.index
        # A host without VMs is in no difference of VMs.
        if not current.vms or current.hosts != {host.name for host in inventory.hosts}:
            index = self.index_inventory(inventory)
            return InventoryUpdate(before=Inventory(), after=Inventory(), index=index)
        delta = compare_with_index(current, inventory)
        update = InventoryUpdate(before=delta.before, after=delta.after)
        return plan_update(update, lambda: self.index_inventory(inventory))

    # On the event loop

    def publish_changes(self, changes: ChangeSet) -> None:
        """Publish the documents of a commit, then call the listeners."""
        with self._tracing.publication_span(changes):
            self._feed.publish_documents(changes.documents)
        # After the documents: a listener that is woken must find the feed up to date.
        if not changes.is_empty:
            for listener in self.listeners:
                listener(changes)

    def publish_inventory(self, update: InventoryUpdate) -> None:
        """Publish a change of the inventory."""
        self._publish_new_documents(update.missed)
        if update.index is not None:
            self._load_index(update.index)
        else:
            self._identity.replace_part(update.before, update.after)

    def publish_snapshot(self, snapshot: Snapshot) -> None:
        """Publish the complete state."""
        self._load_index(snapshot.index)
        self._feed.replace_documents(snapshot.documents, snapshot.idle)
        self.position = snapshot.position

    def publish_remote_changes(self, changes: RemoteChanges) -> None:
        """Publish what other replicas have committed."""
        self.position = changes.position
        if changes.inventory is not None:
            self.publish_inventory(changes.inventory)
        self._publish_new_documents(changes.documents)

    def _publish_new_documents(self, documents: Sequence[AudienceDocument]) -> None:
        """Publish documents of other replicas, unless they are published already."""
        # They may include this replica's own commits: see `position`.
        self._feed.publish_documents(document for document in documents if self._feed.is_new(document))

    def _load_index(self, index: InventoryIndex) -> None:
        before = self._identity.load_inventory(index)
        if len(before.vms) > _FREED_AT_ONCE:
            tables: tuple[dict[str, Any], ...] = before.vms, before.name_by_address, before.vms_by_host
            del before
            Thread(target=_free, args=(tables,), name="forewarn-free", daemon=True).start()


def plan_update(update: InventoryUpdate, index: Callable[[], InventoryIndex]) -> InventoryUpdate:
    """Return the update with the index of the whole inventory, which `index` returns, if it is a large one."""
    is_large = len(update.before.vms) + len(update.after.vms) > _CHANGED_MAX
    return replace(update, index=index()) if is_large else update


def _free(tables: Iterable[dict[str, Any]]) -> None:
    """Empty the tables entry by entry: the interpreter runs nothing else while it frees a whole one."""
    for table in tables:
        while table:
            table.popitem()

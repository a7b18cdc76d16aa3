"""The reading that all stores share, above primitives that each store implements.

A store answers which rows have a key or a property; what a document, an inventory or the changes of a feed consist of
is decided here. See `docs/adr/0036-one-decision-for-all-stores.md`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, TypeVar

from forewarn.core.access import Revocation
from forewarn.core.alert_schedule import AlertCheck
from forewarn.core.clock_jump import ClockJump
from forewarn.core.decision import AudienceDocument
from forewarn.core.inventory import Inventory
from forewarn.core.model import Audience, Event, Host, Maintenance, Scope, VirtualMachine
from forewarn.core.subscription import Subscription
from forewarn.store.clock_jump import CLOCK_JUMP, decode_jump
from forewarn.store.contract import HOST_PREFIX, INVENTORY, FeedChanges, Reader, StoredRollout

__all__ = ["INVENTORY_VERSION", "KEY_FIELDS", "BaseReader"]

T = TypeVar("T")

KEY_FIELDS: dict[type[Any], str] = {
    AlertCheck: "maintenance_id",
    Audience: "key",
    Event: "id",
    Host: "name",
    Maintenance: "id",
    Revocation: "nonce",
    Scope: "name",
    StoredRollout: "id",
    Subscription: "id",
    VirtualMachine: "name",
}
"""Field with the key of each kind of value that is found by one key."""

INVENTORY_VERSION = "inventory_version"
"""Key in `meta` of the number that grows with each change of the inventory."""


class BaseReader(Reader):
    """Reads through primitives; see `forewarn.store.contract.Reader` for the duties."""

    # Inventory

    def get_inventory(self) -> Inventory:
        return Inventory(
            hosts=tuple(sorted(self._list_rows(Host), key=attrgetter("name"))),
            scopes=tuple(sorted(self._list_rows(Scope), key=attrgetter("name"))),
            vms=tuple(self.list_vms()),
        )

    def get_inventory_version(self) -> int:
        return int(self._get_meta(INVENTORY_VERSION) or 0)

    def get_inventory_fingerprint(self) -> str | None:
        return self._get_meta("inventory")

    def get_inventory_around(
        self, *, host: str, vms: Iterable[str], addresses: Iterable[str], scopes: Iterable[str]
    ) -> Inventory:
        names = {*vms, *self._find_vm_names(addresses)}
        found = self._find_rows(VirtualMachine, names) | {vm.name: vm for vm in self.list_vms(host=host)}
        named = {*scopes, *(vm.scope for vm in found.values() if vm.scope is not None)}
        around = self.find_scopes(named)
        return Inventory(
            hosts=tuple(self.find_hosts([host]).values()),
            scopes=tuple(around[name] for name in sorted(around)),
            vms=tuple(found[name] for name in sorted(found)),
        )

    def find_hosts(self, names: Iterable[str]) -> dict[str, Host]:
        return self._find_rows(Host, names)

    def find_scopes(self, names: Iterable[str]) -> dict[str, Scope]:
        return self._find_rows(Scope, names)

    # Documents

    def find_audiences(self, keys: Iterable[str]) -> dict[str, Audience]:
        return self._find_rows(Audience, keys)

    def find_maintenances(self, ids: Iterable[str]) -> dict[str, Maintenance]:
        return self._find_rows(Maintenance, ids)

    def iter_documents(self) -> Iterator[AudienceDocument]:
        """Yield the documents; the listed events are read once and grouped by audience."""
        yield from self._build_documents(self._list_enabled_audiences(), self._list_listed_events())

    def get_feed_changes(self, since: int) -> FeedChanges:
        position = self.get_position()
        # Most polls of a replica find nothing new: then the counter is all that is read.
        keys = set() if position == since else self._find_marked_keys(since)
        documents = list(self._build_documents(self.find_audiences(keys).values(), self._list_listed_events(keys)))
        if INVENTORY in keys:
            return FeedChanges(position=position, documents=documents, inventory=self.get_inventory())
        names = [key.removeprefix(HOST_PREFIX) for key in keys if key.startswith(HOST_PREFIX)]
        # A host that has lost its last VM is included without VMs, so that they disappear on other replicas too.
        hosts: dict[str, list[VirtualMachine]] = {name: [] for name in names}
        for vm in sorted(self._find_vms_on(names), key=attrgetter("name")):
            hosts[vm.host].append(vm)
        found = {name: tuple(vms) for name, vms in hosts.items()}
        return FeedChanges(position=position, documents=documents, inventory=None, hosts=found)

    def _build_documents(self, audiences: Iterable[Audience], listed: Iterable[Event]) -> Iterator[AudienceDocument]:
        by_audience: dict[str, list[Event]] = {}
        # Documents list events in the order of their creation (R29).
        for event in sorted(listed, key=attrgetter("sequence")):
            by_audience.setdefault(event.audience, []).append(event)
        maintenances = self.find_maintenances({e.maintenance_id for events in by_audience.values() for e in events})
        for audience in audiences:
            events = by_audience.get(audience.key, ())
            yield AudienceDocument(audience=audience, items=tuple((e, maintenances[e.maintenance_id]) for e in events))

    # Single values

    def get_rollout(self, rollout_id: str) -> StoredRollout | None:
        return self._find_rows(StoredRollout, [rollout_id]).get(rollout_id)

    def get_subscription(self, subscription_id: str) -> Subscription | None:
        return self._find_rows(Subscription, [subscription_id]).get(subscription_id)

    def list_subscriptions(self) -> list[Subscription]:
        return sorted(self._list_rows(Subscription), key=attrgetter("created_at", "id"))

    def get_clock_kind(self) -> str | None:
        return self._get_meta("clock")

    def get_clock_jump(self) -> ClockJump | None:
        return decode_jump(self._get_meta(CLOCK_JUMP))

    # Primitives

    @abstractmethod
    def _find_rows(self, kind: type[T], keys: Iterable[str]) -> dict[str, T]:
        """Return the values of that kind that exist for these keys, by key."""

    @abstractmethod
    def _list_rows(self, kind: type[T]) -> list[T]:
        """Return all values of that kind, in any order."""

    @abstractmethod
    def _get_meta(self, key: str) -> str | None:
        """Return the single value stored under that key."""

    @abstractmethod
    def _find_vm_names(self, addresses: Iterable[str]) -> set[str]:
        """Return the names of the VMs with these addresses."""

    @abstractmethod
    def _find_vms_on(self, hosts: Iterable[str]) -> list[VirtualMachine]:
        """Return the VMs on these hosts, in any order."""

    @abstractmethod
    def _list_enabled_audiences(self) -> list[Audience]:
        """Return the enabled audiences, in any order."""

    @abstractmethod
    def _list_listed_events(self, audiences: Iterable[str] | None = None) -> list[Event]:
        """Return the listed events of these audiences, in any order; None: of all."""

    @abstractmethod
    def _find_marked_keys(self, since: int) -> set[str]:
        """Return the keys in the change feed that were marked after that position."""

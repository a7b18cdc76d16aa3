"""Identity of callers: from the source address of a connection to the VM, its audience and its document.

Nothing that a caller sends decides its identity (R2, invariant 8).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from weakref import WeakValueDictionary

from forewarn.core.hints import SEE_VMS
from forewarn.core.inventory import Inventory
from forewarn.core.model import Scope, VirtualMachine, audience_key
from forewarn.errors import NotFound
from forewarn.publishing.feed import Channel, Feed
from forewarn.publishing.inventory_index import InventoryDelta, InventoryIndex

__all__ = ["Caller", "CallerUsage", "Identity", "InventoryRevision"]


class CallerUsage:
    """What a VM uses of its limits.

    Attributes:
        connections: Number of open connections.
        window_s, window_requests: Current second and the requests in it, for the rate limit (R9).
    """

    __slots__ = ("__weakref__", "connections", "window_requests", "window_s")

    def __init__(self) -> None:
        self.connections = 0
        self.window_s = 0
        self.window_requests = 0


class Caller:
    """A VM that has called since the inventory was loaded.

    Attributes:
        vm: VM that called.
        scope: Its scope; None for a standalone VM.
        channel: Channel of its audience.
        is_current: False once the inventory changed; a connection that holds this object must resolve its caller again.
        usage: What the VM uses of its limits, also over connections that were opened before the inventory changed.
    """

    __slots__ = ("channel", "is_current", "scope", "usage", "vm")

    def __init__(self, vm: VirtualMachine, scope: Scope | None, channel: Channel, usage: CallerUsage) -> None:
        self.vm = vm
        self.scope = scope
        self.channel = channel
        self.usage = usage
        self.is_current = True

    def is_silent(self, since: datetime) -> bool:
        """Return whether the VM has no connection, and no request for its document came since then."""
        asked_at = self.channel.last_polled_at
        return self.usage.connections == 0 and asked_at is not None and asked_at < since


_NOTHING = Channel("", lambda _document: ())
"""Channel for connections whose VM has changed: it has no replies, so the fast path cannot answer from it."""


class Identity:
    """Inventory for looking up callers and their channels.

    Args:
        feed: Source of the channels.
        any_caller_is: VM assumed for callers with an unknown address; empty for none.

    Attributes:
        hosts: Names of the declared hosts.
        is_known: False until the inventory was received; until then an unknown caller may become known.
        listeners: Functions called after a change of the inventory, with the change; None if everything may differ.
    """

    def __init__(self, feed: Feed, any_caller_is: str = "") -> None:
        self.feed = feed
        self._any_caller_is = any_caller_is
        self._vms: dict[str, VirtualMachine] = {}
        self._scopes: dict[str, Scope] = {}
        self._name_by_address: dict[str, str] = {}
        self._only_vm_name: str | None = None
        self._callers: dict[str, Caller] = {}
        self._unexamined: list[str] = []
        # Connections of a retired caller stay open until their next request, so they still count for their VM. They
        # alone keep its usage alive.
        self._retired_usages: WeakValueDictionary[str, CallerUsage] = WeakValueDictionary()
        self._vms_by_host: dict[str, list[VirtualMachine]] = {}
        self.hosts: frozenset[str] = frozenset()
        self._change_count = 0
        self.is_known = True
        self.listeners: list[Callable[[InventoryDelta | None], None]] = []

    def load_inventory(self, inventory: Inventory | InventoryIndex) -> InventoryIndex:
        """Replace the whole inventory. Connections of VMs that differ resolve their caller again at the next request.

        Args:
            inventory: Inventory; or its index, built on another thread for a large one.

        Returns:
            The inventory before. Freeing a large one takes a while, which the caller may spend on another thread.
        """
        index = inventory if isinstance(inventory, InventoryIndex) else InventoryIndex.of(inventory)
        before = self.index
        # Another change may have come in between, and then more may differ.
        delta = index.delta if index.change_count == self._change_count else None
        self._change_count += 1
        self._scopes, self._vms, self._name_by_address = index.scopes, index.vms, index.name_by_address
        self._vms_by_host, self.hosts = index.vms_by_host, index.hosts
        if delta is None:
            self._only_vm_name = self._find_only_vm()
            for name in list(self._callers):
                self._retire_caller(name)
        else:
            sides = delta.before, delta.after
            names = {vm.name for side in sides for vm in side.vms}
            self._retire_callers(names, {scope.name for side in sides for scope in side.scopes})
        for listener in self.listeners:
            listener(delta)
        return before

    @property
    def index(self) -> InventoryIndex:
        """The current inventory, which every change of it changes in place."""
        return InventoryIndex(
            scopes=self._scopes,
            vms=self._vms,
            name_by_address=self._name_by_address,
            vms_by_host=self._vms_by_host,
            hosts=self.hosts,
            change_count=self._change_count,
        )

    def replace_part(self, before: Inventory, after: Inventory) -> None:
        """Replace a part of the inventory; what is on neither side stays.

        The cost depends only on the size of both parts. Connections of their VMs resolve their caller again at the
        next request.
        """
        self._change_count += 1
        names = {vm.name for side in (before, after) for vm in side.vms}
        scopes = {scope.name for side in (before, after) for scope in side.scopes}
        # Removed before any are added, since a changed scope is on both sides.
        for scope in before.scopes:
            self._scopes.pop(scope.name, None)
        self._scopes.update({scope.name: scope for scope in after.scopes})
        if before.hosts or after.hosts:
            self.hosts = self.hosts - {host.name for host in before.hosts} | {host.name for host in after.hosts}
        hosts = self._change_vms(before.vms, after.vms)
        self._retire_callers(names, scopes)
        # A scope may have VMs on any host.
        delta = InventoryDelta(before=before, after=after, hosts=None if scopes else hosts)
        for listener in self.listeners:
            listener(delta)

    def _retire_callers(self, names: AbstractSet[str], scopes: AbstractSet[str]) -> None:
        """Invalidate the callers whose VM or scope changed, or whose identity may have changed."""
        only = self._find_only_vm()
        if only != self._only_vm_name or self._any_caller_is:
            stale = list(self._callers)  # the VM assumed for an unknown address depends on the other VMs
        elif scopes:
            stale = [name for name, each in self._callers.items() if name in names or each.vm.scope in scopes]
        else:
            # Only VMs that have called have an entry, so a large inventory costs little here.
            stale = list(names & self._callers.keys())
        self._only_vm_name = only
        for name in stale:
            self._retire_caller(name)

    def _retire_caller(self, name: str) -> None:
        caller = self._callers.pop(name)
        caller.is_current = False
        caller.channel = _NOTHING
        self._retired_usages[name] = caller.usage

    def release_silent_callers(self, since: datetime, most: int) -> int:
        """Release the entries of callers that have no connection and have not asked since then, with their channels.

        If such a VM asks again, it gets a new entry, and sees the same document as before.

        Args:
            since: Time of the last request before which an audience is silent.
            most: Maximum number of callers to examine; the next call examines the next ones.

        Returns:
            Number of entries that were released.
        """
        if not self._unexamined:
            self._unexamined = list(self._callers)
        examined, self._unexamined[-most:] = self._unexamined[-most:], []
        silent = [name for name in examined if (each := self._callers.get(name)) is not None and each.is_silent(since)]
        for name in silent:
            key = self._callers[name].channel.key
            self._retire_caller(name)
            # A scope's channel may be that of other callers, and there are far fewer scopes than VMs.
            if key == f"vm:{name}":
                self.feed.release_channel(key)
        return len(silent)

    def _change_vms(self, before: Iterable[VirtualMachine], after: Iterable[VirtualMachine]) -> frozenset[str]:
        """Remove some VMs and add others; return the hosts whose VMs differ."""
        old = [self._vms.pop(vm.name) for vm in before if vm.name in self._vms]
        for vm in old:
            for address in vm.addresses:
                if self._name_by_address.get(address) == vm.name:
                    del self._name_by_address[address]
        new = list(after)
        for vm in new:
            self._vms[vm.name] = vm
            self._name_by_address |= dict.fromkeys(vm.addresses, vm.name)
        gone = {vm.name for vm in old}
        # Also the hosts that a moved VM has left.
        by_host: dict[str, list[VirtualMachine]] = {vm.host: [] for vm in (*old, *new)}
        for vm in new:
            by_host[vm.host].append(vm)
        for host, added in by_host.items():
            kept = [vm for vm in self._vms_by_host.get(host, ()) if vm.name not in gone]
            # In the order of the store, so that an unchanged host compares equal in its watches.
            self._vms_by_host[host] = sorted((*kept, *added), key=attrgetter("name"))
            if not self._vms_by_host[host]:
                del self._vms_by_host[host]
        return frozenset(by_host)

    def _find_only_vm(self) -> str | None:
        """Return the name of the only VM if it has no address; otherwise None."""
        vm = next(iter(self._vms.values()), None) if len(self._vms) == 1 else None
        return vm.name if vm is not None and not vm.addresses else None

    def begin_revision(self) -> InventoryRevision:
        """Begin to prepare a new inventory that mostly equals the current one."""
        return InventoryRevision(self._vms, self._name_by_address, self._scopes)

    def apply_revision(self, revision: InventoryRevision) -> None:
        """Replace the inventory with a prepared one. Only connections of changed VMs resolve their caller again.

        The processes that use revisions never ask which VMs run on a host, so `vms_of` and `hosts` are not updated.
        """
        self._change_count += 1
        self._vms, self._name_by_address, self._scopes = revision.vms, revision.name_by_address, revision.scopes
        self._retire_callers(revision.changed, revision.changed_scopes)
        for listener in self.listeners:
            listener(None)

    def snapshot(self) -> tuple[dict[str, VirtualMachine], dict[str, Scope]]:
        """Return the declared VMs and scopes, by name."""
        return dict(self._vms), dict(self._scopes)

    @property
    def vms(self) -> Iterable[VirtualMachine]:
        """Declared VMs."""
        return self._vms.values()

    def vms_of(self, host: str) -> Sequence[VirtualMachine]:
        """Return the VMs declared on a host, as a sequence that is replaced when they change, and never changed."""
        return self._vms_by_host.get(host, ())

    def get_scope(self, name: str) -> Scope:
        """Return a declared scope."""
        return self._scopes[name]

    def find_scope(self, name: str) -> Scope | None:
        """Return a scope; None if it is not declared."""
        return self._scopes.get(name)

    def get_audience_key(self, name: str) -> str:
        """Return the key of a VM's audience.

        Raises:
            NotFound: The VM is not declared.
        """
        found = self.find_declared(name)
        if found is None:
            raise NotFound(f"vm {name!r} does not exist", hint=SEE_VMS, vm=name)
        return audience_key(*found)

    def find_declared(self, name: str) -> tuple[VirtualMachine, Scope | None] | None:
        """Return a VM and its scope; None if it is not declared. Safe on any thread."""
        vm = self._vms.get(name)
        return None if vm is None else (vm, self._scopes.get(vm.scope) if vm.scope is not None else None)

    @property
    def vm_count(self) -> int:
        """Number of declared VMs."""
        return len(self._vms)

    @property
    def scope_count(self) -> int:
        """Number of declared scopes."""
        return len(self._scopes)

    def resolve_caller(self, peer: str, local: str) -> Caller | None:
        """Return the caller at address `peer`, connected to our address `local`; None if it is unknown.

        If the only VM has no address, every caller on this machine is taken for that VM.
        """
        # Almost every address is found as the socket shows it; only others are worth normalizing.
        name = self._name_by_address.get(peer)
        if name is None:
            address = _normalize_address(peer)
            name = self._name_by_address.get(address)
            if name is None and self._only_vm_name is not None and _is_local(address, _normalize_address(local)):
                name = self._only_vm_name
        return self.find_caller(name or self._any_caller_is)

    def find_caller(self, name: str) -> Caller | None:
        """Return the caller for a VM name; None if the VM is not declared."""
        caller = self._callers.get(name)
        # Only declared VMs get an entry, so strangers cannot fill the table.
        if caller is None and (found := self.find_declared(name)) is not None:
            vm, scope = found
            usage = self._retired_usages.pop(name, None) or CallerUsage()
            caller = self._callers[name] = Caller(vm, scope, self.feed.channel(audience_key(vm, scope)), usage)
        return caller


class InventoryRevision:
    """New inventory that is prepared in small steps while the current one is in use.

    Args:
        vms: VMs of the current inventory, by name.
        name_by_address: VM names by address.
        scopes: Scopes of the current inventory, by name.

    Attributes:
        changed: Names of VMs that were added, removed or changed.
        changed_scopes: Names of scopes that were added, removed or changed.
    """

    def __init__(
        self, vms: Mapping[str, VirtualMachine], name_by_address: Mapping[str, str], scopes: Mapping[str, Scope]
    ) -> None:
        self.vms = dict(vms)
        self.name_by_address = dict(name_by_address)
        self.scopes = dict(scopes)
        self.changed: set[str] = set()
        self.changed_scopes: set[str] = set()

    def remove_vm(self, name: str) -> None:
        """Remove a VM."""
        self.changed.add(name)
        before = self.vms.pop(name, None)
        for address in before.addresses if before is not None else ():
            if self.name_by_address.get(address) == name:  # another VM may have the address by now
                del self.name_by_address[address]

    def put_vm(self, vm: VirtualMachine) -> None:
        """Add or replace a VM."""
        self.remove_vm(vm.name)
        self.vms[vm.name] = vm
        for address in vm.addresses:
            self.name_by_address[address] = vm.name

    def remove_scope(self, name: str) -> None:
        """Remove a scope."""
        self.changed_scopes.add(name)
        self.scopes.pop(name, None)

    def put_scope(self, scope: Scope) -> None:
        """Add or replace a scope."""
        self.changed_scopes.add(scope.name)
        self.scopes[scope.name] = scope


def _normalize_address(address: str) -> str:
    """Return the address without its zone, and an IPv4-mapped IPv6 address as IPv4."""
    return address.partition("%")[0].removeprefix("::ffff:")


@lru_cache(maxsize=256)
def _is_local(peer: str, local: str) -> bool:
    if peer == local:
        return True
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False

"""Who calls: from the source address of a connection to the VM, its audience and its document.

The caller is never taken from anything that it sends (R2, invariant 8).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable
from functools import lru_cache

from forewarn.core.inventory import Inventory
from forewarn.core.model import Scope, VirtualMachine, audience_key
from forewarn.errors import NotFound
from forewarn.feed import Channel, Feed

__all__ = ["Caller", "Identity"]


class Caller:
    """A VM that has called since the inventory was loaded.

    Attributes:
        vm: The VM.
        scope: Its scope; None for a standalone VM.
        channel: What it is shown.
        is_current: False once the inventory changed; a connection that holds this object must ask again.
        connections: How many it has open now.
        window_s, window_requests: For the limiter (R9): the current second, and its requests in it.
    """

    __slots__ = ("channel", "connections", "is_current", "scope", "vm", "window_requests", "window_s")

    def __init__(self, vm: VirtualMachine, scope: Scope | None, channel: Channel) -> None:
        self.vm = vm
        self.scope = scope
        self.channel = channel
        self.is_current = True
        self.connections = 0
        self.window_s = 0
        self.window_requests = 0


_NOTHING = Channel("", lambda _document: ())
"""Shown to a connection whose VM is no longer declared as it was: no replies, so the fast path cannot answer from
it."""


class Identity:
    """The inventory, as the endpoint needs it.

    Args:
        feed: Where the documents are.
        any_caller_is: The VM that everybody is whom no address tells; empty: nobody is.

    Attributes:
        hosts: Names of the hosts that are declared.
        is_known: Whether the inventory was heard at all; if not, who is unknown now may be known in a moment.
        listeners: Called after another inventory was taken over.
    """

    def __init__(self, feed: Feed, any_caller_is: str = "") -> None:
        self.feed = feed
        self._any_caller_is = any_caller_is
        self._vms: dict[str, VirtualMachine] = {}
        self._scopes: dict[str, Scope] = {}
        self._name_by_address: dict[str, str] = {}
        self._only: str | None = None
        self._callers: dict[str, Caller] = {}
        self._vms_by_host: dict[str, list[VirtualMachine]] = {}
        self.hosts: frozenset[str] = frozenset()
        self.is_known = True
        self.listeners: list[Callable[[], None]] = []

    def load(self, inventory: Inventory) -> None:
        """Take over an inventory. Connections that are open ask again at their next request."""
        for caller in self._callers.values():
            caller.is_current = False
            caller.channel = _NOTHING
        self._callers = {}
        self._scopes = {scope.name: scope for scope in inventory.scopes}
        self._vms = {vm.name: vm for vm in inventory.vms}
        self._name_by_address = {address: vm.name for vm in inventory.vms for address in vm.addresses}
        is_single = len(inventory.vms) == 1 and not inventory.vms[0].addresses
        self._only = inventory.vms[0].name if is_single else None
        self.hosts = frozenset(host.name for host in inventory.hosts)
        self._vms_by_host = {}
        for vm in inventory.vms:
            self._vms_by_host.setdefault(vm.host, []).append(vm)
        for listener in self.listeners:
            listener()

    @property
    def vms(self) -> Iterable[VirtualMachine]:
        """Those that are declared."""
        return self._vms.values()

    def vms_of(self, host: str) -> Iterable[VirtualMachine]:
        """Those that run on a host."""
        return self._vms_by_host.get(host, ())

    def scope(self, name: str) -> Scope:
        """A scope that is declared."""
        return self._scopes[name]

    def audience(self, name: str) -> str:
        """The key of the audience to which that VM belongs.

        Raises:
            NotFound: It is not declared.
        """
        vm = self._vms.get(name)
        if vm is None:
            msg = f"vm {name!r} does not exist: see 'forewarn vm list'"
            raise NotFound(msg, vm=name)
        return audience_key(vm, self._scopes.get(vm.scope) if vm.scope is not None else None)

    @property
    def vm_count(self) -> int:
        """How many VMs are declared."""
        return len(self._vms)

    def resolve(self, peer: str, local: str) -> Caller | None:
        """Who calls from `peer` to our address `local`; None for nobody we know.

        An inventory with a single VM and no address takes every caller on this machine for that VM.
        """
        name = self._name_by_address.get(peer)
        if name is None:
            address = _canonical(peer)
            name = self._name_by_address.get(address)
            if name is None and self._only is not None and _is_local(address, _canonical(local)):
                name = self._only
        return self.named(name or self._any_caller_is)

    def named(self, name: str) -> Caller | None:
        """The VM of that name; None when it is not declared."""
        caller = self._callers.get(name)
        vm = self._vms.get(name)
        if caller is None and vm is not None:
            scope = self._scopes.get(vm.scope) if vm.scope is not None else None
            caller = self._callers[name] = Caller(vm, scope, self.feed.channel(audience_key(vm, scope)))
        return caller


def _canonical(address: str) -> str:
    """Without a zone, and an IPv4 address as such even when it came in by IPv6."""
    return address.partition("%")[0].removeprefix("::ffff:")


@lru_cache(maxsize=256)
def _is_local(peer: str, local: str) -> bool:
    if peer == local:
        return True
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False

"""Fast search of the names of all declared VMs, hosts and scopes."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate

from forewarn.core.model import VirtualMachine
from forewarn.publishing.identity import Identity
from forewarn.publishing.inventory_index import InventoryDelta

__all__ = ["InventoryNameIndex", "NameIndex", "index_names"]


class NameIndex:
    """Names that can be searched by substring, ignoring case.

    The names are lines of one string, since `str.find` on one string is the fastest search. Duplicates are dropped.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(set(names))
        # Each name ends with a line break, which no name contains: a match cannot extend over two names.
        lines = [name.lower() + "\n" for name in self._names]
        self._text = "".join(lines)
        self._ends = array("Q", accumulate(map(len, lines)))

    def find_containing(self, part: str, most: int) -> list[str]:
        """Return the first `most` names that contain `part`, in order."""
        if not part or "\n" in part:
            return [] if part else self._names[:most]
        part, found, at = part.lower(), list[str](), 0
        while len(found) < most and (at := self._text.find(part, at)) >= 0:
            number = bisect_right(self._ends, at)
            # Go on behind this name, which may contain the part more than once.
            at = self._ends[number]
            found.append(self._names[number])
        return found


class InventoryNameIndex:
    """Names of all VMs, hosts and scopes that are declared now."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._inventories = 0
        self._names: tuple[int, Mapping[str, NameIndex]] = (-1, {})
        identity.listeners.append(self._invalidate)

    def find_containing(self, part: str, most: int) -> dict[str, list[str]]:
        """Return the first `most` names of each kind that contain `part`: ``vms``, ``hosts``, ``scopes``."""
        inventories = self._inventories  # read first: the loop's thread may publish a new inventory meanwhile
        made_of, names = self._names
        if made_of != inventories:
            names = index_names(self._identity.vms)
            self._names = (inventories, names)
        return {kind: each.find_containing(part, most) for kind, each in names.items()}

    def _invalidate(self, _delta: InventoryDelta | None) -> None:
        self._inventories += 1


def index_names(vms: Iterable[VirtualMachine]) -> dict[str, NameIndex]:
    """Return the names of these VMs and of their hosts and scopes."""
    vms = list(vms)
    return {
        "vms": NameIndex(vm.name for vm in vms),
        "hosts": NameIndex(vm.host for vm in vms),
        "scopes": NameIndex(vm.scope for vm in vms if vm.scope is not None),
    }

"""Connection pool of a listener: counts all connections, those of unknown callers, and the latter by address.

Known callers are counted elsewhere, by identity. Among unknown callers the oldest connection makes room for a new one:
an honest client presents its token within milliseconds, so strangers who hold connections cannot lock others out.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

__all__ = ["Network", "Pool", "PoolLimit", "PoolLimits", "Slot", "get_counting_key", "is_in_networks", "parse_networks"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class PoolLimit(StrEnum):
    """Limit that a connection can exceed."""

    ALL = "connections-in-all"
    UNKNOWN = "unknown-connections"
    ADDRESS = "unknown-connections-of-an-address"
    BYTES = "unknown-bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """Limits of a pool.

    Attributes:
        connections_max: Maximum number of connections.
        unknown_max: Maximum number of connections of unknown callers.
        per_address_max: Maximum number of connections of unknown callers from one address.
        unknown_size_bytes_max: Maximum number of bytes held for unknown callers.
        proxies: Addresses that serve many callers and are exempt from `per_address_max`.
    """

    connections_max: int = 24_000
    unknown_max: int = 8192
    per_address_max: int = 1024
    unknown_size_bytes_max: int = 16 << 20
    proxies: Sequence[Network] = ()


class Slot:
    """Slot of one connection in a pool.

    Attributes:
        address: Source address in the form used for counting.
        is_known: True once the caller is known.
        close: Callable that ends the connection; set by its creator.
    """

    __slots__ = ("_pool", "_size_bytes", "address", "close", "is_known", "is_released")

    def __init__(self, pool: Pool, address: str) -> None:
        self._pool = pool
        self._size_bytes = 0
        self.address = address
        self.is_known = False
        self.is_released = False
        self.close: Callable[[], object] = lambda: None

    def set_held_bytes(self, size_bytes: int) -> None:
        """Set the number of bytes held for this connection."""
        if not self.is_known and not self.is_released:
            more, self._size_bytes = size_bytes - self._size_bytes, size_bytes
            self._pool.add_held_bytes(more)

    def make_known(self) -> None:
        """Mark the caller as known."""
        if not self.is_known and not self.is_released:
            # Its bytes must be released while it still counts as unknown: afterwards `add_held_bytes` ignores them.
            self.set_held_bytes(0)
            self.is_known = True
            self._pool.remove_unknown(self)

    def release(self) -> None:
        """Release the slot after the connection has ended. May be repeated."""
        if not self.is_released:
            self.set_held_bytes(0)
            self.is_released = True
            self._pool.remove_slot(self)


class Pool:
    """Pool of all connections of a listener.

    Args:
        limits: Limits of the pool.

    Attributes:
        refused: Number of connections refused or ended, by limit.
        unknown_size_bytes: Number of bytes held for unknown callers.
    """

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self.refused: Counter[PoolLimit] = Counter()
        self.unknown_size_bytes = 0
        self._count = 0
        self._unknown: dict[Slot, None] = {}
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of connections."""
        return self._count

    @property
    def unknown_count(self) -> int:
        """Number of connections with an unknown caller."""
        return len(self._unknown)

    def admit(self, address: str) -> Slot | PoolLimit:
        """Return a slot for a new connection, or the limit that it exceeds."""
        limits = self.limits
        key = get_counting_key(address)
        # Checked first, so that an address over its limit cannot evict connections of others.
        if self._by_address[key] >= limits.per_address_max and not is_in_networks(address, limits.proxies):
            self.refused[PoolLimit.ADDRESS] += 1
            return PoolLimit.ADDRESS
        # Known callers are never evicted; if all callers are known, the new connection is refused.
        if self._count >= limits.connections_max and not self._evict_oldest(PoolLimit.ALL):
            self.refused[PoolLimit.ALL] += 1
            return PoolLimit.ALL
        if len(self._unknown) >= limits.unknown_max:
            self._evict_oldest(PoolLimit.UNKNOWN)
        slot = Slot(self, key)
        self._count += 1
        self._unknown[slot] = None
        self._by_address[key] += 1
        return slot

    def add_held_bytes(self, size_bytes: int) -> None:
        """Add to the bytes held for unknown callers; above the limit, end their oldest connections."""
        self.unknown_size_bytes += size_bytes
        if size_bytes <= 0:
            return  # an evicted slot releases its bytes here while it is still the oldest
        while self.unknown_size_bytes > self.limits.unknown_size_bytes_max and self._evict_oldest(PoolLimit.BYTES):
            pass

    def remove_unknown(self, slot: Slot) -> None:
        """Remove a connection from the unknown ones, as its caller is known or it has ended."""
        if slot in self._unknown:
            del self._unknown[slot]
            self._by_address[slot.address] -= 1
            if not self._by_address[slot.address]:
                del self._by_address[slot.address]

    def remove_slot(self, slot: Slot) -> None:
        """Remove a connection that has ended."""
        self._count -= 1
        self.remove_unknown(slot)

    def _evict_oldest(self, limit: PoolLimit) -> bool:
        """End the oldest connection of an unknown caller; return True if there was one."""
        slot = next(iter(self._unknown), None)
        if slot is None:
            return False
        self.refused[limit] += 1
        slot.release()  # first: the connection ends only later, and its place is needed now
        slot.close()
        return True


def is_in_networks(address: str, networks: Sequence[Network]) -> bool:
    """Return True if the address is in one of these networks."""
    if not networks:
        return False
    found = _parse_address(address)
    return found is not None and any(found in network for network in networks)


@lru_cache(maxsize=4096)
def get_counting_key(address: str) -> str:
    """Return the counting key of an address: the IPv4 address, or the IPv6 /64, the usual share of one customer."""
    found = _parse_address(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    # Not an IP address. The key is kept in memory, so its length is bounded.
    return address[:64] if found is None else str(found)


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse a comma-separated list of addresses and networks.

    Raises:
        ValueError: An item is neither.
    """
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def _parse_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found

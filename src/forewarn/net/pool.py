"""How many connections a listener has: in all, of callers who are not known yet, and of those by address.

Callers who are known are counted elsewhere, by who they are. Among those who are not, the one that has waited longest
makes room for a new one: whoever means it needs milliseconds to show a token, so strangers who hold connections lock
nobody out.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

__all__ = ["Network", "Pool", "PoolLimit", "PoolLimits", "Slot", "counted_address", "is_among", "parse_networks"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class PoolLimit(StrEnum):
    """A limit that connections meet."""

    ALL = "connections-in-all"
    UNKNOWN = "unknown-connections"
    ADDRESS = "unknown-connections-of-an-address"
    BYTES = "unknown-bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """What a pool takes.

    Attributes:
        connections_max: In all.
        unknown_max: Of callers who are not known yet.
        per_address_max: The same, from one address.
        unknown_size_bytes_max: Bytes that those have sent and that are held for them.
        proxies: Addresses that speak for many callers, so that `per_address_max` says nothing of them.
    """

    connections_max: int = 24_000
    unknown_max: int = 8192
    per_address_max: int = 1024
    unknown_size_bytes_max: int = 16 << 20
    proxies: Sequence[Network] = ()


class Slot:
    """The place of one connection.

    Attributes:
        address: Where it comes from, as it is counted.
        is_known: Whether its caller is known by now.
        close: Ends the connection; set by whoever makes it.
    """

    __slots__ = ("_pool", "_size_bytes", "address", "close", "is_known", "is_released")

    def __init__(self, pool: Pool, address: str) -> None:
        self._pool = pool
        self._size_bytes = 0
        self.address = address
        self.is_known = False
        self.is_released = False
        self.close: Callable[[], object] = lambda: None

    def hold(self, size_bytes: int) -> None:
        """So many bytes are held now of what it has sent."""
        if not self.is_known and not self.is_released:
            more, self._size_bytes = size_bytes - self._size_bytes, size_bytes
            self._pool.hold(more)

    def make_known(self) -> None:
        """Its caller is known from now on."""
        if not self.is_known and not self.is_released:
            self.hold(0)
            self.is_known = True
            self._pool.forget_unknown(self)

    def release(self) -> None:
        """The connection has ended. May be repeated."""
        if not self.is_released:
            self.hold(0)
            self.is_released = True
            self._pool.forget(self)


class Pool:
    """All connections of a listener.

    Args:
        limits: How many there may be.

    Attributes:
        refused: How often each limit was met.
        unknown_size_bytes: Bytes held for callers who are not known.
    """

    def __init__(self, limits: PoolLimits) -> None:
        self.limits = limits
        self.refused: Counter[PoolLimit] = Counter()
        self.unknown_size_bytes = 0
        self._count = 0
        self._unknown: dict[Slot, None] = {}
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        """How many connections there are."""
        return self._count

    @property
    def unknown(self) -> int:
        """How many of them have a caller who is not known."""
        return len(self._unknown)

    def enter(self, address: str) -> Slot | PoolLimit:
        """A place for a new connection, or the limit that it meets."""
        limits = self.limits
        key = counted_address(address)
        if self._by_address[key] >= limits.per_address_max and not is_among(address, limits.proxies):
            self.refused[PoolLimit.ADDRESS] += 1
            return PoolLimit.ADDRESS
        if self._count >= limits.connections_max and not self._replace_oldest(PoolLimit.ALL):
            self.refused[PoolLimit.ALL] += 1
            return PoolLimit.ALL
        if len(self._unknown) >= limits.unknown_max:
            self._replace_oldest(PoolLimit.UNKNOWN)
        slot = Slot(self, key)
        self._count += 1
        self._unknown[slot] = None
        self._by_address[key] += 1
        return slot

    def hold(self, size_bytes: int) -> None:
        """So many bytes more are held for callers who are not known; the oldest of these make room."""
        self.unknown_size_bytes += size_bytes
        if size_bytes <= 0:
            return  # it gives back: whoever makes room is here, too, and is still the oldest
        while self.unknown_size_bytes > self.limits.unknown_size_bytes_max and self._replace_oldest(PoolLimit.BYTES):
            pass

    def forget_unknown(self, slot: Slot) -> None:
        """Its caller is known, or it has ended."""
        if slot in self._unknown:
            del self._unknown[slot]
            self._by_address[slot.address] -= 1
            if not self._by_address[slot.address]:
                del self._by_address[slot.address]

    def forget(self, slot: Slot) -> None:
        """It has ended."""
        self._count -= 1
        self.forget_unknown(slot)

    def _replace_oldest(self, limit: PoolLimit) -> bool:
        """End the connection that has waited longest without a token; whether there was one."""
        slot = next(iter(self._unknown), None)
        if slot is None:
            return False
        self.refused[limit] += 1
        slot.release()
        slot.close()
        return True


def is_among(address: str, networks: Sequence[Network]) -> bool:
    """Return whether an address is in one of these networks."""
    if not networks:
        return False
    found = _parsed(address)
    return found is not None and any(found in network for network in networks)


@lru_cache(maxsize=4096)
def counted_address(address: str) -> str:
    """What counts as one address: one of IPv4, or a network of IPv6 of 64 bits, which is what one customer has."""
    found = _parsed(address)
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return address[:64] if found is None else str(found)


def parse_networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks, with commas between them.

    Raises:
        ValueError: One of them is neither.
    """
    return tuple(ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip())


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found

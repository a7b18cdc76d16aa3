"""Which VMs there are: at the beginning, and after each change."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.faultrun.records import Place

__all__ = ["Fleet"]

_SET_SHARE = 0.4
_SERVICE_SHARE = 0.2
_AGENTS_MAX = 8


class Fleet:
    """The inventory.

    Availability sets over all hosts, a fault domain each; a cloud service with update domains; the rest alone.

    Args:
        hosts: Names of the hosts.
        vm_count: How many VMs there are at first.

    Attributes:
        places: Where each VM is that was ever wanted, by name; where it was last, when it is gone.
        numbers: By VM that is declared now: its number, of which its address is made.
        passing: VMs that were added, moved or removed.
        gone: VMs that were removed.
        with_agents: VMs in which an agent runs: they are alone, and stay where they are.
    """

    def __init__(self, hosts: Sequence[str], vm_count: int) -> None:
        self.hosts = list(hosts)
        self.places: dict[str, Place] = {}
        self.numbers: dict[str, int] = {}
        self.passing: set[str] = set()
        self.gone: set[str] = set()
        self._next = vm_count
        self._set_count = max(int(vm_count * _SET_SHARE) // len(hosts), 1)
        service_until = self._set_count * len(hosts) + int(vm_count * _SERVICE_SHARE)
        for number in range(vm_count):
            host = number % len(hosts)
            scope, domain = "", 0
            if number < self._set_count * len(hosts):
                scope, domain = f"set-{number // len(hosts)}", host
            elif number < service_until:
                scope, domain = "service", host % 2
            self._put(f"vm-{number}", number, host, scope, domain)
        alone = [f"vm-{number}" for number in range(service_until, vm_count)]
        self.with_agents = frozenset(alone[:_AGENTS_MAX])

    def _put(self, name: str, number: int, host: int, scope: str, domain: int) -> None:
        self.places[name] = Place(
            host=self.hosts[host], label=scope or name, fault_domain=domain, is_spread=bool(scope)
        )
        self.numbers[name] = number

    @property
    def names(self) -> list[str]:
        """Of the VMs that are declared."""
        return list(self.numbers)

    def changed(self, rng: random.Random) -> Fleet:
        """Another one, in which a VM or two were added, moved or removed."""
        other = Fleet.__new__(Fleet)
        other.hosts, other._set_count, other._next = self.hosts, self._set_count, self._next
        other.with_agents = self.with_agents
        other.places, other.numbers = dict(self.places), dict(self.numbers)
        other.passing, other.gone = set(self.passing), set(self.gone)
        for _ in range(rng.randint(1, 2)):
            rng.choice([other._add, other._move, other._move, other._remove])(rng)
        for vm in other.gone - self.gone - self.numbers.keys():  # added and removed at once: it never was
            other.passing.remove(vm)
            other.gone.remove(vm)
        return other

    @property
    def _movable(self) -> list[str]:
        return [name for name in self.numbers if name not in self.with_agents]

    def _add(self, rng: random.Random) -> None:
        number, host = self._next, rng.randrange(len(self.hosts))
        name = f"vm-{number}"
        self._next += 1
        self._put(name, number, host, rng.choice(["", "service"]), host % 2)
        self.passing.add(name)

    def _move(self, rng: random.Random) -> None:
        name = rng.choice(self._movable)
        place = self.places[name]
        host = rng.choice([each for each in self.hosts if each != place.host] or self.hosts)
        self.places[name] = replace(place, host=host)
        self.passing.add(name)

    def _remove(self, rng: random.Random) -> None:
        if len(self._movable) > len(self.hosts):
            name = rng.choice(self._movable)
            del self.numbers[name]
            self.passing.add(name)
            self.gone.add(name)

    def inventory(self, addresses: dict[str, str]) -> dict[str, Any]:
        """As the file has it.

        Args:
            addresses: By VM.
        """
        vms = []
        for name, number in self.numbers.items():
            place = self.places[name]
            scope = {"scope": place.label} if place.is_spread else {}
            update_domain = number % 3 if place.label == "service" else place.fault_domain
            vm = {"name": name, "host": place.host, "addresses": [addresses[name]], **scope}
            vms.append(vm | {"fault_domain": place.fault_domain, "update_domain": update_domain})
        scopes = [{"name": f"set-{number}", "kind": "availability-set"} for number in range(self._set_count)]
        return {
            "hosts": [{"name": host} for host in self.hosts],
            "scopes": [*scopes, {"name": "service", "kind": "cloud-service"}],
            "vms": vms,
        }

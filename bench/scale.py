"""The feed of many hosts, simulated: who asks which replica when, and how long it stands in line there.

A replica is one core with a line before it: whoever comes is served in the order of coming, as the measured one does.
Everything that takes time is a parameter, and comes from measurements. The rules of hosts are those of
`forewarn.host.control_plane_client`: who is not answered gives up after a while, pauses, and asks the next replica.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass

__all__ = ["Change", "Costs", "Loss", "Return", "announce", "approve_all", "come_back", "pause_s", "tell_all"]

_PAUSE_MAX_S = 10.0
_PAUSE_FIRST_S = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What takes how long, in seconds.

    Attributes:
        join_s: A host that asks, of a replica's core: its token, its state, the stream that begins.
        tell_s: A host that is told of a change, of a replica's core.
        alive_s: A line that says nothing, of a replica's core.
        commit_s: A maintenance of one host, of the one writer.
        approval_s: An approval, of the one writer.
        follow_s: From a commit until another replica knows of it.
        host_s: From a replica's word until a VM sees it: the host's disk, its document, the VM's poll.
        patience_s: How long a host waits for a word from a replica.
        alive_every_s: From one line that says nothing to the next.
    """

    join_s: float
    tell_s: float
    alive_s: float
    commit_s: float
    approval_s: float
    follow_s: float
    host_s: float
    patience_s: float = 15.0
    alive_every_s: float = 5.0

    def share_idle(self, watches: float) -> float:
        """The share of a replica's core that so many watches take while nothing changes; at most 0.95."""
        return min(0.95, watches * self.alive_s / self.alive_every_s)


class _Line:
    """A core with a line before it. What it does beside makes it slower."""

    def __init__(self, idle_share: float = 0.0) -> None:
        self._speed = 1.0 - idle_share
        self._free_s = 0.0

    def serve(self, now_s: float, takes_s: float) -> float:
        """When somebody who comes now is done with."""
        self._free_s = max(self._free_s, now_s) + takes_s / self._speed
        return self._free_s


@dataclass(frozen=True, slots=True)
class Return:
    """Hosts that have lost their replica, and have another.

    Attributes:
        back_s: When each had its state, in order; seconds since it lost its stream.
        vain: How often a replica served a host that had given up.
    """

    back_s: list[float]
    vain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Replicas that are gone.

    Attributes:
        hosts: How many there are; those of the dead replicas have to come back.
        replicas: How many there were.
        dead: How many of them are gone; all of them: they are back at once, and nobody watches.
        limit_s: How long to look at it.
    """

    hosts: int
    replicas: int
    dead: int
    limit_s: float = 1800.0


def come_back(costs: Costs, loss: Loss, rng: random.Random) -> Return:
    """Hosts whose replica is gone look for another; their pauses come from `rng`."""
    hosts, replicas, dead = loss.hosts, loss.replicas, loss.dead
    is_all = dead == replicas
    alive = range(replicas) if is_all else range(dead, replicas)
    staying = 0 if is_all else hosts // replicas
    lines = {number: _Line(costs.share_idle(staying)) for number in alive}
    orders: dict[int, list[int]] = {}
    coming: list[tuple[float, int, int]] = []
    for host in range(hosts * dead // replicas):
        order = list(range(replicas))
        rng.shuffle(order)
        lost = host % dead  # the replica that it watched is the one that it has asked last
        order.remove(lost)
        orders[host] = [*order, lost]
        heapq.heappush(coming, (pause_s(1, rng), host, 1))
    back_s: list[float] = []
    vain = 0
    while coming and coming[0][0] < loss.limit_s:
        now_s, host, attempt = heapq.heappop(coming)
        order = orders[host]
        asked = order[0]
        order.append(order.pop(0))
        gone_s = now_s  # who is dead refuses at once
        if asked in lines:
            done_s = lines[asked].serve(now_s, costs.join_s)
            if done_s - now_s <= costs.patience_s:
                back_s.append(done_s)
                continue
            vain += 1
            gone_s = now_s + costs.patience_s
        heapq.heappush(coming, (gone_s + pause_s(attempt + 1, rng), host, attempt + 1))
    return Return(sorted(back_s), vain)


def pause_s(attempt: int, rng: random.Random) -> float:
    """How long a host waits before that attempt, from 1."""
    return rng.uniform(0.5, 1.0) * min(_PAUSE_FIRST_S * 2.0 ** (attempt - 1), _PAUSE_MAX_S)


@dataclass(frozen=True, slots=True)
class Change:
    """What a change took.

    Attributes:
        committed_s: When the last commit had returned.
        seen_s: When a VM of each host saw it, in order. Both in seconds since the first request.
    """

    committed_s: float
    seen_s: list[float]


def tell_all(costs: Costs, hosts: int, replicas: int, commit_s: float) -> Change:
    """One commit that every host has to hear of."""
    lines = [_Line(costs.share_idle(hosts / replicas)) for _ in range(replicas)]
    seen_s = [
        lines[number % replicas].serve(commit_s + (costs.follow_s if number % replicas else 0.0), costs.tell_s)
        + costs.host_s
        for number in range(hosts)
    ]
    return Change(commit_s, sorted(seen_s))


def announce(costs: Costs, hosts: int, replicas: int) -> Change:
    """A maintenance for each host, one after the other, as fast as they are committed."""
    lines = [_Line(costs.share_idle(hosts / replicas)) for _ in range(replicas)]
    writer = _Line()
    seen_s, committed_s = [], 0.0
    for number in range(hosts):
        committed_s = writer.serve(0.0, costs.commit_s)
        heard_s = committed_s + (costs.follow_s if number % replicas else 0.0)
        seen_s.append(lines[number % replicas].serve(heard_s, costs.tell_s) + costs.host_s)
    return Change(committed_s, sorted(seen_s))


def approve_all(costs: Costs, vms: int, think_s: float, rng: random.Random) -> list[float]:
    """VMs that approve within so many seconds, at times that follow no rhythm; when each is on disk, in order."""
    writer = _Line()
    return [writer.serve(now_s, costs.approval_s) for now_s in sorted(rng.uniform(0, think_s) for _ in range(vms))]

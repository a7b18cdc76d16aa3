"""Simulation of many hosts: when each host connects to which replica, and how long it waits there.

A replica is one core with a queue, and serves hosts in order of arrival, as the measured replica does. All durations
are parameters, and come from measurements. Hosts behave like `forewarn.host.control_plane_client`: a host without an
answer gives up after a time-out, pauses, and connects to the next replica.
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
    """Durations, in seconds.

    Attributes:
        join_s: CPU time of a replica to connect one host: check its token, send its state, begin the stream.
        tell_s: CPU time of a replica to send one change to one host.
        alive_s: CPU time of a replica for one keep-alive line.
        commit_s: Time of the single writer for the maintenance of one host.
        approval_s: Time of the single writer for one approval.
        follow_s: Time from a commit until another replica knows it.
        host_s: Time from a replica's message to a host until a VM sees it: disk, document and poll.
        patience_s: Time for which a host waits for an answer from a replica.
        alive_every_s: Interval between keep-alive lines.
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
        """Return the share of a replica's core that the watches use while nothing changes; at most 0.95."""
        return min(0.95, watches * self.alive_s / self.alive_every_s)


class _Line:
    """A core with a queue. Its other work makes it slower."""

    def __init__(self, idle_share: float = 0.0) -> None:
        self._speed = 1.0 - idle_share
        self._free_s = 0.0

    def serve(self, now_s: float, takes_s: float) -> float:
        """Return the time at which a request that arrives now is completed."""
        self._free_s = max(self._free_s, now_s) + takes_s / self._speed
        return self._free_s


@dataclass(frozen=True, slots=True)
class Return:
    """Result for hosts that have lost their replica and connected to another one.

    Attributes:
        back_s: Times at which the hosts had their state, sorted; seconds since the loss.
        vain: Number of times that a replica served a host that had given up.
    """

    back_s: list[float]
    vain: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss of replicas.

    Attributes:
        hosts: Number of hosts; those of the lost replicas have to reconnect.
        replicas: Number of replicas before the loss.
        dead: Number of lost replicas; if all are lost, all have restarted at once, and no host is connected.
        limit_s: Simulated time.
    """

    hosts: int
    replicas: int
    dead: int
    limit_s: float = 1800.0


def come_back(costs: Costs, loss: Loss, rng: random.Random) -> Return:
    """Simulate how hosts of lost replicas reconnect; `rng` determines their pauses and the order of replicas."""
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
        lost = host % dead  # a host tries the replica that it watched before last
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
        gone_s = now_s  # a lost replica refuses at once
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
    """Return the pause of a host before an attempt; attempts are counted from 1."""
    return rng.uniform(0.5, 1.0) * min(_PAUSE_FIRST_S * 2.0 ** (attempt - 1), _PAUSE_MAX_S)


@dataclass(frozen=True, slots=True)
class Change:
    """Times of a change, in seconds since the first request.

    Attributes:
        committed_s: Time at which the last commit had returned.
        seen_s: Times at which a VM of each host saw the change, sorted.
    """

    committed_s: float
    seen_s: list[float]


def tell_all(costs: Costs, hosts: int, replicas: int, commit_s: float) -> Change:
    """Simulate one commit that is sent to every host."""
    lines = [_Line(costs.share_idle(hosts / replicas)) for _ in range(replicas)]
    seen_s = [
        lines[number % replicas].serve(commit_s + (costs.follow_s if number % replicas else 0.0), costs.tell_s)
        + costs.host_s
        for number in range(hosts)
    ]
    return Change(commit_s, sorted(seen_s))


def announce(costs: Costs, hosts: int, replicas: int) -> Change:
    """Simulate one maintenance for each host, one after the other, as fast as commits allow."""
    lines = [_Line(costs.share_idle(hosts / replicas)) for _ in range(replicas)]
    writer = _Line()
    seen_s, committed_s = [], 0.0
    for number in range(hosts):
        committed_s = writer.serve(0.0, costs.commit_s)
        heard_s = committed_s + (costs.follow_s if number % replicas else 0.0)
        seen_s.append(lines[number % replicas].serve(heard_s, costs.tell_s) + costs.host_s)
    return Change(committed_s, sorted(seen_s))


def approve_all(costs: Costs, vms: int, think_s: float, rng: random.Random) -> list[float]:
    """Simulate VMs that approve at random times within a period; return when each approval is on disk, sorted."""
    writer = _Line()
    return [writer.serve(now_s, costs.approval_s) for now_s in sorted(rng.uniform(0, think_s) for _ in range(vms))]

"""What VMs of one event tell each other, over a network that loses, delays, repeats and parts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from forewarn.agent.agent import Agent
from forewarn.agent.agreement import PeerReport, PeerState
from tests.support.agents.machine import Machine

__all__ = ["Gossip", "Hearsay"]

_AGAIN_S = 5.0


class Hearsay:
    """`PeerReports` of one process: what its peers have said last."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[str, PeerReport]] = {}

    def get_reports(self, event_id: str) -> Mapping[str, PeerReport]:
        """Each peer's last word about that event."""
        return self._reports.get(event_id, {})

    def hear(self, peer: str, said: Mapping[str, PeerState], agent: Agent) -> None:
        """Take note of a peer's standings."""
        for event_id, state in said.items():
            reports = self._reports.setdefault(event_id, {})
            if peer not in reports or reports[peer].state is not state:
                reports[peer] = PeerReport(state=state, since=agent.now())
                agent.wake()


class Gossip:
    """Tells one process's standings to its peers: at once when they change, and again and again."""

    def __init__(self, machine: Machine, peers: Sequence[Machine], heard: dict[str, Hearsay]) -> None:
        self._machine = machine
        self._peers = peers
        self._heard = heard
        self._process = machine.process
        self._said: dict[str, PeerState] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def look(self) -> None:
        """Something may have changed."""
        agent = self._machine.agent
        if agent is None or not self._machine.is_alive(self._process):
            return
        standings = agent.get_reported_states()
        if standings != self._said:
            self._said = standings
            self._say()

    def _say(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._machine.is_alive(self._process) or not self._said:
            return
        rng, said = self._machine.rng, dict(self._said)
        for peer in self._peers:
            if not self._machine.is_cut and rng.random() >= self._machine.weather.gossip:
                for _ in range(1 + (rng.random() < 0.1)):
                    self._loop.call_later(rng.choice([0.001, 0.02, 1.5]) * rng.random(), self._arrive, peer, said)
        self._timer = self._loop.call_later(_AGAIN_S, self._say)

    def _arrive(self, peer: Machine, said: Mapping[str, PeerState]) -> None:
        if peer.agent is not None and not peer.is_cut:
            self._heard[peer.name].hear(self._machine.name, said, peer.agent)

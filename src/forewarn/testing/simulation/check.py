"""Test your handler or your actuator in simulated clusters."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from forewarn.actuators import Actuator
from forewarn.auth.authenticator import load_operator_token
from forewarn.testing.simulation.explanation import Explanation, explain
from forewarn.testing.simulation.handler_vm import Handler
from forewarn.testing.simulation.hypervisor import Hypervisor
from forewarn.testing.simulation.parts import Parts
from forewarn.testing.simulation.run import run_seed
from forewarn.testing.simulation.workers import run_in_workers
from forewarn.testing.simulation.world import Size

__all__ = ["SimulationFailed", "simulate"]


class SimulationFailed(AssertionError):
    """A simulated cluster broke a property. The message shows what happened in it.

    Attributes:
        seed: Seed of the cluster.
        size: A small cluster that breaks the property with that seed.
        complaints: A line for each violation in it; it begins with the name of the property.
        story: What happened in it, in lines.
    """

    def __init__(self, explanation: Explanation) -> None:
        self.seed, self.size = explanation.seed, explanation.size
        self.complaints, self.story = explanation.complaints, explanation.story
        lines = [*self.complaints, "", *self.story, "", f"to repeat it: seeds=[{self.seed}], size={self.size}"]
        super().__init__("\n".join(lines))


def simulate(
    seeds: int | Iterable[int] = 20,
    *,
    handler: Handler | None = None,
    make_actuator: Callable[[Hypervisor], Actuator] | None = None,
    size: Size | None = None,
    jobs: int | None = None,
) -> Counter[str]:
    """Run simulated clusters with faults, and check that each keeps its promises.

    A cluster has replicas of Forewarn's service, hosts, VMs, operators and tenants. Machines are killed, networks are
    cut, clocks jump. Everything in it follows from its seed. A cluster takes one or two seconds of a core.

    Args:
        seeds: Seeds to run, or a number n for the seeds 1 to n.
        handler: Runs in each VM; None for Forewarn's agent.
        make_actuator: Makes the actuator of a replica, again each time the replica starts; None for Forewarn's own.
        size: Size of each cluster; None for the defaults of `Size`.
        jobs: Number of processes; None for one for each core.

    Returns:
        How often each kind of thing happened in all clusters, for example ``impact``, ``step`` or ``kill``.

    Raises:
        SimulationFailed: A cluster broke a property. The error describes the first seed that did, in a cluster that
            was made smaller if possible.
        ValueError: There is no seed or no process, or the system cannot fork, as on Windows.
        BrokenProcessPool: A worker process has died.
    """
    size = size or Size()
    chosen = list(range(1, seeds + 1)) if isinstance(seeds, int) else list(seeds)
    if not chosen:
        raise ValueError("expected at least one seed")
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs is {jobs}, expected at least 1")
    facts = Counter[str]()
    with tempfile.TemporaryDirectory(prefix="forewarn-simulation-") as folder:
        load_operator_token(Path(folder))
        run_world = partial(run_seed, folder=Path(folder), parts=Parts(handler=handler, make_actuator=make_actuator))
        jobs = min(jobs or os.cpu_count() or 1, len(chosen))
        for run in run_in_workers(lambda seed: run_world(seed, size).without_outcome(), chosen, jobs):
            if run.complaints:
                raise SimulationFailed(explain(run_world, run, size))
            facts.update(run.facts)
    return facts

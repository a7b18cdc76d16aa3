"""Simulation of a whole cluster in one process: replicas, hosts, VMs with agents, and everything that can fail.

All parts are Forewarn's own code, unless `simulate` is given a handler or an actuator. Time, network, database and
disks are simulated. Everything follows from one seed.
"""

from __future__ import annotations

from forewarn.testing.simulation.check import SimulationFailed, simulate
from forewarn.testing.simulation.handler_vm import Guest
from forewarn.testing.simulation.hypervisor import Hypervisor
from forewarn.testing.simulation.world import Size

__all__ = ["Guest", "Hypervisor", "SimulationFailed", "Size", "simulate"]

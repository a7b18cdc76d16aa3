"""Actuators, which carry maintenances out: one contract, and one file per implementation."""

from forewarn.actuators.contract import Actuator, Progress
from forewarn.actuators.simulate import Simulate

__all__ = ["Actuator", "Progress", "Simulate"]

"""What carries a maintenance out: one contract, one file for each implementation."""

from forewarn.actuators.contract import Actuator, Progress
from forewarn.actuators.simulate import Simulate

__all__ = ["Actuator", "Progress", "Simulate"]

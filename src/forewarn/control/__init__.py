"""Control API for operators and the CLI, one module for each resource."""

from forewarn.control.app import make_control_app
from forewarn.control.context import Context

__all__ = ["Context", "make_control_app"]

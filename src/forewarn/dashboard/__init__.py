"""The dashboard: what is about to happen to which machine, who has not answered yet, and why."""

from forewarn.dashboard.app import add_dashboard

__all__ = ["add_dashboard"]

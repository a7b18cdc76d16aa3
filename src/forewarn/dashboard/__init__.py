"""Dashboard: upcoming and current maintenance of each machine, missing approvals, and the causes."""

from forewarn.dashboard.app import add_dashboard

__all__ = ["add_dashboard"]

"""How many connections a process may hold open."""

from __future__ import annotations

import resource

__all__ = ["raise_descriptor_limit"]


def raise_descriptor_limit(wanted: int) -> None:
    """Ask for room for so many connections; the machine's hard limit stands."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

"""File descriptor limit of the process."""

from __future__ import annotations

import resource

__all__ = ["raise_descriptor_limit"]


def raise_descriptor_limit(wanted: int) -> None:
    """Raise the soft limit on open files to `wanted`, or to the hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

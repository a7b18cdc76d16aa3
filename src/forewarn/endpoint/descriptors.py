"""File descriptors of the process: its limit, and their division between VMs and the control address."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from forewarn.config.settings import Settings  # the metadata process needs only the limit

__all__ = ["fit_descriptors", "raise_descriptor_limit", "reserve_descriptors"]

_log = structlog.get_logger("forewarn.endpoint")

# For everything but connections of callers: database, logs, pipes, deliveries.
_SPARE = 512
_LOW = 4096


def reserve_descriptors(settings: Settings) -> Settings:
    """Raise the limit on open files as far as the settings need, and return the settings that fit into it."""
    raise_descriptor_limit(settings.connections_max + settings.control_connections_max + _SPARE)
    return fit_descriptors(settings, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def raise_descriptor_limit(wanted: int) -> None:
    """Raise the soft limit on open files to `wanted`, or to the hard limit if that is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def fit_descriptors(settings: Settings, descriptors: int) -> Settings:
    """Return the settings with control connections limited so that VMs keep their file descriptors.

    VMs keep all that their limit allows or, if there are too few, half of the available ones. A warning is logged if
    one of these limits was set explicitly, or if descriptors are scarce.

    Args:
        settings: Settings as given.
        descriptors: Maximum number of open descriptors of this process; negative for no limit.
    """
    wanted = settings.connections_max + settings.control_connections_max + _SPARE
    if descriptors < 0 or descriptors >= wanted:
        return settings
    # With very few descriptors, the whole spare would leave none for callers.
    free = max(descriptors - min(_SPARE, descriptors // 4), 2)
    control_max = min(settings.control_connections_max, max(free - settings.connections_max, free // 2))
    is_asked_for = bool(settings.model_fields_set & {"connections_max", "control_connections_max"})
    if is_asked_for or descriptors < _LOW:
        _log.warning(
            "too few file descriptors for these settings: raise the limit of open files (LimitNOFILE, ulimit -n)",
            descriptors=descriptors,
            wanted=wanted,
            connections_max=settings.connections_max,
            control_connections_max=control_max,
        )
    # At least a quarter stays for callers who have presented a token.
    unknown_max = min(settings.control_unknown_connections_max, max(control_max * 3 // 4, 1))
    lowered = {"control_connections_max": control_max, "control_unknown_connections_max": unknown_max}
    fitted = settings.model_copy(update=lowered)
    fitted.note_lowered(name for name, value in lowered.items() if value != getattr(settings, name))
    return fitted

"""Failure and recovery of a host, and the mark that it carries in between."""

from __future__ import annotations

from forewarn.core.fast_replace import replace
from forewarn.core.hints import SEE_HOSTS
from forewarn.core.maintenance.decision import Draft
from forewarn.core.model import EntryKind, Host
from forewarn.errors import Conflict, NotFound

__all__ = ["mark_host_failed", "mark_host_recovered"]


def mark_host_failed(draft: Draft, name: str, reason: str | None) -> None:
    """Mark a host as failed. A host that has failed already keeps the time of its first failure."""
    host = draft.hosts[name]
    failed_at = host.failed_at or draft.now
    draft.put(replace(host, failed_at=failed_at, failure_reason=reason or host.failure_reason))
    draft.record(EntryKind.HOST_FAILED, reason=_describe_host(name, reason))


def mark_host_recovered(draft: Draft, name: str, reason: str | None) -> Host:
    """Remove the mark.

    Raises:
        NotFound: There is no such host.
        Conflict: It has not failed.
    """
    host = draft.hosts.get(name)
    if host is None:
        raise NotFound(f"host {name!r} does not exist", hint=SEE_HOSTS, host=name)
    if host.failed_at is None:
        raise Conflict(f"host {name!r} has not failed", host=name)
    recovered = replace(host, failed_at=None, failure_reason=None)
    draft.put(recovered)
    draft.record(EntryKind.HOST_RECOVERED, reason=_describe_host(name, reason))
    return recovered


def _describe_host(name: str, reason: str | None) -> str:
    return f"host {name}: {reason}" if reason else f"host {name}"

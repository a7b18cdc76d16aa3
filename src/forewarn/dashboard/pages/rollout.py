"""Rollout pages: the list of rollouts, and the progress of one."""

from __future__ import annotations

from forewarn.dashboard.page import Look, Page
from forewarn.errors import NotFound
from forewarn.store.contract import Reader
from forewarn.wire.rollout import decode_rollout

__all__ = ["rollout", "rollouts"]

_ROWS = 50
_HOSTS = 500


def rollouts(reader: Reader, _look: Look) -> Page:
    """Make the list of the newest rollouts."""
    found = [decode_rollout(each.content) for each in reader.rollouts(limit=_ROWS)]
    return Page(template="rollouts.html", title="Rollouts", values={"rows": found})


def rollout(reader: Reader, look: Look) -> Page:
    """Make the page of one rollout.

    Raises:
        NotFound: No rollout has that id.
    """
    stored = reader.rollout(look.path["id"])
    if stored is None:
        msg = f"rollout {look.path['id']!r} does not exist"
        raise NotFound(msg, id=look.path["id"])
    found = decode_rollout(stored.content)
    over = sum(host.is_over for host in found.hosts)
    values = {"r": found, "over": over, "hosts": found.hosts[:_HOSTS], "more": max(len(found.hosts) - _HOSTS, 0)}
    return Page(template="rollout.html", title=f"Rollout {found.spec.name}", values=values)

"""Rollout pages: the list of rollouts, and the progress of one."""

from __future__ import annotations

from forewarn.dashboard.page import PageModel, PageView
from forewarn.errors import NotFound
from forewarn.store.contract import Reader
from forewarn.wire.rollout import decode_rollout

__all__ = ["make_rollout_list", "make_rollout_page"]

_ROWS = 50
_HOSTS = 500


def make_rollout_list(reader: Reader, _view: PageView) -> PageModel:
    """Make the list of the newest rollouts."""
    found = [decode_rollout(each.content) for each in reader.list_rollouts(limit=_ROWS)]
    return PageModel(template="rollouts.html", title="Rollouts", values={"rows": found})


def make_rollout_page(reader: Reader, view: PageView) -> PageModel:
    """Make the page of one rollout.

    Raises:
        NotFound: No rollout has that id.
    """
    stored = reader.get_rollout(view.path_params["id"])
    if stored is None:
        raise NotFound(f"rollout {view.path_params['id']!r} does not exist", id=view.path_params["id"])
    found = decode_rollout(stored.content)
    over = sum(host.is_over for host in found.hosts)
    values = {"r": found, "over": over, "hosts": found.hosts[:_HOSTS], "more": max(len(found.hosts) - _HOSTS, 0)}
    return PageModel(template="rollout.html", title=f"Rollout {found.spec.name}", values=values)

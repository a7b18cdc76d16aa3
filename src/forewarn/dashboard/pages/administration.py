"""Administration page: an index of the pages for the service and its access."""

from __future__ import annotations

from dataclasses import dataclass

from forewarn.dashboard.page import PageModel, PageView
from forewarn.store.contract import Reader

__all__ = ["SECTIONS", "Section", "make_administration_page"]


@dataclass(frozen=True, slots=True)
class Section:
    """A page of the administration: its name, path, and what it is for."""

    name: str
    path: str
    description: str


SECTIONS = (
    Section(
        "Tokens",
        "/administration/tokens",
        "Tokens of people and programs: their roles, and until when they are valid. Create and revoke tokens.",
    ),
    Section(
        "Subscriptions",
        "/administration/subscriptions",
        "Receivers of notifications, and what could not be delivered to them. Test and pause them, or send again.",
    ),
    Section(
        "Settings",
        "/administration/settings",
        "Every setting in force: its value, where the value comes from, and what it means.",
    ),
    Section(
        "Replicas and hosts",
        "/administration/replicas",
        "This replica, the leader, and the endpoints on hosts that are connected here, with their versions.",
    ),
    Section(
        "Access",
        "/administration/access",
        "Calls that were refused lately, and the callers with their use of the control API and the limits they met.",
    ),
)
"""Pages of the administration, in the order of the index; a caller sees those that its role permits."""


def make_administration_page(_reader: Reader, _view: PageView) -> PageModel:
    """Make the index; the sections that the caller may see are values of every page."""
    return PageModel(template="administration.html", title="Administration", is_live=False)

"""Facts about the documents that replicas and host endpoints show, even if no VM asks for them."""

from __future__ import annotations

from forewarn.core.maintenance.decision import AudienceDocument
from forewarn.core.model import MaintenanceState
from forewarn.publishing.feed import Feed
from forewarn.testing.simulation.machine import Machine

__all__ = ["note_publications"]


def note_publications(machine: Machine, feed: Feed) -> None:
    """Note each document that a process begins to show.

    Args:
        machine: Machine that the process runs on.
        feed: Feed of the process.
    """
    versions: dict[str, tuple[int, int]] = {}

    def note(document: AudienceDocument) -> None:
        key = document.audience.key
        # An older document is published too, but not shown.
        shown = feed.find_document(key)
        if shown is None or shown.audience.enabled_at is None:
            return
        version = shown.audience.epoch, shown.audience.incarnation
        if shown == document and versions.get(key) != version:
            versions[key] = version
            events = {event.id: [_get_status(m.state), sorted(event.resources)] for event, m in shown.items}
            machine.note("published", audience=key, version=list(version), events=events)

    def note_all() -> None:
        for document in feed.all_documents():
            note(document)

    feed.listeners.append(note)
    feed.begin_listeners.append(note_all)


def _get_status(state: MaintenanceState) -> str:
    return "Started" if state is MaintenanceState.STARTED else "Scheduled"

"""Audiences that see an empty document and of which no VM asked this process for it.

After a start these are nearly all of a large inventory. Each costs an entry here instead of a channel, which has
replies and waiters.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from forewarn.core.model import Audience

__all__ = ["IdleAudiences"]

_NEVER = datetime.min.replace(tzinfo=UTC)


class IdleAudiences:
    """Idle audiences by key, and when they last asked another process.

    Attributes:
        enabled_count: Number of them that are enabled.
    """

    def __init__(self) -> None:
        self._audiences: dict[str, Audience] = {}
        self._polls: dict[str, datetime] = {}
        self.enabled_count = 0

    @classmethod
    def of_enabled(cls, audiences: Iterable[Audience]) -> IdleAudiences:
        """Return these audiences, all enabled; for a million of them, on another thread than the event loop's."""
        made = cls()
        made._audiences = {audience.key: audience for audience in audiences}
        made.enabled_count = len(made._audiences)
        return made

    def __len__(self) -> int:
        """Return the number of audiences."""
        return len(self._audiences)

    def __contains__(self, key: object) -> bool:
        return key in self._audiences

    def __iter__(self) -> Iterator[Audience]:
        return iter(self._audiences.values())

    def get(self, key: str) -> Audience | None:
        """Return the audience; None if it is not idle or not known. Safe on any thread."""
        return self._audiences.get(key)

    def put(self, audience: Audience) -> None:
        """Add or replace an audience; an older state of it is ignored."""
        before = self._audiences.get(audience.key)
        if before is not None:
            # Its document must never go back; see `Channel.show_document`.
            if (audience.epoch, audience.incarnation) < (before.epoch, before.incarnation):
                return
            self.enabled_count -= before.enabled_at is not None
        self._audiences[audience.key] = audience
        self.enabled_count += audience.enabled_at is not None

    def pop(self, key: str) -> tuple[Audience, datetime | None] | None:
        """Remove an audience, and return it with the time of its last request; None if it is not here."""
        audience = self._audiences.pop(key, None)
        if audience is None:
            return None
        self.enabled_count -= audience.enabled_at is not None
        return audience, self._polls.pop(key, None)

    def disable_others(self, *kept: Container[str]) -> list[Audience]:
        """Disable every enabled audience whose key is in none of `kept`, and return these audiences as they are now."""
        enabled = (each for each in self if each.enabled_at is not None)
        gone = [each for each in enabled if not any(each.key in keys for keys in kept)]
        disabled = [Audience(key=each.key, epoch=each.epoch, incarnation=each.incarnation) for each in gone]
        for audience in disabled:
            self.put(audience)
        return disabled

    def merge_polls(self, moments: Mapping[str, datetime]) -> None:
        """Take over later times of requests, of the audiences that are here."""
        for key, moment in moments.items():
            if key in self._audiences and moment > self._polls.get(key, _NEVER):
                self._polls[key] = moment

    def last_polled_at(self, key: str) -> datetime | None:
        """Return the time of the audience's last request; None if unknown."""
        return self._polls.get(key)

    def iter_polls(self) -> Iterator[tuple[str, datetime]]:
        """Yield the time of each enabled audience's last request; audiences may come and go meanwhile."""
        for key, moment in list(self._polls.items()):
            audience = self._audiences.get(key)
            if audience is not None and audience.enabled_at is not None:
                yield key, moment

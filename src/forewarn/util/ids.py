"""Where ids come from: random ones for a service, counted ones where every run must be the same."""

from __future__ import annotations

import random
import secrets
import uuid

__all__ = ["RandomIds", "SeededIds"]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 10


class RandomIds:
    """Ids that nobody can guess."""

    def __call__(self, kind: str) -> str:
        """An upper-case GUID for an event (R30), a short id for anything else."""
        if kind == "event":
            return str(uuid.uuid4()).upper()
        return "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))


class SeededIds:
    """The same ids in every run with the same seed: for virtual time and tests.

    Args:
        seed: Any number.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - meant to be foreseeable

    def __call__(self, kind: str) -> str:
        """As `RandomIds` makes them."""
        if kind == "event":
            return str(uuid.UUID(int=self._random.getrandbits(128), version=4)).upper()
        return "".join(self._random.choice(_ALPHABET) for _ in range(_LENGTH))

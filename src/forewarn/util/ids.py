"""Id generators: random for a service, seeded where runs must be reproducible."""

from __future__ import annotations

import random
import uuid

__all__ = ["SeededIds", "make_random_id"]

# Without i, l, o and u, which are easily misread.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 10


def make_random_id(kind: str) -> str:
    """Return an id that cannot be guessed: an upper-case GUID for an event (R30), a short id for anything else."""
    return _make_id(kind, random.SystemRandom())


class SeededIds:
    """Generator of the same ids in every run with the same seed, for virtual time and tests.

    Args:
        seed: Seed of the random number generator.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - deterministic on purpose

    def __call__(self, kind: str) -> str:
        """Return an id in the format of `make_random_id`."""
        return _make_id(kind, self._random)


def _make_id(kind: str, source: random.Random) -> str:
    if kind == "event":
        return str(uuid.UUID(int=source.getrandbits(128), version=4)).upper()
    return "".join(source.choice(_ALPHABET) for _ in range(_LENGTH))

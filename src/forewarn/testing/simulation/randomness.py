"""One source of randomness and of time for everything that runs in a simulation, libraries included."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

__all__ = ["seeded_randomness", "virtual_time"]


@contextmanager
def seeded_randomness(seed: int) -> Iterator[None]:
    """Draw all randomness of this process from a seed while the block runs.

    Ids, tokens, jitter and shuffles of the code under test come from `os.urandom` or from unseeded generators. Each of
    them is replaced, so that a run can be repeated exactly.
    """
    source = random.Random(f"randomness {seed}")  # noqa: S311 - for simulations only

    class SeededRandom(random.Random):
        def __init__(self, x: Any = None) -> None:  # noqa: ANN401 - the signature is the library's
            super().__init__(source.getrandbits(64) if x is None else x)

    shared = cast("Any", random)._inst  # noqa: SLF001 - the generator behind `random.random` and the like
    state = shared.getstate()
    before = (os.urandom, random.Random, cast("Any", random)._urandom)  # noqa: SLF001 - as above
    os.urandom = cast("Any", random)._urandom = source.randbytes  # noqa: SLF001 - as above
    random.Random = SeededRandom  # type: ignore[misc] # a subclass
    shared.seed(source.getrandbits(64))
    try:
        yield
    finally:
        os.urandom, random.Random, cast("Any", random)._urandom = before  # type: ignore[misc] # noqa: SLF001 - as above
        shared.setstate(state)


@contextmanager
def virtual_time(read_s: Callable[[], float], start_s: float) -> Iterator[None]:
    """Have the functions of `time` return virtual time while the block runs: HTTP libraries read them themselves.

    Args:
        read_s: Returns the virtual seconds since the start.
        start_s: Time of the start, in seconds since 1970.
    """
    names = ("monotonic", "perf_counter", "time")
    before = {name: getattr(time, name) for name in names}
    for name, function in zip(names, (read_s, read_s, lambda: start_s + read_s()), strict=True):
        setattr(time, name, function)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(time, name, function)

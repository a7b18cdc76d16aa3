"""Assignment of the sockets of metadata processes that do not answer to others that do."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

__all__ = ["assign_sockets"]


def assign_sockets(processes: int, working: AbstractSet[int]) -> dict[int, tuple[int, ...]]:
    """Return, for each working process, the other processes from whose sockets it also accepts connections.

    Args:
        processes: Number of processes.
        working: Numbers of the processes that answer VMs.
    """
    assigned: dict[int, list[int]] = {number: [] for number in sorted(working)}
    absent = [number for number in range(processes) if number not in working]
    if assigned:
        takers = list(assigned)
        for at, number in enumerate(absent):
            assigned[takers[at % len(takers)]].append(number)
    return {number: tuple(others) for number, others in assigned.items()}

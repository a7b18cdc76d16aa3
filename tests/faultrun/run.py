"""One run: everything begins, goes wrong for a while, is healed, comes to rest, and is judged."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from forewarn.clock import uptime_s
from tests.faultrun.chaos import Chaos
from tests.faultrun.checker import check, endpoints_show_the_truth
from tests.faultrun.clients import Client, ask_all
from tests.faultrun.operators import Operator
from tests.faultrun.records import CLOSING, Account
from tests.faultrun.world import World, read_runs, world

__all__ = ["Report", "run"]

_OPERATORS = 3
_ENABLE_S = 30.0
_REST_S = 90.0
_AGREE_S = 25.0
"""An endpoint that found no replica asks again within ten seconds, and its turn of replicas is three."""

_ACTIVE = frozenset({"queued", "scheduled", "started"})


@dataclass(slots=True, kw_only=True)
class Report:
    """What came of a run.

    Attributes:
        faults: How often each kind of fault happened.
        figures: How much the clients and operators did.
        violations: What the checker found.
        account: All records.
        logs: Of the processes, by name.
        lines: What happened when.
    """

    seed: int
    faults: Counter[str]
    figures: dict[str, int]
    violations: list[str]
    account: Account
    logs: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)


async def run(
    seed: int,
    seconds: float = 20.0,
    host_count: int = 4,
    vm_count: int = 40,
    tell: Callable[[str], None] = lambda _line: None,
) -> Report:
    """Run once.

    Args:
        seed: Faults, commands and approvals are drawn from it. When the processes come to which point is not.
        seconds: How long things go wrong.
        tell: Called with a line about each thing that goes wrong.
    """
    luck = random.Random(seed)
    lines: list[str] = []
    began_s = uptime_s()

    def note(line: str) -> None:
        lines.append(f"{uptime_s() - began_s:6.2f} {line}")
        tell(lines[-1])

    async with world(host_count, vm_count) as made:
        note("everything has begun")
        statuses: Counter[int] = Counter()
        clients = [Client(made, name, random.Random(luck.random()), statuses) for name in made.places]
        operators = [Operator(made, random.Random(luck.random()), number) for number in range(_OPERATORS)]
        chaos = Chaos(made, random.Random(luck.random()), note)
        polling = [asyncio.create_task(client.run()) for client in clients]
        try:
            await _wait(lambda: all(client.sights for client in clients), _ENABLE_S)
            await _go_wrong(operators, chaos, seconds)
            note("everything is healed")
            await _come_to_rest(made, clients)
            note("everything is at rest")
        finally:
            for task in polling:
                task.cancel()
            await asyncio.gather(*polling, return_exceptions=True)
        account = await _account(made, clients, operators, statuses)
        note("everybody agrees, or has had the time to")
        return Report(
            seed=seed,
            faults=chaos.counts,
            figures=_figures(account),
            violations=check(account),
            account=account,
            logs={part.name: part.log for part in made.parts},
            lines=lines,
        )


async def _go_wrong(operators: list[Operator], chaos: Chaos, seconds: float) -> None:
    """Until the time is over, the last fault is healed and the last command is answered."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    operating = [asyncio.create_task(operator.run(stop)) for operator in operators]
    await chaos.run(stop)
    _, late = await asyncio.wait(operating, timeout=_REST_S)
    for task in late:
        task.cancel()
    for result in await asyncio.gather(*operating, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def _come_to_rest(made: World, clients: list[Client]) -> None:
    """Until every maintenance is over and every approval answered, or the time for it is."""
    deadline_s = uptime_s() + _REST_S
    while uptime_s() < deadline_s:
        async with made.operator(0) as client:
            active = await _pages(client, "/v1/maintenance", state=sorted(_ACTIVE))
        if not active and not any(client.has_open_votes for client in clients):
            return
        await asyncio.sleep(0.3)


async def _account(made: World, clients: list[Client], operators: list[Operator], statuses: Counter[int]) -> Account:
    account = Account(
        places=made.places,
        sights=[sight for client in clients for sight in client.sights],
        votes=[vote for client in clients for vote in client.votes.values()],
        commands=[command for operator in operators for command in operator.commands],
        statuses=dict(statuses),
    )
    await _schedule_last(made)
    deadline_s = uptime_s() + _AGREE_S
    while True:
        async with made.operator(1) as client:
            account.maintenances = {m["id"]: m for m in await _pages(client, "/v1/maintenance")}
            account.entries = await _pages(client, "/v1/ledger")
            account.incarnations = {vm["name"]: vm["incarnation"] for vm in await _pages(client, "/v1/vms")}
        account.runs = read_runs(made.folder, account.entries)
        account.showings = await ask_all(made)
        if not list(endpoints_show_the_truth(account)) or uptime_s() > deadline_s:
            return account
        await asyncio.sleep(0.5)


async def _schedule_last(made: World) -> None:
    """Something to be shown at the end, by every scope that a host has part in."""
    vms = [name for name, place in made.places.items() if place.host == made.hosts[0]]
    body = {"vms": vms, "type": "Freeze", "notice_s": 900, "force": True, "reason": CLOSING}
    async with made.operator(2) as client:
        answer = await client.post("/v1/maintenance", json=body, timeout=20)
        answer.raise_for_status()


async def _pages(client: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a query
    """All items of a list."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        wanted = {"limit": 1000, **query} | ({"after": after} if after else {})
        page = (await client.get(path, params=wanted, timeout=20)).raise_for_status().json()
        found += page["items"]
        after = page["next"]
        if after is None:
            return found


def _figures(account: Account) -> dict[str, int]:
    tries = [each for vote in account.votes for each in vote.tries]
    return {
        "commands": len(account.commands),
        "commands acknowledged": sum(command.is_acknowledged for command in account.commands),
        "commands repeated": sum(len(command.tries) - 1 for command in account.commands),
        "maintenances": len(account.maintenances),
        "started": sum(m["started_at"] is not None for m in account.maintenances.values()),
        "carried out": len(account.runs),
        "approvals": len(account.votes),
        "approvals without an answer": sum(each.status is None for each in tries),
        "approvals refused with 503": sum(each.status == 503 for each in tries),
        "documents seen": len(account.sights),
        "answers to GET": sum(account.statuses.values()),
    }


async def _wait(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = uptime_s() + timeout_s
    while not condition():
        if uptime_s() > deadline_s:
            msg = "not every VM was shown a document in time, before anything went wrong"
            raise RuntimeError(msg)
        await asyncio.sleep(0.05)


def keep(report: Report, folder: Path) -> None:
    """Write what is needed to find out why into a folder: the logs, and what happened when."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in report.logs.items():
        (folder / f"{name}.log").write_text(text)
    (folder / "run.txt").write_text("\n".join([*report.lines, *report.violations, ""]))
    (folder / "sights.txt").write_text(
        "".join(f"{s.first_at} {s.last_at} {s.vm} {s.body.decode()}\n" for s in report.account.sights)
    )
    (folder / "ledger.txt").write_text("".join(f"{entry}\n" for entry in report.account.entries))

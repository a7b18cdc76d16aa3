"""One run: everything begins, goes wrong for a while, is healed, comes to rest, and is judged."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from forewarn.clock import uptime_s
from tests.faultrun.actuator import read_runs
from tests.faultrun.agents import list_undone
from tests.faultrun.chaos import Chaos
from tests.faultrun.checker import check, endpoints_show_the_truth, strangers_refused
from tests.faultrun.operators import Operator, Steward
from tests.faultrun.records import CLOSING, Account
from tests.faultrun.world import Base, World, world

__all__ = ["Report", "run"]

_OPERATORS = 4
_ENABLE_S = 120.0
_REST_S = 90.0
_AGREE_S = 60.0
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
        logs: Of the processes, and the actuator's record, by name.
        lines: What happened when.
        took_s: How long all of it took.
    """

    seed: int
    faults: Counter[str]
    figures: dict[str, int]
    violations: list[str]
    account: Account
    logs: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    took_s: float = 0.0


async def run(
    shared: Base,
    seed: int,
    seconds: float = 10.0,
    host_count: int = 4,
    vm_count: int = 40,
    *,
    namespaces: bool = False,
    tell: Callable[[str], None] = lambda _line: None,
) -> Report:
    """Run once.

    Args:
        shared: What runs share.
        seed: Faults, commands and approvals are drawn from it. When the processes come to which point is not.
        seconds: How long things go wrong.
        namespaces: Whether each host is a network namespace, for which it takes root.
        tell: Called with a line about each thing that goes wrong.
    """
    rng = random.Random(seed)
    lines: list[str] = []
    began_s = uptime_s()

    def note(line: str) -> None:
        lines.append(f"{uptime_s() - began_s:6.2f} {line}")
        tell(lines[-1])

    async with world(shared, host_count, vm_count, namespaces=namespaces) as made:
        note("everything has begun")
        operators = [Operator(made, random.Random(rng.random()), number) for number in range(_OPERATORS)]
        steward = Steward(made, random.Random(rng.random()))
        chaos = Chaos(made, random.Random(rng.random()), note)
        await asyncio.gather(
            *(
                made.admit(vm, rng.getrandbits(32), [], [])
                for vm in made.fleet.names
                if vm not in made.fleet.with_agents
            )
        )
        await _wait_seen(made)
        note("every VM has seen a document")
        await _go_wrong([*operators, steward], chaos, seconds)
        note("everything is healed")
        await _come_to_rest(made)
        note("everything is at rest")
        account = await _account(made, operators)
        account.readings = chaos.readings
        note("everybody agrees, or has had the time to")
        return Report(
            seed=seed,
            faults=chaos.counts,
            figures=_figures(account)
            | {
                "inventories": steward.taken,
                "inventories refused": steward.refused,
                "inventories put off": steward.put_off,
            },
            violations=check(account),
            account=account,
            logs={file.name: file.read_text() for file in made.folder.glob("*.log")}
            | {"actuator.record": (made.folder / "actuator.record").read_text()},
            lines=lines,
            took_s=uptime_s() - began_s,
        )


async def _go_wrong(actors: Sequence[Operator | Steward], chaos: Chaos, seconds: float) -> None:
    """Until the time is over, the last fault is healed and the last command is answered."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    acting = [asyncio.create_task(actor.run(stop)) for actor in actors]
    await chaos.run(stop)
    _, late = await asyncio.wait(acting, timeout=_REST_S)
    for task in late:
        task.cancel()
    for result in await asyncio.gather(*acting, return_exceptions=True):
        if isinstance(result, Exception):
            raise result


async def _come_to_rest(made: World) -> None:
    """Until every maintenance is over and every approval answered, or the time for it is."""
    deadline_s = uptime_s() + _REST_S
    while uptime_s() < deadline_s:
        async with made.operator(0) as client:
            active = await _pages(client, "/v1/maintenance", state=sorted(_ACTIVE))
        is_voting = any(open_count for _, open_count in await _states(made))
        if not active and not is_voting and not list_undone(made.steps):
            return
        await asyncio.sleep(0.2)


async def _account(made: World, operators: list[Operator]) -> Account:
    fleet = made.fleet
    account = Account(
        places=fleet.places,
        passing=fleet.passing,
        gone=fleet.gone,
        wanted={vm: fleet.places[vm].host for vm in fleet.names},
        commands=[command for operator in operators for command in operator.commands],
    )
    statuses: Counter[int] = Counter()
    for host, crowd in made.crowds.items():
        sights, votes, counted = await crowd.end(made.folder / f"{host}.records")
        account.sights += sights
        account.votes += votes
        statuses += counted
    account.statuses = dict(statuses)
    # Before the last maintenance, for which they would prepare again.
    for agent in made.agents:
        agent.part.kill()
        account.agent_starts[agent.vm] = agent.part.starts
    account.steps = made.steps
    await _schedule_last(made)
    deadline_s = uptime_s() + _AGREE_S
    while True:
        async with made.operator(1) as client:
            account.maintenances = {m["id"]: m for m in await _pages(client, "/v1/maintenance")}
            account.entries = await _pages(client, "/v1/audit-log")
            vms = await _pages(client, "/v1/vms")
        account.incarnations = {vm["name"]: vm["incarnation"] for vm in vms}
        account.declared = {vm["name"]: vm["host"] for vm in vms}
        account.showings = await made.show_all()
        account.strangers = await made.show_strangers()
        if not [*endpoints_show_the_truth(account), *strangers_refused(account)] or uptime_s() > deadline_s:
            break
        await asyncio.sleep(0.3)
    account.runs = read_runs(made.folder)
    return account


async def _schedule_last(made: World) -> None:
    """Something to be shown at the end, by every scope that a host has part in."""
    vms = [vm for vm in made.fleet.names if made.fleet.places[vm].host == made.hosts[0]]
    body = {"vms": vms, "type": "Freeze", "notice_s": 900, "force": True, "reason": CLOSING}
    async with made.operator(2) as client:
        answer = await client.post("/v1/maintenance", json=body)
        answer.raise_for_status()


async def _states(made: World) -> list[tuple[bool, int]]:
    """Of the VMs of each host."""
    return await asyncio.gather(*(crowd.state() for crowd in made.crowds.values()))


async def _wait_seen(made: World) -> None:
    """Until every VM was shown a document: from then on it is told of everything."""
    deadline_s = uptime_s() + _ENABLE_S
    while not all(have_seen for have_seen, _ in await _states(made)):
        if uptime_s() > deadline_s:
            raise RuntimeError("not every VM was shown a document in time, before anything went wrong")
        await asyncio.sleep(0.05)


async def _pages(client: httpx.AsyncClient, path: str, **query: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - a query
    """All items of a list."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        wanted = {"limit": 1000, **query} | ({"after": after} if after else {})
        page = (await client.get(path, params=wanted)).raise_for_status().json()
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
        "preparations of agents": sum(step.name == "prepare" for step in account.steps),
        "documents seen": len(account.sights),
        "answers to GET": sum(account.statuses.values()),
    }


def keep(report: Report, folder: Path) -> None:
    """Write what is needed to find out why into a folder: the logs, and what happened when."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in report.logs.items():
        (folder / name).write_text(text)
    (folder / "run.txt").write_text("\n".join([*report.lines, *report.violations, ""]))
    (folder / "sights.txt").write_text(
        "".join(f"{s.first_at} {s.last_at} {s.vm} {s.version} {s.body.decode()}\n" for s in report.account.sights)
    )
    (folder / "audit-log.txt").write_text("".join(f"{entry}\n" for entry in report.account.entries))

"""The VMs of the simulation: alone and in groups, in every mode of `together`, with rules of every kind."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from forewarn.agent.agreement import TogetherSettings
from forewarn.agent.codec import Duration
from forewarn.agent.configuration import Configuration
from forewarn.agent.handlers import FileHandler
from forewarn.agent.rule import Hook, Rule
from forewarn.client import Pace
from forewarn.core.inventory import Inventory
from forewarn.core.model import Scope, VirtualMachine
from tests.support.simulated import inventory
from tests.unit.core.builders import availability_set, vm

__all__ = ["Declared", "declare"]

Mode: TypeAlias = Literal["alone", "each", "leader", "pair", "all-prepared"]
_MODES: list[Mode] = ["alone", "alone", "each", "leader", "leader", "pair", "all-prepared", "all-prepared"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """One VM with its agent's settings.

    Attributes:
        peers: Names of the other VMs that it talks to.
        fallback_name: What it takes itself for while nobody says its name.
    """

    vm: VirtualMachine
    configuration: Configuration
    pace: Pace
    peers: tuple[str, ...]
    fallback_name: str


def declare(rng: random.Random, count: int) -> tuple[Inventory, list[Declared]]:
    """That many VMs, or a few more."""
    made: list[Declared] = []
    scopes: list[Scope] = []
    while len(made) < count:
        number = len(scopes)
        mode = rng.choice(_MODES)
        if mode == "alone":
            machines = [_placed(f"solo-{len(made)}", len(made), host=f"host-s{len(made) // 2}")]
        else:
            scopes.append(availability_set(f"set-{number}"))
            size = 2 if mode == "pair" else rng.choice([2, 3, 4])
            machines = [
                _placed(
                    f"set-{number}-{n}",
                    len(made) + n,
                    # Most are hit together; some only see what happens to the others.
                    host=f"host-{number}" if rng.random() < 0.85 else f"host-{number}-{n}",
                    scope=f"set-{number}",
                )
                for n in range(size)
            ]
        made += _configure(rng, mode, machines)
    return inventory(*(each.vm for each in made), scopes=scopes), made


def _placed(name: str, number: int, *, host: str, scope: str | None = None) -> VirtualMachine:
    address = f"10.{number // 60000}.{number // 250 % 250}.{number % 250 + 1}"
    return replace(vm(name, host=host, scope=scope), addresses=(address,))


def _configure(rng: random.Random, mode: Mode, machines: list[VirtualMachine]) -> list[Declared]:
    rules = _rules(rng)
    names = [machine.name for machine in machines]
    margin = Duration(seconds=rng.choice([5, 5, 30, 60]))
    declared = []
    for number, machine in enumerate(machines):
        learns_name = rng.random() < 0.2
        configuration = Configuration(
            name="" if learns_name else machine.name,
            rule=rules,
            margin=margin,
            together=_together(mode, number),
            timezone="UTC",
        )
        pace = Pace(
            # Long waits, and few polls outright: each request costs real time.
            wait_s=rng.choice([0, 60, 100, 100, 150, 250, 250, 250]),
            poll_interval_s=rng.choice([7, 10]),
            refresh_s=rng.choice([30, 200]),
        )
        declared.append(
            Declared(
                vm=machine,
                configuration=configuration,
                pace=pace,
                peers=tuple(name for name in names if name != machine.name) if mode == "all-prepared" else (),
                fallback_name=rng.choice([machine.name, f"{machine.host}-of-old"]),
            )
        )
    return declared


def _together(mode: Mode, number: int) -> TogetherSettings:
    if mode == "alone":
        return TogetherSettings()
    if mode == "pair":
        return TogetherSettings(mode="primary" if number == 0 else "secondary")
    if mode == "all-prepared":
        return TogetherSettings(
            mode=mode, listen="127.0.0.1:9470", peers={"others": "http://10.0.0.1:9470"}, secret_file="secret"
        )
    return TogetherSettings(mode=mode)


def _rules(rng: random.Random) -> tuple[Rule, ...]:
    hook = (Hook(shell="something"),)  # noqa: S604 - it stands in for a hook of the configuration, and is never run
    plain: dict[str, Any] = {"prepare": hook, "recover": hook}
    kinds: list[dict[str, Any]] = [
        plain,
        plain,
        plain | {"handlers": (FileHandler(touch="/drained"),)},
        plain | {"handlers": (FileHandler(touch="/drained"),), "started": hook, "canceled": hook},
        {"handlers": (FileHandler(touch="/drained"),)},
        plain | {"on_failure": "approve"},
        plain | {"on_failure": "approve", "before_approval": hook},
        plain | {"before_approval": hook, "started": hook},
        plain | {"interrupted": "mark"},
        plain | {"approve": "by-hand"},
        plain | {"approve": "never"},
        {"approve": "at-once", "recover": hook},
        {"approve": "at-once", "started": hook},
    ]
    more = {"alert": hook} if rng.random() < 0.5 else {}
    rules = [Rule(name="most", **(rng.choice(kinds) | more))]
    if rng.random() < 0.3:
        rules.insert(0, Rule(name="freezes", types=("Freeze",), **rng.choice(kinds)))
    if rng.random() < 0.2:
        rules.append(Rule(name="of others", affects="others", approve="never", prepare=hook, recover=hook))
    return tuple(rules)

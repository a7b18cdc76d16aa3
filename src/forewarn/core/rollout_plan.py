"""From a specification to batches: what a rollout would do, and when at the latest, without doing any of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.causes import CAUSES, MINIMUM_NOTICE, Cause
from forewarn.core.decision import Rules
from forewarn.core.inventory import Inventory
from forewarn.core.model import EventType, Source
from forewarn.core.rollout import HOSTS_MAX, LENGTH_MAX, Order, RolloutSpec
from forewarn.core.rollout_domains import FAULT_DOMAIN, Occupied, Survey
from forewarn.errors import BelowMinimumNotice, Conflict, InvalidRequest, LimitExceeded, NotFound
from forewarn.span import format_span

__all__ = ["Batch", "Plan", "check_spec", "pause_after", "plan"]

_TYPES = frozenset({EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY})
"""What a host can be maintained with: its VMs are there afterwards."""

_NUMBER = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Hosts that have their turn before the next batch begins.

    Attributes:
        number: From 0.
        hosts: In their order.
        rounds: The same hosts, those of a round in flight together, as far as can be foreseen.
        vms: How many VMs run on them now.
        begins_at: Estimate.
        ends_at: Estimate: when the last one is over, without the pause that follows.
    """

    number: int
    is_canary: bool
    hosts: tuple[str, ...]
    rounds: tuple[tuple[str, ...], ...]
    vms: int
    begins_at: datetime
    ends_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a rollout would do.

    The estimate supposes that nobody approves before NotBefore, that impact takes as long as announced and the
    maintenance no longer than that, and that nothing fails.

    Attributes:
        is_at_least: It takes longer than estimated: the duration is unknown and counted as nothing, or fault domains
            are not kept apart here, and the VMs wait for each other in the queue (R61).
    """

    spec: RolloutSpec
    batches: tuple[Batch, ...]
    begins_at: datetime
    ends_at: datetime
    is_at_least: bool


def plan(spec: RolloutSpec, inventory: Inventory, now: datetime, *, rules: Rules | None = None) -> Plan:
    """Make batches, and estimate when each begins and ends.

    Args:
        spec: What is to be done.
        inventory: The hosts that are there and the VMs on them.
        now: When it would begin.
        rules: The limits on notice; None: the default ones.

    Raises:
        InvalidRequest: The specification contradicts itself or the rules of maintenance.
        BelowMinimumNotice: Less notice than the type promises.
        NotFound: A host does not exist.
        Conflict: A host by itself lies in two domains of a scope of which only one may be in flight.
        LimitExceeded: More hosts, more notice or a longer time than is allowed.
    """
    check_spec(spec)
    _refuse_long_notice(spec, rules or Rules())
    names = _names(spec, inventory)
    seen = Survey(inventory, spec, names)
    _refuse_split(spec, seen, names)
    takes, is_at_least = _takes(spec)
    batches: list[Batch] = []
    begins_at = ends_at = now
    for number, hosts in enumerate(_batches(spec, seen, names)):
        if batches:
            begins_at = _later(ends_at, pause_after(spec, number - 1), now)
        rounds = _rounds(spec, seen, hosts)
        ends_at = _later(begins_at, takes * len(rounds), now)
        batches.append(
            Batch(
                number=number,
                is_canary=number < len(spec.canary),
                hosts=tuple(hosts),
                rounds=rounds,
                vms=sum(seen.count(host) for host in hosts),
                begins_at=begins_at,
                ends_at=ends_at,
            )
        )
    return Plan(spec=spec, batches=tuple(batches), begins_at=now, ends_at=ends_at, is_at_least=is_at_least)


def pause_after(spec: RolloutSpec, batch: int) -> timedelta:
    """The pause that follows a batch, counted from 0."""
    return spec.canary_pause if batch == len(spec.canary) - 1 else spec.pause


# What can be said without an inventory


def check_spec(spec: RolloutSpec) -> None:
    """Refuse a specification that contradicts itself. ``details["at"]`` of the error is the place in its file.

    Raises:
        InvalidRequest: It does.
        BelowMinimumNotice: Less notice than the type promises.
        LimitExceeded: Too many hosts.
    """
    if spec.type is not None and spec.type not in _TYPES:
        msg = f"a rollout cannot be a {spec.type}: expected one of {', '.join(sorted(_TYPES))}"
        raise InvalidRequest(msg, at=["type"])
    cause = CAUSES.get(spec.cause)
    if cause is None:
        msg = f"unknown cause {spec.cause!r}: expected one of {', '.join(_CAUSES)}"
        raise InvalidRequest(msg, at=["cause"])
    _check_operation(spec, cause)
    _refuse_repeated("hosts", spec.hosts or (), ["hosts"])
    _refuse_repeated("canary", spec.canary, ["canary", "hosts"])
    if spec.hosts is not None:
        _check_hosts(spec.hosts, spec.canary)
    if spec.hosts_at_once > spec.batch_size:
        msg = f"{spec.hosts_at_once} hosts at once are more than the {spec.batch_size} of a batch (batch_size)"
        raise InvalidRequest(msg, at=["hosts_at_once"])
    takes, _ = _takes(spec)
    if spec.deadline is not None and spec.deadline <= takes:
        words = f"notice and duration take {format_span(takes)}"
        msg = f"no host can be over within {format_span(spec.deadline)}: {words}"
        raise InvalidRequest(msg, at=["deadline"])


def _check_operation(spec: RolloutSpec, cause: Cause) -> None:
    if cause.name not in _CAUSES:
        msg = f"a rollout cannot be a {cause.name}: expected one of {', '.join(_CAUSES)}"
        raise InvalidRequest(msg, at=["cause"])
    event_type = spec.type or cause.type
    allowed = {cause.type, *cause.types}
    if event_type not in allowed:
        msg = f"cause {cause.name} means {' or '.join(sorted(allowed))}, not {event_type}"
        raise InvalidRequest(msg, at=["type"])
    least = MINIMUM_NOTICE[event_type]
    if spec.notice is not None and spec.notice < least:
        msg = f"notice of {format_span(spec.notice)}: a {event_type} needs at least {format_span(least)}"
        raise BelowMinimumNotice(msg, at=["notice"], minimum_s=int(least.total_seconds()))


def _is_for_rollouts(cause: Cause) -> bool:
    """Whether the platform can plan it, and VMs are there afterwards."""
    return cause.source is Source.PLATFORM and not cause.is_immediate and cause.type in _TYPES


_CAUSES = tuple(name for name, cause in CAUSES.items() if _is_for_rollouts(cause))


def _refuse_repeated(word: str, names: Iterable[str], place: list[str]) -> None:
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            msg = f"{word}: host {name!r} stands twice"
            raise InvalidRequest(msg, at=[*place, number], host=name)
        seen.add(name)


def _check_hosts(hosts: tuple[str, ...], canary: tuple[str, ...]) -> None:
    if not hosts:
        msg = "no host is named: name some, or say all"
        raise InvalidRequest(msg, at=["hosts"])
    if len(hosts) > HOSTS_MAX:
        msg = f"{len(hosts)} hosts are more than the {HOSTS_MAX} that a rollout may have"
        raise LimitExceeded(msg, at=["hosts"], limit=HOSTS_MAX)
    named = set(hosts)
    for number, name in enumerate(canary):
        if name not in named:
            msg = f"canary: host {name!r} is not among the hosts"
            raise InvalidRequest(msg, at=["canary", "hosts", number], host=name)


def _takes(spec: RolloutSpec) -> tuple[timedelta, bool]:
    """How long a host is in flight, and whether it may take longer than that."""
    cause = CAUSES[spec.cause]
    event_type = spec.type or cause.type
    least = MINIMUM_NOTICE[event_type]
    notice = spec.notice if spec.notice is not None else max(least, cause.notice or least)
    default_s = cause.duration_s if event_type is cause.type else -1
    duration_s = default_s if spec.duration_s is None else spec.duration_s
    is_at_least = duration_s < 0 or (cause.is_routine and not spec.one_fault_domain)
    return notice + timedelta(seconds=max(duration_s, 0)), is_at_least


# What the inventory adds


def _refuse_long_notice(spec: RolloutSpec, rules: Rules) -> None:
    if spec.notice is not None and spec.notice > rules.notice_max:
        limit = format_span(rules.notice_max)
        msg = f"notice of {format_span(spec.notice)} is more than the limit of {limit} (notice_max)"
        raise LimitExceeded(msg, at=["notice"])


def _names(spec: RolloutSpec, inventory: Inventory) -> list[str]:
    """The hosts as listed, all of which are there."""
    there = dict.fromkeys(host.name for host in inventory.hosts)
    failed = {host.name for host in inventory.hosts if host.failed_at is not None}
    names = [name for name in there if name not in failed] if spec.hosts is None else list(spec.hosts)
    if not names:
        msg = "the inventory has no host that works: see 'forewarn inventory apply'"
        raise InvalidRequest(msg, at=["hosts"])
    if len(names) > HOSTS_MAX:
        msg = f"the inventory has {len(names)} hosts, more than the {HOSTS_MAX} that a rollout may have: name some"
        raise LimitExceeded(msg, at=["hosts"], limit=HOSTS_MAX)
    named = [name for name in (*names, *spec.canary) if name in failed]
    if named:
        msg = f"host {named[0]!r} has failed: leave it out, or say 'forewarn host recover {named[0]}' once it works"
        raise Conflict(msg, host=named[0])
    missing = [name for name in (*names, *spec.canary) if name not in there]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        msg = f"host {missing[0]!r} does not exist{more}: see 'forewarn host list'"
        raise NotFound(msg, host=missing[0])
    return names


def _refuse_split(spec: RolloutSpec, seen: Survey, names: list[str]) -> None:
    """A host is maintained as one: where it lies in two domains of a scope by itself, no order keeps them apart."""
    wrong = [(name, split) for name in names if (split := seen.footprint(name).split()) is not None]
    if not wrong:
        return
    name, (kind, scope, domains) = wrong[0]
    more = f", and {len(wrong) - 1} more hosts likewise" if len(wrong) > 1 else ""
    rule = "one_fault_domain" if kind == FAULT_DOMAIN else "one_update_domain"
    listed = " and ".join(str(domain) for domain in domains)
    msg = (
        f"host {name!r} holds {kind}s {listed} of scope {scope!r}{more}: "
        f"leave it out, move a VM, or say {rule}: false for rollout {spec.name!r}"
    )
    raise Conflict(msg, host=name, scope=scope, hosts=[host for host, _ in wrong[:100]])


def _batches(spec: RolloutSpec, seen: Survey, names: list[str]) -> Iterator[list[str]]:
    canary = set(spec.canary)
    rest = _ordered(spec.order, seen, [name for name in names if name not in canary])
    yield from ([name] for name in spec.canary)
    for first in range(0, len(rest), spec.batch_size):
        yield rest[first : first + spec.batch_size]


def _ordered(order: Order, seen: Survey, names: list[str]) -> list[str]:
    if order is Order.NAME:
        return sorted(names, key=_natural)
    if order is Order.SMALLEST_FIRST:
        return sorted(names, key=seen.count)
    return names


def _natural(name: str) -> tuple[list[str | int], str]:
    """Every other part is a number, so that a number is only compared with a number."""
    return [int(part) if number % 2 else part for number, part in enumerate(_NUMBER.split(name))], name


def _rounds(spec: RolloutSpec, seen: Survey, hosts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Hosts of a batch that can be in flight together, each as early as the order lets it."""
    remaining = list(hosts)
    rounds: list[tuple[str, ...]] = []
    while remaining:
        occupied = Occupied(seen)
        chosen: list[str] = []
        passed_over: list[str] = []
        for host in remaining:
            if len(chosen) == spec.hosts_at_once:
                break
            if occupied.obstacle(host) is None:
                occupied.add_host(host)
                chosen.append(host)
            else:
                passed_over.append(host)
        remaining[: len(chosen) + len(passed_over)] = passed_over
        rounds.append(tuple(chosen))
    return tuple(rounds)


def _later(moment: datetime, span: timedelta, begins_at: datetime) -> datetime:
    if moment - begins_at + span > LENGTH_MAX:
        msg = f"the rollout would take longer than {format_span(LENGTH_MAX)}: make larger batches or shorter pauses"
        raise LimitExceeded(msg, at=["pause"])
    return moment + span

"""Planning a rollout: batches made from a specification, with estimated times, without any effect."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn.core.causes import CAUSES, MINIMUM_NOTICE, Cause
from forewarn.core.hints import SEE_HOSTS, suggest_recovery
from forewarn.core.inventory import Inventory
from forewarn.core.label import parse_selector
from forewarn.core.maintenance.decision import DecisionRules
from forewarn.core.maintenance.tenancy import find_allowed_start, get_tenant_key, get_tenant_name, policy_of
from forewarn.core.model import EventSource, EventType, ScopeKind
from forewarn.core.policy import Policy
from forewarn.core.rollout.rollout import HOSTS_MAX, LENGTH_MAX, HostOrder, RolloutSpec
from forewarn.core.rollout.rollout_domains import FAULT_DOMAIN, InventorySurvey, Occupancy
from forewarn.errors import (
    BelowMinimumNotice,
    Conflict,
    Hint,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    QuietHoursConflict,
)
from forewarn.util.duration import format_duration

__all__ = ["QuietHoursDelay", "RolloutBatch", "RolloutPlan", "check_spec", "pause_after", "plan_rollout"]

_TYPES = frozenset({EventType.FREEZE, EventType.REBOOT, EventType.REDEPLOY})
"""Event types that a rollout may use: the VMs still exist afterwards."""

_NUMBER = re.compile(r"([0-9]+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHoursDelay:
    """A host whose turn is delayed by quiet hours.

    Attributes:
        not_before: Latest start of its maintenance.
        moved_from: Latest start without quiet hours.
        moved_by: Names of the scopes and standalone VMs with these quiet hours.
    """

    host: str
    not_before: datetime
    moved_from: datetime
    moved_by: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutBatch:
    """Hosts that must be over before the next batch begins.

    Attributes:
        number: Number of the batch, from 0.
        hosts: Hosts in their order.
        rounds: The same hosts, grouped by those that will be in flight together, as far as can be foreseen.
        vms: Number of VMs that run on them now.
        begins_at: Estimated begin.
        ends_at: Estimated end of the last host, without the pause that follows.
        moves: Hosts delayed by quiet hours, as far as can be foreseen.
        unwarned_vms: Names of those VMs that no event would warn now (R70c).
    """

    number: int
    is_canary: bool
    hosts: tuple[str, ...]
    rounds: tuple[tuple[str, ...], ...]
    vms: int
    begins_at: datetime
    ends_at: datetime
    moves: tuple[QuietHoursDelay, ...] = ()
    unwarned_vms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """Planned course of a rollout.

    The estimate assumes that no one approves before NotBefore, that impact takes as long as announced and the
    maintenance no longer than that, and that nothing fails.

    Attributes:
        is_at_least: True if it takes longer than estimated: the duration is unknown and counted as 0, or fault domains
            are not kept apart here, and the VMs wait for each other in the queue (R61).
    """

    spec: RolloutSpec
    batches: tuple[RolloutBatch, ...]
    begins_at: datetime
    ends_at: datetime
    is_at_least: bool


def plan_rollout(
    spec: RolloutSpec,
    inventory: Inventory,
    now: datetime,
    *,
    rules: DecisionRules | None = None,
    would_warn: Callable[[str], bool] | None = None,
) -> RolloutPlan:
    """Make batches, and estimate when each begins and ends if the first begins now.

    `would_warn` returns True if a VM of that name would get an event now; None if all would.

    Raises:
        InvalidRequest: The specification contradicts itself or the rules of maintenance.
        BelowMinimumNotice: Less notice than the type promises.
        NotFound: A host does not exist.
        Conflict: A host has failed, or one host alone is in two domains of a scope of which only one may be in flight.
        LimitExceeded: More hosts, more notice or a longer time than is allowed.
        QuietHoursConflict: Quiet hours leave no moment for a host, within the limits of its notice.

    Spec: R70c
    """
    check_spec(spec)
    rules = rules or DecisionRules()
    _refuse_long_notice(spec, rules)
    names = _select_hosts(spec, inventory)
    survey = InventorySurvey(inventory, spec, names)
    _refuse_split_hosts(spec, survey, names)
    is_at_least = _get_duration_s(spec) < 0 or (CAUSES[spec.cause].is_routine and not spec.one_fault_domain)
    calendar = _Calendar(spec, inventory, survey, rules.notice_max)
    batches: list[RolloutBatch] = []
    begins_at = ends_at = now
    for number, hosts in enumerate(_make_batches(spec, survey, names)):
        if batches:
            begins_at = _add_bounded(ends_at, pause_after(spec, number - 1), now)
        rounds = _group_rounds(spec, survey, hosts)
        moves: list[QuietHoursDelay] = []
        ends_at = begins_at
        # The rounds are only an estimate: a host really begins as soon as another one is over.
        for together in rounds:
            ends_at = _add_bounded(ends_at, calendar.estimate_end(together, ends_at, moves) - ends_at, now)
        batches.append(
            RolloutBatch(
                number=number,
                is_canary=number < len(spec.canary),
                hosts=tuple(hosts),
                rounds=rounds,
                vms=sum(len(survey.vms_of(host)) for host in hosts),
                begins_at=begins_at,
                ends_at=ends_at,
                moves=tuple(moves),
                unwarned_vms=_list_unwarned_vms(survey, hosts, would_warn),
            )
        )
    return RolloutPlan(spec=spec, batches=tuple(batches), begins_at=now, ends_at=ends_at, is_at_least=is_at_least)


def pause_after(spec: RolloutSpec, batch: int) -> timedelta:
    """Return the pause after a batch, numbered from 0."""
    return spec.canary_pause if batch == len(spec.canary) - 1 else spec.pause


# Checks that need no inventory


def check_spec(spec: RolloutSpec) -> None:
    """Refuse a specification that contradicts itself. ``details["at"]`` of the error is the place in its file.

    Raises:
        InvalidRequest: It contradicts itself.
        BelowMinimumNotice: Less notice than the type promises.
        LimitExceeded: Too many hosts.
    """
    if spec.type is not None and spec.type not in _TYPES:
        msg = f"a rollout cannot be a {spec.type}: expected one of {', '.join(sorted(_TYPES))}"
        raise InvalidRequest(msg, at=["type"])
    cause = CAUSES.get(spec.cause)
    if cause is None:
        raise InvalidRequest(f"unknown cause {spec.cause!r}: expected one of {', '.join(_CAUSES)}", at=["cause"])
    _check_operation(spec, cause)
    _refuse_repeated("hosts", spec.hosts or (), ["hosts"])
    _refuse_repeated("canary", spec.canary, ["canary", "hosts"])
    _check_selector(spec)
    if spec.hosts is not None:
        _check_hosts(spec.hosts, spec.canary)
    if spec.hosts_at_once > spec.batch_size:
        msg = f"hosts_at_once of {spec.hosts_at_once} exceeds batch_size of {spec.batch_size}"
        raise InvalidRequest(msg, at=["hosts_at_once"])
    takes = _get_notice(spec) + _get_duration(spec)
    # Equal is too short as well, because the host would reach its deadline in the moment in which it ends.
    if spec.deadline is not None and spec.deadline <= takes:
        given, needed = format_duration(spec.deadline), format_duration(takes)
        raise InvalidRequest(f"deadline of {given} is too short: notice and duration take {needed}", at=["deadline"])


def _check_operation(spec: RolloutSpec, cause: Cause) -> None:
    if cause.name not in _CAUSES:
        raise InvalidRequest(f"a rollout cannot be a {cause.name}: expected one of {', '.join(_CAUSES)}", at=["cause"])
    event_type = spec.type or cause.type
    allowed = {cause.type, *cause.types}
    if event_type not in allowed:
        raise InvalidRequest(f"cause {cause.name} means {' or '.join(sorted(allowed))}, not {event_type}", at=["type"])
    least = MINIMUM_NOTICE[event_type]
    if spec.notice is not None and spec.notice < least:
        msg = f"notice of {format_duration(spec.notice)}: a {event_type} needs at least {format_duration(least)}"
        raise BelowMinimumNotice(msg, at=["notice"], minimum_s=int(least.total_seconds()))


def _is_for_rollouts(cause: Cause) -> bool:
    """Return True if the platform can plan it, and VMs still exist afterwards."""
    return cause.source is EventSource.PLATFORM and not cause.is_immediate and cause.type in _TYPES


_CAUSES = tuple(name for name, cause in CAUSES.items() if _is_for_rollouts(cause))


def _refuse_repeated(label: str, names: Iterable[str], place: list[str]) -> None:
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            raise InvalidRequest(f"{label}: host {name!r} is listed twice", at=[*place, number], host=name)
        seen.add(name)


def _check_selector(spec: RolloutSpec) -> None:
    if spec.selector is None:
        return
    if spec.hosts is not None:
        raise InvalidRequest("list hosts or give a selector, not both", at=["selector"])
    try:
        is_empty = not parse_selector(spec.selector)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, at=["selector"]) from error
    if is_empty:
        raise InvalidRequest("selector is empty: use 'hosts: all' for every host", at=["selector"])


def _check_hosts(hosts: tuple[str, ...], canary: tuple[str, ...]) -> None:
    if not hosts:
        raise InvalidRequest("hosts is empty: list some, or use 'all'", at=["hosts"])
    if len(hosts) > HOSTS_MAX:
        msg = f"{len(hosts)} hosts exceed the maximum of {HOSTS_MAX} for a rollout"
        raise LimitExceeded(msg, at=["hosts"], limit=HOSTS_MAX)
    named = set(hosts)
    for number, name in enumerate(canary):
        if name not in named:
            msg = f"canary: host {name!r} is not among the hosts"
            raise InvalidRequest(msg, at=["canary", "hosts", number], host=name)


def _get_notice(spec: RolloutSpec) -> timedelta:
    cause = CAUSES[spec.cause]
    least = MINIMUM_NOTICE[spec.type or cause.type]
    return max(least, cause.notice or least) if spec.notice is None else spec.notice


def _get_duration(spec: RolloutSpec) -> timedelta:
    return timedelta(seconds=max(_get_duration_s(spec), 0))


def _get_duration_s(spec: RolloutSpec) -> int:
    """Return the expected seconds of impact; -1 if unknown."""
    cause = CAUSES[spec.cause]
    default_s = cause.duration_s if (spec.type or cause.type) is cause.type else -1
    return default_s if spec.duration_s is None else spec.duration_s


# Checks and batches that need the inventory


def _refuse_long_notice(spec: RolloutSpec, rules: DecisionRules) -> None:
    if spec.notice is not None and spec.notice > rules.notice_max:
        limit = format_duration(rules.notice_max)
        msg = f"notice of {format_duration(spec.notice)} is more than the limit of {limit} (notice_max)"
        raise LimitExceeded(msg, at=["notice"])


def _select_hosts(spec: RolloutSpec, inventory: Inventory) -> list[str]:
    """Return the names of the hosts, after checking that all exist and work."""
    existing = dict.fromkeys(host.name for host in inventory.hosts)
    failed = {host.name for host in inventory.hosts if host.failed_at is not None}
    # Failed hosts are left out of "all", but refused below if they are listed.
    names = list(spec.hosts) if spec.hosts is not None else _list_working_hosts(spec, inventory)
    if not names and spec.selector is not None:
        raise InvalidRequest(f"no working host has the labels {spec.selector!r}", at=["selector"])
    if not names:
        raise InvalidRequest(
            "the inventory has no working host", hint=Hint("see 'forewarn inventory apply'"), at=["hosts"]
        )
    if len(names) > HOSTS_MAX:
        msg = f"the inventory has {len(names)} hosts, more than the maximum of {HOSTS_MAX} for a rollout: list some"
        raise LimitExceeded(msg, at=["hosts"], limit=HOSTS_MAX)
    if spec.selector is not None:
        _check_hosts(tuple(names), spec.canary)
    named = [name for name in (*names, *spec.canary) if name in failed]
    if named:
        raise Conflict(f"host {named[0]!r} has failed", hint=suggest_recovery(named[0]), host=named[0])
    missing = [name for name in (*names, *spec.canary) if name not in existing]
    if missing:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise NotFound(f"host {missing[0]!r} does not exist{more}", hint=SEE_HOSTS, host=missing[0])
    return names


def _list_working_hosts(spec: RolloutSpec, inventory: Inventory) -> list[str]:
    selector = parse_selector(spec.selector or "")
    return [host.name for host in inventory.hosts if host.failed_at is None and selector.matches(dict(host.labels))]


def _refuse_split_hosts(spec: RolloutSpec, survey: InventorySurvey, names: list[str]) -> None:
    """Refuse hosts that alone span two domains of a scope: a host is maintained as one, so no order separates them."""
    wrong = [(name, split) for name in names if (split := survey.get_footprint(name).find_split_scope()) is not None]
    if not wrong:
        return
    name, (kind, scope, domains) = wrong[0]
    more = f" (and {len(wrong) - 1} more hosts)" if len(wrong) > 1 else ""
    rule = "one_fault_domain" if kind == FAULT_DOMAIN else "one_update_domain"
    listed = " and ".join(str(domain) for domain in domains)
    msg = (
        f"host {name!r} has VMs in {kind}s {listed} of scope {scope!r}{more}: "
        f"leave it out, move a VM, or set {rule}: false in rollout {spec.name!r}"
    )
    raise Conflict(msg, host=name, scope=scope, hosts=[host for host, _ in wrong[:100]])


def _make_batches(spec: RolloutSpec, survey: InventorySurvey, names: list[str]) -> Iterator[list[str]]:
    canary = set(spec.canary)
    rest = _sort_hosts(spec.order, survey, [name for name in names if name not in canary])
    yield from ([name] for name in spec.canary)
    for first in range(0, len(rest), spec.batch_size):
        yield rest[first : first + spec.batch_size]


def _sort_hosts(order: HostOrder, survey: InventorySurvey, names: list[str]) -> list[str]:
    if order is HostOrder.NAME:
        return sorted(names, key=_make_natural_key)
    if order is HostOrder.SMALLEST_FIRST:
        return sorted(names, key=lambda name: len(survey.vms_of(name)))
    return names


def _make_natural_key(name: str) -> tuple[list[str | int], str]:
    """Return a sort key whose parts alternate between text and number, so that numbers compare only with numbers."""
    return [int(part) if number % 2 else part for number, part in enumerate(_NUMBER.split(name))], name


def _group_rounds(spec: RolloutSpec, survey: InventorySurvey, hosts: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Return the hosts of a batch in groups that can be in flight together, each host as early as the order allows."""
    remaining = list(hosts)
    rounds: list[tuple[str, ...]] = []
    while remaining:
        # Nothing is occupied at first, so each round takes at least one host and the loop ends.
        occupied = Occupancy(survey)
        chosen: list[str] = []
        passed_over: list[str] = []
        for host in remaining:
            if len(chosen) == spec.hosts_at_once:
                break
            if occupied.find_obstacle(host) is None:
                occupied.add_host(host)
                chosen.append(host)
            else:
                passed_over.append(host)
        # Hosts that were passed over keep their place before the others.
        remaining[: len(chosen) + len(passed_over)] = passed_over
        rounds.append(tuple(chosen))
    return tuple(rounds)


class _Calendar:
    """Estimated end of hosts that are announced at a given time, at most `notice_max` ahead."""

    def __init__(self, spec: RolloutSpec, inventory: Inventory, survey: InventorySurvey, notice_max: timedelta) -> None:
        self._duration = _get_duration(spec)
        self._notice = _get_notice(spec)
        self._notice_max = notice_max
        self._ignores_quiet_hours = CAUSES[spec.cause].is_fixed
        self._scopes = {scope.name: scope for scope in inventory.scopes}
        self._survey = survey

    def estimate_end(self, hosts: Iterable[str], announced_at: datetime, moves: list[QuietHoursDelay]) -> datetime:
        """Return the time at which the last of these hosts is over; append those delayed by quiet hours to `moves`."""
        return max(self._estimate_host_end(host, announced_at, moves) for host in hosts)

    def _estimate_host_end(self, host: str, announced_at: datetime, moves: list[QuietHoursDelay]) -> datetime:
        at = announced_at + self._notice
        policies = {} if self._ignores_quiet_hours else self._get_quiet_policies(host)
        found = find_allowed_start(policies, at, announced_at + self._notice_max, self._duration)
        if found is None:
            names = sorted(map(get_tenant_name, policies))
            msg = f"host {host!r}: quiet hours of {', '.join(names[:10])} leave no time for it"
            raise QuietHoursConflict(msg, host=host)
        if found.moved_from is not None:
            moves.append(
                QuietHoursDelay(host=host, not_before=found.at, moved_from=found.moved_from, moved_by=found.moved_by)
            )
        return found.at + self._duration

    def _get_quiet_policies(self, host: str) -> dict[str, Policy]:
        """Return the policies with quiet hours of the tenants whose VMs run on the host, by `get_tenant_key`."""
        found: dict[str, Policy] = {}
        for vm in self._survey.vms_of(host):
            scope = self._scopes.get(vm.scope) if vm.scope is not None else None
            key = get_tenant_key(vm.name, None if scope is None or scope.kind is ScopeKind.STANDALONE else scope.name)
            # A scope may have hundreds of VMs on one host, so its policy is computed only once.
            if key not in found:
                found[key] = policy_of(vm, scope)
        return {name: policy for name, policy in found.items() if policy.quiet_hours}


def _list_unwarned_vms(
    survey: InventorySurvey, hosts: Iterable[str], would_warn: Callable[[str], bool] | None
) -> tuple[str, ...]:
    if would_warn is None:
        return ()
    return tuple(vm.name for host in hosts for vm in survey.vms_of(host) if not would_warn(vm.name))


def _add_bounded(moment: datetime, span: timedelta, begins_at: datetime) -> datetime:
    # Checked before adding, because the sum might exceed the largest datetime.
    if moment - begins_at + span > LENGTH_MAX:
        msg = f"the rollout would take longer than {format_duration(LENGTH_MAX)}: use larger batches or shorter pauses"
        raise LimitExceeded(msg, at=["pause"])
    return moment + span

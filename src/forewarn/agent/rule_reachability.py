"""Search for rules that can never decide about an event, for the warnings of `forewarn agent check`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from typing import TypeAlias

from forewarn.agent.rule import Rule, matches_kind

__all__ = ["UnreachableRule", "find_unreachable_rules"]

_TYPES = ("Freeze", "Reboot", "Redeploy", "Preempt", "Terminate", "")
_SOURCES = ("Platform", "User", "")

_Kind: TypeAlias = tuple[str, str, bool, timedelta | None]
"""Type, source, True if it hits this VM, expected impact. "" represents all values that no rule can name."""


@dataclass(frozen=True, slots=True)
class UnreachableRule:
    """A rule that can never be the first to match an event.

    Attributes:
        index: Index of the rule, from 0.
        reason: Reason in words.
    """

    index: int
    reason: str


def find_unreachable_rules(rules: Sequence[Rule]) -> tuple[UnreachableRule, ...]:
    """Return the rules that can never decide, in order.

    Every rule returned is unreachable. There may be others: descriptions and windows are compared as texts, so a rule
    counts as covered only by rules without them, or with the same ones.

    Args:
        rules: All rules with their names, in order.
    """
    durations = _collect_durations(rules)
    found = []
    for place, rule in enumerate(rules):
        why = _explain_unreachable(rule, rules[:place], durations)
        if why:
            found.append(UnreachableRule(place, why))
    return tuple(found)


def _explain_unreachable(rule: Rule, earlier: Sequence[Rule], durations: Sequence[timedelta | None]) -> str:
    """Return the reason why the rule can never match first; empty if it can."""
    if next(_iterate_kinds(rule, durations), None) is None:
        return "no whole number of seconds lies between min_duration and max_duration"
    wider = [other for other in earlier if _is_wider(other, rule)]
    # Compared by kind of event, because several narrower rules can together cover a wider one.
    if not all(any(_matches_event_kind(other, kind) for other in wider) for kind in _iterate_kinds(rule, durations)):
        return ""
    # A single rule that covers it makes the clearer message.
    alone = next(
        (o for o in wider if all(_matches_event_kind(o, kind) for kind in _iterate_kinds(rule, durations))), None
    )
    if alone is not None:
        return f"the earlier rule {alone.name!r} matches every event that it would"
    taking = [o.name for o in wider if any(_matches_event_kind(o, kind) for kind in _iterate_kinds(rule, durations))]
    return f"the earlier rules {', '.join(map(repr, taking))} together match every event that it would"


def _iterate_kinds(rule: Rule, durations: Sequence[timedelta | None]) -> Iterator[_Kind]:
    """Return every kind of event that the rule matches."""
    of_all = product(rule.types or _TYPES, rule.sources or _SOURCES, (True, False), durations)
    return (kind for kind in of_all if _matches_event_kind(rule, kind))


def _matches_event_kind(rule: Rule, kind: _Kind) -> bool:
    kind_of_event, source, is_mine, duration = kind
    return matches_kind(rule, kind_of_event, source, duration, is_mine=is_mine)


def _is_wider(wide: Rule, narrow: Rule) -> bool:
    """Return True if the first rule's description and window accept everything that those of the second do."""
    has_wider_window = not wide.window or (bool(narrow.window) and set(narrow.window) <= set(wide.window))
    return has_wider_window and wide.description in {None, narrow.description}


def _collect_durations(rules: Iterable[Rule]) -> tuple[timedelta | None, ...]:
    """Return an unknown impact, and the whole seconds on either side of each limit: between limits all are alike."""
    limits = {limit for rule in rules for limit in (rule.min_duration, rule.max_duration) if limit is not None}
    seconds = {0}
    for limit in limits:
        floor, ceiling = math.floor(limit.total_seconds()), math.ceil(limit.total_seconds())
        seconds |= {max(floor - 1, 0), floor, ceiling, ceiling + 1}
    return (None, *(timedelta(seconds=number) for number in sorted(seconds)))

"""A scenario as written in its file: an inventory, and a timeline of operations, faults and expectations.

The steps are carried out in order. Each begins at a time (``at: 30s`` from the beginning, ``at: +30s`` after the
previous step), or after something happened to an operation (``after: approved web``); without either, at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from forewarn.config import Span
from forewarn.core.fault import FAULTS
from forewarn.core.model import EventType, Source
from forewarn.testing.parameters import Parameters
from forewarn.util.duration import parse_span
from forewarn.wire.inventory import InventoryIn
from forewarn.wire.suggestion import suggest

__all__ = [
    "MODES",
    "SCHEMA_LINE",
    "SETTINGS",
    "STEPS_MAX",
    "Approve",
    "At",
    "Defer",
    "Expect",
    "Extend",
    "FaultStep",
    "HostStep",
    "Impact",
    "Mode",
    "ScenarioIn",
    "Schedule",
    "Step",
    "VmStep",
]

SCHEMA_LINE = "# yaml-language-server: $schema=scenario.schema.json"
"""First line of a scenario file: editors check the file against the schema in the same folder."""

STEPS_MAX = 1000
"""Maximum number of steps of a scenario, including those of included timelines."""

_NAMES_MAX = 1000
_WITHIN = timedelta(days=1)
_LINGER_MAX = timedelta(minutes=1)

_SPAN = r"^\+?[0-9]{1,12}(\.[0-9]{1,9})?(ms|s|m|h|d)?$"
_SPAN_SCHEMA = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _SPAN.replace(r"\+?", "")}]}
_AT_SCHEMA = {"anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": _SPAN}]}

Name = Annotated[str, Field(min_length=1, max_length=128)]
Names = Annotated[
    tuple[Name, ...],
    BeforeValidator(
        lambda value: (value,) if isinstance(value, str) else value,
        json_schema_input_type=Name | Annotated[tuple[Name, ...], Field(min_length=1, max_length=_NAMES_MAX)],
    ),
    Field(min_length=1, max_length=_NAMES_MAX),
]
PositiveSpan = Annotated[Span, Field(ge=timedelta(0)), WithJsonSchema(_SPAN_SCHEMA)]
SETTINGS = frozenset(
    {
        "announce_delay",
        "cloud",
        "deferrals_max",
        "disable_after",
        "first_answer_delay",
        "initial_incarnation",
        "legacy_latest",
        "notbefore_2017_03_01",
        "policy_delay",
        "post_body",
        "rate_limit_per_s",
        "require_metadata_2017_03_01",
        "simulate_complete_after",
        "simulate_impact_after",
        "start_delay",
        "unknown_event",
        "user_operations_max",
    }
)
"""Settings that a scenario may change."""


@dataclass(frozen=True, slots=True)
class At:
    """Start time of a step.

    Attributes:
        span: Time since the beginning, or since the previous step.
        is_relative: True if `span` counts from the previous step.
    """

    span: timedelta
    is_relative: bool


def _at(value: object) -> At:
    text = str(value).strip()
    span = parse_span(text.removeprefix("+"))
    if span < timedelta(0):
        msg = "a moment is not before the beginning"
        raise ValueError(msg)
    return At(span, is_relative=text.startswith("+"))


class _In(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


def _named(value: object) -> object:
    """Expand the short form, which is only the name of a VM or host."""
    return {"name": value} if isinstance(value, str) else value


class VmStep(_In):
    """An operation on one VM."""

    name: Name = Field(alias="vm")
    operation: Name | None = Field(None, alias="as")
    notice: PositiveSpan | None = None

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class HostStep(_In):
    """An operation on a host with all its VMs."""

    name: Name = Field(alias="host")
    operation: Name | None = Field(None, alias="as")
    notice: PositiveSpan | None = Field(None, alias="in")
    type: EventType | None = None

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Schedule(_In):
    """Announce maintenance."""

    operation: Name | None = Field(None, alias="as")
    vms: Names | None = None
    hosts: Names | None = None
    type: EventType | None = None
    source: Source | None = None
    cause: Name | None = None
    duration: Annotated[int, Field(ge=-1, le=10**9)] | None = None
    notice: PositiveSpan | None = None
    description: Annotated[str, Field(max_length=1000)] | None = None
    turns_out_as: Literal[EventType.FREEZE] | None = None
    latest_start: PositiveSpan | None = None

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.vms is None) == (self.hosts is None):
            msg = "name vms or hosts"
            raise ValueError(msg)
        if self.type is None and self.cause is None:
            msg = "name a type or a cause"
            raise ValueError(msg)
        return self


class Approve(_In):
    """Approve an operation as one of the VMs it was announced to."""

    operation: Name
    by: Name


class Defer(_In):
    """Defer an operation, up to its latest start."""

    operation: Name
    by: PositiveSpan


class Extend(_In):
    """Give tenants more time to prepare for an operation, as its policy grants."""

    operation: Name
    by: PositiveSpan
    scope: Name | None = Field(None, alias="for")

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Impact(_In):
    """A further impact of a started operation (R80)."""

    operation: Name
    duration: Annotated[int, Field(ge=1, le=10**9)] = 1


FaultKind = Annotated[
    str,
    BeforeValidator(str),
    Field(max_length=64),
    WithJsonSchema({"enum": [*FAULTS, *(int(kind) for kind in FAULTS if kind.isdecimal())]}),
]


class FaultStep(_In):
    """Inject a fault at the endpoint (R66)."""

    kind: FaultKind
    vms: Names | None = None
    method: Literal["GET", "POST"] | None = None
    count: Annotated[int, Field(ge=1, le=10**9)] | None = None
    rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    lasts: PositiveSpan | None = Field(None, alias="for")
    delay: PositiveSpan | None = None

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind not in FAULTS:
            msg = f"there is no fault {self.kind!r}: {suggest(self.kind, FAULTS)}"
            raise ValueError(msg)
        if self.delay is not None and FAULTS[self.kind].delay is None:
            msg = f"fault {self.kind} takes no time"
            raise ValueError(msg)
        return self


class Expect(_In):
    """Expectations, which must hold at once or within a time; all those given must hold together.

    Attributes:
        operation: Operation whose event, as announced to `vm`, is meant.
        vm: VM whose view is checked; the handler's VM if none is given.
        status: ``Scheduled`` or ``Started`` in the document, ``gone`` after it was there, ``absent`` if it never was.
        approved: True if it has been approved.
        type, description, duration, source, resources: Values of the event.
        incarnation: DocumentIncarnation.
        events: Number of events in the document.
        document: Bytes of the document.
        version: The api-version for `document`.
        within: Time limit.
        always: True if it must hold for the whole of `within`, rather than at some moment of it.
    """

    operation: Name | None = Field(None, alias="event")
    vm: Name | None = None
    status: Literal["Scheduled", "Started", "gone", "absent"] | None = None
    approved: bool | None = None
    type: EventType | None = None
    description: str | None = None
    duration: int | None = None
    source: Source | None = None
    resources: Names | None = None
    notice_at_least: PositiveSpan | None = None
    incarnation: int | None = None
    events: int | None = None
    document: str | None = None
    version: str = "2020-07-01"
    enabled: bool | None = None
    within: PositiveSpan = timedelta(0)
    always: bool = False

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        about_event = (
            self.status,
            self.approved,
            self.type,
            self.description,
            self.duration,
            self.source,
            self.resources,
            self.notice_at_least,
        )
        if self.operation is None and any(each is not None for each in about_event):
            msg = "say of which operation, with event"
            raise ValueError(msg)
        about_document = (self.incarnation, self.events, self.document, self.enabled)
        if all(each is None for each in (*about_event, *about_document)):
            msg = "say what is expected: status, approved, incarnation, events, document, enabled ..."
            raise ValueError(msg)
        if self.always and not self.within:
            msg = "say for how long, with within"
            raise ValueError(msg)
        return self


Happening = Literal["scheduled", "approved", "started", "completed", "canceled"]
_HAPPENINGS: tuple[str, ...] = ("scheduled", "approved", "started", "completed", "canceled")
_AFTER = rf"^\s*({'|'.join(_HAPPENINGS)})\s+\S+\s*$"


@dataclass(frozen=True, slots=True)
class After:
    """Start of a step after something has happened to an operation."""

    what: str
    operation: str


def _after(value: object) -> After:
    words = str(value).split()
    expected = f"expected for example 'approved web': one of {', '.join(_HAPPENINGS)}, and an operation"
    if len(words) != len(("what", "operation")) or words[0] not in _HAPPENINGS:
        meant = suggest(words[0], _HAPPENINGS) if words else ""
        hint = f"; {meant}" if meant.endswith("?") and words[0] not in _HAPPENINGS else ""
        msg = f"{value!r} says nothing that can happen: {expected}{hint}"
        raise ValueError(msg)
    return After(words[0], words[1])


OfVm = Annotated[VmStep, BeforeValidator(_named, json_schema_input_type=Name | VmStep)]
OfHost = Annotated[HostStep, BeforeValidator(_named, json_schema_input_type=Name | HostStep)]
OfFault = Annotated[
    FaultStep,
    BeforeValidator(
        lambda value: value if isinstance(value, dict) else {"kind": value},
        json_schema_input_type=FaultKind | FaultStep,
    ),
]
Action: TypeAlias = (
    VmStep
    | HostStep
    | Schedule
    | Approve
    | Defer
    | Extend
    | Impact
    | FaultStep
    | Expect
    | timedelta
    | tuple[str, ...]
    | str
    | bool
)


Mode = Literal["play", "try"]
"""Mode of a run: ``play`` runs the scenario alone, ``try`` with a handler beside it."""

MODES: tuple[Mode, ...] = ("play", "try")
"""Both modes."""


class Step(_In):
    """One step of the timeline: its start, and exactly one operation, fault or expectation."""

    at: Annotated[At, BeforeValidator(_at), WithJsonSchema(_AT_SCHEMA)] | None = None
    after: Annotated[After, BeforeValidator(_after), WithJsonSchema({"type": "string", "pattern": _AFTER})] | None = (
        None
    )
    within: PositiveSpan = Field(_WITHIN, description="How long to wait for `after`.")
    note: Annotated[str, Field(max_length=200)] = Field("", description="For people.")
    only: Mode | None = Field(None, description="Take it only when the scenario is played, or only when it is tried.")

    poll: Names | None = None
    approve: Approve | None = None
    schedule: Schedule | None = None
    restart: OfVm | None = None
    redeploy: OfVm | None = None
    reimage: OfVm | None = None
    evict: OfVm | None = None
    delete: OfVm | None = None
    fail_host: OfHost | None = None
    predict_failure: OfHost | None = None
    defer: Defer | None = None
    extend: Extend | None = None
    cancel: Name | None = None
    start: Name | None = None
    complete: Name | None = None
    impact: Impact | None = None
    fault: OfFault | None = None
    clear_faults: Literal[True] | None = None
    linger: Annotated[Span, Field(gt=timedelta(0), le=_LINGER_MAX), WithJsonSchema(_SPAN_SCHEMA)] | None = Field(
        None, description="Real time in which nothing changes for a handler that is tried."
    )
    expect: Expect | None = None
    include: Name | None = Field(
        None, description="Take the steps of another timeline here: a shipped scenario's, or that of a file."
    )
    parameters: Parameters = Field(
        default_factory=dict, alias="set", description="Parameters of the included scenario."
    )

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, arbitrary_types_allowed=True)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.include is not None and self.model_fields_set - {"include", "parameters"}:
            msg = "a step that includes a timeline has nothing but 'include' and 'set'"
            raise ValueError(msg)
        if self.include is None and self.parameters:
            msg = "'set' belongs to 'include'"
            raise ValueError(msg)
        if self.at is not None and self.after is not None:
            msg = "a step has at or after, and not both"
            raise ValueError(msg)
        count = sum(getattr(self, name) is not None for name in ACTIONS)
        if count != 1:
            msg = f"a step does exactly one thing, this one {count}: one of {', '.join(ACTIONS)}"
            raise ValueError(msg)
        return self

    @property
    def verb(self) -> str:
        """Name of the action."""
        return next(name for name in ACTIONS if getattr(self, name) is not None)

    @property
    def action(self) -> Action:
        """The action with its arguments."""
        action: Action = getattr(self, self.verb)
        return action

    @property
    def makes(self) -> str | None:
        """Name of the operation that it begins; None if it begins none."""
        if self.verb not in OPERATIONS:
            return None
        operation: str | None = getattr(self.action, "operation", None)
        return operation or self.verb

    @property
    def refers(self) -> Iterable[str]:
        """Operations that must have begun before this step."""
        named = [self.after.operation] if self.after is not None else []
        if self.verb in {"cancel", "start", "complete"}:
            named.append(str(self.action))
        is_about_one = isinstance(self.action, Approve | Defer | Extend | Impact)
        if is_about_one or (isinstance(self.action, Expect) and self.action.operation):
            named.append(str(getattr(self.action, "operation", "")))
        return named


OPERATIONS = ("schedule", "restart", "redeploy", "reimage", "evict", "delete", "fail_host", "predict_failure")
"""Actions that begin an operation."""

ACTIONS = (
    "poll",
    "approve",
    *OPERATIONS,
    "defer",
    "extend",
    "cancel",
    "start",
    "complete",
    "impact",
    "fault",
    "clear_faults",
    "linger",
    "expect",
    "include",
)
"""All actions of a step."""


class ScenarioIn(_In):
    """A scenario."""

    title: Annotated[str, Field(min_length=1, max_length=100)]
    description: Annotated[str, Field(max_length=5000)] = ""
    parameters: Parameters = Field(
        default_factory=dict, description="Names and defaults of the values that '${name}' stands for."
    )
    inventory: Annotated[dict[str, Any], BeforeValidator(lambda value: value, json_schema_input_type=InventoryIn)]
    handler: Name | None = Field(None, description="The VM whose handler is tried; the first where none is named.")
    event_ids: tuple[Annotated[str, Field(pattern=r"^[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}$")], ...] = Field(
        (), max_length=STEPS_MAX, description="EventIds of the first events."
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="Settings of the service.")
    only: Mode | None = Field(None, description="It is for playing only, or only for trying handlers.")
    reboot: bool = Field(
        default=False,
        description="A Reboot or Redeploy that hits the handler's VM kills the handler, and starts it again.",
    )
    environment: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)],
        Annotated[str, Field(max_length=1000)],
    ] = Field(
        default_factory=dict,
        max_length=100,
        description="Variables that the handler finds in its environment; {endpoint} stands for the endpoint's URL.",
    )
    timeline: Annotated[tuple[Step, ...], Field(min_length=1, max_length=STEPS_MAX)]

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

from forewarn.config.span import Span
from forewarn.core.fault import FAULTS
from forewarn.core.model import EventSource, EventType
from forewarn.testing.scenario.parameters import Parameters
from forewarn.util.duration import parse_duration
from forewarn.wire.inventory import InventoryIn
from forewarn.wire.suggestion import suggest_name

__all__ = [
    "MODES",
    "SCHEMA_LINE",
    "SETTINGS",
    "STEPS_MAX",
    "ApproveStep",
    "DeferStep",
    "ExpectStep",
    "ExtendStep",
    "FaultStep",
    "HostStep",
    "ImpactStep",
    "Mode",
    "ScenarioIn",
    "ScheduleStep",
    "StepTime",
    "TimelineStep",
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
class StepTime:
    """Start time of a step.

    Attributes:
        span: Time since the beginning, or since the previous step.
        is_relative: True if `span` counts from the previous step.
    """

    span: timedelta
    is_relative: bool


def _parse_step_time(value: object) -> StepTime:
    text = str(value).strip()
    span = parse_duration(text.removeprefix("+"))
    if span < timedelta(0):
        raise ValueError("a time cannot be negative")
    return StepTime(span, is_relative=text.startswith("+"))


class _ScenarioModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, arbitrary_types_allowed=True)


def _expand_short_form(value: object) -> object:
    """Expand the short form, which is only the name of a VM or host."""
    return {"name": value} if isinstance(value, str) else value


class VmStep(_ScenarioModel):
    """An operation on one VM."""

    name: Name = Field(alias="vm")
    operation: Name | None = Field(None, alias="as")
    notice: PositiveSpan | None = None


class HostStep(_ScenarioModel):
    """An operation on a host with all its VMs."""

    name: Name = Field(alias="host")
    operation: Name | None = Field(None, alias="as")
    notice: PositiveSpan | None = Field(None, alias="in")
    type: EventType | None = None


class ScheduleStep(_ScenarioModel):
    """Announce maintenance."""

    operation: Name | None = Field(None, alias="as")
    vms: Names | None = None
    hosts: Names | None = None
    type: EventType | None = None
    source: EventSource | None = None
    cause: Name | None = None
    duration: Annotated[int, Field(ge=-1, le=10**9)] | None = None
    notice: PositiveSpan | None = None
    description: Annotated[str, Field(max_length=1000)] | None = None
    impact: Literal[EventType.FREEZE] | None = None
    latest_start: PositiveSpan | None = None

    @model_validator(mode="after")
    def _require_target_and_type(self) -> Self:
        if (self.vms is None) == (self.hosts is None):
            raise ValueError("expected either vms or hosts")
        if self.type is None and self.cause is None:
            raise ValueError("expected a type or a cause")
        return self


class ApproveStep(_ScenarioModel):
    """Approve an operation as one of the VMs it was announced to."""

    operation: Name
    by: Name


class DeferStep(_ScenarioModel):
    """Defer an operation, up to its latest start."""

    operation: Name
    by: PositiveSpan


class ExtendStep(_ScenarioModel):
    """Give tenants more time to prepare for an operation, as its policy grants."""

    operation: Name
    by: PositiveSpan
    scope: Name | None = Field(None, alias="for")


class ImpactStep(_ScenarioModel):
    """A further impact of a started operation (R80)."""

    operation: Name
    duration: Annotated[int, Field(ge=1, le=10**9)] = 1


# YAML reads an unquoted 503 as a number.
FaultKind = Annotated[
    str,
    BeforeValidator(str),
    Field(max_length=64),
    WithJsonSchema({"enum": [*FAULTS, *(int(kind) for kind in FAULTS if kind.isdecimal())]}),
]


class FaultStep(_ScenarioModel):
    """Inject a fault at the endpoint (R66)."""

    kind: FaultKind
    vms: Names | None = None
    method: Literal["GET", "POST"] | None = None
    count: Annotated[int, Field(ge=1, le=10**9)] | None = None
    rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    lasts: PositiveSpan | None = Field(None, alias="for")
    delay: PositiveSpan | None = None

    @model_validator(mode="after")
    def _require_known_fault(self) -> Self:
        if self.kind not in FAULTS:
            raise ValueError(f"there is no fault {self.kind!r}: {suggest_name(self.kind, FAULTS)}")
        if self.delay is not None and FAULTS[self.kind].delay is None:
            raise ValueError(f"fault {self.kind} has no delay")
        return self


class ExpectStep(_ScenarioModel):
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
    source: EventSource | None = None
    resources: Names | None = None
    notice_at_least: PositiveSpan | None = None
    incarnation: int | None = None
    events: int | None = None
    document: str | None = None
    version: str = "2020-07-01"
    enabled: bool | None = None
    within: PositiveSpan = timedelta(0)
    always: bool = False

    @model_validator(mode="after")
    def _require_expectation(self) -> Self:
        given = {name for name, value in self if value is not None} - {"operation", "vm", "version", "within", "always"}
        if self.operation is None and given - {"incarnation", "events", "document", "enabled"}:
            raise ValueError("expected 'event', the operation to check")
        if not given:
            raise ValueError("nothing to check: expected status, approved, incarnation, events, document, enabled ...")
        if self.always and not self.within:
            raise ValueError("'always' needs 'within', the time for which it must hold")
        return self


_HAPPENINGS: tuple[str, ...] = ("scheduled", "approved", "started", "completed", "canceled")
_AFTER = rf"^\s*({'|'.join(_HAPPENINGS)})\s+\S+\s*$"


@dataclass(frozen=True, slots=True)
class StepTrigger:
    """Start of a step after something has happened to an operation."""

    transition: str
    operation: str


def _parse_step_trigger(value: object) -> StepTrigger:
    words = str(value).split()
    expected = f"expected for example 'approved web': one of {', '.join(_HAPPENINGS)}, and an operation"
    if len(words) != len(("what", "operation")) or words[0] not in _HAPPENINGS:
        meant = suggest_name(words[0], _HAPPENINGS) if words else ""
        hint = f"; {meant}" if meant.endswith("?") and words[0] not in _HAPPENINGS else ""
        raise ValueError(f"{value!r} is not a trigger: {expected}{hint}")
    return StepTrigger(words[0], words[1])


OfVm = Annotated[VmStep, BeforeValidator(_expand_short_form, json_schema_input_type=Name | VmStep)]
OfHost = Annotated[HostStep, BeforeValidator(_expand_short_form, json_schema_input_type=Name | HostStep)]
OfFault = Annotated[
    FaultStep,
    BeforeValidator(
        lambda value: value if isinstance(value, dict) else {"kind": value},
        json_schema_input_type=FaultKind | FaultStep,
    ),
]
Action: TypeAlias = _ScenarioModel | timedelta | tuple[str, ...] | str | bool

Mode = Literal["play", "try"]
"""Mode of a run: ``play`` runs the scenario alone, ``try`` with a handler beside it."""

MODES: tuple[Mode, ...] = ("play", "try")
"""Both modes."""


class TimelineStep(_ScenarioModel):
    """One step of the timeline: its start, and exactly one operation, fault or expectation."""

    at: Annotated[StepTime, BeforeValidator(_parse_step_time), WithJsonSchema(_AT_SCHEMA)] | None = None
    after: (
        Annotated[
            StepTrigger, BeforeValidator(_parse_step_trigger), WithJsonSchema({"type": "string", "pattern": _AFTER})
        ]
        | None
    ) = None
    within: PositiveSpan = Field(_WITHIN, description="Maximum time to wait for `after`.")
    note: Annotated[str, Field(max_length=200)] = Field("", description="Description of the step, for people.")
    only: Mode | None = Field(None, description="Run the step only in `play` or only in `try`; in both if omitted.")

    poll: Names | None = None
    approve: ApproveStep | None = None
    schedule: ScheduleStep | None = None
    restart: OfVm | None = None
    redeploy: OfVm | None = None
    reimage: OfVm | None = None
    evict: OfVm | None = None
    delete: OfVm | None = None
    fail_host: OfHost | None = None
    predict_failure: OfHost | None = None
    defer: DeferStep | None = None
    extend: ExtendStep | None = None
    cancel: Name | None = None
    start: Name | None = None
    complete: Name | None = None
    impact: ImpactStep | None = None
    fault: OfFault | None = None
    clear_faults: Literal[True] | None = None
    linger: Annotated[Span, Field(gt=timedelta(0), le=_LINGER_MAX), WithJsonSchema(_SPAN_SCHEMA)] | None = Field(
        None, description="Real time for which a handler under trial sees no change."
    )
    expect: ExpectStep | None = None
    include: Name | None = Field(
        None, description="Insert the steps of another timeline: that of a shipped scenario or of a file."
    )
    parameters: Parameters = Field(
        default_factory=dict, alias="set", description="Parameters of the included scenario."
    )

    @model_validator(mode="after")
    def _require_one_action(self) -> Self:
        if self.include is not None and self.model_fields_set - {"include", "parameters"}:
            raise ValueError("a step with 'include' may only have 'set' beside it")
        if self.include is None and self.parameters:
            raise ValueError("'set' needs 'include'")
        if self.at is not None and self.after is not None:
            raise ValueError("a step cannot have both at and after")
        # One optional field for each action, rather than a union: errors then name the misspelled key and its line.
        count = sum(getattr(self, name) is not None for name in ACTIONS)
        if count != 1:
            raise ValueError(f"a step needs exactly one action, not {count}: one of {', '.join(ACTIONS)}")
        return self

    @property
    def action_name(self) -> str:
        """Name of the action."""
        return next(name for name in ACTIONS if getattr(self, name) is not None)

    @property
    def action(self) -> Action:
        """The action with its arguments."""
        action: Action = getattr(self, self.action_name)
        return action

    @property
    def operation_begun(self) -> str | None:
        """Name of the operation that it begins; None if it begins none."""
        if self.action_name not in OPERATIONS:
            return None
        operation: str | None = getattr(self.action, "operation", None)
        # Named after its action by default, so that a short scenario needs no `as`.
        return operation or self.action_name

    @property
    def operations_required(self) -> Iterable[str]:
        """Operations that must have begun before this step."""
        named = [self.after.operation] if self.after is not None else []
        if self.action_name in {"cancel", "start", "complete"}:
            named.append(str(self.action))
        is_about_one = isinstance(self.action, ApproveStep | DeferStep | ExtendStep | ImpactStep)
        if is_about_one or (isinstance(self.action, ExpectStep) and self.action.operation):
            named.append(str(getattr(self.action, "operation", "")))
        return named


OPERATIONS = ("schedule", "restart", "redeploy", "reimage", "evict", "delete", "fail_host", "predict_failure")
"""Actions that begin an operation."""

ACTIONS = tuple(
    name for name in TimelineStep.model_fields if name not in {"at", "after", "within", "note", "only", "parameters"}
)
"""All actions of a step."""


class ScenarioIn(_ScenarioModel):
    """A scenario."""

    title: Annotated[str, Field(min_length=1, max_length=100)]
    description: Annotated[str, Field(max_length=5000)] = ""
    parameters: Parameters = Field(
        default_factory=dict, description="Names and defaults of the parameters; '${name}' inserts a value."
    )
    # Kept as written and parsed when the scenario is loaded, where errors get their line; the model only describes it
    # in the schema.
    inventory: Annotated[dict[str, Any], BeforeValidator(lambda value: value, json_schema_input_type=InventoryIn)]
    handler: Name | None = Field(None, description="VM whose handler is tried; the first VM if omitted.")
    event_ids: tuple[Annotated[str, Field(pattern=r"^[0-9A-F]{8}(-[0-9A-F]{4}){3}-[0-9A-F]{12}$")], ...] = Field(
        (), max_length=STEPS_MAX, description="EventIds of the first events."
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="Settings of the service.")
    only: Mode | None = Field(None, description="Only mode of the scenario; both if omitted.")
    reboot: bool = Field(
        default=False,
        description="Whether a Reboot or Redeploy of the handler's VM kills and restarts the handler.",
    )
    environment: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)],
        Annotated[str, Field(max_length=1000)],
    ] = Field(
        default_factory=dict,
        max_length=100,
        description="Environment variables of the handler; {endpoint} is replaced by the endpoint's URL.",
    )
    timeline: Annotated[tuple[TimelineStep, ...], Field(min_length=1, max_length=STEPS_MAX)]

"""Rollouts as text: the file that people write, the JSON of the control API, and the JSON in the store.

The error for a fault in a file gives its line and the expected value.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, Literal, Self

import msgspec
from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from forewarn.core.causes import DEFAULT_CAUSE
from forewarn.core.label import SELECTOR_LENGTH_MAX
from forewarn.core.model import EventSource, EventType
from forewarn.core.rollout.rollout import (
    HOSTS_MAX,
    HealthCheck,
    HostOrder,
    Rollout,
    RolloutHost,
    RolloutHostState,
    RolloutSpec,
    RolloutState,
)
from forewarn.core.rollout.rollout_plan import RolloutBatch, RolloutPlan, check_spec
from forewarn.core.rollout.rollout_step_types import WaitForChange
from forewarn.errors import CallerError, InvalidRequest, StoreCorrupt
from forewarn.util.duration import format_duration, parse_duration
from forewarn.wire.json_types import NO_NUL, Moment, RequestModel, ResponseModel, Seconds, to_timedelta
from forewarn.wire.yaml_source import YamlSource

__all__ = [
    "AT_ONCE_MAX",
    "FILE_SIZE_BYTES_MAX",
    "RolloutHostOut",
    "RolloutIn",
    "RolloutOut",
    "RolloutPlanOut",
    "decode_rollout",
    "decode_rollout_state",
    "encode_rollout",
    "parse_rollout",
]

FILE_SIZE_BYTES_MAX = 4 << 20
"""Maximum size of a rollout file; 20,000 hosts with names of 128 characters take less."""

UNWARNED_NAMES_MAX = 1000
"""Maximum number of VM names that a batch of a plan shows."""

AT_ONCE_MAX = 1000
"""Maximum number of hosts in flight at the same time."""

_SPAN_MAX = timedelta(days=3660)
_SPAN_MAX_S = int(_SPAN_MAX.total_seconds())
_TIMEOUT_MAX = timedelta(hours=1)
_WORDS_MAX = 64

Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")]
Host = Annotated[str, Field(min_length=1, max_length=128)]
Hosts = Annotated[list[Host], Field(min_length=1, max_length=HOSTS_MAX)]
Word = Annotated[str, Field(max_length=4096, pattern=NO_NUL)]
Command = Annotated[list[Word], Field(min_length=1, max_length=_WORDS_MAX)]


class _RolloutFields(RequestModel):
    """Common part of a specification in a file and in JSON."""

    name: Name
    type: EventType | None = None
    cause: Annotated[str, Field(max_length=64)] | None = None
    description: Annotated[str, Field(max_length=1000, pattern=NO_NUL)] | None = None
    order: HostOrder = HostOrder.LISTED
    selector: Annotated[str, Field(min_length=1, max_length=SELECTOR_LENGTH_MAX, pattern=NO_NUL)] | None = Field(
        None,
        description="Only hosts with these labels, such as `rack=r1,model!=x`; instead of a list of hosts.",
        examples=["rack=r1"],
    )
    batch_size: Annotated[int, Field(ge=1, le=HOSTS_MAX)] | None = None
    hosts_at_once: Annotated[int, Field(ge=1, le=AT_ONCE_MAX)] | None = None
    one_fault_domain: bool = True
    one_update_domain: bool = True
    failures_max: Annotated[int, Field(ge=1, le=HOSTS_MAX)] = 1

    @model_validator(mode="after")
    def _check_type_or_cause(self) -> Self:
        if self.type is None and self.cause is None:
            raise ValueError("name a type or a cause")
        return self

    @model_validator(mode="after")
    def _check_hosts_or_selector(self) -> Self:
        if "hosts" not in self.model_fields_set and self.selector is None:
            raise ValueError("list hosts, or use all, or give a selector")
        return self

    def _build_spec(self, **rest: Any) -> RolloutSpec:  # noqa: ANN401 - fields of `RolloutSpec`
        """Build a specification from these fields and the missing ones."""
        cause = self.cause
        if cause is None and self.type is not None:
            cause = DEFAULT_CAUSE[self.type, EventSource.PLATFORM]
        shared = {name: getattr(self, name) for name in _RolloutFields.model_fields}
        shared["cause"] = cause or ""
        shared["batch_size"] = self.batch_size or self.hosts_at_once or 1
        shared["hosts_at_once"] = self.hosts_at_once or min(self.batch_size or 1, AT_ONCE_MAX)
        return RolloutSpec(**shared, **rest)


# The file


def _parse_bounded_span(value: object) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        msg = "expected a span of time, for example 90s, 15m, 24h or 7d"
        raise ValueError(msg)  # noqa: TRY004 - pydantic takes a TypeError for a bug
    span = parse_duration(value)
    if not timedelta(0) <= span <= _SPAN_MAX:
        raise ValueError(f"{value!r} is out of range: expected at least 0s and at most {format_duration(_SPAN_MAX)}")
    return span


def _parse_timeout(value: object) -> timedelta:
    span = _parse_bounded_span(value)
    if not timedelta(0) < span <= _TIMEOUT_MAX:
        msg = f"{value!r} is out of range: expected more than 0s and at most {format_duration(_TIMEOUT_MAX)}"
        raise ValueError(msg)
    return span


def _parse_duration(value: object) -> int:
    if value == "unknown":
        return -1
    span = _parse_bounded_span(value)
    if span.microseconds:
        raise ValueError(f"{value!r} is not a duration: expected whole seconds, for example 5s or 10m, or unknown")
    return int(span.total_seconds())


def _parse_hosts(value: object) -> object:
    if value == "all":
        return None
    if not isinstance(value, list):
        raise ValueError("expected a list of hosts, or all")  # noqa: TRY004 - as above
    return value


_Span = Annotated[timedelta, BeforeValidator(_parse_bounded_span)]
_Timeout = Annotated[timedelta, BeforeValidator(_parse_timeout)]
_Duration = Annotated[int, BeforeValidator(_parse_duration)]


class _FileCanary(RequestModel):
    hosts: Hosts
    pause: _Span | None = None


class _FileHealth(RequestModel):
    command: Command
    timeout: _Timeout = timedelta(minutes=1)


class _RolloutFile(_RolloutFields):
    """A whole rollout file."""

    duration: _Duration | None = None
    notice: _Span | None = None
    hosts: Annotated[Hosts | None, BeforeValidator(_parse_hosts)] = None
    canary: _FileCanary | None = None
    pause: _Span = timedelta(0)
    health: _FileHealth | None = None
    deadline: _Span | None = None

    def to_spec(self) -> RolloutSpec:
        canary, health = self.canary, self.health
        return self._build_spec(
            duration_s=self.duration,
            notice=self.notice,
            hosts=None if self.hosts is None else tuple(self.hosts),
            canary=() if canary is None else tuple(canary.hosts),
            canary_pause=self.pause if canary is None or canary.pause is None else canary.pause,
            pause=self.pause,
            health=None if health is None else HealthCheck(command=tuple(health.command), timeout=health.timeout),
            deadline=self.deadline,
        )


def parse_rollout(content: bytes, where: str = "rollout") -> RolloutSpec:
    """Parse the file of a rollout.

    Args:
        content: YAML or JSON.
        where: Name of the file in errors.

    Raises:
        CallerError: It is malformed, too large, or contradicts itself; message and ``details["line"]`` give the place.
    """
    source = YamlSource(where, size_bytes_max=FILE_SIZE_BYTES_MAX, kind="rollout", error_class=InvalidRequest)
    data = source.read(content)
    if not isinstance(data, dict):
        raise source.build_error((), "expected a mapping with at least name, type and hosts")
    spec = source.validate(_RolloutFile, data).to_spec()
    try:
        check_spec(spec)
    except CallerError as error:
        # The core names the place in the specification; in the file it has the same keys.
        line = source.find_line(tuple(error.details.get("at", ())))
        raise type(error)(f"{where}:{line}: {error.message}", **error.details | {"line": line}) from error
    return spec


# The control API


class CanaryIn(RequestModel):
    """Hosts that go first, each alone."""

    hosts: Hosts
    pause_s: Seconds | None = Field(
        None, description="Seconds to pause after the last of these hosts. Default: `pause_s` of the rollout."
    )


class HealthCheckIn(RequestModel):
    """Health check between two batches."""

    command: Command = Field(description="Program and arguments, run without a shell. Exit status 0 means healthy.")
    timeout_s: Annotated[float, Field(gt=0, le=_TIMEOUT_MAX.total_seconds(), allow_inf_nan=False)] = 60.0


class RolloutIn(_RolloutFields):
    """A rollout to plan or to start; in responses, the specification of a rollout."""

    hosts: Hosts | Literal["all"] = Field(
        "all",
        description="Names of hosts, or `all` for every host in the inventory now. Required, unless `selector` is set.",
    )
    duration_s: Annotated[int, Field(ge=-1, le=_SPAN_MAX_S)] | None = Field(
        None,
        description="Expected duration of the impact in seconds. 0: no interruption; -1: unknown. "
        "Default: the duration of the cause.",
    )
    notice_s: Seconds | None = Field(None, description="Seconds from announcement to NotBefore. Default: the minimum.")
    canary: CanaryIn | None = None
    pause_s: Seconds = Field(0.0, description="Seconds to pause between two batches.")
    health: HealthCheckIn | None = None
    deadline_s: Seconds | None = Field(
        None,
        description="Maximum seconds from when the rollout schedules the maintenance of a host until it has ended.",
    )

    @classmethod
    def from_spec(cls, spec: RolloutSpec) -> RolloutIn:
        """Build from the model: reading it back gives the same."""
        canary = CanaryIn(hosts=list(spec.canary), pause_s=spec.canary_pause.total_seconds()) if spec.canary else None
        health = None
        if spec.health is not None:
            health = HealthCheckIn(command=list(spec.health.command), timeout_s=spec.health.timeout.total_seconds())
        return cls(
            **{name: getattr(spec, name) for name in _RolloutFields.model_fields},
            duration_s=spec.duration_s,
            notice_s=_to_seconds(spec.notice),
            hosts="all" if spec.hosts is None else list(spec.hosts),
            canary=canary,
            pause_s=spec.pause.total_seconds(),
            health=health,
            deadline_s=_to_seconds(spec.deadline),
        )

    def to_spec(self) -> RolloutSpec:
        """Convert to a specification of the core."""
        canary, health, pause = self.canary, self.health, timedelta(seconds=self.pause_s)
        return self._build_spec(
            duration_s=self.duration_s,
            notice=to_timedelta(self.notice_s),
            hosts=None if self.hosts == "all" else tuple(self.hosts),
            canary=() if canary is None else tuple(canary.hosts),
            canary_pause=pause if canary is None or canary.pause_s is None else timedelta(seconds=canary.pause_s),
            pause=pause,
            health=None
            if health is None
            else HealthCheck(command=tuple(health.command), timeout=timedelta(seconds=health.timeout_s)),
            deadline=to_timedelta(self.deadline_s),
        )


class QuietHoursMoveOut(ResponseModel):
    """A host that quiet hours postpone."""

    host: str
    not_before: Moment
    moved_from: Moment = Field(description="NotBefore without quiet hours.")
    moved_by: list[str] = Field(description="Scopes or standalone VMs whose quiet hours move NotBefore.")


class PlannedBatchOut(ResponseModel):
    """A batch of a plan."""

    number: int = Field(description="Number of the batch, from 1.")
    is_canary: bool
    rounds: list[list[str]] = Field(description="Hosts of the batch, in groups that will be in progress together.")
    vms: int = Field(description="Number of VMs on the hosts of the batch.")
    unwarned: int = Field(description="Number of VMs of the batch that no event would warn now.")
    unwarned_vms: list[str] = Field(
        description=f"Names of the unwarned VMs of the batch, at most {UNWARNED_NAMES_MAX}."
    )
    begins_at: Moment
    ends_at: Moment
    moves: list[QuietHoursMoveOut] = Field(description="Hosts that quiet hours postpone.")

    @classmethod
    def from_model(cls, batch: RolloutBatch) -> PlannedBatchOut:
        """Build from the model."""
        return cls.copy_from(
            batch,
            number=batch.number + 1,
            unwarned=len(batch.unwarned_vms),
            unwarned_vms=batch.unwarned_vms[:UNWARNED_NAMES_MAX],
            moves=[QuietHoursMoveOut.copy_from(move) for move in batch.moves],
        )


class RolloutPlanOut(ResponseModel):
    """Plan of a rollout; nothing was changed. The times are estimates."""

    dry_run: Literal[True] = True
    name: str
    hosts: int
    begins_at: Moment
    ends_at: Moment
    is_at_least: bool = Field(
        description="True if it may take longer than estimated, because the duration is unknown or VMs wait for each "
        "other."
    )
    batches: list[PlannedBatchOut]

    @classmethod
    def from_model(cls, plan: RolloutPlan) -> RolloutPlanOut:
        """Build from the model."""
        return cls.copy_from(
            plan,
            name=plan.spec.name,
            hosts=sum(len(batch.hosts) for batch in plan.batches),
            batches=[PlannedBatchOut.from_model(batch) for batch in plan.batches],
        )


class RolloutHostOut(ResponseModel):
    """A host of a rollout."""

    name: str
    batch: int = Field(description="Number of the host's batch, from 1.")
    state: RolloutHostState
    maintenance_ids: list[str]
    scheduled_at: Moment | None
    ended_at: Moment | None
    reason: str | None

    @classmethod
    def from_model(cls, host: RolloutHost) -> RolloutHostOut:
        """Build from the model."""
        return cls.copy_from(host, batch=host.batch + 1)


class RolloutOut(ResponseModel):
    """A rollout as a whole. Its hosts are a separate list, since there may be many."""

    id: str
    name: str
    state: RolloutState
    reason: str | None = Field(description="Reason why the rollout is paused, is being aborted, or was aborted.")
    created_at: Moment
    started_at: Moment | None
    ended_at: Moment | None
    batch: int | None = Field(
        description="Number of the current batch, from 1. Null: every host is done, failed or skipped."
    )
    batches: int
    counts: dict[RolloutHostState, int] = Field(description="Number of hosts in each state.")
    in_flight: list[str] = Field(description="Hosts with a maintenance that has not ended.")
    waits_for: str | None
    waits_until: Moment | None
    spec: RolloutIn

    @classmethod
    def from_model(cls, rollout: Rollout, wait: WaitForChange | None = None) -> RolloutOut:
        """Build from the model, and from the last of its next steps."""
        batch = rollout.current_batch
        return cls.copy_from(
            rollout,
            name=rollout.spec.name,
            batch=None if batch is None else batch + 1,
            batches=rollout.batch_count,
            counts=rollout.host_counts,
            in_flight=[host.name for host in rollout.open_hosts],
            waits_for=None if wait is None else wait.reason,
            waits_until=None if wait is None else wait.until,
            spec=RolloutIn.from_spec(rollout.spec),
        )


# Storage

_STORED = TypeAdapter(Rollout)


def encode_rollout(rollout: Rollout) -> str:
    """Encode a rollout as JSON, to be stored. Moments and spans keep their microseconds."""
    return _STORED.dump_json(rollout).decode()


def decode_rollout(text: str) -> Rollout:
    """Decode the result of `encode_rollout`.

    Raises:
        StoreCorrupt: It is something else.
    """
    try:
        return _STORED.validate_json(text)
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
        raise StoreCorrupt(f"cannot read a stored rollout: invalid {place or 'text'}") from error


class _StoredState(msgspec.Struct):
    state: RolloutState


def decode_rollout_state(text: str) -> RolloutState:
    """Decode only the state of a stored rollout, which may have thousands of hosts.

    Raises:
        StoreCorrupt: It is something else.
    """
    try:
        return msgspec.json.decode(text, type=_StoredState).state
    except msgspec.MsgspecError as error:
        raise StoreCorrupt("cannot read a stored rollout: invalid state") from error


def _to_seconds(span: timedelta | None) -> float | None:
    return None if span is None else span.total_seconds()

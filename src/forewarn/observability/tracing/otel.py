"""Tracing with the OpenTelemetry SDK; imported only when tracing is on.

Spans of work in this process (commands, transactions) use the machine's clock, as is usual in the SDK. Spans of a
maintenance use the service's clock, which is that of the audit log and may be virtual.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from itertools import islice
from os import environ
from typing import Any

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import Decision, ParentBasedTraceIdRatio
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from forewarn import __version__
from forewarn.clock import Clock
from forewarn.core.maintenance.approval import Approver
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import Maintenance
from forewarn.errors import ForewarnError
from forewarn.observability.tracing import ActuatorCall, Origin, Tracing, trace_ids
from forewarn.observability.tracing.export import ExportPipeline, choose_service_name
from forewarn.observability.tracing.maintenance_spans import (
    NAMES_MAX,
    MaintenanceSpan,
    Value,
    build_list_attributes,
    derive_spans,
)

__all__ = ["OpenTelemetry"]

_EPOCH = datetime.fromtimestamp(0, UTC)
_NAMED: ContextVar[tuple[int, int] | None] = ContextVar("_NAMED", default=None)
"""Trace and span id for the next span that begins; None for random ids."""
_UNTRACED = frozenset({"/watch", "/requests"})
"""Ends of the control API paths that are not traced: they are requested often, or their responses last for days."""
_FORMS = ("/schedule", "/maintenance/", "/rollouts/")
"""Prefixes of the dashboard paths whose forms change something."""
_APPROVALS_PATH = "/metadata/scheduledevents"
_TEXT_LENGTH_MAX = 1000
"""Maximum length of attributes and messages unless the SDK's variables set one: strangers choose paths and hosts."""


class OpenTelemetry(Tracing):
    """Tracing to an OTLP collector; see `forewarn.observability.tracing.make_tracing` for the arguments."""

    is_on = True

    def __init__(
        self,
        endpoint: str,
        *,
        clock: Clock,
        sample_ratio: float | None,
        service_name: str | None,
        spans_max: int,
    ) -> None:
        if not self.propagation_headers:  # without any, the API fails to read a request's headers
            raise ValueError("OTEL_PROPAGATORS must not be none; only operators' traces are joined anyway")
        self._clock = clock
        self._spans_max = spans_max
        self._provider = TracerProvider(
            # By the trace id: the steps of a maintenance are sampled alike, though each is decided separately (ADR 20).
            sampler=None if sample_ratio is None else ParentBasedTraceIdRatio(sample_ratio),
            resource=Resource.create(
                {"service.name": choose_service_name(service_name), "service.version": __version__}
            ),
            span_limits=_make_span_limits(),
            shutdown_on_exit=False,  # it would wait up to half a minute for the collector
            id_generator=_MaintenanceIdGenerator(),
        )
        self._provider.add_span_processor(_QueryRedactor())
        self._exporting = ExportPipeline(self._provider, endpoint)
        self._tracer = self._provider.get_tracer("forewarn", __version__)

    # Commands

    def current_span(self) -> Origin | None:
        """See `Tracing`."""
        span = trace.get_current_span()
        return span if span.get_span_context().is_valid else None

    def command_span(self, name: str) -> AbstractContextManager[None]:
        """See `Tracing`."""
        return self._open_span(f"engine {name}")

    def approval_span(self, approver: Approver, count: int) -> AbstractContextManager[None]:
        """See `Tracing`."""
        attributes = {
            "http.request.method": "POST",
            "http.route": _APPROVALS_PATH,
            "url.path": _APPROVALS_PATH,
            "url.scheme": "http",
            "forewarn.vm": approver.vm or "",
            "forewarn.audience": approver.audience or "",
            "forewarn.api_version": approver.api_version or "",
            "forewarn.events.count": count,
            "client.address": approver.source_address or "",
        }
        # In an empty context: a trace that the VM names is not joined (ADR 20).
        return self._open_span(f"POST {_APPROVALS_PATH}", Context(), kind=SpanKind.SERVER, attributes=attributes)

    @contextmanager
    def batch_span(self, origins: Sequence[Origin | None]) -> Iterator[None]:
        """See `Tracing`."""
        spans: list[Span] = [each for each in origins if each is not None]
        if not spans:
            yield
            return
        if len(spans) == 1:
            with trace.use_span(spans[0], record_exception=False, set_status_on_exception=False):
                yield
            return
        first = trace.set_span_in_context(spans[0], Context())
        with self._open_span("engine approve together", first, links=[Link(s.get_span_context()) for s in spans[1:]]):
            context = trace.get_current_span().get_span_context()
            for span in spans[1:]:
                span.add_link(context)
            yield

    @contextmanager
    def child_span(self, name: str, origin: Origin | None = None) -> Iterator[None]:
        """See `Tracing`."""
        above = self.current_span() if origin is None else origin
        if above is None:
            yield
            return
        with self._open_span(name, trace.set_span_in_context(above)):
            yield

    @contextmanager
    def publication_span(self, changes: ChangeSet) -> Iterator[None]:
        """See `Tracing`."""
        if changes.is_empty:
            yield
            return
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attributes(
                _build_id_attributes(changes.maintenances)
                | {"forewarn.events.count": len(changes.events), "forewarn.documents.count": len(changes.documents)}
            )
            for maintenance_id in islice(changes.maintenances, NAMES_MAX):
                # A link to a trace that was not sampled would lead nowhere.
                root = self._get_root_context(maintenance_id)
                if root.trace_flags.sampled:
                    span.add_link(root)
        with self.child_span("publish"):
            yield

    def due_span(self, began_at: datetime) -> AbstractContextManager[None]:
        """See `Tracing`."""
        start = None if self._clock.is_virtual else _to_nanoseconds(began_at)
        return self._open_span("scheduler due", Context(), start_time=start)

    @contextmanager
    def _open_span(self, name: str, context: Context | None = None, **how: Any) -> Iterator[None]:  # noqa: ANN401 - the SDK's
        """Run the block in a span; an error is recorded by its code, without a stack trace."""
        how = {"record_exception": False, "set_status_on_exception": False} | how
        with self._tracer.start_as_current_span(name, context, **how) as span:
            try:
                yield
            except Exception as error:
                _record_error(span, error)
                raise

    # Maintenances

    def export_changes(self, changes: ChangeSet) -> None:
        """See `Tracing`."""
        self.export_spans(islice(derive_spans(changes), self._spans_max))

    def export_spans(self, moments: Iterable[MaintenanceSpan]) -> None:
        """See `Tracing`."""
        cause = trace.get_current_span().get_span_context()
        links = [Link(cause)] if cause.is_valid and cause.trace_flags.sampled else []
        for moment in moments:
            span = self._start_span(moment, links)
            if moment.failure is not None:
                span.set_status(Status(StatusCode.ERROR, moment.failure[:_TEXT_LENGTH_MAX]))
            span.end(_to_nanoseconds(moment.ended_at))

    def _start_span(self, moment: MaintenanceSpan, links: Sequence[Link], kind: SpanKind = SpanKind.INTERNAL) -> Span:
        root = self._get_root_context(moment.maintenance_id)
        context = Context()
        token = None
        # `start_span` takes no ids, so the id generator gets those of the root through a context variable.
        if moment.is_root:
            token = _NAMED.set((root.trace_id, root.span_id))
        else:
            context = trace.set_span_in_context(NonRecordingSpan(root), context)
        try:
            return self._tracer.start_span(
                moment.name,
                context,
                kind,
                attributes=dict(moment.attributes),
                links=links,
                start_time=_to_nanoseconds(moment.began_at),
            )
        finally:
            if token is not None:
                _NAMED.reset(token)

    def _get_root_context(self, maintenance_id: str) -> SpanContext:
        """Return the root of a maintenance's trace; the sampler decides again whether it was exported."""
        trace_id = trace_ids.derive_trace_id(maintenance_id)
        decision = self._provider.sampler.should_sample(Context(), trace_id, "maintenance").decision
        flags = TraceFlags(TraceFlags.SAMPLED if decision is Decision.RECORD_AND_SAMPLE else TraceFlags.DEFAULT)
        return SpanContext(trace_id, trace_ids.derive_root_span_id(maintenance_id), is_remote=False, trace_flags=flags)

    @contextmanager
    def actuator_call_span(self, maintenance: Maintenance, name: str, began_at: datetime) -> Iterator[ActuatorCall]:
        """See `Tracing`."""
        attributes = {"forewarn.maintenance.id": maintenance.id}
        moment = MaintenanceSpan(
            maintenance_id=maintenance.id, name=name, began_at=began_at, ended_at=began_at, attributes=attributes
        )
        span = self._start_span(moment, [], SpanKind.CLIENT)
        try:
            yield _SpanActuatorCall(span)
        except BaseException as error:
            _record_error(span, error)
            raise
        finally:
            span.end(_to_nanoseconds(self._clock.now()))

    def traceparent(self, maintenance_id: str) -> str:
        """See `Tracing`."""
        return _format_context(self._get_root_context(maintenance_id))

    # The control API

    @property
    def telemetry_options(self) -> dict[str, Any]:
        """FastAPI's options for request spans, which join the caller's ``traceparent``; no other telemetry."""
        return {
            "tracer_provider": self._provider,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
            "exclude": _is_untraced,
        }

    @property
    def propagation_headers(self) -> frozenset[str]:
        """See `Tracing`; set by ``OTEL_PROPAGATORS``."""
        return frozenset(name.lower() for name in propagate.get_global_textmap().fields)

    async def close(self) -> None:
        """See `Tracing`."""
        await self._exporting.close()


class _SpanActuatorCall(ActuatorCall):
    def __init__(self, span: Span) -> None:
        self._span = span
        self.traceparent = _format_context(span.get_span_context())

    def add_facts(self, **what: bool | float | str) -> None:
        self._span.set_attributes({f"forewarn.{name}": value for name, value in what.items()})


class _QueryRedactor(SpanProcessor):
    """Span processor that redacts the query of a request, which may hold secrets."""

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:  # noqa: ARG002 - required by the interface
        if isinstance(span, ReadableSpan) and "url.query" in (span.attributes or {}):
            span.set_attribute("url.query", "REDACTED")


def _make_span_limits() -> SpanLimits:
    is_said = any(environ.get(f"OTEL_{of}ATTRIBUTE_VALUE_LENGTH_LIMIT") for of in ("", "SPAN_"))
    return SpanLimits() if is_said else SpanLimits(max_attribute_length=_TEXT_LENGTH_MAX)


def _record_error(span: Span, error: BaseException) -> None:
    """Record code and message of our own errors; of others only the type, since their messages may hold secrets."""
    code, words = (error.code, str(error)) if isinstance(error, ForewarnError) else (type(error).__name__, "")
    span.set_attribute("error.type", code)
    span.set_status(Status(StatusCode.ERROR, words[:_TEXT_LENGTH_MAX] or None))


class _MaintenanceIdGenerator(RandomIdGenerator):
    """Generator of random ids, except for the root of a maintenance's trace."""

    def generate_trace_id(self) -> int:
        named = _NAMED.get()
        return super().generate_trace_id() if named is None else named[0]

    def generate_span_id(self) -> int:
        named = _NAMED.get()
        return super().generate_span_id() if named is None else named[1]


def _is_untraced(scope: Any) -> bool:  # noqa: ANN401 - ASGI's
    path: str = scope["path"]
    if path.startswith("/v1/"):
        return path != "/v1/requests" and path[path.rfind("/") :] in _UNTRACED
    return scope.get("method") != "POST" or not path.startswith(_FORMS)


def _build_id_attributes(maintenance_ids: Collection[str]) -> dict[str, Value]:
    """Return the id of a single maintenance under the attribute used in its trace; several ids under another one."""
    if len(maintenance_ids) == 1:
        return {"forewarn.maintenance.id": next(iter(maintenance_ids))}
    return build_list_attributes("forewarn.maintenance.ids", maintenance_ids) if maintenance_ids else {}


def _format_context(context: SpanContext) -> str:
    return trace_ids.format_traceparent(context.trace_id, context.span_id, is_sampled=context.trace_flags.sampled)


def _to_nanoseconds(moment: datetime) -> int:
    """Return nanoseconds since 1970, the time unit of the SDK."""
    return (moment - _EPOCH) // timedelta(microseconds=1) * 1000

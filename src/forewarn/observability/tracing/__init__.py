"""Tracing to an OpenTelemetry collector; off unless `tracing_endpoint` is set.

A maintenance lasts minutes to days, and a span is sent only when it ends. So no span is kept open for a maintenance:
its trace id is derived from its id (`trace_ids`), and each step is exported when it is over (`maintenance_spans`), by
the replica that carried it out.

The rest of the service knows only `Tracing`. The base class does nothing and costs an attribute lookup; the
OpenTelemetry SDK is imported only if `make_tracing` gets an address.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any

from forewarn.clock import Clock
from forewarn.core.maintenance.approval import Approver
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import Maintenance
from forewarn.errors import ConfigError

if TYPE_CHECKING:
    from forewarn.observability.tracing.maintenance_spans import MaintenanceSpan

__all__ = ["ActuatorCall", "Origin", "Tracing", "make_tracing"]

Origin = Any
"""Span in which an action was requested; only `otel` knows its class."""


class ActuatorCall:
    """Traced call of an actuator.

    Attributes:
        traceparent: Parent for the spans of the called program; empty if the call is not traced.
    """

    traceparent = ""

    def add_facts(self, **what: bool | float | str) -> None:
        """Add facts about the outcome to the span."""


# One object for all uses: it has no state, so it may be entered again while it is open.
_NOTHING = nullcontext()
_NO_CALL: AbstractContextManager[ActuatorCall] = nullcontext(ActuatorCall())


class Tracing:
    """Interface for tracing; this implementation does nothing.

    Attributes:
        is_on: True if spans are exported.
    """

    is_on = False

    # Commands

    def current_span(self) -> Origin | None:
        """Return the current span, to continue elsewhere; None if there is none."""
        return None

    def command_span(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002 - required by the interface
        """Trace a command, below the request that asked for it."""
        return _NOTHING

    def approval_span(self, approver: Approver, count: int) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """Trace a VM's POST that approves `count` events. A trace named by the VM is not joined: a tenant sent it."""
        return _NOTHING

    def batch_span(self, origins: Sequence[Origin | None]) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """Trace work done for several commands at once, below the first and linked with the others."""
        return _NOTHING

    def child_span(self, name: str, origin: Origin | None = None) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """Trace a part of the current span, or of `origin`; do nothing if there is neither."""
        return _NOTHING

    def publication_span(self, changes: ChangeSet) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """Trace the publication of the current command's changes."""
        return _NOTHING

    def due_span(self, began_at: datetime) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """Trace due work that the scheduler has done since `began_at`."""
        return _NOTHING

    # Maintenances

    def export_changes(self, changes: ChangeSet) -> None:
        """Export committed changes, each in the trace of its maintenance."""

    def export_spans(self, moments: Iterable[MaintenanceSpan]) -> None:
        """Export these moments."""

    def actuator_call_span(
        self,
        maintenance: Maintenance,  # noqa: ARG002 - as above
        name: str,  # noqa: ARG002 - as above
        began_at: datetime,  # noqa: ARG002 - as above
    ) -> AbstractContextManager[ActuatorCall]:
        """Trace a call of an actuator."""
        return _NO_CALL

    def traceparent(self, maintenance_id: str) -> str:  # noqa: ARG002 - as above
        """Return the ``traceparent`` of a maintenance; empty if tracing is off."""
        return ""

    # The control API

    @property
    def telemetry_options(self) -> dict[str, Any] | None:
        """FastAPI's options for request spans; None if tracing is off."""
        return None

    @property
    def propagation_headers(self) -> frozenset[str]:
        """Headers with which a request can join a trace, in lower case."""
        return frozenset()

    async def close(self) -> None:
        """Send the remaining spans, for a second at most."""


def make_tracing(
    endpoint: str | None,
    *,
    clock: Clock,
    sample_ratio: float | None = None,
    service_name: str | None = None,
    spans_max: int = 1000,
) -> Tracing:
    """Return the tracing for these settings; without an endpoint, tracing does nothing.

    Args:
        endpoint: URL of an OTLP/HTTP collector; None if there is none.
        clock: Service clock, used for the times of maintenance steps.
        sample_ratio: Share of the traces to export, 0 to 1; None for ``OTEL_TRACES_SAMPLER``, or all.
        service_name: Name of the service in traces; None for ``OTEL_SERVICE_NAME``, or ``forewarn``.
        spans_max: Maximum number of steps exported for one change.

    Raises:
        ConfigError: The extra is not installed, or an OpenTelemetry variable is invalid.
    """
    if endpoint is None:
        return Tracing()
    try:
        from forewarn.observability.tracing.otel import OpenTelemetry  # noqa: PLC0415 - only where it is on
    except ImportError as error:
        msg = f"tracing_endpoint is set, but {error.name} is not installed: pip install 'forewarn[server,tracing]'"
        raise ConfigError(msg, setting="tracing_endpoint") from error
    try:
        return OpenTelemetry(
            endpoint,
            clock=clock,
            sample_ratio=sample_ratio,
            service_name=service_name,
            spans_max=spans_max,
        )
    except ValueError as error:
        raise ConfigError(f"invalid OpenTelemetry variables (OTEL_...): {error}", setting="tracing_endpoint") from error

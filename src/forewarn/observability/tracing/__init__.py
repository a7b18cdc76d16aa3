"""Tracing to an OpenTelemetry collector; off unless `tracing_endpoint` is set.

A maintenance lasts minutes to days, and a span is sent only when it ends. So no span is kept open for a maintenance:
its trace id is derived from its id (`names`), and each step is exported when it is over (`life`), by the replica that
carried it out.

The rest of the service knows only `Tracing`. The base class does nothing and costs an attribute lookup; the
OpenTelemetry SDK is imported only if `opened` gets an address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, Any

from forewarn.clock import Clock
from forewarn.core.approval import Approver
from forewarn.core.decision import Changes
from forewarn.core.model import Maintenance
from forewarn.errors import ConfigError

if TYPE_CHECKING:
    from forewarn.observability.tracing.life import Moment

__all__ = ["Call", "Origin", "Tracing", "opened"]

Origin = Any
"""Span in which an action was requested; only `otel` knows its class."""


class Call:
    """Traced call of an actuator.

    Attributes:
        traceparent: Parent for the spans of the called program; empty if the call is not traced.
    """

    traceparent = ""

    def say(self, **what: bool | float | str) -> None:
        """Add facts about the outcome to the span."""


_NOTHING = nullcontext()
_NO_CALL: AbstractContextManager[Call] = nullcontext(Call())


class Tracing:
    """Interface for tracing; this implementation does nothing.

    Attributes:
        is_on: True if spans are exported.
    """

    is_on = False

    # Commands

    def here(self) -> Origin | None:
        """Return the current span, to continue elsewhere; None if there is none."""
        return None

    def command(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002 - required by the interface
        """Trace a command, below the request that asked for it."""
        return _NOTHING

    def answering(self, approver: Approver, count: int) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """Trace a VM's POST that approves `count` events. A trace named by the VM is not joined: a tenant sent it."""
        return _NOTHING

    def together(self, origins: Sequence[Origin | None]) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """Trace work done for several commands at once, below the first and linked with the others."""
        return _NOTHING

    def part(self, name: str, origin: Origin | None = None) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """Trace a part of the current span, or of `origin`; do nothing if there is neither."""
        return _NOTHING

    def publishing(self, changes: Changes) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """Trace the publication of the current command's changes."""
        return _NOTHING

    def due(self, began_at: datetime) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """Trace due work that the scheduler has done since `began_at`."""
        return _NOTHING

    # Maintenances

    def told(self, changes: Changes) -> None:
        """Export committed changes, each in the trace of its maintenance."""

    def tell(self, moments: Iterable[Moment]) -> None:
        """Export these moments."""

    def call(self, maintenance: Maintenance, name: str, began_at: datetime) -> AbstractContextManager[Call]:  # noqa: ARG002 - as above
        """Trace a call of an actuator."""
        return _NO_CALL

    def traceparent(self, maintenance_id: str) -> str:  # noqa: ARG002 - as above
        """Return the ``traceparent`` of a maintenance; empty if tracing is off."""
        return ""

    # The control API

    @property
    def telemetry(self) -> dict[str, Any] | None:
        """FastAPI's options for request spans; None if tracing is off."""
        return None

    @property
    def joining(self) -> frozenset[str]:
        """Headers with which a request can join a trace, in lower case."""
        return frozenset()

    async def close(self) -> None:
        """Send the remaining spans, for a second at most."""


def opened(  # noqa: PLR0913 - settings, each with its default
    endpoint: str | None,
    *,
    clock: Clock,
    sample_ratio: float | None = None,
    service_name: str | None = None,
    moments_max: int = 1000,
    log: Callable[..., None] | None = None,
) -> Tracing:
    """Return the tracing for these settings; without an endpoint, tracing does nothing.

    Args:
        endpoint: URL of an OTLP/HTTP collector; None if there is none.
        clock: Service clock, used for the times of maintenance steps.
        sample_ratio: Share of the traces to export, 0 to 1; None for ``OTEL_TRACES_SAMPLER``, or all.
        service_name: Name of the service in traces; None for ``OTEL_SERVICE_NAME``, or ``forewarn``.
        moments_max: Maximum number of steps exported for one change.
        log: Function that reports when sending fails and when it works again; None for the log.

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
            moments_max=moments_max,
            log=log,
        )
    except ValueError as error:
        msg = f"OpenTelemetry cannot do what its variables (OTEL_...) say: {error}"
        raise ConfigError(msg, setting="tracing_endpoint") from error

"""Traces: what the service does, told to an OpenTelemetry collector. Off unless `tracing_endpoint` says where to.

A maintenance lives for minutes to days, and a span is sent when it ends. So no span is kept open for it: its trace id
follows from its id (`names`), and every step is told when it is over (`life`), by whichever replica took it.

`Tracing` is what the rest of the service knows. As it stands it tells nothing, and costs a look at an attribute; the
OpenTelemetry SDK is imported only where `opened` was given an address.
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
"""Where something was asked for: a span, whose class is a matter of `otel`."""


class Call:
    """A call of an actuator that is traced.

    Attributes:
        traceparent: What whoever is called may put its own spans under; ``""``: nothing is traced.
    """

    traceparent = ""

    def say(self, **what: bool | float | str) -> None:
        """Say what came of it."""


_NOTHING = nullcontext()
_NO_CALL: AbstractContextManager[Call] = nullcontext(Call())


class Tracing:
    """What is told; this one tells nothing.

    Attributes:
        is_on: Whether anything is told at all.
    """

    is_on = False

    # Commands

    def here(self) -> Origin | None:
        """What is being done now, for something that goes on elsewhere; None: nothing that is traced."""
        return None

    def command(self, name: str) -> AbstractContextManager[None]:  # noqa: ARG002 - of the contract
        """A command, below the request that asked for it."""
        return _NOTHING

    def answering(self, approver: Approver, count: int) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """The POST of a VM that approves so many events. Whatever trace the VM names is not joined: it is a tenant."""
        return _NOTHING

    def together(self, origins: Sequence[Origin | None]) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """What is done for several commands at once: below the first, and linked with the others."""
        return _NOTHING

    def part(self, name: str, origin: Origin | None = None) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """A part of what is being done, or of `origin`; nothing if there is neither."""
        return _NOTHING

    def publishing(self, changes: Changes) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """The publication of what the command that is being carried out has changed."""
        return _NOTHING

    def due(self, began_at: datetime) -> AbstractContextManager[None]:  # noqa: ARG002 - as above
        """What the scheduler has done by itself, since that moment."""
        return _NOTHING

    # Maintenances

    def told(self, changes: Changes) -> None:
        """Tell what was committed, each in the trace of its maintenance."""

    def tell(self, moments: Iterable[Moment]) -> None:
        """Tell these."""

    def call(self, maintenance: Maintenance, name: str, began_at: datetime) -> AbstractContextManager[Call]:  # noqa: ARG002 - as above
        """A call of an actuator."""
        return _NO_CALL

    def traceparent(self, maintenance_id: str) -> str:  # noqa: ARG002 - as above
        """What stands for the trace of a maintenance; ``""``: nothing is traced."""
        return ""

    # The control API

    @property
    def telemetry(self) -> dict[str, Any] | None:
        """What FastAPI is to be told for the spans of its requests; None: nothing."""
        return None

    @property
    def joining(self) -> frozenset[str]:
        """Headers by which a request says which trace it belongs to, in lower case."""
        return frozenset()

    async def close(self) -> None:
        """Send what is left, for a second at most."""


def opened(  # noqa: PLR0913 - settings, each with its default
    endpoint: str | None,
    *,
    clock: Clock,
    sample_ratio: float | None = None,
    service_name: str | None = None,
    moments_max: int = 1000,
    log: Callable[..., None] | None = None,
) -> Tracing:
    """The tracing that the settings name; one that tells nothing where there is no endpoint.

    Args:
        endpoint: Where an OTLP/HTTP collector listens; None: nowhere.
        clock: The service's: steps of maintenances are told by its time.
        sample_ratio: Share of the traces that are told, 0 to 1; None: what ``OTEL_TRACES_SAMPLER`` says, or all.
        service_name: None: what ``OTEL_SERVICE_NAME`` says, or ``forewarn``.
        moments_max: Steps that are told of one change.
        log: Told, in words, when spans cannot be sent, and when they can again; None for the log.

    Raises:
        ConfigError: The extra is not installed, or a variable of OpenTelemetry says what cannot be.
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

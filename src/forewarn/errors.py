"""All errors that Forewarn raises on purpose.

::

    ForewarnError
      + CallerError                 the caller is to blame (4xx)
      | + InvalidRequest            400  the request is malformed or contradicts itself
      | + Unauthorized              401  no token, or an unknown one
      | + Forbidden                 403  the token may not do this
      | + NotFound                  404  no such host, VM, maintenance or event
      | + Conflict                  409  the object exists, but its state does not allow this
      | | + BelowMinimumNotice      409  shorter notice than promised, not forced
      | | + QuietHoursConflict      409  no moment within the limits is outside quiet hours, not forced
      | | + TooManyRemovals         409  an inventory removes more than the limit, not confirmed
      | + IdempotencyMismatch       422  a key reused for a different request
      | + LimitExceeded             429  a limit of the configuration was reached
      | + BudgetExceeded            429  this principal has used up its budget
      | + TooManyFailures           429  too many calls without a valid token from this address
      + ConfigError                 500  settings, inventory file or command line cannot be used
      + OtherSideError              502  another system failed
      | + ActuatorError             502  an actuator could not carry out a maintenance
      | | + ActuationFailed         502  the maintenance has failed for good
      | | + ActuatorBusy            502  nothing was done yet; call again later
      | + ServerUnreachable         502  the control plane does not answer (raised by the CLI)
      | + IssuerUnreachable         503  the OpenID Connect issuer does not answer
      | + ControlUnreachable        503  the control plane does not answer this endpoint
      | | + ControlRefused          503  the control plane refuses this endpoint, its host or one of its VMs
      | + EndpointError             502  a metadata endpoint, in `forewarn.client`
      | | + EndpointUnreachable     502  no connection, no answer in time, or an incomplete one
      | | + EndpointRefused         502  the endpoint answered with an error; nothing was approved
      | | + BadAnswer               502  the endpoint answered 200 with an unusable body
      | + HookFailed                502  a command, webhook or built-in handler of the agent did not succeed
      + ServerError                 5xx  the fault of this service or its machine
        + StoreUnavailable          503  the database is locked, full or unreachable; nothing was changed
        + EndpointBehind            503  the process that answers VMs is down, or shows outdated state
        + ClockOff                  503  this machine's clock differs too much from the database's
        + LeaseLost                 503  another replica is the leader; nothing was changed
        + StoreCorrupt              500  the database is damaged or not Forewarn's
        + IllegalTransition         500  a bug: the lifecycle table has no such transition

The class names the party to blame; ``code`` is stable and meant for programs, the message for people. Messages are one
line, in lower case, name the object and what was expected, and never contain a secret.
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "ActuationFailed",
    "ActuatorBusy",
    "ActuatorError",
    "BadAnswer",
    "BelowMinimumNotice",
    "BudgetExceeded",
    "CallerError",
    "ClockOff",
    "ConfigError",
    "Conflict",
    "ControlRefused",
    "ControlUnreachable",
    "EndpointBehind",
    "EndpointError",
    "EndpointRefused",
    "EndpointUnreachable",
    "Forbidden",
    "ForewarnError",
    "HookFailed",
    "IdempotencyMismatch",
    "IllegalTransition",
    "InvalidRequest",
    "IssuerUnreachable",
    "LeaseLost",
    "LimitExceeded",
    "NotFound",
    "OtherSideError",
    "QuietHoursConflict",
    "ServerError",
    "ServerUnreachable",
    "StoreCorrupt",
    "StoreUnavailable",
    "TooManyFailures",
    "TooManyRemovals",
    "Unauthorized",
]


class ForewarnError(Exception):
    """Root of all errors raised on purpose.

    Args:
        message: One line for a person.
        details: Facts for a program, JSON-serializable, for example the name that was not found.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "error"

    def __init__(self, message: str, **details: Any) -> None:  # noqa: ANN401 - details are whatever JSON can hold
        super().__init__(message)
        self.message = message
        self.details = details


class CallerError(ForewarnError):
    """The caller sent something that cannot be done as sent."""

    status = 400
    code = "bad_request"


class InvalidRequest(CallerError):
    """The request is malformed or contradicts itself."""

    code = "invalid_request"


class Unauthorized(CallerError):
    """The bearer token is missing or unknown."""

    status = 401
    code = "unauthorized"


class Forbidden(CallerError):
    """The token is known, but its role may not do this."""

    status = 403
    code = "forbidden"


class NotFound(CallerError):
    """No object has that name or id."""

    status = 404
    code = "not_found"


class Conflict(CallerError):
    """The object exists, but its state does not allow this."""

    status = 409
    code = "conflict"


class BelowMinimumNotice(Conflict):
    """The notice is shorter than R71 promises, and the request was not forced with a reason."""

    code = "below_minimum_notice"


class QuietHoursConflict(Conflict):
    """No moment within the limits of the notice is outside quiet hours, and the request was not forced."""

    code = "quiet_hours"


class TooManyRemovals(Conflict):
    """The inventory removes more than the limit allows, and the caller did not confirm the removals."""

    code = "too_many_removals"


class IdempotencyMismatch(CallerError):
    """An ``Idempotency-Key`` was reused for a different request."""

    status = 422
    code = "idempotency_mismatch"


class LimitExceeded(CallerError):
    """A limit of the configuration was reached; the message names the setting."""

    status = 429
    code = "limit_exceeded"


class BudgetExceeded(CallerError):
    """This principal has used up one of its budgets; ``details["limit"]`` names it."""

    status = 429
    code = "budget_exceeded"


class TooManyFailures(CallerError):
    """Too many calls without a valid token came from this address; calls with a valid one are still accepted."""

    status = 429
    code = "too_many_failures"


class ConfigError(ForewarnError):
    """Settings, a file or a command line that cannot be used."""

    code = "config_error"


class OtherSideError(ForewarnError):
    """A system that Forewarn calls failed."""

    status = 502
    code = "other_side"


class ActuatorError(OtherSideError):
    """An actuator could not carry out a maintenance; the scheduler calls it again."""

    code = "actuator_failed"


class ActuationFailed(ActuatorError):
    """A maintenance was begun and has failed for good: nothing is running, and calling again would not help."""

    code = "actuation_failed"


class ActuatorBusy(ActuatorError):
    """An actuator ran and did nothing yet; call it again later.

    Args:
        message: One line for a person.
        tries: Number of calls for this maintenance that ended this way; the retry pause and the limit count them.
    """

    code = "actuator_busy"

    def __init__(self, message: str, *, tries: int = 1) -> None:
        super().__init__(message, tries=tries)
        self.tries = tries


class ServerUnreachable(OtherSideError):
    """The control plane does not answer."""

    code = "server_unreachable"


class IssuerUnreachable(OtherSideError):
    """The OpenID Connect issuer does not answer, or not as an issuer; signed tokens cannot be checked."""

    status = 503
    code = "issuer_unreachable"


class ControlUnreachable(OtherSideError):
    """No replica of the control plane answers this endpoint; the outcome of the request is unknown."""

    status = 503
    code = "control_unreachable"


class ControlRefused(ControlUnreachable):
    """The control plane refuses this endpoint: its token, its host, or one of its VMs."""

    code = "control_refused"


class EndpointError(OtherSideError):
    """A metadata endpoint did not carry out a request."""

    code = "endpoint_error"


class EndpointUnreachable(EndpointError):
    """The endpoint does not answer: no connection, no answer in time, or an incomplete one."""

    code = "endpoint_unreachable"


class EndpointRefused(EndpointError):
    """The endpoint answered with an error; ``details["status"]`` is the HTTP status. Nothing was approved."""

    code = "endpoint_refused"


class BadAnswer(EndpointError):
    """The endpoint answered 200, but its body is not a document of events."""

    code = "bad_answer"


class HookFailed(OtherSideError):
    """A command, webhook or built-in handler of the agent did not succeed."""

    code = "hook_failed"


class ServerError(ForewarnError):
    """The fault lies with this service or its machine."""

    code = "server_error"


class StoreUnavailable(ServerError):
    """The database is locked, full or unreachable. Nothing was changed; the same call may succeed later."""

    status = 503
    code = "store_unavailable"


class EndpointBehind(ServerError):
    """The process that answers VMs is restarting, or has not yet received what was committed."""

    status = 503
    code = "endpoint_behind"


class ClockOff(ServerError):
    """This machine's clock differs from the database's by more than replicas may."""

    status = 503
    code = "clock_off"


class LeaseLost(ServerError):
    """Another replica is the leader. Nothing was changed."""

    status = 503
    code = "lease_lost"


class StoreCorrupt(ServerError):
    """The database is damaged, or does not belong to Forewarn."""

    code = "store_corrupt"


class IllegalTransition(ServerError):
    """The lifecycle table has no such transition: a bug in Forewarn."""

    code = "illegal_transition"

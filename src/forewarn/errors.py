"""Every error that Forewarn raises on purpose.

::

    ForewarnError
      + CallerError                 the caller is to blame (4xx)
      | + InvalidRequest            400  what was sent makes no sense
      | + Unauthorized              401  no token, or one that is not known
      | + Forbidden                 403  the token may not do this
      | + NotFound                  404  no such host, VM, maintenance or event
      | + Conflict                  409  it exists, but is in a state that does not allow it
      | + BelowMinimumNotice        409  shorter notice than promised, and not forced
      | + QuietHoursConflict        409  every moment within its limits is in somebody's quiet hours, and not forced
      | + TooManyRemovals           409  an inventory lacks much of what is there, and this was not confirmed
      | + IdempotencyMismatch       422  a key used again for another request
      | + LimitExceeded             429  a limit of the configuration was reached
      | + BudgetExceeded            429  this principal uses too much of the service at a time
      | + TooManyFailures           429  too many calls without a valid token from that address
      + ConfigError                 500  settings, inventory file or command line cannot be used
      + OtherSideError              502  somebody else's fault
      | + ActuatorError             502  an actuator could not carry out a maintenance
      | | + ActuationFailed         502  it has failed for good
      | | + ActuatorBusy            502  it did nothing yet, and wants to be asked again later
      | + ServerUnreachable         502  the control plane does not answer (raised by the CLI)
      | + IssuerUnreachable         503  the OpenID Connect issuer does not answer
      | + EndpointError             502  a metadata endpoint, in `forewarn.client`
      | | + EndpointUnreachable     502  it does not answer: no connection, no answer in time, half an answer
      | | + EndpointRefused         502  it answered with an error; nothing was approved
      | | + BadAnswer               502  it answered 200, but the body says nothing
      | + HookFailed                502  a command, webhook or built-in handler of the agent did not succeed
      + ServerError                 5xx  our fault or our machine's
        + StoreUnavailable          503  the database is locked, full or away; nothing was changed
        + EndpointBehind            503  the process that answers VMs is away, or shows what was true a while ago
        + StoreCorrupt              500  the database file is damaged or not ours
        + IllegalTransition         500  a bug: the lifecycle table has no such arrow

The class says who is to blame; ``code`` is stable and meant for programs, the message for people. Messages are one
line, lower case, name the object and say what was expected, and never hold a secret.
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
    "ConfigError",
    "Conflict",
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
        details: JSON-able facts for a program, for example the name that was not found.
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
    """What was sent is malformed or contradicts itself."""

    code = "invalid_request"


class Unauthorized(CallerError):
    """No bearer token, or one that is not known here."""

    status = 401
    code = "unauthorized"


class Forbidden(CallerError):
    """The token is known, but its role may not do this."""

    status = 403
    code = "forbidden"


class NotFound(CallerError):
    """No object of that name or id."""

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
    """Every moment within the limits of the notice is in somebody's quiet hours, and the request was not forced."""

    code = "quiet_hours"


class TooManyRemovals(Conflict):
    """An inventory lacks much of what is declared, and the caller did not confirm that it is to be removed."""

    code = "too_many_removals"


class IdempotencyMismatch(CallerError):
    """An ``Idempotency-Key`` was used again for a different request."""

    status = 422
    code = "idempotency_mismatch"


class LimitExceeded(CallerError):
    """A limit of the configuration was reached; the message names the setting."""

    status = 429
    code = "limit_exceeded"


class BudgetExceeded(CallerError):
    """This principal uses as much of the service as it may at a time; ``details["limit"]`` names what of."""

    status = 429
    code = "budget_exceeded"


class TooManyFailures(CallerError):
    """Too many calls without a valid token came from this address; a valid one is taken all the same."""

    status = 429
    code = "too_many_failures"


class ConfigError(ForewarnError):
    """Settings, a file or a command line that cannot be used."""

    code = "config_error"


class OtherSideError(ForewarnError):
    """A system that Forewarn talks to failed."""

    status = 502
    code = "other_side"


class ActuatorError(OtherSideError):
    """An actuator could not carry out a maintenance; the scheduler asks it again."""

    code = "actuator_failed"


class ActuationFailed(ActuatorError):
    """A maintenance was begun and has failed for good: nothing goes on, and asking again would tell the same."""

    code = "actuation_failed"


class ActuatorBusy(ActuatorError):
    """An actuator ran and did nothing; it asks to be called again later.

    Args:
        message: One line for a person.
        tries: How many calls for this maintenance have ended this way; the retry pause and the limit count them.
    """

    code = "actuator_busy"

    def __init__(self, message: str, *, tries: int = 1) -> None:
        super().__init__(message, tries=tries)
        self.tries = tries


class ServerUnreachable(OtherSideError):
    """The control plane does not answer."""

    code = "server_unreachable"


class IssuerUnreachable(OtherSideError):
    """The OpenID Connect issuer does not answer, or not as one; signed tokens cannot be checked."""

    status = 503
    code = "issuer_unreachable"


class ControlUnreachable(OtherSideError):
    """No replica of the control plane answers an endpoint; nothing is known to have been done."""

    status = 503
    code = "control_unreachable"


class ControlRefused(ControlUnreachable):
    """The control plane answers an endpoint, and does not want it: its token, its host, or one of its VMs."""

    code = "control_refused"


class EndpointError(OtherSideError):
    """A metadata endpoint did not do what was asked of it."""

    code = "endpoint_error"


class EndpointUnreachable(EndpointError):
    """It does not answer: no connection, no answer in time, or only half of one."""

    code = "endpoint_unreachable"


class EndpointRefused(EndpointError):
    """It answered with an error; ``details["status"]`` is the HTTP status. Nothing was approved."""

    code = "endpoint_refused"


class BadAnswer(EndpointError):
    """It answered 200, but its body says nothing about events."""

    code = "bad_answer"


class HookFailed(OtherSideError):
    """A command, webhook or built-in handler of the agent did not succeed."""

    code = "hook_failed"


class ServerError(ForewarnError):
    """Our own fault, or that of the machine we run on."""

    code = "server_error"


class StoreUnavailable(ServerError):
    """The database is locked, full or away. Nothing was changed; the same call may succeed later."""

    status = 503
    code = "store_unavailable"


class EndpointBehind(ServerError):
    """The process that answers VMs is being started again, or has yet to hear of what was committed."""

    status = 503
    code = "endpoint_behind"


class ClockOff(ServerError):
    """This machine's clock is further from the database's than replicas may be."""

    status = 503
    code = "clock_off"


class LeaseLost(ServerError):
    """Another replica carries out what is due. Nothing was changed."""

    status = 503
    code = "lease_lost"


class StoreCorrupt(ServerError):
    """The database is damaged, or is not one of Forewarn's."""

    code = "store_corrupt"


class IllegalTransition(ServerError):
    """The lifecycle table has no such arrow: a bug in Forewarn."""

    code = "illegal_transition"

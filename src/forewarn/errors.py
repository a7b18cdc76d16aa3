"""All errors that Forewarn raises on purpose.

::

    ForewarnError
      + CallerError                 the caller is to blame (4xx)
      | + InvalidRequest            400  the request is malformed or contradicts itself
      | + Unauthorized              401  no token, or an unknown one
      | + Forbidden                 403  the token does not permit the call
      | + NotFound                  404  no such host, VM, maintenance or event
      | + Conflict                  409  the object exists, but its state does not allow the change
      | | + BelowMinimumNotice      409  the notice is shorter than promised, and was not forced
      | | + QuietHoursConflict      409  all permitted start times lie in quiet hours, and none was forced
      | | + TooManyRemovals         409  an inventory removes more than the limit without confirmation
      | + IdempotencyMismatch       422  the key was used before, for a different request
      | + LimitExceeded             429  a limit of the configuration was reached
      | + BudgetExceeded            429  the caller has used up its budget
      | + TooManyFailures           429  too many calls without a valid token from this address
      + ConfigError                 500  settings, inventory file or command line cannot be used
      + OtherSideError              502  another system failed
      | + ActuatorError             502  an actuator could not carry out a maintenance
      | | + ActuationFailed         502  the maintenance has failed for good
      | | + ActuatorBusy            502  nothing was begun; the scheduler calls the actuator again later
      | + ServerUnreachable         502  the control plane does not answer (raised by the CLI)
      | + IssuerUnreachable         503  the OpenID Connect issuer does not answer
      | + ControlUnreachable        503  a host endpoint reaches no replica of the control plane
      | | + ControlRefused          503  the control plane refuses a host endpoint, its host or one of its VMs
      | + EndpointError             502  a metadata endpoint, in `forewarn.client`
      | | + EndpointUnreachable     502  no connection, no answer in time, or an incomplete one
      | | + EndpointRefused         502  the endpoint answered with an error; nothing was approved
      | | + BadAnswer               502  the endpoint answered 200 with an unusable body
      | + HookFailed                502  a command, webhook or built-in handler of the agent did not succeed
      + ServerError                 5xx  the fault of this service or its machine
        + StoreUnavailable          503  the database is locked, full or unreachable; nothing was changed
        + EndpointBehind            503  the process that answers VMs is down, or shows outdated state
        + ClockOff                  503  the clock of the replica differs too much from the database's
        + LeaseLost                 503  the replica is not the leader any more; nothing was changed
        + StoreCorrupt              500  the database is damaged or not Forewarn's
        + IllegalTransition         500  a bug: the lifecycle table has no such transition

The class names the party to blame; ``code`` is stable and meant for programs, the message for people. Messages are one
line, in lower case, name the object and what was expected, and never contain a secret.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    "Hint",
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


@dataclass(frozen=True, slots=True)
class Hint:
    """What to do about an error. Each surface shows its own part, because a browser cannot run a command.

    Attributes:
        command: End of the message in the API and on the command line, such as ``see 'forewarn host list'``.
        page: The same in the words of the dashboard; empty if it has nothing that helps.
        path: Path of the dashboard's page that `page` links to; empty for no link.
    """

    command: str
    page: str = ""
    path: str = ""


class ForewarnError(Exception):
    """Base class of all errors that Forewarn raises on purpose.

    Args:
        message: One line for a person.
        hint: What to do about it, if that differs between the surfaces; None if the message says all.
        details: Facts for a program, JSON-serializable, for example the name that was not found.

    Attributes:
        summary: The message without the hint.
        message: The message with the hint for the API and the command line.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "error"

    def __init__(
        self,
        message: str,
        *,
        hint: Hint | None = None,
        **details: Any,  # noqa: ANN401 - details are whatever JSON can hold
    ) -> None:
        self.summary = message
        self.hint = hint
        self.message = message if hint is None else f"{message}: {hint.command}"
        super().__init__(self.message)
        self.details = details


class CallerError(ForewarnError):
    """Base class of errors of the caller. The code ``bad_request`` means that the request is not valid HTTP."""

    status = 400
    code = "bad_request"


class InvalidRequest(CallerError):
    """The request is malformed, or parts of it contradict each other."""

    code = "invalid_request"


class Unauthorized(CallerError):
    """The request has no bearer token, or the service does not accept the token."""

    status = 401
    code = "unauthorized"


class Forbidden(CallerError):
    """The token is valid, but does not permit this call."""

    status = 403
    code = "forbidden"


class NotFound(CallerError):
    """The request names an object that does not exist."""

    status = 404
    code = "not_found"


class Conflict(CallerError):
    """The object exists, but its state does not allow the requested change."""

    status = 409
    code = "conflict"


class BelowMinimumNotice(Conflict):
    """The notice is shorter than the minimum for the type of event (R71), and the request was not forced."""

    code = "below_minimum_notice"


class QuietHoursConflict(Conflict):
    """All permitted start times lie in quiet hours, and the request was not forced."""

    code = "quiet_hours"


class TooManyRemovals(Conflict):
    """The inventory removes more objects than the limit allows, and the caller did not confirm the removals."""

    code = "too_many_removals"


class IdempotencyMismatch(CallerError):
    """The ``Idempotency-Key`` was used before, for a different request."""

    status = 422
    code = "idempotency_mismatch"


class LimitExceeded(CallerError):
    """The request exceeds a limit of the service; the message names the limit."""

    status = 429
    code = "limit_exceeded"


class BudgetExceeded(CallerError):
    """The caller has reached one of the limits that make up its budget; ``details["limit"]`` names the limit."""

    status = 429
    code = "budget_exceeded"


class TooManyFailures(CallerError):
    """Too many calls without a valid token came from the caller's address. Valid tokens are still accepted."""

    status = 429
    code = "too_many_failures"


class ConfigError(ForewarnError):
    """A setting, file or command-line option is invalid, or cannot be used."""

    code = "config_error"


class OtherSideError(ForewarnError):
    """A system that Forewarn called has failed."""

    status = 502
    code = "other_side"


class ActuatorError(OtherSideError):
    """An actuator could not carry out a maintenance. The scheduler calls the actuator again."""

    code = "actuator_failed"


class ActuationFailed(ActuatorError):
    """A started maintenance has failed permanently: another call of the actuator would not help."""

    code = "actuation_failed"


class ActuatorBusy(ActuatorError):
    """An actuator ran, but has not begun the maintenance. The scheduler calls the actuator again later.

    Args:
        message: One line for a person.
        tries: Number of calls for this maintenance that ended this way; the retry pause and the limit count them.
    """

    code = "actuator_busy"

    def __init__(self, message: str, *, tries: int = 1) -> None:
        super().__init__(message, tries=tries)
        self.tries = tries


class ServerUnreachable(OtherSideError):
    """A command could not reach the control plane."""

    code = "server_unreachable"


class IssuerUnreachable(OtherSideError):
    """The OpenID Connect issuer gave no valid answer, so the service cannot check signed tokens."""

    status = 503
    code = "issuer_unreachable"


class ControlUnreachable(OtherSideError):
    """A host endpoint cannot reach any replica of the control plane. The outcome of the request is unknown."""

    status = 503
    code = "control_unreachable"


class ControlRefused(ControlUnreachable):
    """The control plane refuses a host endpoint: its token is invalid, or it may not serve this host or this VM."""

    code = "control_refused"


class EndpointError(OtherSideError):
    """A metadata endpoint did not carry out the request of a client."""

    code = "endpoint_error"


class EndpointUnreachable(EndpointError):
    """A metadata endpoint could not be reached, did not answer in time, or sent only part of an answer."""

    code = "endpoint_unreachable"


class EndpointRefused(EndpointError):
    """A metadata endpoint answered with an error, whose status is ``details["status"]``. Nothing was approved."""

    code = "endpoint_refused"


class BadAnswer(EndpointError):
    """A metadata endpoint answered 200, but the body is not a document of events."""

    code = "bad_answer"


class HookFailed(OtherSideError):
    """A hook or built-in handler of the agent did not succeed."""

    code = "hook_failed"


class ServerError(ForewarnError):
    """The service that answers, or its machine, is at fault."""

    code = "server_error"


class StoreUnavailable(ServerError):
    """The database is locked, full or unreachable. Nothing was changed; the same call may succeed later."""

    status = 503
    code = "store_unavailable"


class EndpointBehind(ServerError):
    """The process that answers VMs is restarting, or has not yet received the latest changes."""

    status = 503
    code = "endpoint_behind"


class ClockOff(ServerError):
    """The clock of the replica differs too much from the clock of the database."""

    status = 503
    code = "clock_off"


class LeaseLost(ServerError):
    """The replica is not the leader any more. Nothing was changed."""

    status = 503
    code = "lease_lost"


class StoreCorrupt(ServerError):
    """The database is damaged, or does not belong to Forewarn."""

    code = "store_corrupt"


class IllegalTransition(ServerError):
    """The lifecycle table does not allow this change of state: a bug in Forewarn."""

    code = "illegal_transition"

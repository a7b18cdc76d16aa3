"""Runner that carries out checks against an endpoint, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from forewarn.client.transport import check_url
from forewarn.errors import ConfigError, EndpointRefused, EndpointUnreachable
from forewarn.testing.conformance.catalogue import CHECKS
from forewarn.testing.conformance.check import Check, Phase
from forewarn.testing.conformance.line import Address
from forewarn.testing.conformance.outcome import Inconclusive, Outcome, breaks, inconclusive
from forewarn.testing.conformance.probe import Probe
from forewarn.testing.conformance.report import Finding, Report
from forewarn.testing.conformance.request import EVENTS

__all__ = ["check_endpoint", "parse_address"]

_PORT = 80


def parse_address(url: str, source_address: str | None = None) -> Address:
    """Return the address of an endpoint; its URL may end with the path of the events.

    Raises:
        ConfigError: It is not a plain HTTP URL.
    """
    checked = check_url(url)
    parts = urlsplit(checked)
    if parts.scheme != "http":
        msg = f"{url!r} is not an endpoint: expected plain HTTP, for example http://169.254.169.254"
        raise ConfigError(msg)
    path = parts.path[: -len(EVENTS)] if parts.path.lower().endswith(EVENTS) else parts.path
    return Address(parts.hostname or "", parts.port or _PORT, path, source_address)


def check_endpoint(  # noqa: PLR0913 - the choices of a caller
    url: str,
    *,
    checks: Sequence[Check] = CHECKS,
    timeout_s: float = 5.0,
    allow_approve: bool = False,
    source_address: str | None = None,
    tell: Callable[[Check], None] = lambda _: None,
) -> Report:
    """Check an endpoint from the point of view of a client.

    Args:
        url: The endpoint, for example ``http://169.254.169.254``.
        checks: Checks to run; reported in this order.
        timeout_s: Time limit for each answer but the first, which may be held for two minutes (R67).
        allow_approve: True to approve events of the endpoint, which lets their maintenance start.
        source_address: Local address to send from; None for the system's choice.
        tell: Called with each check before it begins.

    Raises:
        ConfigError: The URL is not valid.
        EndpointUnreachable: Nothing listens there.
        EndpointRefused: The endpoint knows no VM at the address of this caller, or there is no endpoint at this URL.
    """
    probe = Probe(parse_address(url, source_address), timeout_s=timeout_s, allow_approve=allow_approve)
    with probe.line():
        pass  # an endpoint that accepts no connection is an error, not a finding
    _refuse_stranger(probe)
    outcomes: dict[str, Outcome] = {}
    for check in sorted(checks, key=lambda each: each.phase):
        tell(check)
        outcomes[check.code] = _look(check, probe)
    findings = tuple(Finding(check, outcomes[check.code]) for check in checks)
    return Report(url=probe.address.url, findings=findings, allow_approve=allow_approve)


def _refuse_stranger(probe: Probe) -> None:
    """Stop before the first check if the endpoint refuses every GET of this caller.

    Raises:
        EndpointRefused: It does.
    """
    try:
        status = probe.find_refusal()
    except EndpointUnreachable as error:
        if not error.details["connected"]:
            raise
        return  # silence is a finding
    if status is not None:
        msg = (
            f"{probe.address.url} answers every GET of the events with {status}, so nothing was checked: the address "
            "that asks is no VM there, or the URL is that of another server"
        )
        raise EndpointRefused(msg, url=probe.address.url, status=status)


def _look(check: Check, probe: Probe) -> Outcome:
    if check.phase is Phase.APPROVE and not probe.allow_approve:
        return inconclusive("needs --allow-approve, since it approves an event")
    try:
        if check.needs_document:
            _ = probe.supported
        return check.look(probe)
    except Inconclusive as reason:
        return inconclusive(str(reason))
    except EndpointUnreachable as error:
        if not error.details["connected"]:
            raise
        return breaks(error.message)

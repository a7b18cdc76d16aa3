"""Runner that carries out checks against an endpoint, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from forewarn.client.transport import check_url
from forewarn.errors import ConfigError, EndpointRefused, EndpointUnreachable
from forewarn.testing.conformance.catalogue import CHECKS
from forewarn.testing.conformance.check import CheckPhase, ConformanceCheck
from forewarn.testing.conformance.outcome import CheckOutcome, Inconclusive, breaks, inconclusive
from forewarn.testing.conformance.probe import EndpointProbe
from forewarn.testing.conformance.raw_connection import EndpointAddress
from forewarn.testing.conformance.raw_request import EVENTS
from forewarn.testing.conformance.report import CheckResult, ConformanceReport

__all__ = ["check_endpoint", "parse_address"]

_PORT = 80


def parse_address(url: str, source_address: str | None = None) -> EndpointAddress:
    """Return the address of an endpoint; its URL may end with the path of the events.

    Raises:
        ConfigError: It is not a plain HTTP URL.
    """
    checked = check_url(url)
    parts = urlsplit(checked)
    if parts.scheme != "http":
        raise ConfigError(f"{url!r} is not an endpoint: expected plain HTTP, for example http://169.254.169.254")
    path = parts.path[: -len(EVENTS)] if parts.path.lower().endswith(EVENTS) else parts.path
    return EndpointAddress(parts.hostname or "", parts.port or _PORT, path, source_address)


def check_endpoint(  # noqa: PLR0913 - the choices of a caller
    url: str,
    *,
    checks: Sequence[ConformanceCheck] = CHECKS,
    timeout_s: float = 5.0,
    allow_approve: bool = False,
    source_address: str | None = None,
    on_check: Callable[[ConformanceCheck], None] = lambda _: None,
) -> ConformanceReport:
    """Check an endpoint from the point of view of a client.

    Args:
        url: The endpoint, for example ``http://169.254.169.254``.
        checks: Checks to run; reported in this order.
        timeout_s: Time limit for each answer but the first, which may be held for two minutes (R67).
        allow_approve: True to approve events of the endpoint, which lets their maintenance start.
        source_address: Local address to send from; None for the system's choice.
        on_check: Called with each check before it begins.

    Raises:
        ConfigError: The URL is not valid.
        EndpointUnreachable: Nothing listens there.
        EndpointRefused: The endpoint knows no VM at the address of this caller, or there is no endpoint at this URL.
    """
    probe = EndpointProbe(parse_address(url, source_address), timeout_s=timeout_s, allow_approve=allow_approve)
    with probe.open_connection():
        pass  # an endpoint that accepts no connection is an error, not a finding
    _require_known_vm(probe)
    outcomes: dict[str, CheckOutcome] = {}
    # The sort is stable, so the checks of a phase keep the order of the catalogue.
    for check in sorted(checks, key=lambda each: each.phase):
        on_check(check)
        outcomes[check.code] = _run_check(check, probe)
    findings = tuple(CheckResult(check, outcomes[check.code]) for check in checks)
    return ConformanceReport(url=probe.address.url, findings=findings, allow_approve=allow_approve)


def _require_known_vm(probe: EndpointProbe) -> None:
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
            f"{probe.address.url} answers every GET of the events with {status}, so nothing was checked: the caller's "
            "address does not belong to a VM there, or the URL is that of a different server"
        )
        raise EndpointRefused(msg, url=probe.address.url, status=status)


def _run_check(check: ConformanceCheck, probe: EndpointProbe) -> CheckOutcome:
    if check.phase is CheckPhase.APPROVE and not probe.allow_approve:
        return inconclusive("needs --allow-approve, because it approves an event")
    try:
        if check.needs_document:
            # Raises Inconclusive if no api-version returns a document.
            _ = probe.supported_versions
        return check.run(probe)
    except Inconclusive as reason:
        return inconclusive(str(reason))
    except EndpointUnreachable as error:
        if not error.details["connected"]:
            raise
        return breaks(error.message)

"""VMs can reach the metadata endpoint at its addresses."""

from __future__ import annotations

import ipaddress
from http.client import HTTPConnection, HTTPException

from forewarn.doctor.finding import Finding, fail, ok, skip
from forewarn.doctor.situation import Situation
from forewarn.net.listen_address import parse_listen

__all__ = ["check_metadata_address"]

_PATH = "/metadata/versions"
_TIMEOUT_S = 5.0


def check_metadata_address(situation: Situation) -> Finding:
    """Check that something answers as HTTP at each metadata address, from this machine."""
    assert situation.settings is not None  # noqa: S101 - see `Check.needs_settings`
    addresses = [parse_listen(part) for part in situation.settings.metadata_listen.split(",")]
    reached = []
    for host, port in addresses:
        if port == 0:
            continue
        try:
            _request(host, port)
        except (OSError, HTTPException) as error:
            reason = f"{host}:{port} does not answer: {error}"
            return fail(reason, "Start the service, and check metadata_listen and the firewall.")
        reached.append(f"{host}:{port}")
    if not reached:
        return skip("the port is chosen at each start")
    return ok(f"{', '.join(reached)} answers")


def _request(host: str, port: int) -> None:
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"  # noqa: PLR2004 - of IP
    connection = HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        # Any status will do: this machine need not be a VM of the inventory.
        connection.request("GET", _PATH, headers={"Metadata": "true"})
        connection.getresponse().read()
    finally:
        connection.close()

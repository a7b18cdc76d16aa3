"""All checks, in the order in which they are made and shown."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from forewarn.doctor.checks.certificate import check_certificate
from forewarn.doctor.checks.clock import check_machine_clock, check_ntp, check_service_clock
from forewarn.doctor.checks.configuration import check_configuration
from forewarn.doctor.checks.control_api import check_control_api
from forewarn.doctor.checks.database import check_database, check_database_file, check_schema
from forewarn.doctor.checks.endpoints import check_endpoints
from forewarn.doctor.checks.leadership import check_leadership
from forewarn.doctor.checks.metadata_address import check_metadata_address
from forewarn.doctor.checks.open_files import check_open_files
from forewarn.doctor.checks.state_folder import check_state_folder
from forewarn.doctor.checks.tokens import check_token_expiry, check_token_use
from forewarn.doctor.finding import Finding, skip
from forewarn.doctor.situation import Situation

__all__ = ["CHECKS", "Check", "run_checks"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check.

    Attributes:
        name: Name of the check.
        run: Function that makes it.
        is_local: True if it looks at this machine, which must be the one of the service.
        needs_settings: True if it needs valid settings.
        needs_status: True if it needs an answer of the service.
    """

    name: str
    run: Callable[[Situation], Finding]
    is_local: bool = False
    needs_settings: bool = False
    needs_status: bool = False


CHECKS = (
    Check(name="configuration", run=check_configuration, is_local=True),
    Check(name="state-folder", run=check_state_folder, is_local=True, needs_settings=True),
    Check(name="database-file", run=check_database_file, is_local=True, needs_settings=True),
    Check(name="schema", run=check_schema, is_local=True, needs_settings=True),
    Check(name="certificate", run=check_certificate, is_local=True, needs_settings=True),
    Check(name="metadata-address", run=check_metadata_address, is_local=True, needs_settings=True),
    Check(name="ntp", run=check_ntp, is_local=True),
    Check(name="control-api", run=check_control_api),
    Check(name="database", run=check_database, needs_status=True),
    Check(name="service-clock", run=check_service_clock, needs_status=True),
    Check(name="machine-clock", run=check_machine_clock, needs_status=True),
    Check(name="leadership", run=check_leadership, needs_status=True),
    Check(name="open-files", run=check_open_files, needs_status=True),
    Check(name="endpoints", run=check_endpoints, needs_status=True),
    Check(name="token-expiry", run=check_token_expiry, needs_status=True),
    Check(name="token-use", run=check_token_use, needs_status=True),
)
"""All checks."""


def run_checks(situation: Situation, *, is_remote: bool = False) -> Iterator[tuple[Check, Finding]]:
    """Make all checks, one after the other.

    Args:
        situation: The set-up.
        is_remote: True to skip the checks of this machine.
    """
    for check in CHECKS:
        if is_remote and check.is_local:
            yield check, skip("not the machine of the service (--remote)")
        elif check.needs_settings and situation.settings is None:
            yield check, skip("the configuration is invalid")
        elif check.needs_status and situation.status is None:
            yield check, skip("the control API does not answer")
        else:
            yield check, check.run(situation)

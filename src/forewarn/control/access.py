"""Roles that may call each route of the API, and the caller of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.routing import compile_path

from forewarn.core.access import Principal, Role

__all__ = [
    "ROUTES",
    "caller_of",
    "check_routes",
    "list_allowed_methods",
    "source_address",
]

_OPERATOR = frozenset({Role.OPERATOR})
_READS = _OPERATOR | {Role.READ_ONLY}
_TENANT = _OPERATOR | {Role.TENANT}
_TENANT_READS = _READS | {Role.TENANT}
_HOST = _OPERATOR | {Role.HOST}
_ALL = frozenset(Role)

ROUTES: Mapping[str, frozenset[Role]] = {
    # All callers
    "GET /healthz": _ALL,
    "GET /readyz": _ALL,
    "GET /metrics": _READS,
    "GET /v1/whoami": _ALL,
    # Tokens
    "GET /v1/tokens": _READS,
    "POST /v1/tokens": _OPERATOR,
    "DELETE /v1/tokens/{token_id}": _OPERATOR,
    "POST /v1/login-links": _TENANT_READS,
    # Maintenance, events and the audit log
    "GET /v1/maintenance": _TENANT_READS,
    "POST /v1/maintenance": _OPERATOR,
    # A plan changes nothing.
    "POST /v1/maintenance/plan": _READS,
    "GET /v1/maintenance/{maintenance_id}": _TENANT_READS,
    "POST /v1/maintenance/{maintenance_id}/cancel": _TENANT,
    "POST /v1/maintenance/{maintenance_id}/defer": _TENANT,
    "POST /v1/maintenance/{maintenance_id}/extend": _TENANT,
    "POST /v1/maintenance/{maintenance_id}/start": _OPERATOR,
    "POST /v1/maintenance/{maintenance_id}/complete": _OPERATOR,
    "POST /v1/maintenance/{maintenance_id}/impact": _OPERATOR,
    "GET /v1/events": _TENANT_READS,
    "GET /v1/ids": _TENANT_READS,
    "POST /v1/events/approve": _TENANT,
    "GET /v1/audit-log": _TENANT_READS,
    "GET /v1/audit-log/head": _READS,
    "GET /v1/audit-log/verify": _READS,
    "GET /v1/watch": _TENANT_READS,
    "GET /v1/requests": _TENANT_READS,
    # VMs
    "GET /v1/vms": _TENANT_READS,
    "GET /v1/vms/{name}": _TENANT_READS,
    "GET /v1/vms/{name}/history": _TENANT_READS,
    "GET /v1/vms/{name}/policy": _TENANT_READS,
    "DELETE /v1/vms/{name}": _TENANT,
    "POST /v1/vms/{name}/restart": _TENANT,
    "POST /v1/vms/{name}/redeploy": _TENANT,
    "POST /v1/vms/{name}/reimage": _TENANT,
    "POST /v1/vms/{name}/evict": _OPERATOR,
    "POST /v1/vms/{name}/update-model": _OPERATOR,
    # Scopes
    "GET /v1/scopes": _TENANT_READS,
    "GET /v1/scopes/{name}": _TENANT_READS,
    "GET /v1/scopes/{name}/policy": _TENANT_READS,
    # Rollouts
    "GET /v1/rollouts": _READS,
    "POST /v1/rollouts": _OPERATOR,
    "POST /v1/rollouts/plan": _READS,
    "GET /v1/rollouts/{rollout_id}": _READS,
    "GET /v1/rollouts/{rollout_id}/hosts": _READS,
    "POST /v1/rollouts/{rollout_id}/pause": _OPERATOR,
    "POST /v1/rollouts/{rollout_id}/resume": _OPERATOR,
    "POST /v1/rollouts/{rollout_id}/abort": _OPERATOR,
    # Hosts
    "GET /v1/hosts": _READS,
    "GET /v1/hosts/{name}": _READS,
    "PUT /v1/hosts/{name}/vms": _HOST,
    "POST /v1/hosts/{name}/fail": _OPERATOR,
    "POST /v1/hosts/{name}/recover": _OPERATOR,
    "POST /v1/hosts/{name}/predict-failure": _OPERATOR,
    "GET /v1/hosts/{name}/watch": _HOST | _READS,
    "POST /v1/hosts/{name}/approvals": _HOST,
    "POST /v1/hosts/{name}/requests": _HOST,
    "GET /v1/hosts/{name}/tokens": _READS,
    "POST /v1/hosts/{name}/tokens": _OPERATOR,
    "DELETE /v1/hosts/{name}/tokens/{token_id}": _OPERATOR,
    # Subscriptions
    "GET /v1/subscriptions": _READS,
    "POST /v1/subscriptions": _OPERATOR,
    "GET /v1/subscriptions/{name}": _READS,
    "DELETE /v1/subscriptions/{name}": _OPERATOR,
    "POST /v1/subscriptions/{name}/pause": _OPERATOR,
    "POST /v1/subscriptions/{name}/resume": _OPERATOR,
    "POST /v1/subscriptions/{name}/rotate-secret": _OPERATOR,
    "POST /v1/subscriptions/{name}/test": _OPERATOR,
    "GET /v1/subscriptions/{name}/deliveries": _READS,
    "POST /v1/subscriptions/{name}/deliveries/redeliver": _OPERATOR,
    # The service
    "GET /v1/status": _READS,
    "GET /v1/inventory": _READS,
    "PUT /v1/inventory": _OPERATOR,
    "POST /v1/inventory/diff": _READS,
    "GET /v1/limits": _READS,
    # Without the time of the service, NotBefore means nothing to a tenant (ADR 16).
    "GET /v1/clock": _TENANT_READS,
    "POST /v1/clock/advance": _OPERATOR,
    "POST /v1/clock/confirm": _OPERATOR,
    "GET /v1/faults": _READS,
    "POST /v1/faults": _OPERATOR,
    "DELETE /v1/faults": _OPERATOR,
    "DELETE /v1/faults/{fault_id}": _OPERATOR,
}
"""Roles that may call each route; the health routes need no token on loopback.

Each route decides what a role is shown there, and which objects exist for it.
"""


_PATTERNS = [(key.split()[0], compile_path(key.split()[1])[0]) for key in ROUTES]


def check_routes(routes: Iterable[object]) -> None:
    """Check that every route has a row in `ROUTES`, and every row a route.

    Raises:
        LookupError: A row or a route is missing (a bug): access to each route has to be decided here.
    """
    found = {
        f"{method} {route.path}"
        for route in routes
        if isinstance(route, APIRoute)
        for method in sorted(route.methods or ())
    }
    for what, names in (("no row", found - ROUTES.keys()), ("no route", ROUTES.keys() - found)):
        if names:
            raise LookupError(f"the table of roles has {what} for {', '.join(sorted(names))}")


def list_allowed_methods(path: str) -> list[str]:
    """Return every method of a path; Starlette itself names those of its first route only."""
    return sorted(method for method, pattern in _PATTERNS if pattern.match(path))


def caller_of(request: Request) -> Principal | None:
    """Return the caller; None if not (yet) known."""
    found: Principal | None = getattr(request.state, "caller", None)
    return found


def source_address(request: Request) -> str:
    """Return the address that the connection comes from; empty if unknown."""
    return request.client.host if request.client is not None else ""

"""Every role at every route: what the table says, what is expected here by hand, and what the service does."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from fastapi import APIRouter

from forewarn.control.access import ROUTES, check_routes
from forewarn.core.access import Role
from tests.support.access import token_of
from tests.support.service import Running, running
from tests.support.spans import GUARD_S

EXPECTED = {
    # o operator, t tenant, h host, r read-only; written anew, so that a wrong cell of the table is seen
    "GET /healthz": "othr",
    "GET /readyz": "othr",
    "GET /metrics": "or",
    "GET /v1/whoami": "othr",
    "GET /v1/tokens": "or",
    "POST /v1/tokens": "o",
    "DELETE /v1/tokens/{token_id}": "o",
    "POST /v1/login-links": "otr",
    "GET /v1/maintenance": "otr",
    "POST /v1/maintenance": "o",
    "POST /v1/maintenance/plan": "or",
    "GET /v1/maintenance/{maintenance_id}": "otr",
    "POST /v1/maintenance/{maintenance_id}/cancel": "ot",
    "POST /v1/maintenance/{maintenance_id}/defer": "ot",
    "POST /v1/maintenance/{maintenance_id}/extend": "ot",
    "POST /v1/maintenance/{maintenance_id}/start": "o",
    "POST /v1/maintenance/{maintenance_id}/complete": "o",
    "POST /v1/maintenance/{maintenance_id}/impact": "o",
    "GET /v1/events": "otr",
    "GET /v1/ids": "otr",
    "POST /v1/events/approve": "ot",
    "GET /v1/audit-log": "otr",
    "GET /v1/audit-log/head": "or",
    "GET /v1/audit-log/verify": "or",
    "GET /v1/watch": "otr",
    "GET /v1/requests": "otr",
    "GET /v1/vms": "otr",
    "GET /v1/vms/{name}": "otr",
    "GET /v1/vms/{name}/history": "otr",
    "GET /v1/vms/{name}/policy": "otr",
    "DELETE /v1/vms/{name}": "ot",
    "POST /v1/vms/{name}/restart": "ot",
    "POST /v1/vms/{name}/redeploy": "ot",
    "POST /v1/vms/{name}/reimage": "ot",
    "POST /v1/vms/{name}/evict": "o",
    "POST /v1/vms/{name}/update-model": "o",
    "GET /v1/status": "or",
    "GET /v1/scopes": "otr",
    "GET /v1/scopes/{name}": "otr",
    "GET /v1/scopes/{name}/policy": "otr",
    "GET /v1/rollouts": "or",
    "POST /v1/rollouts": "o",
    "POST /v1/rollouts/plan": "or",
    "GET /v1/rollouts/{rollout_id}": "or",
    "GET /v1/rollouts/{rollout_id}/hosts": "or",
    "POST /v1/rollouts/{rollout_id}/pause": "o",
    "POST /v1/rollouts/{rollout_id}/resume": "o",
    "POST /v1/rollouts/{rollout_id}/abort": "o",
    "GET /v1/hosts": "or",
    "GET /v1/hosts/{name}": "or",
    "PUT /v1/hosts/{name}/vms": "oh",
    "POST /v1/hosts/{name}/fail": "o",
    "POST /v1/hosts/{name}/recover": "o",
    "POST /v1/hosts/{name}/predict-failure": "o",
    "GET /v1/hosts/{name}/watch": "ohr",
    "POST /v1/hosts/{name}/approvals": "oh",
    "POST /v1/hosts/{name}/requests": "oh",
    "GET /v1/hosts/{name}/tokens": "or",
    "POST /v1/hosts/{name}/tokens": "o",
    "DELETE /v1/hosts/{name}/tokens/{token_id}": "o",
    "GET /v1/subscriptions": "or",
    "POST /v1/subscriptions": "o",
    "GET /v1/subscriptions/{name}": "or",
    "DELETE /v1/subscriptions/{name}": "o",
    "POST /v1/subscriptions/{name}/pause": "o",
    "POST /v1/subscriptions/{name}/resume": "o",
    "POST /v1/subscriptions/{name}/rotate-secret": "o",
    "POST /v1/subscriptions/{name}/test": "o",
    "GET /v1/subscriptions/{name}/deliveries": "or",
    "POST /v1/subscriptions/{name}/deliveries/redeliver": "o",
    "GET /v1/inventory": "or",
    "PUT /v1/inventory": "o",
    "POST /v1/inventory/diff": "or",
    "GET /v1/limits": "or",
    "GET /v1/clock": "otr",
    "POST /v1/clock/advance": "o",
    "POST /v1/clock/confirm": "o",
    "GET /v1/faults": "or",
    "POST /v1/faults": "o",
    "DELETE /v1/faults": "o",
    "DELETE /v1/faults/{fault_id}": "o",
}
LETTERS = {Role.OPERATOR: "o", Role.TENANT: "t", Role.HOST: "h", Role.READ_ONLY: "r"}
ASKS_NOBODY = {"GET /healthz", "GET /readyz", "GET /metrics"}
NONE = "no-such-thing"


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service of its own: what is sent here may change it."""
    with running(tmp_path_factory.mktemp("apart"), refused_entries_max=1_000_000) as started:
        yield started


def test_the_table_is_what_is_expected() -> None:
    found = {
        route: "".join(letter for role, letter in LETTERS.items() if role in roles) for route, roles in ROUTES.items()
    }
    assert found == EXPECTED


@pytest.mark.parametrize("role", list(Role))
def test_the_service_does_what_the_table_says(apart: Running, role: Role) -> None:
    """403 where the role may not, and anything else where it may: nothing that is named here exists."""
    headers = {"authorization": f"Bearer {token_of(apart, role)}"}
    with httpx.Client(base_url=apart.service.control_url, headers=headers, trust_env=False, timeout=GUARD_S) as client:
        for route, letters in EXPECTED.items():
            if route in ASKS_NOBODY:
                continue
            method, path = route.split(" ")
            name = "host-Web_0" if path.startswith("/v1/hosts") else NONE
            path = path.replace("{name}", name).replace("{fault_id}", "999999")
            with client.stream(method, re.sub(r"\{\w+\}", NONE, path)) as response:
                is_refused = response.status_code == 403 and role.value in _code(response)
                assert is_refused is (LETTERS[role] not in letters), (route, response.status_code)
                assert response.status_code not in {401, 429, 500}, route


def _code(response: httpx.Response) -> str:
    return str(response.read(), "utf-8")


def test_nobody_gets_in_without_a_token(apart: Running) -> None:
    with httpx.Client(base_url=apart.service.control_url, trust_env=False, timeout=GUARD_S) as client:
        for route in EXPECTED.keys() - ASKS_NOBODY:
            method, path = route.split(" ")
            path = re.sub(r"\{\w+\}", "1", path)
            assert client.request(method, path).status_code == 401, route


def test_an_app_is_not_built_with_a_route_that_nobody_decided_about() -> None:
    router = APIRouter()

    @router.get("/v1/forgotten")
    def forgotten() -> None: ...

    with pytest.raises(LookupError, match=r"no row for GET /v1/forgotten"):
        check_routes(router.routes)


def test_an_app_is_not_built_with_a_row_for_a_route_that_is_gone() -> None:
    with pytest.raises(LookupError, match=r"no route for .*GET /v1/vms"):
        check_routes([])

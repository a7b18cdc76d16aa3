"""Tokens of every role, and tenants, at a running service."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from forewarn.core.access import Role
from tests.support.service import Running
from tests.support.spans import GUARD_S

__all__ = ["client_of", "tenant", "token_of"]


def token_of(
    running: Running,
    role: Role,
    *,
    name: str = "",
    host: str = "host-Web_0",
    owns: dict[str, list[str]] | None = None,
) -> str:
    """A new token of that role, called after it if no name is given; a tenant owns the scope web likewise."""
    with running.operator() as operator:
        if role is Role.HOST:
            made = operator.post(f"/v1/hosts/{host}/tokens")
        else:
            body: dict[str, object] = {"name": name or f"test-{role}", "role": role.value}
            body |= (owns or {"scopes": ["web"]}) if role is Role.TENANT else {}
            made = operator.post("/v1/tokens", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["token"])


@contextmanager
def client_of(running: Running, token: str) -> Iterator[httpx.Client]:
    """A client of the control API with that token."""
    headers = {"authorization": f"Bearer {token}"}
    with httpx.Client(
        base_url=running.service.control_url, headers=headers, trust_env=False, timeout=GUARD_S
    ) as client:
        yield client


@contextmanager
def tenant(running: Running, **owns: list[str]) -> Iterator[httpx.Client]:
    """A client of a tenant that owns these `scopes` and `vms`."""
    with client_of(running, token_of(running, Role.TENANT, owns=owns)) as client:
        yield client

"""People and programs that use the control API of a simulated cluster: an operator, and the tenants."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx

from forewarn.testing.simulation.libraries import TLS
from forewarn.testing.simulation.trace import Trace

__all__ = ["Operators"]

_LISTED_MAX = 200
_SHORT_NOTICES_S = (30, 60, 120, 300)

Act = Callable[[httpx.AsyncClient], Awaitable[httpx.Response | None]]


class Operators:
    """An operator and one tenant for each audience, who act at random.

    Args:
        urls: URLs of the replicas.
        token: Token of the operator.
        rng: Source of what they do.
        trace: Gets a fact for each action, and for what a tenant was shown.

    Attributes:
        hosts: Names of the hosts.
        gives_short_notice: True if the operator gives less notice than the minimum, so that NotBefore comes while
            there are faults.
        tenants: Tokens of the tenants, by the VM that each of them restarts.
        rollout_ids: Rollouts that were started.
    """

    def __init__(self, urls: Sequence[str], token: str, rng: random.Random, trace: Trace) -> None:
        self.hosts: list[str] = []
        self.gives_short_notice = False
        self.tenants: dict[str, str] = {}
        self.rollout_ids: list[str] = []
        self._urls = urls
        self._token = token
        self._rng = rng
        self._trace = trace
        # How often each is done, relative to the others, and how.
        self._acts: dict[str, tuple[int, Act]] = {
            "host": (5, self._schedule_host),
            "vm": (2, self._schedule_vm),
            "restart": (2, self._restart),
            "cancel": (2, self._cancel_one),
            "look": (2, self._look),
            "rollout": (1, self._roll_out),
        }

    def connect(self, number: int | None = None, token: str | None = None) -> httpx.AsyncClient:
        """Return a client of one replica, by default of any of them, for the operator or for the owner of a token."""
        url = self._urls[self._rng.randrange(len(self._urls)) if number is None else number]
        headers = {"authorization": f"Bearer {token or self._token}"}
        return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, verify=TLS, timeout=10.0)

    async def act(self) -> None:
        """Do one thing.

        Raises:
            httpx.HTTPError: No answer came.
        """
        kind = self._rng.choices(list(self._acts), [weight for weight, _ in self._acts.values()])[0]
        async with self.connect() as client:
            answer = await self._acts[kind][1](client)
        if answer is not None:
            self._trace.note("operator", kind, status=answer.status_code)

    async def resume_rollouts(self) -> None:
        """Do what a person would who has looked into the failures: resume every rollout that has paused.

        Raises:
            httpx.HTTPError: No answer came.
        """
        async with self.connect() as client:
            for rollout_id in self.rollout_ids:
                await client.post(f"/v1/rollouts/{rollout_id}/resume", headers=self._make_key())

    def _make_key(self) -> dict[str, str]:
        return {"idempotency-key": f"{self._rng.getrandbits(64):x}"}

    def _draw_type(self) -> str:
        return self._rng.choice(["Freeze", "Reboot", "Redeploy"])

    async def _schedule(self, client: httpx.AsyncClient, what: Mapping[str, Sequence[str]]) -> httpx.Response:
        body = {**what, "type": self._draw_type(), "duration_s": 9}
        if self.gives_short_notice:
            body |= {"notice_s": self._rng.choice(_SHORT_NOTICES_S), "force": True, "reason": "a simulation"}
        return await client.post("/v1/maintenance", json=body, headers=self._make_key())

    async def _schedule_host(self, client: httpx.AsyncClient) -> httpx.Response:
        return await self._schedule(client, {"hosts": [self._rng.choice(self.hosts)]})

    async def _schedule_vm(self, client: httpx.AsyncClient) -> httpx.Response:
        return await self._schedule(client, {"vms": [self._rng.choice(list(self.tenants))]})

    async def _cancel_one(self, client: httpx.AsyncClient) -> httpx.Response | None:
        answer = await client.get("/v1/maintenance?state=scheduled")
        if not answer.is_success or not (items := answer.json()["items"]):
            return None
        return await client.post(f"/v1/maintenance/{self._rng.choice(items)['id']}/cancel", headers=self._make_key())

    async def _restart(self, _: httpx.AsyncClient) -> httpx.Response:
        vm, token = self._rng.choice(list(self.tenants.items()))
        async with self.connect(token=token) as client:
            return await client.post(f"/v1/vms/{vm}/restart", headers=self._make_key())

    async def _look(self, _: httpx.AsyncClient) -> None:
        vm, token = self._rng.choice(list(self.tenants.items()))
        async with self.connect(token=token) as client:
            answer = await client.get(f"/v1/events?limit={_LISTED_MAX}")
        if answer.is_success:
            events: list[dict[str, Any]] = answer.json()["items"]
            self._trace.note(vm, "view", events={event["id"]: sorted(event["resources"]) for event in events})

    async def _roll_out(self, client: httpx.AsyncClient) -> httpx.Response:
        body = {
            "name": f"rollout-{self._rng.getrandbits(32):x}",
            "type": self._draw_type(),
            "hosts": "all",
            "batch_size": self._rng.randint(1, len(self.hosts)),
            "hosts_at_once": 1,
            "failures_max": len(self.hosts),
            "duration_s": 9,
        }
        answer = await client.post("/v1/rollouts", json=body, headers=self._make_key())
        if answer.is_success:
            self.rollout_ids.append(answer.json()["id"])
        return answer

"""The operator's side: announce through the control API, and follow the audit log."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import httpx

from forewarn.demo.connection import describe
from forewarn.demo.record import DemoFailed, Entry

__all__ = ["Operator"]


class Operator:
    """A client of the control API.

    Args:
        client: HTTP client with the address and the token of the service.
    """

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def post(self, path: str, body: Mapping[str, object] | None) -> dict[str, Any]:
        """Send a request and return the one maintenance that it creates.

        Raises:
            DemoFailed: The service refuses it, or does not create exactly one maintenance.
        """
        try:
            answer = await self._client.post(path, json=body)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            msg = f"the control API did not take {path}: {describe(error)}"
            raise DemoFailed(msg) from error
        made: list[dict[str, Any]] = answer.json()["items"]
        if len(made) != 1:
            msg = f"one maintenance was expected from {path}, and {len(made)} were made"
            raise DemoFailed(msg)
        return made[0]

    async def follow(self, notice: Callable[[Entry], None]) -> None:
        """Pass on each audit log entry as it is written, until cancelled.

        Raises:
            DemoFailed: The stream ended.
        """
        try:
            async with self._client.stream("GET", "/v1/watch", params={"after": "0"}, timeout=None) as answer:
                answer.raise_for_status()
                async for row in answer.aiter_lines():
                    if row.startswith("data: "):
                        notice(_entry(json.loads(row.removeprefix("data: "))))
        except httpx.HTTPError as error:
            msg = f"the audit log cannot be followed: {describe(error)}"
            raise DemoFailed(msg) from error
        msg = "the audit log's stream ended by itself"
        raise DemoFailed(msg)


def _entry(written: dict[str, Any]) -> Entry:
    return Entry(
        at=datetime.fromisoformat(written["at"]), sequence=written["sequence"], kind=written["kind"], vm=written["vm"]
    )

"""The operator's side: announce through the control API, and follow the audit log."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import httpx

from forewarn.demo.act_record import DemoFailed, WatchedEntry

__all__ = ["follow_audit_log", "open_client", "request_maintenance"]

_TIMEOUT_S = 60.0


def open_client(url: str, headers: Mapping[str, str]) -> httpx.AsyncClient:
    """Return a client for plain HTTP requests to the service.

    Args:
        url: URL of the service.
        headers: Headers sent with each request; the operator's token.
    """
    # Never used, since nothing is encrypted here; without it, httpx loads all certificates of the machine.
    unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    transport = httpx.AsyncHTTPTransport(verify=unused)
    return httpx.AsyncClient(base_url=url, headers=headers, transport=transport, trust_env=False, timeout=_TIMEOUT_S)


async def request_maintenance(
    client: httpx.AsyncClient, path: str, body: Mapping[str, object] | None
) -> dict[str, Any]:
    """Send a request and return the one maintenance that it creates.

    Raises:
        DemoFailed: The service refuses it, or does not create exactly one maintenance.
    """
    try:
        answer = await client.post(path, json=body)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        raise DemoFailed(f"the request to {path} failed: {_describe_error(error)}") from error
    made: list[dict[str, Any]] = answer.json()["items"]
    if len(made) != 1:
        raise DemoFailed(f"expected one maintenance from {path}, got {len(made)}")
    return made[0]


async def follow_audit_log(client: httpx.AsyncClient, on_entry: Callable[[WatchedEntry], None]) -> None:
    """Pass on each audit log entry as it is written, until cancelled.

    Raises:
        DemoFailed: The stream ended.
    """
    try:
        async with client.stream("GET", "/v1/watch", params={"after": "0"}, timeout=None) as answer:
            answer.raise_for_status()
            async for row in answer.aiter_lines():
                if row.startswith("data: "):
                    on_entry(_decode_entry(json.loads(row.removeprefix("data: "))))
    except httpx.HTTPError as error:
        raise DemoFailed(f"cannot follow the audit log: {_describe_error(error)}") from error
    raise DemoFailed("the audit log's stream ended unexpectedly")


def _decode_entry(written: dict[str, Any]) -> WatchedEntry:
    return WatchedEntry(
        at=datetime.fromisoformat(written["at"]), sequence=written["sequence"], kind=written["kind"], vm=written["vm"]
    )


def _describe_error(error: BaseException) -> str:
    """Return the message of a connection error, or its type if the library gives none."""
    return str(error) or type(error).__name__

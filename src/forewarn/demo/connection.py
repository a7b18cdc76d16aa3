"""Connections to the service: from the address that was asked for, and past any proxy."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import httpx

__all__ = ["connect", "describe"]

_TIMEOUT_S = 60.0


def connect(url: str, headers: Mapping[str, str]) -> httpx.AsyncClient:
    """A client that speaks plain HTTP to the service.

    Args:
        url: Of the service.
        headers: Sent with each request.
    """
    # Never used, since nothing is encrypted here; but without one, httpx reads all certificates of the machine.
    unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    transport = httpx.AsyncHTTPTransport(verify=unused)
    return httpx.AsyncClient(base_url=url, headers=headers, transport=transport, trust_env=False, timeout=_TIMEOUT_S)


def describe(error: BaseException) -> str:
    """What went wrong on the way, also where the library does not say it."""
    return str(error) or type(error).__name__

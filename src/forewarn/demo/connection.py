"""HTTP connections to the service, with a given source address and without proxies."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import httpx

__all__ = ["describe_error", "open_client"]

_TIMEOUT_S = 60.0


def open_client(url: str, headers: Mapping[str, str]) -> httpx.AsyncClient:
    """Return a client for plain HTTP requests to the service.

    Args:
        url: URL of the service.
        headers: Headers sent with each request.
    """
    # Never used, since nothing is encrypted here; without it, httpx loads all certificates of the machine.
    unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    transport = httpx.AsyncHTTPTransport(verify=unused)
    return httpx.AsyncClient(base_url=url, headers=headers, transport=transport, trust_env=False, timeout=_TIMEOUT_S)


def describe_error(error: BaseException) -> str:
    """Return the message of a connection error, or its type if the library gives none."""
    return str(error) or type(error).__name__

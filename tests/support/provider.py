"""A real OpenID Connect issuer, in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.service import eventually
from tests.support.spans import GUARD_S

__all__ = ["provider"]


@contextmanager
def provider(port: int) -> Iterator[str]:
    """The issuer, answering at that port of loopback."""
    url = f"http://localhost:{port}"
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            assert eventually(lambda: _answers(url))
            yield url
        finally:
            process.kill()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/.well-known/openid-configuration", trust_env=False, timeout=GUARD_S).is_success
    except httpx.HTTPError:
        return False

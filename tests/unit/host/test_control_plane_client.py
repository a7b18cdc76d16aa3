"""What an endpoint makes of the answers of its control plane."""

from __future__ import annotations

import httpx
import pytest

from forewarn.core.approval import Approver
from forewarn.errors import LimitExceeded
from forewarn.host.control_plane_client import ControlPlaneClient

pytestmark = pytest.mark.anyio


async def test_an_approval_over_a_limit_is_refused_and_no_other_replica_is_asked() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(429, json={"error": {"code": "limit_exceeded", "message": "too many", "details": {}}})

    link = ControlPlaneClient("host-1", ["http://one:1", "http://two:1"], "token")
    await link.close()
    link._client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    url = link.url
    with pytest.raises(LimitExceeded, match="too many"):
        await link.approve(["E1"], Approver(actor="vm:db", vm="db"))
    assert len(asked) == 1
    assert link.url == url
    await link.close()

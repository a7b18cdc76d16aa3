"""What an endpoint makes of the answers of its control plane."""

from __future__ import annotations

import httpx
import pytest

from forewarn.core.maintenance.approval import Approver
from forewarn.errors import ControlUnreachable, LimitExceeded
from forewarn.host.control_plane_client import ControlPlaneClient

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("raised", "expected"), [(httpx.ReadError("reset"), ControlUnreachable), (AttributeError("a bug"), AttributeError)]
)
async def test_a_stream_that_breaks_is_an_outage_and_a_fault_of_its_reader_is_not(
    raised: Exception, expected: type[Exception]
) -> None:
    link = ControlPlaneClient("host-1", ["http://one:1"], "token")
    await link.close()
    link._client = httpx.AsyncClient(transport=httpx.MockTransport(lambda _: httpx.Response(200, content=b"{}\n")))

    async def read() -> None:
        async with link.open_watch() as lines:
            assert await anext(lines) == b"{}"
            raise raised

    with pytest.raises(expected):
        await read()
    await link.close()


async def test_a_stream_that_cannot_be_opened_is_an_outage() -> None:
    def reset(_: httpx.Request) -> httpx.Response:
        msg = "'NoneType' object has no attribute 'getsockname'"  # what anyio raises over uvloop
        raise AttributeError(msg)

    link = ControlPlaneClient("host-1", ["http://one:1"], "token")
    await link.close()
    link._client = httpx.AsyncClient(transport=httpx.MockTransport(reset))
    with pytest.raises(ControlUnreachable, match="reset right after"):
        async with link.open_watch():
            pass
    await link.close()


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

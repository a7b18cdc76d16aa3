"""Bodies of approvals: read within the limits of a VM, and decoded in turns."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from forewarn.endpoint.quota import HeldBody, OverLimit
from forewarn.endpoint.request_check import RequestRefused
from forewarn.endpoint.responses import build_payload_refusal, build_size_refusal
from forewarn.endpoint.traffic import Traffic
from forewarn.util.fair_share import FairGate, QueueLimits
from forewarn.wire import imds

__all__ = ["ApprovalReader", "discard_body"]

# Many clients read the response only after they have sent the whole body. Up to this size they get to see the refusal;
# beyond it, the connection is closed.
_DRAINED_BYTES_MAX = 16 << 20
_SMALL_BODY_BYTES = 4096
"""Largest body that is decoded at once; larger ones take turns."""


class ApprovalReader:
    """Reads the bodies of approvals.

    Args:
        traffic: Limits and quotas.
    """

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._turns = FairGate(
            # Weights are bytes here, not event ids as in the defaults. The quotas have bounded these bytes already.
            QueueLimits(weight_max=traffic.limits.body_bytes_max, owner_weight_max=traffic.limits.body_bytes_max)
        )

    async def read_event_ids(self, request: Request, vm: str) -> tuple[str, ...]:
        """Return the event ids in the body; the body counts towards the budgets until it is decoded.

        Raises:
            OverLimit: This VM, or all VMs together, have too many body bytes pending.
            RequestRefused: The body is too large, or no approval; holds the response.
        """
        with self._traffic.quotas.count_body(vm) as held:
            body = await self._read_body(request, held)
            # Decoding blocks the event loop, so large bodies are decoded one per turn, in fair order between VMs.
            if len(body) > _SMALL_BODY_BYTES:
                await self._turns.wait_turn(vm, len(body))
            try:
                return imds.decode_approval(body, self._traffic.limits.start_requests_max)
            except imds.BadPayload as error:
                raise RequestRefused(build_payload_refusal(error)) from error

    async def _read_body(self, request: Request, held: HeldBody) -> bytes:
        limit = self._traffic.limits.body_size_bytes_max
        body = bytearray()
        over: OverLimit | None = None
        # The parser refuses a request in which this is no number.
        size_bytes = int(request.headers.get("content-length", 0))
        is_refused = size_bytes > limit and "expect" in request.headers  # client awaits 100 Continue
        if not is_refused:
            size_bytes = 0
            async for piece in request.stream():
                size_bytes += len(piece)
                if size_bytes > limit + _DRAINED_BYTES_MAX:
                    break  # below this, keep reading: a client that is still sending might not see the response
                if size_bytes > limit or over is not None:
                    continue
                try:
                    held.add(len(piece))
                    body += piece
                except OverLimit as found:
                    over = found
                    body.clear()
                    held.release()
        if size_bytes > limit:
            raise RequestRefused(build_size_refusal(limit))
        if over is not None:
            over.is_read = True
            raise over
        # For the journal: the stream can be read only once.
        request.scope["state"]["body"] = bytes(body)
        return bytes(body)


async def discard_body(request: Request, response: Response) -> None:
    """Read the rest of the body, up to a limit: a client that is still sending might not see the response."""
    if "expect" in request.headers:
        response.headers["connection"] = "close"  # its body would be parsed as the next request
        return
    size_bytes = 0
    async for piece in request.stream():
        size_bytes += len(piece)
        if size_bytes > _DRAINED_BYTES_MAX:
            response.headers["connection"] = "close"
            return

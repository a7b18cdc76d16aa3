"""`/v1/hosts/NAME/watch` and the other routes that the endpoint on a host calls."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from forewarn.control.context import Actor, Context, ContextOf, HostCaller, describe_text, is_still_valid
from forewarn.core.access import Principal, Token
from forewarn.core.maintenance.approval import Approver
from forewarn.core.model import VirtualMachine
from forewarn.errors import Forbidden
from forewarn.publishing.host_watch import HostWatch
from forewarn.wire.control_response import PageOut
from forewarn.wire.hostfeed import ALIVE, encode_state_line
from forewarn.wire.json_types import RequestModel

__all__ = ["router"]

router = APIRouter(prefix="/v1/hosts/{name}", tags=["host"])

# The endpoint on a host connects again after 15 s of silence, so a line may be late without harm.
_ALIVE_S = 5.0
_LOOK_S = 60.0
"""Interval between checks of a watcher's token."""

_NAMES_MAX = 10_000


class HostApprovalIn(RequestModel):
    """Approvals that a VM of the host has given."""

    vm: Annotated[str, Field(max_length=128, description="Name of the VM.")]
    event_ids: Annotated[
        list[Annotated[str, Field(max_length=64)]], Field(max_length=1000, description="Ids of the approved events.")
    ]
    source_address: Annotated[
        str, Field(max_length=64, description="Address from which the VM sent the approvals.")
    ] = ""
    api_version: Annotated[str, Field(max_length=32, description="Api-version of the VM's request.")] = ""


class HostApprovalOut(BaseModel):
    """Ids of the events, by outcome of the approval."""

    unknown: list[str]
    approved: list[str]
    unchanged: list[str]
    refused: list[str]


class HostRequestsIn(RequestModel):
    """Times of the last requests of VMs. The first request of an audience enables events for it (R67, R69)."""

    vms: Annotated[
        dict[Annotated[str, Field(max_length=128)], datetime],
        Field(max_length=_NAMES_MAX, description="Time of the last request of each VM."),
    ]


class HostRequestsOut(BaseModel):
    """Number of audiences for which the request enabled events."""

    enabled: int


class HostTokenOut(BaseModel):
    """A token of a host. Its secret, `token`, is shown only once: when the token is created."""

    id: str
    host: str
    created_at: datetime
    revoked_at: datetime | None
    token: str | None = None

    @classmethod
    def of(cls, token: Token, secret: str | None = None) -> HostTokenOut:
        """Return the API's form of a token."""
        host = token.host or token.name
        return cls(id=token.id, host=host, created_at=token.created_at, revoked_at=token.revoked_at, token=secret)


_LINES = describe_text(
    "application/x-ndjson",
    "JSON lines: first `build_state`, then each changed `document`, and `alive` in between.",
)


@router.get("/watch", response_class=StreamingResponse, responses=_LINES)
async def watch(context: ContextOf, caller: HostCaller, name: str) -> Response:
    """Stream the documents of a host's VMs: first all documents, then each document that changes.

    A line is sent at least every 5 seconds.
    """
    return _WatchResponse(context, context.hub.begin_watch(name), caller)


class _WatchResponse(Response):
    """Stream of lines to one watcher, until it disconnects or the service stops.

    There may be thousands of these, all woken at once, so waiting creates no task. A generator is avoided too: if it
    were never started, its cleanup would not run.
    """

    media_type = "application/x-ndjson"

    def __init__(self, context: Context, watch: HostWatch, caller: Principal) -> None:
        super().__init__()
        # Starlette has declared an empty body, but a stream has no length.
        del self.headers["content-length"]
        self._context = context
        self._watch = watch
        self._caller = caller
        self._check_at_s = asyncio.get_running_loop().time() + _LOOK_S

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
        # Only the future of the watch is awaited, so a client that disconnects has to wake the watch. A service that
        # stops wakes all of them.
        disconnected.add_done_callback(lambda _: self._watch.wake())
        is_stopping = self._context.is_stopping
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while not (disconnected.done() or is_stopping.is_set()) and await self._is_still_valid():
                lines = await self._wait_for_lines()
                if lines:
                    await send({"type": "http.response.body", "body": lines, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            self._context.hub.end_watch(self._watch)
            disconnected.cancel()

    async def _is_still_valid(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s < self._check_at_s:
            return True
        self._check_at_s = now_s + _LOOK_S
        return await is_still_valid(self._context, self._caller)

    async def _wait_for_lines(self) -> bytes:
        """Wait for the next lines to send; empty if woken for another reason."""
        changes = self._watch.take_changes()
        if changes is None:
            return encode_state_line(self._context.hub.build_state(self._watch))
        if changes:
            return b"".join(change.encoded_line for change in changes)
        return b"" if await self._watch.wait(_ALIVE_S) else ALIVE


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@router.post("/approvals")
async def approve(context: ContextOf, _caller: HostCaller, name: str, body: HostApprovalIn) -> HostApprovalOut:
    """Approve events for a VM of the host; approvals are on disk when the response is sent."""
    vm = _find_vm(context, name, body.vm)
    approver = Approver(
        actor=f"vm:{vm.name}",
        # From the inventory, so that a host can approve for the audiences of VMs that it runs only (invariant 8).
        audience=context.engine.identity.get_audience_key(vm.name),
        vm=vm.name,
        source_address=body.source_address or None,
        api_version=body.api_version or None,
    )
    approval = await context.engine.authority.approve(body.event_ids, approver)
    return HostApprovalOut.model_validate(approval, from_attributes=True)


@router.post("/requests")
async def asked(context: ContextOf, _caller: HostCaller, name: str, body: HostRequestsIn) -> HostRequestsOut:
    """Record when VMs of the host last requested events, which enables events for their scopes, or for them alone."""
    now = context.clock.now()
    enabled = 0
    for vm_name, moment in body.vms.items():
        vm = _find_vm(context, name, vm_name)
        key = context.engine.identity.get_audience_key(vm.name)
        audience = context.engine.feed.find_audience(key)
        if audience is None or audience.enabled_at is None:
            await context.engine.authority.enable(key, vm.scope)
            enabled += 1
        context.engine.feed.merge_polls({key: min(moment, now)})  # the host's clock may be ahead
    return HostRequestsOut(enabled=enabled)


def _find_vm(context: Context, host: str, name: str) -> VirtualMachine:
    """Return a VM that runs on a host.

    Raises:
        Forbidden: No VM of that name runs there; the error does not reveal whether another host runs one.
    """
    vm = next((vm for vm in context.engine.identity.vms_of(host) if vm.name == name), None)
    if vm is None:
        raise Forbidden(f"vm {name!r} does not run on host {host!r}", vm=name, host=host)
    return vm


# Tokens


@router.post("/tokens", status_code=201)
async def create_token(context: ContextOf, actor: Actor, name: str) -> HostTokenOut:
    """Create a token for the endpoint on the host; the token is shown only in this answer."""
    token, word = await context.engine.tokens.create_host_token(name, actor=actor)
    return HostTokenOut.of(token, word)


@router.get("/tokens")
async def list_tokens(context: ContextOf, name: str) -> PageOut[HostTokenOut]:
    """List the host's tokens, oldest first."""
    found = await context.engine.read(lambda reader: reader.list_tokens(name))
    return PageOut(items=[HostTokenOut.of(token) for token in found], next=None)


@router.delete("/tokens/{token_id}")
async def revoke_token(context: ContextOf, actor: Actor, name: str, token_id: str) -> HostTokenOut:
    """Revoke a token of the host; watches that use the token end within a minute."""
    return HostTokenOut.of(await context.engine.tokens.revoke_host_token(name, token_id, actor=actor))

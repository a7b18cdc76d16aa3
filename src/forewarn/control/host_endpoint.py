"""`/v1/hosts/NAME/watch` and the other routes that the endpoint on a host calls."""

from __future__ import annotations

import re
import sys
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

from forewarn.control.admission import WatchCharge
from forewarn.control.context import (
    Actor,
    AfterNumber,
    Context,
    ContextOf,
    HostCaller,
    PageLimit,
    check_host,
    check_role,
    cut_page,
    describe_text,
)
from forewarn.control.host_streams import HostStream, StreamableConnection
from forewarn.core.access import Principal, Token
from forewarn.core.maintenance.approval import Approver
from forewarn.core.model import VirtualMachine
from forewarn.errors import Forbidden
from forewarn.wire.control_response import PageOut
from forewarn.wire.json_types import RequestModel

__all__ = ["answer_directly", "router"]

router = APIRouter(prefix="/v1/hosts/{name}", tags=["host"])

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


_WATCH = "GET /v1/hosts/{name}/watch"
_USER_AGENT = re.compile(r"forewarn/([0-9A-Za-z.+-]{1,32})(?:\s|$)")
_WATCH_PATH = re.compile(r"/v1/hosts/([^/]+)/watch")


@router.get("/watch", response_class=StreamingResponse, responses=_LINES)
async def watch(context: ContextOf, caller: HostCaller, request: Request, name: str) -> Response:
    """Stream the documents of a host's VMs: first all documents, then each document that changes.

    A line is sent at least every 5 seconds.
    """
    charge: WatchCharge | None = getattr(request.state, "watch_charge", None)
    version = _read_version(request.headers.get("user-agent", ""))
    now = context.clock.now()
    return _StreamResponse(HostStream(context.host_streams, name, caller, charge, version=version, began_at=now))


def _read_version(user_agent: str) -> str:
    """Return the version of the endpoint that calls; empty if it is another program, or does not say."""
    found = _USER_AGENT.match(user_agent)
    # One string for all hosts of a version: there may be thousands of streams.
    return "" if found is None else sys.intern(found[1])


async def answer_directly(context: Context, request: Request, caller: Principal) -> Response | None:
    """Return the response to a request for a watch, checked like any other; None for all other requests.

    After a restart, thousands of hosts ask for their watches at once. FastAPI would take more time for the routing and
    the dependencies of such a request than all else that it needs.
    """
    found = _WATCH_PATH.fullmatch(request.scope["path"]) if request.method == "GET" else None
    if found is None:
        return None
    name = found[1]
    check_role(caller, _WATCH)
    check_host(caller, name)
    return await watch(context, caller, request, name)


class _StreamResponse(Response):
    """Head of the response of a stream, which then goes on without the app."""

    media_type = "application/x-ndjson"

    def __init__(self, stream: HostStream) -> None:
        super().__init__(headers={"connection": "close"})
        # Starlette has declared an empty body, but a stream has no length.
        del self.headers["content-length"]
        self._stream = stream

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        connection: StreamableConnection = scope["state"]["connection"]
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            self._stream.begin(connection)
        except BaseException:
            self._stream.close()
            raise


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
async def list_tokens(
    context: ContextOf, name: str, after: AfterNumber = None, limit: PageLimit = 100
) -> PageOut[HostTokenOut]:
    """List the host's tokens, oldest first."""
    found = await context.engine.read(lambda reader: reader.list_tokens(name))
    shown, following = cut_page(found, after, min(limit, context.settings.page_size_max))
    return PageOut(items=[HostTokenOut.of(token) for token in shown], next=following)


@router.delete("/tokens/{token_id}")
async def revoke_token(context: ContextOf, actor: Actor, name: str, token_id: str) -> HostTokenOut:
    """Revoke a token of the host; watches that use the token end within a minute."""
    return HostTokenOut.of(await context.engine.tokens.revoke_host_token(name, token_id, actor=actor))

"""ASGI app of the metadata endpoint: handles every request that the hot path does not answer.

Checks run in the order of R62. Every error response is JSON (R8, R65).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from forewarn.clock import Clock
from forewarn.core.fault import FaultPoint, InjectedFault
from forewarn.endpoint import faulty_responses
from forewarn.endpoint.approval_requests import ApprovalRequests
from forewarn.endpoint.authority import Authority
from forewarn.endpoint.fastpath import VmConnection
from forewarn.endpoint.quota import find_exceeded_limit
from forewarn.endpoint.request_check import (
    RequestRefused,
    check_events_request,
    check_metadata,
    check_method,
    check_sender,
    check_single_parameters,
    parse_query,
)
from forewarn.endpoint.request_holder import RequestHolder
from forewarn.endpoint.responses import (
    build_too_many_response,
    build_unavailable_response,
    encode_error_response,
    encode_json_response,
)
from forewarn.endpoint.traffic import Traffic
from forewarn.errors import ForewarnError
from forewarn.publishing.feed import Channel
from forewarn.publishing.identity import Caller
from forewarn.wire import imds, instance

__all__ = ["MetadataApp"]

_log = structlog.get_logger("forewarn.endpoint")

_EVENTS = "/metadata/scheduledevents"
_LEGACY = "/metadata/latest/scheduledevents"
_VERSIONS = "/metadata/versions"
_INSTANCE = "/metadata/instance"
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,9})", re.IGNORECASE)
# With one of these headers the response may be something other than the current document, so such a request must not be
# remembered for the fast path.
_NOT_PLAIN = frozenset(
    {"if-none-match", "prefer", "content-length", "transfer-encoding", "expect", "upgrade", "x-forwarded-for", "range"}
)


class MetadataApp:
    """ASGI app that answers VMs.

    Args:
        authority: Enables audiences and accepts approvals.
        clock: Service clock; a virtual one also ends waits.
        traffic: State shared with the connections.
        first_answer_delay_s: Delay of the response to the enabling GET, in seconds (R67).

    Attributes:
        before_answer: Hook awaited with the VM's name and the method before a request for events is answered. While
            it is set, no request is remembered for the fast path, so that none bypasses it; None if there is none.
    """

    def __init__(self, authority: Authority, clock: Clock, traffic: Traffic, first_answer_delay_s: float = 0.0) -> None:
        self.before_answer: Callable[[str, str], Awaitable[None]] | None = None
        self._authority = authority
        self._traffic = traffic
        self._first_answer_delay_s = first_answer_delay_s
        self._enabling: dict[str, asyncio.Task[None]] = {}
        self._holder = RequestHolder(clock, traffic)
        self._approvals = ApprovalRequests(authority, traffic, self._holder, self._require_caller)
        self._dialect = authority.feed.dialect
        self._versions = {version.name: version for version in authority.feed.versions}
        self._indexes = {name: index for index, name in enumerate(self._versions)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        began_s = asyncio.get_running_loop().time()
        try:
            response = await self._route_request(request)
        except RequestRefused as refused:
            response = refused.response
        except ClientDisconnect:
            return
        except ForewarnError as error:
            _log.warning("a request failed", path=scope["path"], error=error.message)
            response = self._build_failure_response(request, error)
        except Exception:  # noqa: BLE001 - one request must not end the endpoint; the log has the trace
            _log.exception("a request raised", path=scope["path"])
            response = encode_error_response(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal server error")
        version = request.query_params.get("api-version", "")
        # Unknown versions share one label: a VM must not be able to create metrics without limit.
        label = version if version in self._versions else "other"
        self._traffic.outcomes[label, _label_method(request.method), response.status_code] += 1
        fault: InjectedFault | None = scope["state"].get("fault")
        is_over = fault is not None and await self._carry_out_fault(request, response, fault)
        # An ordinary response is recorded before it is sent: a client that has received it finds the request here.
        # The journal must not claim an answer that the client could not receive.
        is_whole = not is_over or (fault is not None and fault.kind.name in faulty_responses.WHOLE)
        self._record_in_journal(request, response, began_s, fault, is_answered=is_whole)
        if not is_over:
            await response(scope, receive, send)

    def _build_failure_response(self, request: Request, error: ForewarnError) -> Response:
        """Return the response for an error, and count the error if it is about a limit."""
        limit = find_exceeded_limit(error)
        if limit:
            connection: VmConnection = request.scope["state"]["connection"]
            vm = "" if connection.caller is None else connection.caller.vm.name
            self._traffic.quotas.count_refusal(limit, vm, connection.peer)
        if error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return build_unavailable_response()
        if error.status == HTTPStatus.TOO_MANY_REQUESTS:
            return build_too_many_response()
        return encode_error_response(error.status, "Service unavailable")

    async def _route_request(self, request: Request) -> Response:
        connection: VmConnection = request.scope["state"]["connection"]
        # Before the checks of R62: an unknown caller gets 404 for every path, and is counted.
        caller = self._require_caller(connection)
        path: str = request.scope["path"].removesuffix("/")
        # Microsoft's C# library asks for `/metadata/scheduledEvents` (R3).
        route = path.lower()
        if route == _EVENTS or (route == _LEGACY and self._dialect.legacy_latest):
            if self.before_answer is not None:
                await self.before_answer(caller.vm.name, request.method)
            if self._traffic.faults.in_force:
                await self._apply_fault(request, connection, caller)
            return await self._answer_events(request, connection, caller, is_legacy=route == _LEGACY)
        if route in {_VERSIONS, _INSTANCE} or route.startswith(_INSTANCE + "/"):
            return self._answer_instance(request, caller, path)
        return encode_error_response(HTTPStatus.NOT_FOUND, "Not found")

    def _record_in_journal(
        self, request: Request, response: Response, began_s: float, fault: InjectedFault | None, *, is_answered: bool
    ) -> None:
        """Record the request in the journal, if there is one."""
        if self._traffic.journal is None:
            return
        scope = request.scope
        connection: VmConnection = scope["state"]["connection"]
        self._traffic.journal.record_request(
            vm="" if connection.caller is None else connection.caller.vm.name,
            source_address=connection.peer,
            method=request.method,
            target=scope["state"]["target"].decode("latin-1"),
            headers=((name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]),
            body=scope["state"].get("body", b""),
            status=response.status_code if is_answered else 0,
            answer=bytes(response.body) if is_answered else b"",
            took_s=asyncio.get_running_loop().time() - began_s,
            fault="" if fault is None else fault.kind.name,
            is_client_gone=connection.is_client_gone,
        )

    # Faults

    async def _apply_fault(self, request: Request, connection: VmConnection, caller: Caller) -> None:
        """Apply a fault to this request if one matches (R66)."""
        # A POST would use up a fault of the document without showing it: its response has no document by default (A13).
        places = {FaultPoint.STATUS, FaultPoint.TIME, FaultPoint.BYTES} | (
            {FaultPoint.DOCUMENT} if request.method == "GET" else set()
        )
        fault = self._traffic.faults.take_matching_fault(caller.vm.name, request.method, *places)
        request.scope["state"]["fault"] = fault
        if fault is not None and fault.kind.name == "dropped":
            now_s = asyncio.get_running_loop().time()
            self._record_in_journal(request, Response(), now_s, fault, is_answered=False)
            connection.reset()
            # Return only after the loss: uvicorn answers 500 for an app that returns early without a response.
            await connection.wait_until_lost()
            raise ClientDisconnect
        if fault is not None and fault.kind.place is FaultPoint.STATUS:
            raise RequestRefused(faulty_responses.build_status_response(fault))
        if fault is not None and fault.kind.name == "late":
            await self._holder.hold(connection, fault.delay.total_seconds())

    def _distort_response(self, request: Request, response: Response, channel: Channel, index: int) -> Response:
        """Return the response, distorted if a fault strikes the document."""
        fault: InjectedFault | None = request.scope["state"].get("fault")
        if fault is None or fault.kind.place is not FaultPoint.DOCUMENT:
            return response
        incarnation, replies = channel.previous_replies
        before = (
            encode_json_response(HTTPStatus.OK, replies[index].body, {"etag": f'"{incarnation}"'}) if replies else None
        )
        return faulty_responses.distort_document(fault, response, before)

    async def _carry_out_fault(self, request: Request, response: Response, fault: InjectedFault) -> bool:
        """Send the response malformed, or not at all, if the fault says so; return True if the connection has ended."""
        connection: VmConnection = request.scope["state"]["connection"]
        if fault.kind.place is FaultPoint.BYTES:
            await faulty_responses.send_malformed(connection, fault, response, self._traffic.common_header_lines)
        elif fault.kind.name == "time-out":
            await self._holder.hold(connection, fault.delay.total_seconds())
            connection.close_when_written()
            await connection.wait_until_lost()
        else:
            return False
        return True

    def _require_caller(self, connection: VmConnection) -> Caller:
        """Return the caller; call again after each wait, since the inventory may have changed meanwhile."""
        caller = connection.current_caller()
        # Before the first inventory, any caller may be a VM: 503 makes it retry, where 404 might make it give up.
        if caller is None and not self._authority.identity.is_known:
            raise RequestRefused(build_unavailable_response())
        if caller is None:
            self._traffic.unknown_callers += 1
            raise RequestRefused(encode_error_response(HTTPStatus.NOT_FOUND, "Not found"))
        return caller

    # Scheduled events

    async def _answer_events(
        self, request: Request, connection: VmConnection, caller: Caller, *, is_legacy: bool
    ) -> Response:
        limits, peer = self._traffic.limits, connection.peer
        version = check_events_request(
            request,
            self._versions,
            # The legacy path names no version, and is answered in the shape of the first one (A4).
            version_name="2017-03-01" if is_legacy else None,
            host_names=limits.host_names,
            is_local=not peer,
        )
        index = self._indexes[version.name]
        # After the checks above and before the body (R62), so a request that they refuse does not count.
        self._check_rate(caller)
        if request.method == "POST":
            return await self._approvals.answer(request, connection, caller, index)
        return await self._answer_get(request, connection, caller, index)

    async def _answer_get(self, request: Request, connection: VmConnection, caller: Caller, index: int) -> Response:
        channel = await self._ensure_enabled(connection, caller)
        headers = {}
        # A fault must show at once and in a full document: a long poll would delay it, and a 304 has no body to damage.
        is_struck = request.scope["state"].get("fault") is not None
        known = "" if is_struck else ",".join(request.headers.getlist("if-none-match"))
        if known and imds.is_not_modified(known, channel.incarnation):
            wait_s = self._parse_wait_s(request)
            if wait_s > 0:
                headers = {"preference-applied": "wait"}
            # The incarnation alone is not enough: it starts anew after disabling (R46), and audiences count separately.
            seen = (channel.key, channel.epoch, channel.incarnation)
            await self._holder.hold(connection, wait_s, channel)
            # During the wait the VM may have moved to another scope, or left the inventory.
            channel = await self._ensure_enabled(connection, self._require_caller(connection))
            if (channel.key, channel.epoch, channel.incarnation) == seen:
                headers["etag"] = f'"{channel.incarnation}"'
                return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        # The audience may have been disabled while the request was held. The retry enables it anew (R70).
        if not channel.replies:
            return build_unavailable_response()
        # A request that a fault strikes may be remembered: the memo holds no response, and faults switch it off.
        if self.before_answer is None and _NOT_PLAIN.isdisjoint(request.headers.keys()):
            connection.remember_request(index)
        response = encode_json_response(
            HTTPStatus.OK, channel.replies[index].body, headers | {"etag": f'"{channel.incarnation}"'}
        )
        return self._distort_response(request, response, channel, index)

    async def _ensure_enabled(self, connection: VmConnection, caller: Caller) -> Channel:
        """Return the caller's channel; the first request enables it (R67), and every request keeps it enabled (R69)."""
        channel = caller.channel
        if not channel.is_enabled:
            await self._enable_audience(channel.key, caller.vm.scope)
            await self._holder.hold(connection, self._first_answer_delay_s, channel)
        channel.last_polled_at = self._traffic.now
        return channel

    async def _enable_audience(self, key: str, scope: str | None) -> None:
        """Enable an audience once, even if several of its connections ask at the same time."""
        task = self._enabling.get(key)
        if task is None:
            # Enabling writes to the database, so a scope of a thousand VMs that start together must cause it only once.
            task = self._enabling[key] = asyncio.ensure_future(self._authority.enable(key, scope))
            task.add_done_callback(lambda done: self._finish_enabling(key, done))
        await asyncio.shield(task)  # one client that leaves must not cancel it for the others

    def _finish_enabling(self, key: str, task: asyncio.Task[None]) -> None:
        del self._enabling[key]
        if not task.cancelled():
            task.exception()  # retrieve it, since every waiter may be gone

    # Instance

    def _answer_instance(self, request: Request, caller: Caller, path: str) -> Response:
        connection: VmConnection = request.scope["state"]["connection"]
        check_method(request, ("GET",))
        check_sender(request, self._traffic.limits.host_names, is_local=not connection.peer)
        check_metadata(request)
        if path.lower() == _VERSIONS:
            return encode_json_response(HTTPStatus.OK, imds.encode_versions(self._authority.feed.versions))
        parameters = parse_query(request)
        refusal = instance.get_version_error(parameters.get("api-version", ""))
        if refusal is not None:
            return encode_json_response(HTTPStatus.BAD_REQUEST, refusal)
        check_single_parameters(request)
        self._check_rate(caller)
        below = path[len(_INSTANCE) :].strip("/")
        value = instance.find_value(instance.build_document(caller.vm, caller.scope), below.split("/") if below else [])
        if value is None:
            return encode_error_response(HTTPStatus.NOT_FOUND, "Not found")
        is_text = parameters.get("format", "").lower() == "text"
        if instance.is_leaf(value) and not is_text:
            return encode_json_response(HTTPStatus.BAD_REQUEST, instance.LEAF_WITHOUT_TEXT)
        body, content_type = instance.render_value(value, is_text)
        return Response(body, headers={"content-type": content_type})

    # Checks

    def _check_rate(self, caller: Caller) -> None:
        """Refuse requests above the rate limit of each second (R9)."""
        limit = self._traffic.limits.rate_limit_per_s
        if limit is None:
            return
        second = int(asyncio.get_running_loop().time())
        # Fixed windows admit a double burst around the change of the second, which does no harm here.
        usage = caller.usage
        if usage.window_s != second:
            usage.window_s, usage.window_requests = second, 0
        usage.window_requests += 1
        if usage.window_requests > limit:
            self._traffic.quotas.count_refusal("rate_limit_per_s", caller.vm.name)
            raise RequestRefused(build_too_many_response())

    # Waiting

    def _parse_wait_s(self, request: Request) -> float:
        """Return the seconds of ``Prefer: wait=…`` (RFC 7240), capped at `wait_s_max`; 0 without it (X1)."""
        match = _WAIT.search(",".join(request.headers.getlist("prefer")))
        return min(float(match[1]), self._traffic.limits.wait_s_max) if match else 0.0


def _label_method(method: str) -> str:
    return method if method in {"GET", "POST"} else "other"

"""Approvals by VMs: read, decided and answered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from forewarn.core.maintenance.approval import Approver
from forewarn.endpoint.approval_reader import ApprovalReader, discard_body
from forewarn.endpoint.authority import Authority
from forewarn.endpoint.fastpath import VmConnection
from forewarn.endpoint.quota import OverLimit, find_exceeded_limit
from forewarn.endpoint.request_check import RequestRefused
from forewarn.endpoint.request_holder import RequestHolder
from forewarn.endpoint.responses import (
    build_too_many_response,
    build_unavailable_response,
    encode_error_response,
    encode_json_response,
)
from forewarn.endpoint.traffic import Traffic
from forewarn.errors import LimitExceeded
from forewarn.publishing.identity import Caller

__all__ = ["ApprovalRequests"]

_REFUSAL_DELAY_S = 1.0
_UNKNOWN_IDS_MAX = 10_000
_UNKNOWN_IDS_OF_ONE = 8


class ApprovalRequests:
    """Answers approvals.

    Args:
        authority: Decides and commits them.
        traffic: Limits and quotas.
        holder: Delays refusals.
        require_caller: Returns the current caller of a connection, or raises `RequestRefused`.
    """

    def __init__(
        self,
        authority: Authority,
        traffic: Traffic,
        holder: RequestHolder,
        require_caller: Callable[[VmConnection], Caller],
    ) -> None:
        self._authority = authority
        self._traffic = traffic
        self._holder = holder
        self._require_caller = require_caller
        self._dialect = authority.feed.dialect
        self._reader = ApprovalReader(traffic)
        self._unknown_ids: dict[tuple[str, int, int, str], None] = {}

    async def answer(self, request: Request, connection: VmConnection, caller: Caller, index: int) -> Response:
        """Answer an approval; `index` is that of the api-version.

        Raises:
            RequestRefused: The approval is refused; holds the response.
        """
        vm = caller.vm.name
        budgets = self._traffic.quotas
        try:
            with budgets.count_approval(vm):
                event_ids = await self._reader.read_event_ids(request, vm)
                return await self._approve_events(event_ids, connection, index)
        except OverLimit as over:
            budgets.count_refusal(over.limit, vm)
            response = build_unavailable_response() if over.is_shared else build_too_many_response(over.retry_after_s)
            if not over.is_read:
                await discard_body(request, response)
        except LimitExceeded as error:
            # The authority was asked only after the body had been read, so there is nothing to discard.
            budgets.count_refusal(find_exceeded_limit(error), vm)
            response = build_too_many_response()
        # The delay makes a client that retries at once cheap.
        # `count_approval` has ended by now, so a refusal that waits does not count as an approval at work.
        await self._holder.hold(connection, _REFUSAL_DELAY_S)
        raise RequestRefused(response)

    async def _approve_events(self, event_ids: tuple[str, ...], connection: VmConnection, index: int) -> Response:
        caller = self._require_caller(connection)
        channel = caller.channel
        # A repeated approval needs no further decision, and neither does an empty list (R56).
        if not channel.settled.issuperset(event_ids):
            await self._commit_approval(event_ids, connection, caller, index)
        # An approval keeps an audience enabled (R69), but only a GET enables it (R67).
        if channel.is_enabled:
            channel.last_polled_at = self._traffic.now
        if self._dialect.post_body == "document" and channel.replies:
            return encode_json_response(HTTPStatus.OK, channel.replies[index].body)
        return encode_json_response(HTTPStatus.OK, b"")

    async def _commit_approval(
        self, event_ids: tuple[str, ...], connection: VmConnection, caller: Caller, index: int
    ) -> None:
        """Have the approval decided and committed.

        It is refused if an id is unknown and the dialect requires known ids (A11), or if a policy requires other
        approvers.
        """
        channel = caller.channel
        shown = (channel.key, channel.epoch, channel.incarnation)
        refuses_unknown = self._dialect.unknown_event != HTTPStatus.OK
        # A client that repeats an unknown id with every poll must not cost a read of the database each time.
        if refuses_unknown and any(
            (*shown, event_id) in self._unknown_ids for event_id in channel.find_unlisted(event_ids)
        ):
            raise RequestRefused(self._build_unknown_event_response())
        approver = Approver(
            actor=f"vm:{caller.vm.name}",
            audience=channel.key,
            vm=caller.vm.name,
            source_address=connection.peer,
            api_version=self._authority.feed.versions[index].name,
        )
        approval = await self._authority.approve(event_ids, approver)
        if approval.unknown:
            if refuses_unknown:
                self._remember_unknown((*shown, event_id) for event_id in approval.unknown[:_UNKNOWN_IDS_OF_ONE])
                raise RequestRefused(self._build_unknown_event_response())
            # This dialect accepts unknown ids and ignores them (A11), so the other ids are still to be approved.
            known = [i for i in event_ids if i not in set(approval.unknown)]
            approval = await self._authority.approve(known, approver)
        # 400, since the protocol documents no other refusal of an approval (A10).
        if approval.refused:
            raise RequestRefused(
                encode_error_response(HTTPStatus.BAD_REQUEST, "Bad request: . This VM may not approve this event")
            )
        channel.mark_settled((*approval.approved, *approval.unchanged))

    def _remember_unknown(self, keys: Iterable[tuple[str, int, int, str]]) -> None:
        """Remember ids that an audience does not have, until its document changes.

        Ids are random, so an unknown id will not be created later. A few ids per approval are enough, since an
        approval is refused as a whole. The oldest ids are dropped.
        """
        for key in keys:
            self._unknown_ids[key] = None
        while len(self._unknown_ids) > _UNKNOWN_IDS_MAX:
            del self._unknown_ids[next(iter(self._unknown_ids))]

    def _build_unknown_event_response(self) -> Response:
        if self._dialect.unknown_event == HTTPStatus.NOT_FOUND:
            return encode_error_response(HTTPStatus.NOT_FOUND, "Not found")
        return encode_error_response(HTTPStatus.BAD_REQUEST, "Bad request: . EventId is not known")

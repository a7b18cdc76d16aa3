"""Authority of a metadata process: the service at the other end of the pipe."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.endpoint import messages
from forewarn.endpoint.messages import EndpointSettings
from forewarn.endpoint.pipe import Pipe
from forewarn.errors import ControlUnreachable, ForewarnError, LimitExceeded
from forewarn.publishing.feed import Feed
from forewarn.publishing.identity import Identity

__all__ = ["PipeAuthority"]

_ANSWER_S = 30.0
"""Time limit for the service's answer; the VM then gets an error, although the request may have been carried out."""

# Bounds what waits while the service does not read; one more call gets 503 (ADR 25).
_UNSENT_BYTES_MAX = 8 << 20


class PipeAuthority:
    """Authority at the other end of the pipe.

    Pending calls are limited in number, per VM, and in bytes: a call over a limit is refused, and the VM gets 503.
    """

    def __init__(self, pipe: Pipe, settings: EndpointSettings) -> None:
        self.feed = Feed(settings.dialect)
        self.identity = Identity(self.feed, settings.process.any_caller_is)
        self._pipe = pipe
        self._settings = settings.process
        self._numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[ApprovalResult | None]] = {}
        self._by_vm: Counter[str] = Counter()
        self._enabling: dict[str, asyncio.Future[ApprovalResult | None]] = {}

    async def enable(self, key: str, scope: str | None) -> None:
        """Have an audience enabled; concurrent requests for the same audience share a call.

        Raises:
            ControlUnreachable: Too many calls are pending, or there is no answer.
            ForewarnError: The service reported an error.
        """
        # The app shares calls, too, but only until `_ANSWER_S`; a later retry joins the call that is still pending.
        call = self._enabling.get(key)
        if call is None:
            number, call = self._register_call()
            self._enabling[key] = call
            call.add_done_callback(lambda _: self._enabling.pop(key, None))
            self._pipe.send(messages.encode(messages.EnableCall(number, key, scope)))
        await self._wait_for_result(call)

    async def approve(self, event_ids: Sequence[str], approver: Approver) -> ApprovalResult:
        """Pass an approval on; it is on disk when this returns.

        Raises:
            ControlUnreachable: Too many calls are pending, or there is no answer.
            ForewarnError: The service reported an error.
        """
        vm = approver.vm or ""
        # One VM must not use up the calls of all VMs.
        if self._by_vm[vm] >= self._settings.calls_per_vm_max:
            msg = f"vm {vm!r} has {self._by_vm[vm]} pending approvals; retry later (approvals_at_work_per_vm_max)"
            raise ControlUnreachable(msg, limit="approvals_at_work_per_vm_max")
        number, call = self._register_call()
        self._by_vm[vm] += 1
        call.add_done_callback(lambda _: self._uncount_call(vm))
        self._pipe.send(messages.encode(messages.ApproveCall(number, tuple(event_ids), approver)))
        approval = await self._wait_for_result(call)
        assert approval is not None  # noqa: S101 - an approval is answered with one, or fails
        return approval

    def complete_call(self, answer: messages.CallResult) -> None:
        """Complete the call that waits for this answer."""
        call = self._calls.pop(answer.number, None)
        if call is None or call.done():
            return
        if answer.failure is None:
            call.set_result(answer.approval)
        else:
            call.set_exception(_decode_failure(answer.failure))
            call.exception()  # retrieve it, since no one may be waiting any more

    def fail_calls(self) -> None:
        """Fail all pending calls: the service has gone."""
        for call in list(self._calls.values()):
            if not call.done():
                call.set_exception(ControlUnreachable("the service has ended"))
                call.exception()  # as above

    def _register_call(self) -> tuple[int, asyncio.Future[ApprovalResult | None]]:
        if len(self._calls) >= self._settings.calls_max or self._pipe.unsent_bytes > _UNSENT_BYTES_MAX:
            msg = f"the service already has {len(self._calls)} pending requests; retry later (commands_max)"
            raise ControlUnreachable(msg, limit="commands_max")
        number = next(self._numbers)
        call = self._calls[number] = asyncio.get_running_loop().create_future()
        return number, call

    async def _wait_for_result(self, call: asyncio.Future[ApprovalResult | None]) -> ApprovalResult | None:
        """Return the result of a call. The call stays pending until it is answered, even if no one waits for it."""
        # `wait` leaves the call running at the time-out; `wait_for` would cancel it for every other waiter.
        done, _ = await asyncio.wait({call}, timeout=_ANSWER_S)
        if not done:
            raise ControlUnreachable(f"the service has not answered within {_ANSWER_S:g} s")
        return call.result()

    def _uncount_call(self, vm: str) -> None:
        self._by_vm[vm] -= 1
        if not self._by_vm[vm]:
            del self._by_vm[vm]


class _ServiceFailure(ForewarnError):
    """Error reported by the service."""

    def __init__(self, failure: messages.CallFailure) -> None:
        details: dict[str, Any] = {"limit": failure.limit} if failure.limit else {}
        super().__init__(failure.message, **details)
        self.status = failure.status  # type: ignore[misc] # differs by instance


def _decode_failure(failure: messages.CallFailure) -> ForewarnError:
    if failure.limit and failure.status == LimitExceeded.status:
        return LimitExceeded(failure.message, limit=failure.limit)
    return _ServiceFailure(failure)

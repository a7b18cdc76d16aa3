"""Connection from a host to its control plane: to one of several replicas.

The watch and the requests passed on for VMs go to the same replica while it answers. If it does not, the next one is
used; a watch is retried after a growing pause with jitter, so that hosts do not all reconnect at once.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Any

import httpx

from forewarn import __version__
from forewarn.core.maintenance.approval import ApprovalResult, Approver
from forewarn.errors import ConfigError, ControlRefused, ControlUnreachable, LimitExceeded
from forewarn.net.httpx_errors import UNANSWERED, describe_error

__all__ = ["ControlPlaneClient"]

_CONNECT_S = 3.0
_ANSWER_S = 10.0
_SILENCE_S = 15.0
"""Silence after which a stream counts as dead: it carries a line every five seconds."""

_LINE_BYTES_MAX = 64 << 20
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})


class ControlPlaneClient:
    """Client of the control plane.

    Args:
        host: Name of this host.
        urls: Base URLs of the replicas; at least one.
        token: Token of this host.
        tls: TLS context to verify the replicas; None for the system's default.
    """

    def __init__(self, host: str, urls: Sequence[str], token: str, tls: ssl.SSLContext | None = None) -> None:
        if not urls:
            raise ConfigError("no control plane given: name at least one replica with --control-url")
        self.host = host
        self._urls = list(urls)
        self._rng = random.Random()  # noqa: S311 - for pauses only, no secrets
        # Hosts that are configured alike must not all use the same replica.
        self._rng.shuffle(self._urls)
        self._client = httpx.AsyncClient(
            # The version is shown to operators, who update hosts one after another.
            headers={"authorization": f"Bearer {token}", "user-agent": f"forewarn/{__version__}"},
            verify=tls or True,
            trust_env=False,  # a proxy of the environment would see the token
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
        )

    @property
    def url(self) -> str:
        """URL of the current replica."""
        return self._urls[0]

    def switch_replica(self) -> None:
        """Switch to the next replica."""
        self._urls.append(self._urls.pop(0))

    def compute_pause_s(self, attempt: int) -> float:
        """Return the pause before an attempt, counted from 1: exponential up to 10 s, with jitter."""
        # The exponent is capped, or the power would overflow after hours without an answer.
        return self._rng.uniform(0.5, 1.0) * min(0.2 * 2.0 ** min(attempt, 10), 10.0)

    @asynccontextmanager
    async def open_watch(self) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open the stream of lines from the control plane.

        Raises:
            ControlUnreachable: The replica does not answer, or no longer does.
            ControlRefused: The replica refuses this host.
        """
        timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        stream = self._client.stream("GET", self._build_url("watch"), timeout=timeout)
        async with AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(stream)
                if answer.status_code != HTTPStatus.OK:
                    # httpx does not read the body of a stream, which says why this host is refused.
                    await answer.aread()
                    raise _build_refusal(answer)
            except UNANSWERED as error:
                raise _build_unreachable(self.url, error) from error
            # Only what httpx itself raises from here on: `UNANSWERED` would hide faults of the caller's block.
            try:
                yield _split_lines(answer)
            except httpx.HTTPError as error:
                raise _build_unreachable(self.url, error) from error

    async def approve(self, event_ids: Sequence[str], approver: Approver) -> ApprovalResult:
        """Pass an approval on; it is on the control plane's disk when this returns.

        Raises:
            ControlUnreachable: No replica gave a usable answer; the approval may have been accepted.
            ControlRefused: The control plane refuses this host or this VM.
            LimitExceeded: Too many approvals of this VM are pending there; no other replica is tried.
        """
        body = {
            "vm": approver.vm,
            "event_ids": list(event_ids),
            "source_address": approver.source_address or "",
            "api_version": approver.api_version or "",
        }
        answer = await self._post_to_any("approvals", body)
        return ApprovalResult(
            unknown=tuple(answer["unknown"]),
            approved=tuple(answer["approved"]),
            unchanged=tuple(answer["unchanged"]),
            refused=tuple(answer["refused"]),
        )

    async def report_requests(self, last_requests: Mapping[str, datetime]) -> None:
        """Report the time of the last request of each VM.

        Raises:
            ControlUnreachable: No replica gave a usable answer.
            ControlRefused: The control plane refuses this host or one of these VMs.
            LimitExceeded: The control plane is over a limit; no other replica is tried.
        """
        await self._post_to_any("requests", {"vms": {vm: moment.isoformat() for vm, moment in last_requests.items()}})

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _post_to_any(self, resource: str, body: object) -> Any:  # noqa: ANN401 - JSON
        """Post to each replica in turn, once, until one accepts; return its answer."""
        failure: ControlUnreachable | None = None
        # Trying another replica is safe after any failure: reports and approvals may be repeated (R49).
        for _ in self._urls:
            try:
                answer = await self._client.post(self._build_url(resource), json=body)
            except UNANSWERED as error:
                failure = _build_unreachable(self.url, error)
            else:
                if answer.status_code == HTTPStatus.OK:
                    return _parse_json(answer)
                # Each replica counts separately, so trying the others would multiply the limit.
                if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
                    raise LimitExceeded(str(_build_refusal(answer)), limit="approvals_waiting_per_caller_max")
                failure = _build_refusal(answer)
            self.switch_replica()
        assert failure is not None  # noqa: S101 - there is at least one replica
        raise failure

    def _build_url(self, resource: str) -> str:
        return f"{self.url.rstrip('/')}/v1/hosts/{self.host}/{resource}"


async def _split_lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in answer.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
        # Something other than a control plane may answer, with an endless line.
        if len(rest) > _LINE_BYTES_MAX:
            raise ControlUnreachable(f"the control plane sent a line of more than {_LINE_BYTES_MAX} bytes")


def _parse_json(answer: httpx.Response) -> Any:  # noqa: ANN401 - JSON
    try:
        return answer.json()
    except ValueError as error:
        raise ControlUnreachable(f"{answer.url.host} sent a response that is not JSON") from error


def _build_refusal(answer: httpx.Response) -> ControlUnreachable:
    try:
        words = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        words = answer.text[:200]
    msg = f"the control plane answered {answer.status_code}: {words}"
    return ControlRefused(msg) if answer.status_code in _REFUSALS else ControlUnreachable(msg)


def _build_unreachable(url: str, error: Exception) -> ControlUnreachable:
    msg = f"{url} does not answer: {describe_error(error)}"
    return ControlUnreachable(msg)

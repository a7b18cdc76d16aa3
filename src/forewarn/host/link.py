"""The way from a host to its control plane: one of several replicas, whichever answers.

Watching, and passing on what VMs send, go to the same replica while it answers. When it does not, the next one is
tried, after a pause that grows and is never the same for two hosts, so that they do not all come at once.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from http import HTTPStatus
from typing import Any

import httpx

from forewarn.core.approval import Approval, Approver
from forewarn.errors import ConfigError, ControlRefused, ControlUnreachable, LimitExceeded
from forewarn.net.unanswered import UNANSWERED, why

__all__ = ["Link"]

_CONNECT_S = 3.0
_ANSWER_S = 10.0
_SILENCE_S = 15.0
"""A stream that says nothing for so long is dead: it has a line every five seconds."""

_LINE_BYTES_MAX = 64 << 20
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})


class Link:
    """To the control plane.

    Args:
        host: This host's name.
        urls: Base URLs of the replicas; at least one.
        token: Of this host.
        tls: How their certificates are checked; None: as the system does.
        rng: Where pauses come from.
    """

    def __init__(
        self,
        host: str,
        urls: Sequence[str],
        token: str,
        tls: ssl.SSLContext | None = None,
        rng: random.Random | None = None,
    ) -> None:
        if not urls:
            msg = "name at least one replica with --control-url"
            raise ConfigError(msg)
        self.host = host
        self._urls = list(urls)
        self._rng = rng or random.Random()  # noqa: S311 - pauses, and nothing to be guessed
        self._rng.shuffle(self._urls)
        self._client = httpx.AsyncClient(
            headers={"authorization": f"Bearer {token}"},
            verify=tls or True,
            trust_env=False,
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S),
        )

    @property
    def url(self) -> str:
        """The replica that is asked now."""
        return self._urls[0]

    def turn(self) -> None:
        """Ask the next one from now on."""
        self._urls.append(self._urls.pop(0))

    def pause_s(self, attempt: int) -> float:
        """How long to wait before that attempt, from 1: up to 10 s, and each time another part of it."""
        return self._rng.uniform(0.5, 1.0) * min(0.2 * 2.0 ** min(attempt, 10), 10.0)

    @asynccontextmanager
    async def watch(self) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines that the control plane tells.

        Raises:
            ControlUnreachable: It does not answer, or stopped to.
            ControlRefused: It does not want this host.
        """
        timeout = httpx.Timeout(_SILENCE_S, connect=_CONNECT_S)
        try:
            async with self._client.stream("GET", self._at("watch"), timeout=timeout) as answer:
                if answer.status_code != HTTPStatus.OK:
                    await answer.aread()
                    raise _refusal(answer)
                yield _lines(answer)
        except UNANSWERED as error:
            raise _unreachable(self.url, error) from error

    async def approve(self, event_ids: Sequence[str], approver: Approver) -> Approval:
        """Pass an approval on; when this returns, it is on the control plane's disk.

        Raises:
            ControlUnreachable: No replica answers, or none can tell; it may have been taken.
            ControlRefused: It does not want this host, or not this VM.
            LimitExceeded: Too many approvals of this VM wait there already; no other replica is asked.
        """
        body = {
            "vm": approver.vm,
            "event_ids": list(event_ids),
            "source_address": approver.source_address or "",
            "api_version": approver.api_version or "",
        }
        answer = await self._post("approvals", body)
        refused = tuple(answer.get("refused", ()))
        return Approval(
            unknown=tuple(i for i in answer["unknown"] if i not in refused),
            approved=tuple(answer["approved"]),
            unchanged=tuple(answer["unchanged"]),
            refused=refused,
        )

    async def report(self, asked: Mapping[str, datetime]) -> None:
        """Tell which VMs asked, and when last.

        Raises:
            ControlUnreachable: No replica answers.
            ControlRefused: It does not want this host, or not one of these VMs.
        """
        await self._post("requests", {"vms": {vm: moment.isoformat() for vm, moment in asked.items()}})

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.aclose()

    async def _post(self, what: str, body: object) -> Any:  # noqa: ANN401 - what the control plane answered, as JSON
        """To one replica after the other, each once."""
        failure: ControlUnreachable | None = None
        for _ in self._urls:
            try:
                answer = await self._client.post(self._at(what), json=body)
            except UNANSWERED as error:
                failure = _unreachable(self.url, error)
            else:
                if answer.status_code == HTTPStatus.OK:
                    return _content(answer)
                if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
                    raise LimitExceeded(str(_refusal(answer)), limit="approvals_waiting_per_caller_max")
                failure = _refusal(answer)
            self.turn()
        assert failure is not None  # noqa: S101 - there is at least one replica
        raise failure

    def _at(self, what: str) -> str:
        return f"{self.url.rstrip('/')}/v1/hosts/{self.host}/{what}"


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    rest = b""
    async for piece in answer.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line
        if len(rest) > _LINE_BYTES_MAX:
            msg = f"a line of more than {_LINE_BYTES_MAX} bytes came from the control plane"
            raise ControlUnreachable(msg)


def _content(answer: httpx.Response) -> Any:  # noqa: ANN401 - JSON
    try:
        return answer.json()
    except ValueError as error:
        msg = f"{answer.url.host} answered something that is not JSON"
        raise ControlUnreachable(msg) from error


def _refusal(answer: httpx.Response) -> ControlUnreachable:
    try:
        words = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        words = answer.text[:200]
    msg = f"the control plane answered {answer.status_code}: {words}"
    return ControlRefused(msg) if answer.status_code in _REFUSALS else ControlUnreachable(msg)


def _unreachable(url: str, error: Exception) -> ControlUnreachable:
    msg = f"{url} does not answer: {why(error)}"
    return ControlUnreachable(msg)

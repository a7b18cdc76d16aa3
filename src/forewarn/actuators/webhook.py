"""Actuator that calls a service of the operator over HTTP.

==============  ====================================================================
begin           ``POST URL`` with the maintenance as JSON, ``Idempotency-Key: ID``
observe         ``GET URL/ID``; 404: nothing was begun under that id
stop            ``DELETE URL/ID``; 404: there is nothing to stop
==============  ====================================================================

Each request carries ``Forewarn-Signature: t=SECONDS,v1=HEX``: the HMAC-SHA256, under the shared secret, of the seconds,
a dot, and the body; without a body, of the method, a space and the target, so that a signed GET cannot be replayed as a
DELETE.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Literal
from urllib.parse import quote

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from forewarn.actuators.contract import TRACEPARENT, Progress
from forewarn.actuators.payload import encode_maintenance, make_printable
from forewarn.clock import RealClock
from forewarn.core.model import Maintenance
from forewarn.errors import ActuationFailed, ActuatorError, ConfigError
from forewarn.net.httpx_errors import UNANSWERED, describe_error

__all__ = ["SIGNATURE", "Webhook", "sign_request"]

SIGNATURE = "Forewarn-Signature"
"""Header that authenticates the sender and the time of a request."""

_CHECK_ID = "forewarn-check"
_SPAN_MAX_S = 86_400.0
_IS_ANSWER = frozenset({HTTPStatus.OK, HTTPStatus.CREATED})
_IS_GONE = frozenset({HTTPStatus.OK, HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND})

_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class _ProgressAnswer(BaseModel):
    """Answer of the operator's service about a maintenance; other members are ignored."""

    model_config = ConfigDict(strict=True)

    state: Literal["running", "completed", "failed", "unknown"]
    check_after_s: _Seconds | None = None
    impacted: bool | None = None
    impact_s: _Seconds | None = None
    reason: str = ""


class Webhook:
    """Delegates maintenances to a service behind a URL.

    Args:
        url: ``https://…``, or ``http://…``; a query is kept.
        secret: Secret shared with that service, for signing and verification.
        deadline: Time limit for a whole call, from the connection to the last byte of the answer.
        answer_size_bytes_max: Maximum size of an answer.
        check_every: Interval between observations, unless the service names one.

    Raises:
        ConfigError: The URL is invalid, or the secret is empty.
    """

    is_observable = True

    def __init__(
        self,
        url: str,
        secret: str,
        *,
        deadline: timedelta = timedelta(seconds=20),
        answer_size_bytes_max: int = 64 << 10,
        check_every: timedelta = timedelta(seconds=5),
    ) -> None:
        self._url = _parse_url(url)
        if not secret:
            raise ConfigError("the webhook needs a secret: set webhook_secret_file", setting="webhook_secret_file")
        self._secret = secret.encode()
        self._deadline_s = deadline.total_seconds()
        self._answer_size_bytes_max = answer_size_bytes_max
        self._check_every = check_every
        self._clock = RealClock()  # the receiver compares the signatures' seconds with its own clock
        self._client: httpx.AsyncClient | None = None

    @property
    def _label(self) -> str:
        """Name of the other side in messages: without a password, a path or a query."""
        return f"the webhook at {self._url.host}"

    def plan(self, maintenance: Maintenance) -> tuple[str, ...]:
        """Return the request that would be sent."""
        where = self._url.copy_with(userinfo=b"", query=None)
        return (f"POST maintenance {maintenance.id} of {', '.join(maintenance.vms)} to {where}",)

    async def check(self) -> None:
        """Ask about a maintenance that does not exist: the answer must be 404 or a valid document."""
        reply = await self._send_request("GET", self._build_url(_CHECK_ID))
        if reply.status_code != HTTPStatus.NOT_FOUND:
            self._decode_answer(reply)

    async def execute(self, maintenance: Maintenance, now: datetime) -> Progress:
        """POST the maintenance; the service recognises a repeated request by its key."""
        headers = {"Idempotency-Key": quote(maintenance.id, safe=""), "Content-Type": "application/json"}
        reply = await self._send_request("POST", self._url, encode_maintenance(maintenance), headers)
        return self._read_progress(reply, now)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        """GET the progress; None for 404: nothing was begun."""
        reply = await self._send_request("GET", self._build_url(maintenance.id))
        return None if reply.status_code == HTTPStatus.NOT_FOUND else self._read_progress(reply, now)

    async def abort(self, maintenance: Maintenance, now: datetime) -> None:  # noqa: ARG002 - the contract's
        """DELETE the maintenance."""
        reply = await self._send_request("DELETE", self._build_url(maintenance.id))
        if reply.status_code not in _IS_GONE:
            raise ActuatorError(f"{self._label} answered {reply.status_code} to DELETE; expected 200, 202, 204 or 404")

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _build_url(self, id: str) -> httpx.URL:
        path, separator, query = self._url.raw_path.partition(b"?")
        return self._url.copy_with(raw_path=path.rstrip(b"/") + b"/" + quote(id, safe="").encode() + separator + query)

    async def _send_request(
        self, method: str, url: httpx.URL, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send one request, and read its answer up to the limit.

        Raises:
            ActuatorError: No complete answer in time, or it is too large.
        """
        signed = body or f"{method} {url.raw_path.decode('ascii')}".encode()
        stamp = sign_request(self._secret, signed, math.floor(self._clock.now().timestamp()))
        traceparent = TRACEPARENT.get()
        trace = {"traceparent": traceparent} if traceparent else {}
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._send_and_read(method, url, body, {SIGNATURE: stamp} | trace | dict(headers or {}))
        except TimeoutError as error:
            raise ActuatorError(f"{self._label} did not fully answer {method} within {self._deadline_s:g} s") from error
        except UNANSWERED as error:
            words = make_printable(describe_error(error))
            raise ActuatorError(f"{self._label} did not answer {method}: {words}") from error

    async def _send_and_read(self, method: str, url: httpx.URL, body: bytes, headers: dict[str, str]) -> httpx.Response:
        if self._client is None:
            # The deadline of the whole call comes before this time-out. An uncompressed answer cannot expand beyond the
            # size limit.
            self._client = httpx.AsyncClient(
                # A proxy from the environment or a redirect would send the signed request to another service.
                trust_env=False,
                follow_redirects=False,
                timeout=2 * self._deadline_s,
                headers={"Accept-Encoding": "identity"},
            )
        received = bytearray()
        async with self._client.stream(method, url, content=body or None, headers=headers) as response:
            async for chunk in response.aiter_raw():
                received += chunk
                # Raising within the block closes the connection, so the rest of the answer is not read.
                if len(received) > self._answer_size_bytes_max:
                    raise ActuatorError(f"{self._label} answered with more than {self._answer_size_bytes_max} bytes")
        return httpx.Response(response.status_code, content=bytes(received))

    def _read_progress(self, reply: httpx.Response, now: datetime) -> Progress:
        """Return the progress in an answer.

        Raises:
            ActuationFailed: The service reports a failure.
            ActuatorError: The service does not know, or the answer is invalid.
        """
        # 202 needs no body: the service has accepted the maintenance and has no progress yet.
        if reply.status_code == HTTPStatus.ACCEPTED:
            return Progress(check_at=now + self._check_every)
        answer = self._decode_answer(reply)
        match answer.state:
            case "running":
                after_s = self._check_every.total_seconds() if answer.check_after_s is None else answer.check_after_s
                # Capped, since a very large number of seconds would overflow.
                check_at = now + timedelta(seconds=min(after_s, _SPAN_MAX_S))
                return Progress(is_impacted=bool(answer.impacted), check_at=check_at)
            case "completed":
                return Progress(is_impacted=answer.impacted is not False, is_complete=True, impact_s=answer.impact_s)
            case "failed":
                raise ActuationFailed(f"{self._label} failed: {make_printable(answer.reason) or 'no reason given'}")
            case "unknown":
                msg = f"{self._label} reports an unknown state: {make_printable(answer.reason) or 'no reason given'}"
                raise ActuatorError(msg)

    def _decode_answer(self, reply: httpx.Response) -> _ProgressAnswer:
        if reply.status_code not in _IS_ANSWER:
            raise ActuatorError(f"{self._label} answered {reply.status_code}; expected 200, 201 or 202")
        try:
            return _ProgressAnswer.model_validate_json(reply.content)
        except ValidationError as error:
            fault = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(part) for part in fault["loc"])
            words = f"{where}: {fault['msg']}" if where else fault["msg"]
            msg = make_printable(f"{self._label} answered {reply.status_code} with an invalid body: {words}")
            raise ActuatorError(msg) from error


def sign_request(secret: bytes, signed: bytes, at_s: int) -> str:
    """Return the value of the `SIGNATURE` header at that many seconds since 1970, UTC; see the top of this module."""
    digest = hmac.new(secret, str(at_s).encode() + b"." + signed, hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


def _parse_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, TypeError, ValueError):
        parsed = httpx.URL("")
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        raise ConfigError("the webhook URL must begin with https:// or http://: set webhook_url", setting="webhook_url")
    return parsed

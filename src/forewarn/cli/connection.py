"""Client of the control API for commands: address, token, errors, and repeatable changes.

httpx is imported at the first request, so that `--help` does not wait for it.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import quote, urlsplit

from forewarn import errors
from forewarn.errors import ConfigError, ForewarnError, InvalidRequest, OtherSideError, ServerUnreachable, Unauthorized
from forewarn.util.secrets import TOKEN_FILE, default_state_dir, read_token

if TYPE_CHECKING:
    import httpx

__all__ = ["DEFAULT_URL", "Connection", "Pacing", "parse_events", "segment", "state_dir"]

DEFAULT_URL = "http://127.0.0.1:8170"

_CONNECT_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 60.0
_WATCH_TIMEOUT_S = 45.0
"""Read time-out of a watch: three times the interval between two heartbeats."""
_RETRY_PAUSES_S = (0.25, 0.5, 1.0, 2.0)
_RECONNECT_PAUSE_MAX_S = 5.0
_UNAVAILABLE = 503
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_PAGE = 1000
_BY_CODE: dict[str, type[ForewarnError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, ForewarnError) and not kind.__subclasses__()
}


class Pacing:
    """Sleep function between two tries."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self.sleep = sleep


class Connection:
    """A connection to the control API. Nothing is sent before the first request.

    Args:
        url: Address of the control API.
        token_file: File with the token; None for `FOREWARN_TOKEN`, or the token in the state folder.
        environment: Environment variables; None for those of the process.
        transport: HTTP transport; None for the network.
        pacing: Pauses between tries; None for real ones.

    Raises:
        ConfigError: `url` is not the address of an HTTP server.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        token_file: Path | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
        pacing: Pacing | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._host = _checked_host(self.url)
        self._token_file = token_file
        self._environment = os.environ if environment is None else environment
        self._transport = transport
        self._pacing = pacing or Pacing()
        self._client: httpx.Client | None = None
        self._token_missing: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()

    # Requests

    def get(self, path: str, **params: object) -> Any:  # noqa: ANN401 - JSON
        """GET a resource."""
        return self._call("GET", path, params=params)

    def pages(self, path: str, most: int | None = None, **params: object) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page by page; at most `most`, None for all."""
        after: str | None = None
        left = most
        while left is None or left > 0:
            limit = _PAGE if left is None else min(left, _PAGE)
            page = self._call("GET", path, params=params | {"limit": limit, "after": after})
            # A page of events is counted in maintenances, so it may hold more items than requested.
            items = page["items"] if left is None else page["items"][:left]
            yield from items
            after = page["next"]
            if after is None:
                return
            if left is not None:
                left -= len(items)

    def last(self, path: str, count: int, **params: object) -> list[dict[str, Any]]:
        """Return the last `count` items of the audit log or fewer, oldest first."""
        found: list[dict[str, Any]] = []
        before: str | None = None
        while len(found) < count:
            asked = {"newest": "true", "limit": min(count - len(found), _PAGE), "before": before}
            page = self._call("GET", path, params=params | asked)
            found = page["items"] + found
            before = page["next"]
            if before is None:
                break
        return found

    def change(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        is_repeatable: bool = True,
        also: tuple[int, ...] = (),
        **params: object,
    ) -> Any:  # noqa: ANN401 - JSON
        """Make a change exactly once: a 503 is retried under the same `Idempotency-Key`.

        Args:
            method: POST, PUT or DELETE.
            path: Path below the address of the control API.
            body: JSON-able value, or bytes to send as they are; None for none.
            is_repeatable: False if the service ignores the key here.
            also: Error statuses that are returned as an answer here.
            params: Query parameters.
        """
        headers = {"idempotency-key": str(uuid.uuid4())}
        return self._call(
            method, path, params=params, body=body, headers=headers, is_repeatable=is_repeatable, also=also
        )

    def _call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, object] | None = None,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        is_repeatable: bool = True,
        also: tuple[int, ...] = (),
    ) -> Any:  # noqa: ANN401 - JSON
        said = _said(params or {})
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json"} if content is not None and not isinstance(body, bytes) else {}
        pauses = iter(_RETRY_PAUSES_S if is_repeatable else ())
        while True:
            response = self._send(method, path, said, content, sent | dict(headers or {}))
            pause_s = next(pauses, None) if response.status_code == _UNAVAILABLE else None
            if pause_s is None:
                break
            self._pacing.sleep(pause_s)
        if response.is_success or response.status_code in also:
            return self._json(response)
        return self._fail(response)

    def _send(
        self, method: str, path: str, params: Mapping[str, Any], content: bytes | None, headers: Mapping[str, str]
    ) -> httpx.Response:
        import httpx

        try:
            return self._opened().request(method, path, params=dict(params), content=content, headers=dict(headers))
        except httpx.HTTPError as error:
            self._unreachable(error)

    def lines(self, path: str, **params: object) -> Iterator[Any]:
        """Yield the lines of a long answer as they arrive, decoded from JSON.

        Raises:
            ServerUnreachable: The service does not answer, or stops in the middle.
        """
        import httpx

        said: dict[str, Any] = _said(params)
        try:
            with self._opened().stream("GET", path, params=said) as response:
                if not response.is_success:
                    response.read()
                    self._fail(response)
                yield from map(json.loads, response.iter_lines())
        except httpx.HTTPError as error:
            self._unreachable(error)

    # The stream

    def watch(
        self, after: int, notice: Callable[[str], None] = lambda _line: None, **params: object
    ) -> Iterator[dict[str, Any]]:
        """Yield audit log entries after that sequence number as they are written, without end.

        A broken connection is replaced, and continues after the last entry seen.

        Args:
            after: Sequence number of the last known entry.
            notice: Callback that gets one line when the connection breaks and when it is back.
            params: Query parameters that select entries.

        Raises:
            ServerUnreachable: The first try failed; later ones are repeated.
        """
        import httpx

        is_first, failures = True, 0
        while True:
            try:
                for entry in self._stream(after, params):
                    if entry is None:
                        if failures:
                            notice("the connection is back")
                        is_first, failures = False, 0
                        continue
                    after = entry["sequence"]
                    yield entry
            except (httpx.HTTPError, ServerUnreachable) as error:
                if is_first:
                    self._unreachable(error)
            if not failures:
                notice(f"the connection to {self.url} is lost; trying again")
            self._pacing.sleep(min(0.25 * 2**failures, _RECONNECT_PAUSE_MAX_S))
            failures = min(failures + 1, 10)

    def _stream(self, after: int, params: Mapping[str, object]) -> Iterator[dict[str, Any] | None]:
        """Yield None once the connection is established, then entries."""
        import httpx

        timeout = httpx.Timeout(_WATCH_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        headers = {"last-event-id": str(after)}
        said: dict[str, Any] = _said(params)
        with self._opened().stream("GET", "/v1/watch", params=said, headers=headers, timeout=timeout) as response:
            if response.status_code >= 500:  # noqa: PLR2004 - the service is starting or stopping
                msg = f"the service answered {response.status_code}"
                raise ServerUnreachable(msg)
            if not response.is_success:
                response.read()
                self._fail(response)
            yield None
            for text in parse_events(response.iter_lines()):
                yield json.loads(text)

    # Opening

    def _opened(self) -> httpx.Client:
        if self._client is None:
            import httpx

            # Proxies of the environment are not meant for this machine; mounts take precedence over them.
            mounts = {"http://": self._transport, "https://": self._transport} if _is_loopback(self._host) else None
            self._client = httpx.Client(
                base_url=self.url,
                headers=self.headers(),
                timeout=httpx.Timeout(_ANSWER_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
                transport=self._transport,
                mounts=mounts,
            )
        return self._client

    def headers(self) -> dict[str, str]:
        """Return the headers of every request: token, accepted type, and trace.

        Raises:
            ConfigError: The token cannot be read.
        """
        token = self._token()
        headers = {"accept": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        traceparent = self._environment.get("TRACEPARENT", "")
        if _TRACEPARENT.fullmatch(traceparent):  # the caller of this command traces it
            headers["traceparent"] = traceparent
        return headers

    def _token(self) -> str | None:
        """Return the token to send; None if there is none. The reason is kept for an error of the service."""
        if self._token_file is not None:
            return _clean(read_token(self._token_file), str(self._token_file))
        said = self._environment.get("FOREWARN_TOKEN", "").strip()
        if said:
            return _clean(said, "FOREWARN_TOKEN")
        path = state_dir(self._environment) / TOKEN_FILE
        try:
            is_there = path.exists()
        except OSError:
            is_there = False
        if not is_there:
            self._token_missing = f"there is no token in {path}: start the service as this user, or pass --token-file"
            return None
        if self.url.startswith("http:") and not _is_loopback(self._host):
            self._token_missing = (
                f"the token in {path} is not sent in the clear to {self._host}: use https, or pass --token-file"
            )
            return None
        return _clean(read_token(path), str(path))

    # Errors

    def _json(self, response: httpx.Response) -> Any:  # noqa: ANN401 - JSON
        try:
            return response.json()
        except ValueError as error:
            msg = f"{self.url} does not answer like a control API: is this the right address?"
            raise OtherSideError(msg) from error

    def _fail(self, response: httpx.Response) -> NoReturn:
        try:
            body = response.json()["error"]
            code, message, details = str(body["code"]), str(body["message"]), dict(body["details"])
        except (ValueError, KeyError, TypeError):
            if response.status_code == _UNAVAILABLE:
                msg = f"{self.url} is too busy (503): try again later"
                raise OtherSideError(msg) from None
            msg = f"{self.url} answered {response.status_code}, but not like a control API: is this the right address?"
            raise OtherSideError(msg) from None
        if code == Unauthorized.code and self._token_missing is not None:
            raise Unauthorized(self._token_missing)
        raise _BY_CODE.get(code, ForewarnError)(message, **details)

    def _unreachable(self, error: Exception) -> NoReturn:
        import httpx

        if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
            msg = f"{self.url} cannot be used as the control URL: {error}"
            raise ConfigError(msg) from error
        if isinstance(error, httpx.ReadTimeout):
            msg = f"{self.url} did not answer within {_ANSWER_TIMEOUT_S:g} s"
            raise ServerUnreachable(msg) from error
        if "CERTIFICATE_VERIFY_FAILED" in str(error) or isinstance(error.__cause__, ssl.SSLCertVerificationError):
            msg = f"cannot reach {self.url}: its certificate cannot be verified; name its CA in SSL_CERT_FILE"
            raise ServerUnreachable(msg) from error
        reason = str(error).strip() or type(error).__name__
        msg = f"cannot reach {self.url} ({reason}): start a service with 'forewarn serve', or pass --control-url"
        raise ServerUnreachable(msg) from error


def _said(params: Mapping[str, object]) -> dict[str, object]:
    """Return the parameters that were given."""
    return {name: value for name, value in params.items() if value is not None and value != []}


def segment(name: str) -> str:
    """Quote a name as one segment of a path.

    Raises:
        InvalidRequest: It cannot be one.
    """
    if name in {"", ".", ".."} or "/" in name:
        msg = f"{name!r} is not a name"
        raise InvalidRequest(msg)
    return quote(name, safe="")


def state_dir(environment: Mapping[str, str]) -> Path:
    """Return the state folder of a `serve` that the same user runs in the same environment."""
    said = environment.get("FOREWARN_STATE_DIR")
    if said:
        return Path(said)
    return default_state_dir()


def parse_events(lines: Iterator[str]) -> Iterator[str]:
    """Yield the data of each server-sent event. Comments, and an incomplete event, are dropped."""
    found: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            found.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and found:
            yield "\n".join(found)
            found = []


def _checked_host(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not host:
        msg = f"control URL {url!r} is expected to be like {DEFAULT_URL}"
        raise ConfigError(msg)
    return host


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _clean(token: str, where: str) -> str:
    if not token.isascii() or not token.isprintable() or " " in token:
        msg = f"what is in {where} is not a token"
        raise ConfigError(msg)
    return token

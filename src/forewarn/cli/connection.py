"""Client of the control API for commands: address, token, errors, and repeatable changes.

httpx is imported at the first request, so that `--help` does not wait for it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self
from urllib.parse import quote, urlsplit

from forewarn import errors
from forewarn.errors import ConfigError, ForewarnError, InvalidRequest, OtherSideError, ServerUnreachable, Unauthorized
from forewarn.net.listen_address import is_loopback_name
from forewarn.util.secrets import TOKEN_FILE, default_state_dir, read_token

if TYPE_CHECKING:
    import httpx

__all__ = ["DEFAULT_URL", "ControlConnection", "find_state_dir", "make_error", "parse_events", "quote_segment"]

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


class ControlConnection:
    """A connection to the control API. Nothing is sent before the first request.

    Args:
        url: Address of the control API.
        token_file: File with the token; None for `FOREWARN_TOKEN`, or the token in the state folder.
        environment: Environment variables; None for those of the process.
        transport: HTTP transport; None for the network.
        sleep: Sleep function between two tries.

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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url.rstrip("/")
        self._host = _parse_host(self.url)
        self._token_file = token_file
        self._environment = os.environ if environment is None else environment
        self._transport = transport
        self._sleep = sleep
        self._client: httpx.Client | None = None
        self._missing_token_reason: str | None = None
        self._watch: httpx.Response | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._client is not None:
            self._client.close()

    # Requests

    def get(self, path: str, **params: object) -> Any:  # noqa: ANN401 - JSON
        """GET a resource."""
        return self._send_with_retries("GET", path, params)

    def iterate_items(self, path: str, count_max: int | None = None, **params: object) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page by page; at most `count_max`, None for all."""
        after: str | None = None
        left = count_max
        while left is None or left > 0:
            limit = _PAGE if left is None else min(left, _PAGE)
            page = self._send_with_retries("GET", path, params | {"limit": limit, "after": after})
            # A page of events is counted in maintenances, so it may hold more items than requested.
            items = page["items"] if left is None else page["items"][:left]
            yield from items
            after = page["next"]
            if after is None:
                return
            if left is not None:
                left -= len(items)

    def fetch_newest(self, path: str, count: int, **params: object) -> list[dict[str, Any]]:
        """Return the last `count` items of the audit log or fewer, oldest first."""
        found: list[dict[str, Any]] = []
        before: str | None = None
        while len(found) < count:
            query = {"newest": "true", "limit": min(count - len(found), _PAGE), "before": before}
            page = self._send_with_retries("GET", path, params | query)
            # Pages go backwards in time, but each is in ascending order.
            found = page["items"] + found
            before = page["next"]
            if before is None:
                break
        return found

    def send_change(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        is_repeatable: bool = True,
        accepted_statuses: tuple[int, ...] = (),
        **params: object,
    ) -> Any:  # noqa: ANN401 - JSON
        """Make a change exactly once: a 503 is retried under the same `Idempotency-Key`.

        Args:
            method: POST, PUT or DELETE.
            path: Path below the address of the control API.
            body: JSON-able value, or bytes to send as they are; None for none.
            is_repeatable: False if the service ignores the key here.
            accepted_statuses: Error statuses that are returned as an answer here.
            params: Query parameters.
        """
        headers = {"idempotency-key": str(uuid.uuid4())}
        if body is not None and not isinstance(body, bytes):
            body, headers["content-type"] = json.dumps(body).encode(), "application/json"
        pauses_s = _RETRY_PAUSES_S if is_repeatable else ()
        return self._send_with_retries(method, path, params, pauses_s, accepted_statuses, content=body, headers=headers)

    def _send_with_retries(
        self,
        method: str,
        path: str,
        params: Mapping[str, object],
        pauses_s: Iterable[float] = _RETRY_PAUSES_S,
        accepted_statuses: tuple[int, ...] = (),
        **content: Any,  # noqa: ANN401 - body and headers, as httpx takes them
    ) -> Any:  # noqa: ANN401 - JSON
        import httpx

        query = _drop_unset(params)
        # Only a 503 is retried, because it is temporary; a failed connection more often means a wrong address.
        pauses = iter(pauses_s)
        while True:
            try:
                response = self._open_client().request(method, path, params=query, **content)
            except httpx.HTTPError as error:
                self._raise_unreachable(error)
            pause_s = next(pauses, None) if response.status_code == _UNAVAILABLE else None
            if pause_s is None:
                break
            self._sleep(pause_s)
        if response.is_success or response.status_code in accepted_statuses:
            return self._decode_json(response)
        return self._raise_refusal(response)

    def stream_lines(self, path: str, **params: object) -> Iterator[Any]:
        """Yield the lines of a long answer as they arrive, decoded from JSON.

        Raises:
            ServerUnreachable: The service does not answer, or stops in the middle.
        """
        for lines in self.stream_pieces(path, **params):
            yield from map(json.loads, lines)

    def stream_pieces(self, path: str, **params: object) -> Iterator[list[bytes]]:
        """Yield the lines of a long answer, without their ends, as many at a time as have arrived.

        Raises:
            ServerUnreachable: The service does not answer, or stops in the middle.
        """
        import httpx

        query, rest, has_begun = _drop_unset(params), b"", False
        try:
            with self._open_client().stream("GET", path, params=query) as response:
                if not response.is_success:
                    response.read()
                    self._raise_refusal(response)
                has_begun = True
                # Not `iter_lines`, which also splits at line separators within JSON strings.
                for piece in response.iter_bytes():
                    *lines, rest = (rest + piece).split(b"\n")
                    yield lines
                if rest:
                    yield [rest]
        except httpx.HTTPError as error:
            if has_begun:
                msg = f"{self.url} broke off its answer: {str(error).strip() or type(error).__name__}"
                raise ServerUnreachable(msg) from error
            self._raise_unreachable(error)

    # The stream

    def watch_entries(
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
                for entry in self._stream_entries(after, params):
                    if entry is None:
                        if failures:
                            notice("reconnected")
                        is_first, failures = False, 0
                        continue
                    after = entry["sequence"]
                    yield entry
            # A refusal is not caught: with an expired token, every further try would be refused too.
            except (httpx.HTTPError, ServerUnreachable) as error:
                if is_first:
                    self._raise_unreachable(error)
            if not failures:
                notice(f"lost the connection to {self.url}; retrying")
            self._sleep(min(0.25 * 2**failures, _RECONNECT_PAUSE_MAX_S))
            # Bounded, because the power above would overflow while a service stays away for hours.
            failures = min(failures + 1, 10)

    def _stream_entries(self, after: int, params: Mapping[str, object]) -> Iterator[dict[str, Any] | None]:
        """Yield None once the connection is established, then entries."""
        import httpx

        timeout = httpx.Timeout(_WATCH_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S)
        headers = {"last-event-id": str(after)}
        query = _drop_unset(params)
        with self._open_client().stream("GET", "/v1/watch", params=query, headers=headers, timeout=timeout) as response:
            if response.status_code >= 500:  # noqa: PLR2004 - the service is starting or stopping
                raise ServerUnreachable(f"the service answered {response.status_code}")
            if not response.is_success:
                response.read()
                self._raise_refusal(response)
            self._watch = response
            yield None
            for text in parse_events(response.iter_lines()):
                yield json.loads(text)

    def end_watch(self) -> None:
        """Break the connection of a watch that another thread reads; without a watch, do nothing."""
        stream = None if self._watch is None else self._watch.extensions.get("network_stream")
        opened = None if stream is None else stream.get_extra_info("socket")
        if opened is not None:
            # Closing a socket does not wake a thread that reads from it; this does.
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)

    # Opening

    def _open_client(self) -> httpx.Client:
        if self._client is None:
            import httpx

            # Proxies of the environment are not meant for this machine; mounts take precedence over them.
            mounts = {"http://": self._transport, "https://": self._transport} if is_loopback_name(self._host) else None
            self._client = httpx.Client(
                base_url=self.url,
                headers=self.build_headers(),
                timeout=httpx.Timeout(_ANSWER_TIMEOUT_S, connect=_CONNECT_TIMEOUT_S),
                # Loading the certificates of all authorities takes as long as a whole command. Without TLS none is
                # needed, and this context would trust none.
                verify=True if self.url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
                transport=self._transport,
                mounts=mounts,
            )
        return self._client

    def build_headers(self) -> dict[str, str]:
        """Return the headers of every request: token, accepted type, and trace.

        Raises:
            ConfigError: The token cannot be read.
        """
        token = self._find_token()
        headers = {"accept": "application/json"} | ({"authorization": f"Bearer {token}"} if token else {})
        traceparent = self._environment.get("TRACEPARENT", "")
        if _TRACEPARENT.fullmatch(traceparent):  # the caller of this command traces it
            headers["traceparent"] = traceparent
        return headers

    def _find_token(self) -> str | None:
        """Return the token to send; None if there is none. The reason is kept for an error of the service."""
        if self._token_file is not None:
            return _check_token(read_token(self._token_file), str(self._token_file))
        token = self._environment.get("FOREWARN_TOKEN", "").strip()
        if token:
            return _check_token(token, "FOREWARN_TOKEN")
        path = find_state_dir(self._environment) / TOKEN_FILE
        try:
            is_there = path.exists()
        except OSError:
            # The folder may belong to another user, as that of a service which runs as root does.
            is_there = False
        if not is_there:
            self._missing_token_reason = (
                f"there is no token in {path}: start the service as this user, or pass --token-file"
            )
            return None
        # The user did not choose this token for this address: a mistyped URL must not reveal it to the network.
        if self.url.startswith("http:") and not is_loopback_name(self._host):
            self._missing_token_reason = (
                f"the token in {path} is not sent unencrypted to {self._host}: use https, or pass --token-file"
            )
            return None
        return _check_token(read_token(path), str(path))

    # Errors

    def _decode_json(self, response: httpx.Response) -> Any:  # noqa: ANN401 - JSON
        try:
            return response.json()
        except ValueError as error:
            raise OtherSideError(f"{self.url} is not a control API: check the control URL") from error

    def _raise_refusal(self, response: httpx.Response) -> NoReturn:
        try:
            error = make_error(response.json())
        except (ValueError, KeyError, TypeError):
            if response.status_code == _UNAVAILABLE:
                raise OtherSideError(f"{self.url} is too busy (503): try again later") from None
            msg = f"{self.url} answered {response.status_code}, but is not a control API: check the control URL"
            raise OtherSideError(msg) from None
        # "Invalid token" would mislead a user who has none; the reason why none was sent helps.
        if error.code == Unauthorized.code and self._missing_token_reason is not None:
            raise Unauthorized(self._missing_token_reason)
        raise error

    def _raise_unreachable(self, error: Exception) -> NoReturn:
        import httpx

        if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
            raise ConfigError(f"cannot use {self.url} as the control URL: {error}") from error
        if isinstance(error, httpx.ReadTimeout):
            raise ServerUnreachable(f"{self.url} did not answer within {_ANSWER_TIMEOUT_S:g} s") from error
        if "CERTIFICATE_VERIFY_FAILED" in str(error) or isinstance(error.__cause__, ssl.SSLCertVerificationError):
            msg = f"cannot reach {self.url}: its certificate cannot be verified; set SSL_CERT_FILE to its CA"
            raise ServerUnreachable(msg) from error
        reason = str(error).strip() or type(error).__name__
        msg = f"cannot reach {self.url} ({reason}): start a service with 'forewarn serve', or pass --control-url"
        raise ServerUnreachable(msg) from error


def make_error(answer: Any) -> ForewarnError:  # noqa: ANN401 - JSON
    """Return the error that an answer of the service describes.

    Raises:
        KeyError, TypeError, ValueError: It describes none.
    """
    body = answer["error"]
    code, message, details = str(body["code"]), str(body["message"]), dict(body["details"])
    return _BY_CODE.get(code, ForewarnError)(message, **details)


def _drop_unset(params: Mapping[str, object]) -> dict[str, Any]:
    """Return the parameters that were given."""
    return {name: value for name, value in params.items() if value is not None and value != []}


def quote_segment(name: str) -> str:
    """Quote a name as one segment of a path.

    Raises:
        InvalidRequest: It cannot be one.
    """
    if name in {"", ".", ".."} or "/" in name:
        raise InvalidRequest(f"{name!r} is not a valid name")
    return quote(name, safe="")


def find_state_dir(environment: Mapping[str, str]) -> Path:
    """Return the state folder of a `serve` that the same user runs in the same environment."""
    folder = environment.get("FOREWARN_STATE_DIR")
    return Path(folder) if folder else default_state_dir()


def parse_events(lines: Iterator[str]) -> Iterator[str]:
    """Yield the data of each server-sent event. Comments, and an incomplete event, are dropped."""
    found: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            found.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and found:
            yield "\n".join(found)
            found = []


def _parse_host(url: str) -> str:
    try:
        parts = urlsplit(url)
        # The port is read because an invalid one raises only when it is read.
        host, _port = parts.hostname, parts.port
    except ValueError:
        parts, host = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not host:
        raise ConfigError(f"invalid control URL {url!r}: expected for example {DEFAULT_URL}")
    return host


def _check_token(token: str, origin: str) -> str:
    # Checked here, because h11 quotes an invalid header value in its error and would print the token.
    if not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{origin} does not contain a valid token")
    return token

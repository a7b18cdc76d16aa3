"""Request checks that need neither a caller nor a document, shared by the endpoint and replays of recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from forewarn.endpoint.responses import encode_error_response, encode_json_response
from forewarn.net.listen_address import is_own_host
from forewarn.wire import imds

__all__ = [
    "RequestRefused",
    "check_events_request",
    "check_metadata",
    "check_method",
    "check_sender",
    "check_single_parameters",
    "parse_query",
]


class RequestRefused(Exception):
    """Raised to answer a request with a response other than 200."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status_code)
        self.response = response


def check_events_request(
    request: Request,
    versions: Mapping[str, imds.Version],
    *,
    version_name: str | None = None,
    host_names: frozenset[str] = frozenset(),
    is_local: bool = False,
) -> imds.Version:
    """Check a request for events in the order of R62, and return its api-version.

    Args:
        request: Request whose path has been checked.
        versions: Served versions by name, oldest first.
        version_name: Version given by the path; None if the query gives it.
        host_names: Names allowed in `Host` besides addresses and ``localhost``.
        is_local: True if the request came over a Unix socket.

    Raises:
        RequestRefused: The request fails a check; holds the response.
    """
    check_method(request, ("GET", "POST"))
    check_sender(request, host_names, is_local=is_local)
    name = parse_query(request).get("api-version", "") if version_name is None else version_name
    version = versions.get(name)
    # A missing header is reported before an unknown version (R62).
    if version is None or request.method in version.requires_metadata or _is_from_browser(request):
        check_metadata(request)
    if version is None:
        raise RequestRefused(encode_json_response(HTTPStatus.BAD_REQUEST, imds.encode_version_error(versions)))
    check_single_parameters(request)
    return version


def check_method(request: Request, allowed: Sequence[str]) -> None:
    """Refuse other methods with 405.

    Raises:
        RequestRefused: The method is not allowed.
    """
    if request.method not in allowed:
        response = encode_error_response(HTTPStatus.METHOD_NOT_ALLOWED, "Method not allowed")
        response.headers["allow"] = ", ".join(allowed)
        raise RequestRefused(response)


def check_sender(request: Request, host_names: frozenset[str] = frozenset(), *, is_local: bool = False) -> None:
    """Refuse requests that the VM did not send directly to us: DNS rebinding, proxies, pages of other origins (R13).

    Raises:
        RequestRefused: A header shows another sender or another destination.
    """
    # HTTP/1.1 requires exactly one (RFC 9112, section 3.2); HTTP/1.0 does not know the header.
    hosts = request.headers.getlist("host")
    is_old = request.scope["http_version"] == "1.0"
    is_ours = len(hosts) == 1 and is_own_host(hosts[0], host_names)
    # Browsers and DNS names cannot reach a Unix socket, and clients send any Host there.
    if not is_local and not (is_ours or (is_old and not hosts)):
        raise RequestRefused(encode_json_response(HTTPStatus.BAD_REQUEST, imds.HOST_REFUSED))
    if "x-forwarded-for" in request.headers:
        raise RequestRefused(encode_json_response(HTTPStatus.BAD_REQUEST, imds.FORWARDED))
    # No client of the protocol sends one. A browser does with every request that may change something.
    if "origin" in request.headers:
        raise RequestRefused(encode_json_response(HTTPStatus.BAD_REQUEST, imds.ORIGIN_REFUSED))


def check_metadata(request: Request) -> None:
    """Refuse a missing or contradictory ``Metadata`` header.

    Raises:
        RequestRefused: The header is missing or has a value other than ``true``.

    Spec: R10, R11.
    """
    # A repeated header is accepted if all its values agree.
    values = {value.strip().lower() for value in request.headers.getlist("metadata")}
    if values != {"true"}:
        raise RequestRefused(encode_json_response(HTTPStatus.BAD_REQUEST, imds.METADATA_MISSING))


def check_single_parameters(request: Request) -> None:
    """Refuse a query parameter that is given twice (R5).

    Raises:
        RequestRefused: A parameter is given twice.
    """
    pairs = _parse_query_pairs(request)
    if len({name for name, _ in pairs}) < len(pairs):
        text = "Bad request: . A query parameter is given twice"
        raise RequestRefused(encode_error_response(HTTPStatus.BAD_REQUEST, text))


def parse_query(request: Request) -> dict[str, str]:
    """Return the query's parameters; the last value of one given twice."""
    return dict(_parse_query_pairs(request))


def _parse_query_pairs(request: Request) -> list[tuple[str, str]]:
    # Latin-1 decodes every byte, so a malformed query is an unknown version and not an exception.
    return parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _is_from_browser(request: Request) -> bool:
    """Return True if a web page may have made a browser send the request.

    Such requests need the Metadata header in every version: without it they are simple requests (CORS), which a
    browser sends without a preflight.
    """
    return any(name == "referer" or name.startswith("sec-fetch-") for name in request.headers)

"""Checks of a request that need neither a caller nor a document; the endpoint and replays of recordings share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import Response

from forewarn.net.listen import is_own_host
from forewarn.wire import imds

__all__ = [
    "Refused",
    "check_events_request",
    "check_metadata",
    "check_method",
    "check_sender",
    "check_single_parameters",
    "encode_error_response",
    "encode_json_response",
    "parse_query",
    "payload_refusal",
    "size_refusal",
]


class Refused(Exception):
    """An answer other than 200, found on the way."""

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
        request: Its path has been looked at.
        versions: The versions that are served, by name, oldest first.
        version_name: The version, where the path says it rather than the query.
        host_names: Names that `Host` may have besides addresses and ``localhost``.
        is_local: Whether it came over a Unix socket.

    Raises:
        Refused: The request is not to be answered, and how to refuse it.
    """
    check_method(request, ("GET", "POST"))
    check_sender(request, host_names, is_local=is_local)
    name = parse_query(request).get("api-version", "") if version_name is None else version_name
    version = versions.get(name)
    if version is None or request.method in version.requires_metadata or _is_from_browser(request):
        check_metadata(request)
    if version is None:
        raise Refused(encode_json_response(HTTPStatus.BAD_REQUEST, imds.version_error(versions.values())))
    check_single_parameters(request)
    return version


def check_method(request: Request, allowed: Sequence[str]) -> None:
    """Refuse other methods with 405.

    Raises:
        Refused: The method is another one.
    """
    if request.method not in allowed:
        response = encode_error_response(HTTPStatus.METHOD_NOT_ALLOWED, "Method not allowed")
        response.headers["allow"] = ", ".join(allowed)
        raise Refused(response)


def check_sender(request: Request, host_names: frozenset[str] = frozenset(), *, is_local: bool = False) -> None:
    """Refuse what was not sent by the VM itself, to us: a rebound name, a proxy, a page of another origin (R13).

    Raises:
        Refused: It was sent by something else, or to somewhere else.
    """
    hosts = request.headers.getlist("host")
    is_old = request.scope["http_version"] == "1.0"
    is_ours = len(hosts) == 1 and is_own_host(hosts[0], host_names)
    # No browser and no name leads to a Unix socket, and clients send any Host there.
    if not is_local and not (is_ours or (is_old and not hosts)):
        raise Refused(encode_json_response(HTTPStatus.BAD_REQUEST, imds.HOST_REFUSED))
    if "x-forwarded-for" in request.headers:
        raise Refused(encode_json_response(HTTPStatus.BAD_REQUEST, imds.FORWARDED))
    if "origin" in request.headers:
        raise Refused(encode_json_response(HTTPStatus.BAD_REQUEST, imds.ORIGIN_REFUSED))


def check_metadata(request: Request) -> None:
    """Refuse a missing or contradictory ``Metadata`` header.

    Raises:
        Refused: It does not say ``true`` and nothing else.

    Spec: R10, R11.
    """
    values = {value.strip().lower() for value in request.headers.getlist("metadata")}
    if values != {"true"}:
        raise Refused(encode_json_response(HTTPStatus.BAD_REQUEST, imds.METADATA_MISSING))


def check_single_parameters(request: Request) -> None:
    """Refuse a query parameter that is given twice (R5).

    Raises:
        Refused: One is.
    """
    pairs = _query_pairs(request)
    if len({name for name, _ in pairs}) < len(pairs):
        text = "Bad request: . A query parameter is given twice"
        raise Refused(encode_error_response(HTTPStatus.BAD_REQUEST, text))


def parse_query(request: Request) -> dict[str, str]:
    """Return the query's parameters; of one that is given twice, the last."""
    return dict(_query_pairs(request))


def _query_pairs(request: Request) -> list[tuple[str, str]]:
    return parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _is_from_browser(request: Request) -> bool:
    """Whether a page may have had a browser send it; then the Metadata header is required in every version.

    Without that header the request of a page is a simple one, which a browser sends without asking us first.
    """
    return any(name == "referer" or name.startswith("sec-fetch-") for name in request.headers)


def payload_refusal(error: imds.BadPayload) -> Response:
    """Return the answer to an approval that cannot be read."""
    text = str(error)
    return encode_error_response(HTTPStatus.BAD_REQUEST, f"Bad request: . {text[:1].upper()}{text[1:]}")


def size_refusal(size_bytes_max: int) -> Response:
    """Return the answer to a body that is too large; the connection ends with it."""
    text = f"Request body is larger than {size_bytes_max} bytes"
    response = encode_error_response(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
    response.headers["connection"] = "close"
    return response


def encode_json_response(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with the content type of every answer (R8)."""
    return Response(body, status_code=status, headers={"content-type": imds.CONTENT_TYPE, **(headers or {})})


def encode_error_response(status: int, text: str) -> Response:
    """Return an answer that says what is wrong (R64)."""
    return encode_json_response(status, imds.encode_error(text))

"""The CLI's side of the control API, over a service that is a function."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from forewarn import errors
from forewarn.cli.connection import ControlConnection, parse_events, quote_segment
from forewarn.errors import ConfigError, ForewarnError, InvalidRequest, OtherSideError, ServerUnreachable, Unauthorized

URL = "http://127.0.0.1:8170"
Answer = Callable[[httpx.Request], httpx.Response]


class Pauses:
    """Waits for nothing, and notes how long it should have."""

    def __init__(self) -> None:
        self.pauses_s: list[float] = []

    def __call__(self, pause_s: float) -> None:
        self.pauses_s.append(pause_s)


class Asked:
    """Requests that came, answered in turn; the last answer again and again."""

    def __init__(self, *answers: httpx.Response | Exception) -> None:
        self.requests: list[httpx.Request] = []
        self._answers = answers

    def __call__(self, request: httpx.Request) -> httpx.Response:
        answer = self._answers[min(len(self.requests), len(self._answers) - 1)]
        self.requests.append(request)
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)


def connect(answer: Answer, sleep: Pauses | None = None, url: str = URL, **environment: str) -> ControlConnection:
    variables = {"FOREWARN_TOKEN": "secret"} | environment
    return ControlConnection(url, environment=variables, transport=httpx.MockTransport(answer), sleep=sleep or Pauses())


def refused(code: str, message: str, status: int = 409) -> httpx.Response:
    return httpx.Response(status, json={"error": {"code": code, "message": message, "details": {"vm": "db"}}})


def entry(sequence: int) -> str:
    return f'id: {sequence}\nevent: started\ndata: {{"sequence": {sequence}}}\n\n'


def stream(*parts: str) -> httpx.Response:
    return httpx.Response(200, content="".join((": watching\n\n", *parts)).encode())


def test_a_question_carries_the_token_and_only_what_was_said() -> None:
    asked = Asked(httpx.Response(200, json={"ok": True}))
    with connect(asked) as connection:
        assert connection.get("/v1/vms", state=[], after=None, limit=5) == {"ok": True}
    assert asked.requests[0].headers["authorization"] == "Bearer secret"
    assert str(asked.requests[0].url) == f"{URL}/v1/vms?limit=5"


TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("variable", "sent"),
    [(TRACEPARENT, TRACEPARENT), ("", None), (f"{TRACEPARENT}\r\nx: y", None), (TRACEPARENT.upper(), None)],
)
def test_the_trace_of_whoever_runs_the_command_goes_along(variable: str, sent: str | None) -> None:
    asked = Asked(httpx.Response(200, json={}))
    with connect(asked, TRACEPARENT=variable) as connection:
        connection.get("/v1/vms")
    assert asked.requests[0].headers.get("traceparent") == sent


def test_a_change_is_repeated_after_503_under_the_same_key() -> None:
    unavailable = refused("store_unavailable", "the database is locked", 503)
    asked, pauses = Asked(unavailable, unavailable, httpx.Response(200, json={})), Pauses()
    with connect(asked, pauses) as connection:
        connection.send_change("POST", "/v1/maintenance", {"type": "Freeze"})
        connection.send_change("POST", "/v1/maintenance", {"type": "Freeze"})
    keys = [request.headers["idempotency-key"] for request in asked.requests]
    assert keys[0] == keys[1] == keys[2] != keys[3]
    assert pauses.pauses_s == sorted(pauses.pauses_s)
    assert len(pauses.pauses_s) == 2


def test_a_change_that_the_service_cannot_recognise_is_not_repeated() -> None:
    asked = Asked(refused("store_unavailable", "the database is locked", 503))
    with connect(asked) as connection, pytest.raises(errors.StoreUnavailable):
        connection.send_change("POST", "/v1/clock/advance", {"by_s": 60}, is_repeatable=False)
    assert len(asked.requests) == 1


def test_a_503_that_stays_becomes_the_service_s_error() -> None:
    asked = Asked(refused("store_unavailable", "the database is locked", 503))
    with connect(asked) as connection, pytest.raises(errors.StoreUnavailable, match="the database is locked"):
        connection.send_change("DELETE", "/v1/vms/db")
    assert len(asked.requests) == 5


@pytest.mark.parametrize(
    "kind", [errors.NotFound, errors.BelowMinimumNotice, errors.LimitExceeded, errors.IdempotencyMismatch]
)
def test_an_error_comes_out_as_the_class_of_its_code(kind: type[ForewarnError]) -> None:
    with connect(Asked(refused(kind.code, "vm 'db' will not"))) as connection, pytest.raises(kind) as error:
        connection.get("/v1/vms/db")
    assert error.value.message == "vm 'db' will not"
    assert error.value.details == {"vm": "db"}


def test_a_code_from_a_newer_service_is_an_error_all_the_same() -> None:
    with connect(Asked(refused("brand_new", "no"))) as connection, pytest.raises(ForewarnError, match="no"):
        connection.get("/v1/vms")


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(404, text="Not Found"),
        httpx.Response(200, text="<html>"),
        httpx.Response(400, json={"error": "no"}),
    ],
    ids=["a 404 in words", "a page", "an error of another shape"],
)
def test_another_kind_of_server_is_recognised(answer: httpx.Response) -> None:
    with connect(Asked(answer)) as connection, pytest.raises(OtherSideError, match="is not a control API"):
        connection.get("/v1/vms")


def test_a_service_that_is_not_there_names_the_url_and_how_to_start_one() -> None:
    with connect(Asked(httpx.ConnectError("refused"))) as connection, pytest.raises(ServerUnreachable) as error:
        connection.get("/v1/vms")
    assert URL in error.value.message
    assert "forewarn serve" in error.value.message


def test_a_certificate_that_nobody_vouches_for_is_said_to_be_that() -> None:
    fault = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed certificate")
    with connect(Asked(fault)) as connection, pytest.raises(ServerUnreachable, match="SSL_CERT_FILE"):
        connection.get("/v1/vms")


@pytest.mark.parametrize("url", ["", "127.0.0.1:8170", "ftp://host", "http://", "http://host:port", "http://[::1"])
def test_what_is_no_url_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(ConfigError, match="invalid control URL"):
        ControlConnection(url)


# The token


def test_without_a_token_the_service_is_asked_and_its_refusal_says_where_the_token_should_be(tmp_path: Path) -> None:
    asked = Asked(refused("unauthorized", "a bearer token is needed", 401))
    connection = connect(asked, FOREWARN_TOKEN="", FOREWARN_STATE_DIR=str(tmp_path))
    with connection, pytest.raises(Unauthorized, match=r"operator\.token: start the service as this user"):
        connection.get("/v1/vms")
    assert "authorization" not in asked.requests[0].headers


def test_the_token_of_the_state_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "operator.token").write_text("found\n")
    asked = Asked(httpx.Response(200, json={}))
    with connect(asked, FOREWARN_TOKEN="", FOREWARN_STATE_DIR=str(tmp_path)) as connection:
        connection.get("/v1/vms")
    assert asked.requests[0].headers["authorization"] == "Bearer found"


def test_the_token_of_the_state_folder_does_not_leave_the_machine_in_the_clear(tmp_path: Path) -> None:
    (tmp_path / "operator.token").write_text("found\n")
    asked = Asked(refused("unauthorized", "a bearer token is needed", 401))
    connection = connect(asked, None, "http://10.9.0.1:8170", FOREWARN_TOKEN="", FOREWARN_STATE_DIR=str(tmp_path))
    with connection, pytest.raises(Unauthorized, match=r"not sent unencrypted to 10\.9\.0\.1"):
        connection.get("/v1/vms")
    assert "authorization" not in asked.requests[0].headers


def test_a_named_token_file_comes_before_everything(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("named\n")
    asked = Asked(httpx.Response(200, json={}))
    transport = httpx.MockTransport(asked)
    variables = {"FOREWARN_TOKEN": "variable"}
    with ControlConnection(URL, tmp_path / "mine", environment=variables, transport=transport) as connection:
        connection.get("/v1/vms")
    assert asked.requests[0].headers["authorization"] == "Bearer named"


def test_a_file_that_holds_no_token_is_refused_without_showing_it(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("two words\n")
    with ControlConnection(URL, tmp_path / "mine") as connection, pytest.raises(ConfigError) as error:
        connection.get("/v1/vms")
    assert "two words" not in error.value.message


# Lists


def _pages(request: httpx.Request) -> httpx.Response:
    after = int(request.url.params.get("after", "0"))
    items = [{"n": n} for n in range(after, min(after + 3, 7))]
    return httpx.Response(200, json={"items": items, "next": str(after + 3) if after + 3 < 7 else None})


def test_a_list_is_read_page_by_page_to_its_end() -> None:
    with connect(_pages) as connection:
        assert [item["n"] for item in connection.iterate_items("/v1/vms")] == list(range(7))


@pytest.mark.parametrize("most", [1, 3, 4, 7, 100])
def test_a_list_ends_where_it_was_asked_to(most: int) -> None:
    with connect(_pages) as connection:
        assert [item["n"] for item in connection.iterate_items("/v1/vms", most)] == list(range(min(most, 7)))


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_a_name_that_would_change_the_path_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a valid name"):
        quote_segment(name)


def test_a_name_is_quoted_in_a_path() -> None:
    assert quote_segment("a b?c#d%") == "a%20b%3Fc%23d%25"


# The stream


def test_events_are_read_from_the_lines_of_a_stream() -> None:
    lines = [": watching", "", "id: 1", "event: started", 'data: {"a":', "data: 1}", "", "data: cut off"]
    assert list(parse_events(iter(lines))) == ['{"a":\n1}']


def test_a_stream_that_breaks_goes_on_after_the_last_entry_seen() -> None:
    asked = Asked(stream(entry(5), entry(7)), httpx.ConnectError("refused"), stream(entry(8)))
    told: list[str] = []
    with connect(asked) as connection:
        seen: list[Any] = [e["sequence"] for e in islice(connection.watch_entries(4, told.append), 3)]
    assert seen == [5, 7, 8]
    assert [r.headers["last-event-id"] for r in asked.requests] == ["4", "7", "7"]
    assert [line.partition(" to ")[0] for line in told] == ["lost the connection", "reconnected"]


def test_a_stream_whose_service_is_starting_again_is_asked_again() -> None:
    asked = Asked(stream(entry(1)), httpx.Response(503), stream(entry(2)))
    with connect(asked) as connection:
        assert [e["sequence"] for e in islice(connection.watch_entries(0), 2)] == [1, 2]


def test_a_stream_that_never_stood_is_an_error() -> None:
    with connect(Asked(httpx.ConnectError("refused"))) as connection, pytest.raises(ServerUnreachable):
        next(connection.watch_entries(0))


def test_a_stream_that_is_refused_is_not_asked_for_again() -> None:
    asked = Asked(refused("unauthorized", "unknown token", 401))
    with connect(asked) as connection, pytest.raises(Unauthorized):
        next(connection.watch_entries(0))
    assert len(asked.requests) == 1


def test_pauses_between_tries_grow_up_to_a_limit() -> None:
    pauses = Pauses()
    asked = Asked(stream(), *(httpx.ConnectError("refused") for _ in range(12)), stream(entry(1)))
    with connect(asked, pauses) as connection:
        next(connection.watch_entries(0))
    assert pauses.pauses_s == sorted(pauses.pauses_s)
    assert pauses.pauses_s[-1] == 5.0


@pytest.mark.parametrize(
    ("url", "count"), [("http://127.0.0.1:1", 0), ("http://example.com", 0), ("https://127.0.0.1:1", 1)]
)
def test_certificates_of_authorities_are_loaded_for_https_alone(
    url: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    make = ssl.create_default_context

    def note(*given: Any, **named: Any) -> ssl.SSLContext:  # noqa: ANN401 - as the original
        made.append(named)
        return make(*given, **named)

    monkeypatch.setattr(ssl, "create_default_context", note)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ControlConnection(url, environment={"FOREWARN_TOKEN": "t"}) as connection:
        connection._open_client()
    assert len(made) == count

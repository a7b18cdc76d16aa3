"""What the endpoint makes of every form of request, over the wire (R1 to R16, R22 to R24, R62 to R65)."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest

from forewarn.wire.imds import VERSIONS
from tests.support.service import Running, eventually, running
from tests.support.ways import both_ways
from tests.support.wire import EVENTS, LATEST, Answer, approval, get, post

pytestmark = both_ways

NOT_FOUND = b'{ "error": "Not found" }'
NOT_ALLOWED = b'{ "error": "Method not allowed" }'
NO_METADATA = b'{ "error": "Bad request: . Required metadata header not specified" }'
FORWARDED = b'{ "error": "Bad request: . X-Forwarded-For header is not allowed" }'
BAD_HOST = b'{ "error": "Bad request: . Host header is missing or not allowed" }'
BAD_ORIGIN = b'{ "error": "Bad request: . Origin header is not allowed" }'
TWICE = b'{ "error": "Bad request: . A query parameter is given twice" }'
EMPTY_BODY = b'{ "error": "Bad request: . Body is empty" }'
NO_VERSION = (
    b'{ "error": "Bad request. api-version is invalid or was not specified in the request. For more information refer '
    b'to aka.ms/azureimds", "newest-versions": [ "2020-07-01", "2019-08-01", "2019-04-01" ] }'
)
EMPTY_DOCUMENT = b'{"DocumentIncarnation":1,"Events":[]}'
NOTHING = b'{"StartRequests":[]}'

ALL_VERSIONS = [version.name for version in VERSIONS]
ENFORCING = ALL_VERSIONS[1:]


def ask(service: Running, request: bytes) -> Answer:
    with service.wire(service.vm()) as wire:
        return wire.ask(request)


# Paths


@pytest.mark.parametrize(
    "path",
    [
        EVENTS,
        EVENTS + "/",
        "/metadata/scheduledEvents",
        "/METADATA/SCHEDULEDEVENTS/",
        "/metadata/%73cheduledevents",
        "http://169.254.169.254" + EVENTS,
    ],
)
def test_the_path_is_matched_without_regard_to_case_and_trailing_slash(service: Running, path: str) -> None:
    """R1, R3."""
    answer = ask(service, get(path=path))
    assert (answer.status, answer.body) == (200, EMPTY_DOCUMENT)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/metadata",
        "/metadata/scheduledevents/x",
        "/metadata/scheduledevents//",
        "/metadata/scheduledevent",
        "//metadata/scheduledevents",
        "/metadata/latest/scheduledevents",
        "/metadata/2017-03-01/scheduledevents",
        "/v1/maintenance",
        "/docs",
        "*",
        "/%00",
        "/%ff%fe",
    ],
)
def test_any_other_path_is_404(service: Running, path: str) -> None:
    """R3, R22, R65: also the legacy path, which is off by default; nothing of the control API is to be found here."""
    answer = ask(service, get(path=path))
    assert (answer.status, answer.body) == (404, NOT_FOUND)


def test_an_encoded_question_mark_belongs_to_the_path(service: Running) -> None:
    """R3."""
    answer = ask(service, get(None, path=EVENTS + "%3Fapi-version=2017-08-01"))
    assert (answer.status, answer.body) == (404, NOT_FOUND)


HOST_LINE = b"Host: 169.254.169.254\r\n"


def named(host: str, request: bytes | None = None) -> bytes:
    """The request, with another Host."""
    return (request or get()).replace(HOST_LINE, f"Host: {host}\r\n".encode("latin-1"))


@pytest.mark.parametrize(
    "host",
    [
        *["169.254.169.254", "169.254.169.254:80", "127.0.0.1:8169", "10.0.0.1"],
        *["[::1]", "[fe80::1%25eth0]:80", "[::ffff:169.254.169.254]", "localhost", "LocalHost:8169", "localhost:"],
    ],
)
def test_an_address_or_localhost_is_a_host_of_ours_and_decides_nothing_else(service: Running, host: str) -> None:
    """R2, R3."""
    with service.wire(service.vm()) as wire:
        assert wire.ask(named(host)).body == EMPTY_DOCUMENT
        assert wire.ask(named(host, get(path="/metadata/nothing"))).body == NOT_FOUND
        assert wire.ask(named(host, get(None, path="/metadata/versions"))).status == 200


FOREIGN_HOSTS = [
    *["evil.example", "evil.example:8169", "169.254.169.254.evil.example", "localhost.evil.example", "metadata"],
    *["[", "a/metadata/versions?", "x y", "", "\xff", "a:b:c", "::1", "[127.0.0.1]", "localhost:80:80", "2852039166"],
    *["169.254.169.254, evil.example", "evil.example@169.254.169.254", "x" * 1000],
]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_host_that_is_not_ours_is_400_and_nothing_is_enabled_or_approved(service: Running, host: str) -> None:
    """A page whose name was made to lead here (DNS rebinding) can send every header that a VM sends."""
    vm = service.vm()
    with service.wire(vm) as wire:
        for version in ("2017-03-01", LATEST):
            answer = wire.ask(named(host, get(version)))
            assert (answer.status, answer.body) == (400, BAD_HOST)
        assert wire.ask(named(host, get(None, path="/metadata/versions"))).body == BAD_HOST
        assert wire.ask(named(host, get("2021-02-01", path="/metadata/instance"))).body == BAD_HOST
        assert not service.channel(vm).is_enabled
        event_id = service.event(vm)
        assert wire.ask(named(host, post(approval(event_id)))).body == BAD_HOST
    assert not service.is_approved(event_id)


def test_http_1_1_requires_one_host_and_http_1_0_none(service: Running) -> None:
    without = get().replace(HOST_LINE, b"")
    vm = service.vm()
    service.enable(vm)
    for request in (without, get(LATEST, "Host: 169.254.169.254"), get(LATEST, "Host: evil.example")):
        with service.wire(vm) as wire:
            assert wire.ask(request).body == BAD_HOST
    for request, body in ((without, EMPTY_DOCUMENT), (get(), EMPTY_DOCUMENT), (named("evil.example"), BAD_HOST)):
        with service.wire(vm) as wire:
            assert wire.ask(request.replace(b"HTTP/1.1", b"HTTP/1.0")).body == body


def test_names_of_the_settings_are_hosts_of_ours(tmp_path: Path) -> None:
    names = "Forewarn, metadata.internal"
    with running(tmp_path, metadata_host_names=names) as service, service.wire(service.vm()) as wire:
        for host in ("forewarn", "FOREWARN:8169", "metadata.internal"):
            assert wire.ask(named(host)).status == 200
        for host in ("internal", "forewarn.example"):
            assert wire.ask(named(host)).body == BAD_HOST


# What browsers send


@pytest.mark.parametrize("version", ALL_VERSIONS)
@pytest.mark.parametrize("value", ["http://evil.example", "null", "http://169.254.169.254", ""])
def test_a_request_with_an_origin_is_400_whatever_the_version(service: Running, version: str, value: str) -> None:
    """R13: no client of the protocol sends one, and every browser does with what may change something."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        for request in (get(version, f"Origin: {value}"), post(approval(event_id), version, f"origin: {value}")):
            answer = wire.ask(request)
            assert (answer.status, answer.body) == (400, BAD_ORIGIN)
    assert not service.is_approved(event_id)


@pytest.mark.parametrize("line", ["Referer: http://evil.example/", "Sec-Fetch-Site: none", "sec-fetch-mode: no-cors"])
def test_what_a_browser_sends_needs_the_metadata_header_in_the_first_version_too(service: Running, line: str) -> None:
    """R12: a page cannot add the header without asking first, and OPTIONS is 405. Node's fetch sends Sec-Fetch-Mode."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        for request in (
            get("2017-03-01", line, metadata=None),
            post(approval(event_id), "2017-03-01", line, metadata=None),
            get("2017-03-01", line, metadata="false"),
        ):
            answer = wire.ask(request)
            assert (answer.status, answer.body) == (400, NO_METADATA)
        assert not service.is_approved(event_id)
        for version in ("2017-03-01", LATEST):
            assert wire.ask(get(version, line)).status == 200
            assert wire.ask(post(approval(event_id), version, line)).status == 200


# Methods


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
def test_other_methods_are_405_and_are_told_which_ones_are_allowed(service: Running, method: str) -> None:
    """R4, R65."""
    answer = ask(service, get(method=method))
    assert answer.status == 405
    assert answer.headers["allow"] == "GET, POST"
    assert answer.body == (b"" if method == "HEAD" else NOT_ALLOWED)
    assert answer.headers["content-length"] == str(len(NOT_ALLOWED))


def test_a_method_that_http_does_not_know_is_refused_as_malformed(service: Running) -> None:
    """R4, R65."""
    answer = ask(service, get(method="APPROVE"))
    assert (answer.status, answer.json) == (400, {"error": "Bad request: . Malformed HTTP request"})


# The query


@pytest.mark.parametrize(
    "query",
    [
        "api-version=2020-07-01&api-version=2020-07-01",
        "api-version=2019-08-01&api-version=2020-07-01",
        "api-version=2020-07-01&a=1&a=2",
        "api-version=2020-07-01&a=&a=",
    ],
)
def test_a_query_parameter_given_twice_is_400(service: Running, query: str) -> None:
    """R5."""
    answer = ask(service, get(None, path=f"{EVENTS}?{query}"))
    assert (answer.status, answer.body) == (400, TWICE)


@pytest.mark.parametrize(
    "query",
    [
        "a=1&api-version=2020-07-01&b",
        "api%2Dversion=2020%2D07%2D01",
        "api-version=2020-07-01&%ff=%00",
        "&&api-version=2020-07-01&",
    ],
)
def test_unknown_parameters_are_ignored_and_known_ones_are_decoded(service: Running, query: str) -> None:
    """R5."""
    answer = ask(service, get(None, path=f"{EVENTS}?{query}"))
    assert (answer.status, answer.body) == (200, EMPTY_DOCUMENT)


def test_bytes_beyond_ascii_in_the_query_are_refused_as_malformed(service: Running) -> None:
    """R65."""
    answer = ask(service, get().replace(b"?api", b"?\xff&api"))
    assert (answer.status, answer.json) == (400, {"error": "Bad request: . Malformed HTTP request"})


# Versions


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_every_version_of_the_table_is_supported_by_get_and_post(service: Running, version: str) -> None:
    """R16, R17, R25."""
    with service.wire(service.vm()) as wire:
        assert wire.ask(get(version)).body == EMPTY_DOCUMENT
        answer = wire.ask(post(NOTHING, version))
        assert (answer.status, answer.body) == (200, b"")


@pytest.mark.parametrize(
    "version",
    [
        *[
            None,
            "",
            "latest",
            "{latest}",
            "2020-07-02",
            "2020-07-01-preview",
            " 2020-07-01",
            "2020-07-01%20",
            "20200701",
        ],
        *["2017-04-02", "2017-12-01", "2018-02-01", "2018-10-01", "2019-11-01", "2020-09-01", "2021-02-01", "V"],
    ],
)
def test_a_missing_or_unsupported_version_is_400_and_the_newest_are_named(
    service: Running, version: str | None
) -> None:
    """R15, R22, R24, R64."""
    with service.wire(service.vm()) as wire:
        encoded = None if version is None else version.replace(" ", "%20")
        for request in (get(encoded), post(NOTHING, encoded)):
            answer = wire.ask(request)
            assert (answer.status, answer.body) == (400, NO_VERSION)


def test_one_client_may_mix_versions(service: Running) -> None:
    """R23, W6."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        assert wire.ask(get("2020-07-01")).json["Events"][0]["EventId"] == event_id
        assert wire.ask(get("2019-08-01")).json["Events"][0]["EventId"] == event_id
        assert wire.ask(post(approval(event_id), "2017-08-01")).status == 200
    assert service.is_approved(event_id)


# The Metadata header


@pytest.mark.parametrize("version", ENFORCING)
def test_without_the_metadata_header_nothing_is_enabled_or_approved(service: Running, version: str) -> None:
    """R10, R63."""
    vm = service.vm()
    with service.wire(vm) as wire:
        answer = wire.ask(get(version, metadata=None))
        assert (answer.status, answer.body) == (400, NO_METADATA)
        assert not service.channel(vm).is_enabled
        event_id = service.event(vm)
        answer = wire.ask(post(approval(event_id), version, metadata=None))
        assert (answer.status, answer.body) == (400, NO_METADATA)
    assert not service.is_approved(event_id)


@pytest.mark.parametrize("line", ["Metadata: true", "metadata:TRUE", "METADATA: True", "mEtAdAtA: \t true \t "])
def test_the_metadata_header_is_taken_in_any_case_and_trimmed(service: Running, line: str) -> None:
    """R11."""
    assert ask(service, get(LATEST, line, metadata=None)).status == 200


@pytest.mark.parametrize(
    "value", ["", "false", "1", "yes", "true;", "'true'", '"true"', "true, true", "t rue", "\xa0x"]
)
def test_any_other_value_of_the_metadata_header_counts_as_missing(service: Running, value: str) -> None:
    """R11, R63."""
    request = get(metadata="?").replace(b"Metadata: ?", b"Metadata: " + value.encode("latin-1"))
    answer = ask(service, request)
    assert (answer.status, answer.body) == (400, NO_METADATA)


@pytest.mark.parametrize("other", ["false", "", "1"])
def test_metadata_headers_that_contradict_each_other_count_as_missing(service: Running, other: str) -> None:
    """R11: two readers of such a request could each see another one."""
    with service.wire(service.vm()) as wire:
        for first, second in (("true", other), (other, "true")):
            answer = wire.ask(get(LATEST, f"Metadata: {second}", metadata=first))
            assert (answer.status, answer.body) == (400, NO_METADATA)
        assert wire.ask(get(LATEST, "Metadata: TRUE")).status == 200


@pytest.mark.parametrize("header", ["Forewarn", "X-Metadata", "Meta-Data"])
def test_another_header_is_not_the_metadata_header(service: Running, header: str) -> None:
    """R11."""
    assert ask(service, get(LATEST, f"{header}: true", metadata=None)).body == NO_METADATA


def test_the_first_version_needs_no_metadata_header(service: Running) -> None:
    """R12, A3."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        assert wire.ask(get("2017-03-01", metadata=None)).status == 200
        assert wire.ask(post(approval(event_id), "2017-03-01", metadata=None)).status == 200
    assert service.is_approved(event_id)


@pytest.mark.parametrize("version", ALL_VERSIONS)
@pytest.mark.parametrize("value", ["10.0.0.1", ""])
def test_a_forwarded_request_is_400_whatever_the_version(service: Running, version: str, value: str) -> None:
    """R13, R65."""
    with service.wire(service.vm()) as wire:
        for request in (get(version, f"X-Forwarded-For: {value}"), post(NOTHING, version, f"x-forwarded-for: {value}")):
            answer = wire.ask(request)
            assert (answer.status, answer.body) == (400, FORWARDED)


# Who asks


def test_an_unknown_caller_gets_404_for_everything_and_is_counted(service: Running) -> None:
    """R2, R65."""
    counted = service.service.traffic.unknown_callers
    requests = [get(), post(NOTHING), get(path="/metadata/versions", version=None), get(path="/x"), get(method="PUT")]
    with service.wire(service.stranger) as wire:
        for request in requests:
            answer = wire.ask(request)
            assert (answer.status, answer.body) == (404, NOT_FOUND)
    assert service.service.traffic.unknown_callers == counted + len(requests)
    assert eventually(lambda: service.service.traffic.unknown_connections.total() == 0)


@pytest.mark.parametrize("header", ["Forwarded: for={}", "X-Real-IP: {}", "X-Client-IP: {}", "Via: 1.1 {}"])
def test_nothing_in_a_request_changes_who_the_caller_is(service: Running, header: str) -> None:
    """R2, R85."""
    one, other = service.vm(), service.vm()
    event_id = service.event(other)
    with service.wire(one) as wire:
        assert wire.ask(get(LATEST, header.format(other.address))).body == EMPTY_DOCUMENT
        answer = wire.ask(post(approval(event_id), LATEST, header.format(other.address)))
        assert (answer.status, answer.body) == (400, b'{ "error": "Bad request: . EventId is not known" }')
    assert not service.is_approved(event_id)


# The order of checks


FAULTS = ("path", "method", "host", "forwarded", "origin", "metadata", "version", "body")
ANSWERS = {
    "path": (404, NOT_FOUND),
    "method": (405, NOT_ALLOWED),
    "host": (400, BAD_HOST),
    "forwarded": (400, FORWARDED),
    "origin": (400, BAD_ORIGIN),
    "metadata": (400, NO_METADATA),
    "version": (400, NO_VERSION),
    "body": (400, EMPTY_BODY),
}
EVERY_SET_OF_FAULTS = [set(some) for size in range(len(FAULTS) + 1) for some in itertools.combinations(FAULTS, size)]


def faulty(faults: set[str]) -> bytes:
    body = b"" if "body" in faults else NOTHING
    request = get(
        "1999-01-01" if "version" in faults else LATEST,
        *(["X-Forwarded-For: 10.0.0.1"] if "forwarded" in faults else []),
        *(["Origin: http://evil.example"] if "origin" in faults else []),
        f"Content-Length: {len(body)}",
        path="/metadata/events" if "path" in faults else EVENTS,
        method="PUT" if "method" in faults else "POST",
        metadata=None if "metadata" in faults else "true",
    )
    return (named("evil.example", request) if "host" in faults else request) + body


def test_of_several_faults_the_first_in_the_order_of_checks_answers(service: Running) -> None:
    """R62: every set of faults."""
    with service.wire(service.vm()) as wire:
        for faults in EVERY_SET_OF_FAULTS:
            answer = wire.ask(faulty(faults))
            expected = next((ANSWERS[fault] for fault in FAULTS if fault in faults), (200, b""))
            assert (answer.status, answer.body) == expected, faults


# Answers


def test_every_json_answer_says_its_type_its_length_and_the_time(service: Running) -> None:
    """R8, W2: whoever gives it, the hot path, the app, or the connection itself."""
    requests = [
        get(),
        get(),
        post(NOTHING),
        get("x"),
        get(metadata=None),
        get(path="/x"),
        get(method="PUT"),
        post(b"{"),
    ]
    requests += [get(LATEST, "X-Forwarded-For: a"), get(None, path="/metadata/versions"), b"no HTTP\r\n\r\n"]
    first = parsedate_to_datetime(ask(service, get()).headers["date"])
    for request in [*requests, get(LATEST, "X: " + "x" * (1 << 16)), post(b" " * (2 << 20))]:
        answer = ask(service, request)
        assert answer.headers["content-type"] == "application/json; charset=utf-8"
        assert answer.headers["content-length"] == str(len(answer.body))
        assert answer.headers["server"] == "Forewarn"
        date = parsedate_to_datetime(answer.headers["date"])
        assert first <= date <= datetime.now(UTC)  # noqa: TID251 - the order of what happened
        assert answer.status == 200 or isinstance(json.loads(answer.body)["error"], str)


def test_any_rate_is_served_by_default(service: Running) -> None:
    """R9."""
    with service.wire(service.vm()) as wire:
        assert {wire.ask(get()).status for _ in range(100)} == {200}
        assert {wire.ask(post(NOTHING)).status for _ in range(20)} == {200}

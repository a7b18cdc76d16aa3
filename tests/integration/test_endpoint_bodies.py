"""Bodies, conditional requests and what lies beside the events, over the wire (R6, R7, R14, R47 to R57, X2, X3)."""

from __future__ import annotations

import json

import pytest

from forewarn.wire.imds import VERSIONS
from tests.support.service import Running
from tests.support.ways import both_ways
from tests.support.wire import EVENTS, LATEST, approval, get, post

pytestmark = both_ways

NOTHING = b'{"StartRequests":[]}'
UNKNOWN = "00000000-0000-0000-0000-000000000000"
BOM = b"\xef\xbb\xbf"


def chunked(body: bytes, size: int, version: str = LATEST) -> bytes:
    pieces = [body[start : start + size] for start in range(0, len(body), size)]
    head = get(version, "Transfer-Encoding: chunked", method="POST")
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


# Forms of a body


@pytest.mark.parametrize(
    "form",
    [
        '{"StartRequests":[{"EventId":"ID"}]}',
        ' {\r\n  "StartRequests" : [\r\n    {\r\n      "EventId": "ID"\r\n    }\r\n  ]\r\n}\r\n',
        '{"DocumentIncarnation": "5", "StartRequests": [{"EventId": "ID"}]}',
        '{"StartRequests": [{"EventId": "ID"}], "DocumentIncarnation": 5}',
        '{"DocumentIncarnation": null, "StartRequests": [{"EventId": "ID", "Reason": {"a": []}}], "more": 1e400}',
        '{"StartRequests":[{"EventId":"ID"},{"EventId":"ID"}]}',
        '{"StartRequests":[{"EventId":"\\u0049D"}]}'.replace("\\u0049D", "ID"),
    ],
)
@pytest.mark.parametrize("start", [b"", BOM])
def test_an_approval_is_read_in_every_form_that_clients_send(service: Running, form: str, start: bytes) -> None:
    """R6, R47, R48, R52, R57, W6: pretty, CRLF, with BOM, with or without an incarnation, with unknown members."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        answer = wire.ask(post(start + form.replace("ID", event_id).encode(), "2017-08-01"))
        assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"", "0")
    assert service.is_approved(event_id)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_chunked_body_is_read(service: Running, size: int) -> None:
    """R6."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        assert wire.ask(chunked(approval(event_id), size)).status == 200
        assert wire.ask(get()).status == 200
    assert service.is_approved(event_id)


def test_a_client_that_waits_for_100_continue_is_told_to_go_on(service: Running) -> None:
    """R6: as the C# sample sends it."""
    vm = service.vm()
    event_id = service.event(vm)
    body = approval(event_id)
    head = post(body, "2017-03-01", "Expect: 100-continue", "Content-Type: application/json", metadata=None)[
        : -len(body)
    ]
    with service.wire(vm) as wire:
        wire.send(head)
        assert wire.read().head == b"HTTP/1.1 100 Continue\r\n\r\n"
        answer = wire.ask(body)
        assert (answer.status, answer.body) == (200, b"")
    assert service.is_approved(event_id)


def test_a_client_that_does_not_wait_for_100_continue_is_served_too(service: Running) -> None:
    """R6."""
    with service.wire(service.vm()) as wire:
        answer = wire.ask(post(NOTHING, LATEST, "Expect: 100-continue"))
        assert answer.status in {100, 200}
        assert answer.status == 200 or wire.read().status == 200
        assert wire.ask(get()).status == 200


def test_a_body_that_is_announced_as_too_large_is_refused_before_it_is_sent(service: Running) -> None:
    """R6."""
    with service.wire(service.vm()) as wire:
        answer = wire.ask(get(LATEST, "Expect: 100-continue", "Content-Length: 99999999", method="POST"))
        assert (answer.status, answer.closes) == (413, True)
        assert wire.is_ended


@pytest.mark.parametrize(
    "content_type",
    [
        "application/x-www-form-urlencoded",
        "application/json",
        "text/plain; charset=utf-16",
        "multipart/form-data",
        "",
        "?",
    ],
)
def test_the_content_type_of_a_request_is_never_looked_at(service: Running, content_type: str) -> None:
    """R7."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        assert wire.ask(post(approval(event_id), LATEST, f"Content-Type: {content_type}")).status == 200
    assert service.is_approved(event_id)


def test_ids_are_compared_without_regard_to_case_and_all_of_them_are_approved(service: Running) -> None:
    """R52, R53."""
    first, second = (event["EventId"] for event in json.loads(service.fill())["Events"][:2])
    with service.wire(service.wide[7]) as wire:
        assert wire.ask(post(approval(first.lower(), second.upper(), first))).status == 200
    assert service.is_approved(first)
    assert service.is_approved(second)


def reason(service: Running, body: bytes) -> str:
    """Why a body was refused; what it names is not approved then."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        answer = wire.ask(post(body.replace(b"ID", event_id.encode())))
        assert answer.status == 400
        assert wire.ask(get()).status == 200
    assert not service.is_approved(event_id)
    error = answer.json["error"]
    assert answer.body == b'{ "error": "' + error.encode() + b'" }'
    return str(error)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "Body is empty"),
        (b" \r\n", "Body is empty"),
        (b"[]", "Body is not a JSON object"),
        (b'"ID"', "Body is not a JSON object"),
        (b'{"StartRequests":[{"EventId":"ID"}]', "Body is not JSON in UTF-8"),
        (b'{"StartRequests":[{"EventId":"ID"}]}{}', "Body is not JSON in UTF-8"),
        (b'{"StartRequests":[{"EventId":"ID"}]}\x00', "Body is not JSON in UTF-8"),
        (b'\xff\xfe{"StartRequests":[{"EventId":"ID"}]}', "Body is not JSON in UTF-8"),
        (b'{"StartRequests":[{"EventId":"ID","a":"\xff"}]}', "Body is not JSON in UTF-8"),
        (b'{"StartRequests":[{"EventId":"ID"}],"a":' + b"[" * 200_000, "Body is not JSON in UTF-8"),
        (b'{"StartRequests":[{"EventId":"ID"}],"a":NaN}', "NaN is not JSON"),
        (b'{"StartRequests":[{"EventId":"ID"}],"StartRequests":[]}', "An object has a duplicate member"),
        (b'{"StartRequests":[{"EventId":"ID","EventId":"ID"}]}', "An object has a duplicate member"),
        (b'{"startrequests":[{"EventId":"ID"}]}', "StartRequests is missing or not an array"),
        (b'{"StartRequests":{"EventId":"ID"}}', "StartRequests is missing or not an array"),
        (b'{"StartRequests":[{"EventId":"ID"},null]}', "An element of StartRequests has no EventId that is a GUID"),
        (b'{"StartRequests":[{"EventId":"ID"},{}]}', "An element of StartRequests has no EventId that is a GUID"),
        (
            b'{"StartRequests":[{"EventId":"ID"},{"EventId":5}]}',
            "An element of StartRequests has no EventId that is a GUID",
        ),
        (b'{"StartRequests":[{"EventId":" ID "}]}', "An element of StartRequests has no EventId that is a GUID"),
        (b'{"StartRequests":[{"EventId":"{ID}"}]}', "An element of StartRequests has no EventId that is a GUID"),
    ],
)
def test_a_malformed_body_is_400_with_the_reason_and_approves_nothing(service: Running, body: bytes, why: str) -> None:
    """R54, R65."""
    assert reason(service, body) == f"Bad request: . {why}"


def test_an_unknown_id_is_400_and_none_of_the_list_is_approved(service: Running) -> None:
    """R55, A11."""
    body = b'{"StartRequests":[{"EventId":"ID"},{"EventId":"' + UNKNOWN.encode() + b'"}]}'
    assert reason(service, body) == "Bad request: . EventId is not known"


def test_an_empty_list_is_200_without_effect(service: Running) -> None:
    """R56, A12."""
    with service.wire(service.vm()) as wire:
        assert wire.ask(post(NOTHING)).status == 200


# Conditional requests


@pytest.mark.parametrize("tag", ["1", '"1"', 'W/"1"', '"0", "1"', '"7",W/"1" , "3"', ' "1" '])
def test_a_get_that_knows_the_incarnation_gets_304_without_a_body(service: Running, tag: str) -> None:
    """R14, A9."""
    with service.wire(service.vm()) as wire:
        assert wire.ask(get()).headers["etag"] == '"1"'
        answer = wire.ask(get(LATEST, f"If-None-Match: {tag}"))
        assert (answer.status, answer.headers["etag"]) == (304, '"1"')
        assert answer.head.startswith(b"HTTP/1.1 304 Not Modified\r\n")
        assert "date" in answer.headers
        assert not {"content-length", "content-type"} & answer.headers.keys()
        assert wire.ask(get()).status == 200


def test_tags_in_several_headers_are_taken_together(service: Running) -> None:
    """R14."""
    with service.wire(service.vm()) as wire:
        assert wire.ask(get()).status == 200
        assert wire.ask(get(LATEST, 'If-None-Match: "8"', 'If-None-Match: "1"')).status == 304


@pytest.mark.parametrize("tag", ['"2"', "0", "11", '""', "", "one", '"1.0"', "01"])
def test_a_get_that_knows_another_incarnation_gets_the_document(service: Running, tag: str) -> None:
    """R14."""
    with service.wire(service.vm()) as wire:
        assert wire.ask(get()).status == 200
        assert wire.ask(get(LATEST, f"If-None-Match: {tag}")).status == 200


def test_the_etag_is_the_incarnation_of_the_document_in_every_version(service: Running) -> None:
    """R14, R44, A9."""
    vm = service.vm()
    service.event(vm)
    with service.wire(vm) as wire:
        for version in VERSIONS:
            for _ in range(2):
                answer = wire.ask(get(version.name))
                assert answer.headers["etag"] == f'"{answer.json["DocumentIncarnation"]}"' == '"2"'


def test_if_none_match_on_an_approval_is_ignored(service: Running) -> None:
    """R14: Microsoft's own client sends it on both."""
    vm = service.vm()
    event_id = service.event(vm)
    with service.wire(vm) as wire:
        assert wire.ask(post(approval(event_id), LATEST, 'If-None-Match: "2"')).status == 200
    assert service.is_approved(event_id)


# Beside the events


def test_the_list_of_versions_needs_no_version(service: Running) -> None:
    """X2."""
    with service.wire(service.vm()) as wire:
        answer = wire.ask(get(None, path="/metadata/versions"))
        assert answer.json == {"apiVersions": [version.name for version in VERSIONS]}
        assert wire.ask(get(None, path="/metadata/versions", metadata=None)).status == 400
        assert wire.ask(get(None, path="/metadata/versions", method="POST")).headers["allow"] == "GET"


@pytest.mark.parametrize("version", ["2017-04-02", "2017-08-01", "2021-02-01", "2025-04-07"])
def test_a_vm_can_ask_for_its_own_name_in_any_version_of_the_metadata_service(service: Running, version: str) -> None:
    """X3, W7, W10: in the inventory's own case, as in Resources."""
    vm = service.web[0]
    with service.wire(vm) as wire:
        assert wire.ask(get(version, path="/metadata/instance")).json["compute"]["name"] == "Web_0"
        assert wire.ask(get(version, path="/metadata/instance/compute")).json["name"] == "Web_0"
        text = wire.ask(get(f"{version}&format=text", path="/Metadata/Instance/Compute/Name/"))
        assert (text.body, text.headers["content-type"]) == (b"Web_0", "text/plain; charset=utf-8")
        interface = wire.ask(get(version, path="/metadata/instance/network")).json["interface"][0]
        assert interface["ipv4"]["ipAddress"][0]["privateIpAddress"] == vm.address


def test_what_the_inventory_does_not_say_is_an_empty_string(service: Running) -> None:
    """X3."""
    with service.wire(service.vm()) as wire:
        compute = wire.ask(get("2021-02-01", path="/metadata/instance")).json["compute"]
    for name in ("vmId", "location", "zone", "resourceGroupName", "subscriptionId", "vmScaleSetName", "vmSize", "tags"):
        assert compute[name] == ""


@pytest.mark.parametrize("version", [None, "2017-03-01", "2017-07-01", "latest", "2021-2-1"])
def test_the_instance_wants_a_version_of_its_own(service: Running, version: str | None) -> None:
    """X3, R24, R111."""
    with service.wire(service.vm()) as wire:
        answer = wire.ask(get(version, path="/metadata/instance"))
        assert (answer.status, answer.json["newest-versions"]) == (400, ["2025-04-07", "2024-07-17", "2024-03-15"])
        assert ("Invalid version requested" in answer.json["error"]) == (version is not None)


@pytest.mark.parametrize("more", ["", "&format=json", "&format="])
def test_a_single_value_of_the_instance_is_given_as_text_only(service: Running, more: str) -> None:
    """R111: what is left of a URL that a shell cut at its &."""
    with service.wire(service.vm()) as wire:
        for path in ("compute/name", "compute/vmId", "network/interface/0/macAddress"):
            answer = wire.ask(get(f"2021-02-01{more}", path=f"/metadata/instance/{path}"))
            assert (answer.status, answer.body) == (400, b'{ "error": "Bad request" }')


def test_a_parameter_of_the_instance_that_is_given_twice_is_refused(service: Running) -> None:
    """R5."""
    with service.wire(service.vm()) as wire:
        answer = wire.ask(get("2021-02-01&api-version=2021-02-01", path="/metadata/instance"))
        assert (answer.status, answer.json) == (400, {"error": "Bad request: . A query parameter is given twice"})


def test_what_an_instance_does_not_have_is_404(service: Running) -> None:
    """X3."""
    with service.wire(service.vm()) as wire:
        for path in (
            "/metadata/instance/x",
            "/metadata/instance/compute/x",
            "/metadata/instances",
            "/metadata/instance/compute/name/0",
        ):
            answer = wire.ask(get("2021-02-01", path=path))
            assert (answer.status, answer.body) == (404, b'{ "error": "Not found" }')


def test_asking_for_the_instance_enables_nothing(service: Running) -> None:
    """R67."""
    vm = service.vm()
    with service.wire(vm) as wire:
        assert wire.ask(get("2021-02-01", path="/metadata/instance")).status == 200
        assert wire.ask(get(None, path="/metadata/versions")).status == 200
        assert wire.ask(post(NOTHING)).status == 200
    assert not service.channel(vm).is_enabled


def test_an_approval_is_json_and_so_is_its_document() -> None:
    """R47: what this module sends is what the specification shows."""
    assert json.loads(approval("A", "B")) == {"StartRequests": [{"EventId": "A"}, {"EventId": "B"}]}
    assert get().startswith(f"GET {EVENTS}?api-version={LATEST} HTTP/1.1\r\n".encode())

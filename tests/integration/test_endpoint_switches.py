"""The switches of part 2 of the specification, each over the wire (A1 to A4, A6, A11, A13, R9)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.service import Running, eventually, running
from tests.support.wire import LATEST, approval, get, post

NOTHING = b'{"StartRequests":[]}'
UNKNOWN = "00000000-0000-0000-0000-000000000000"
ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
RFC_1123 = r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"


@pytest.mark.parametrize(("switch", "form"), [("iso", ISO), ("rfc1123", RFC_1123)])
def test_the_first_version_tells_not_before_in_the_form_of_the_switch(tmp_path: Path, switch: str, form: str) -> None:
    """A1, R21: all later versions tell it as RFC 1123."""
    with running(tmp_path, notbefore_2017_03_01=switch) as service:
        vm = service.vm()
        service.event(vm)
        with service.wire(vm) as wire:
            assert re.fullmatch(form, wire.ask(get("2017-03-01")).json["Events"][0]["NotBefore"])
            assert re.fullmatch(RFC_1123, wire.ask(get("2017-08-01")).json["Events"][0]["NotBefore"])


def test_the_cloud_of_china_knows_no_2017_11_01_and_no_preempt(tmp_path: Path) -> None:
    """A2, R17."""
    with running(tmp_path, cloud="china") as service:
        vm = service.web[-1]
        service.enable(vm)
        with service.operator() as operator, service.wire(vm) as wire:
            assert operator.post(f"/v1/vms/{vm.name}/evict").status_code in {201, 409}
            assert wire.ask(get("2017-11-01")).status == 400
            assert "2017-11-01" not in wire.ask(get(None, path="/metadata/versions")).json["apiVersions"]
            for version in ("2017-08-01", "2019-01-01", "2020-07-01"):
                for _ in range(2):
                    answer = wire.ask(get(version))
                    assert (answer.status, answer.json["Events"]) == (200, [])


@pytest.mark.parametrize(("switch", "statuses"), [("none", (200, 200)), ("get", (400, 200)), ("all", (400, 400))])
def test_the_first_version_wants_the_metadata_header_as_the_switch_says(
    tmp_path: Path, switch: str, statuses: tuple[int, int]
) -> None:
    """A3, R12."""
    with running(tmp_path, require_metadata_2017_03_01=switch) as service, service.wire(service.vm()) as wire:
        assert wire.ask(get("2017-03-01")).status == 200
        for _ in range(2):
            asked = wire.ask(get("2017-03-01", metadata=None)).status
            assert (asked, wire.ask(post(NOTHING, "2017-03-01", metadata=None)).status) == statuses


def test_the_legacy_path_speaks_the_first_version_where_it_is_switched_on(tmp_path: Path) -> None:
    """A4, R22."""
    with running(tmp_path, legacy_latest=True) as service:
        vm = service.vm()
        event_id = service.event(vm)
        with service.wire(vm) as wire:
            path = "/metadata/latest/ScheduledEvents"
            answer = wire.ask(get(None, path=path, metadata=None))
            assert answer.body == wire.ask(get("2017-03-01")).body
            assert re.fullmatch(ISO, answer.json["Events"][0]["NotBefore"])
            assert wire.ask(get("latest")).status == 400
            body = approval(event_id)
            request = get(None, f"Content-Length: {len(body)}", path=path, method="POST", metadata=None) + body
            assert wire.ask(request).status == 200
        assert service.is_approved(event_id)


@pytest.mark.parametrize("first", [0, 1, 190])
def test_the_first_incarnation_is_the_switchs(tmp_path: Path, first: int) -> None:
    """A6, R45."""
    with running(tmp_path, initial_incarnation=first) as service, service.wire(service.vm()) as wire:
        for _ in range(2):
            answer = wire.ask(get())
            assert (answer.json["DocumentIncarnation"], answer.headers["etag"]) == (first, f'"{first}"')


@pytest.mark.parametrize(("status", "is_approved"), [(400, False), (404, False), (200, True)])
def test_an_unknown_id_is_answered_as_the_switch_says(tmp_path: Path, status: int, is_approved: bool) -> None:
    """A11, R55."""
    with running(tmp_path, unknown_event=status) as service:
        vm = service.vm()
        event_id = service.event(vm)
        with service.wire(vm) as wire:
            answer = wire.ask(post(approval(UNKNOWN, event_id)))
            assert answer.status == status
            assert answer.body == b"" if status == 200 else isinstance(answer.json["error"], str)
        assert service.is_approved(event_id) is is_approved


def test_an_approval_is_answered_with_the_document_where_it_is_switched_on(tmp_path: Path) -> None:
    """A13, W4."""
    with running(tmp_path, post_body="document") as service:
        vm = service.vm()
        event_id = service.event(vm)
        with service.wire(vm) as wire:
            answer = wire.ask(post(approval(event_id), "2019-08-01"))
            assert answer.status == 200
            assert answer.body == wire.ask(get("2019-08-01")).body
            assert answer.json["Events"][0]["EventStatus"] == "Started"


# The limiter


def one_second(service: Running, requests: list[bytes]) -> list[int]:
    """Statuses of requests that all fall into one second; asked again while the second ends in between."""
    while True:
        with service.wire(service.vm()) as wire:
            seen: list[int] = []
            began = service.do(service.loop.time)
            seen.extend(wire.ask(request).status for request in requests)
            if int(began) == int(service.do(service.loop.time)):
                return seen


def test_with_the_limiter_more_requests_in_a_second_than_it_allows_are_429(tmp_path: Path) -> None:
    """R9: and nothing is answered past it from memory."""
    with running(tmp_path, rate_limit_per_s=5) as service:
        assert one_second(service, [get()] * 8) == [200] * 5 + [429] * 3
        assert one_second(service, [post(NOTHING)] * 4 + [get()] * 4) == [200] * 5 + [429] * 3
        assert service.fast() == 0
        other = service.vm()
        with service.wire(other) as wire:
            assert eventually(lambda: wire.ask(get()).body == b'{ "error": "Too many requests" }')
            assert eventually(lambda: wire.ask(get()).status == 200)
        with service.operator() as operator:
            named = {item["name"]: item["limited"] for item in operator.get("/v1/limits").json()["items"]}
        assert named[other.name]["rate_limit_per_s"] >= 1
        assert service.do(lambda: service.service.traffic.over_limit["rate_limit_per_s"]) >= 7


def test_the_limiter_stands_after_the_version_and_before_the_body(tmp_path: Path) -> None:
    """R62, R65: a request refused before it is not counted."""
    with running(tmp_path, rate_limit_per_s=1) as service:
        early = [get("x"), get(metadata=None), get(LATEST, "X-Forwarded-For: a"), get(method="PUT"), get(path="/x")]
        assert one_second(service, [*early, get(), *early]) == [400, 400, 400, 405, 404, 200, 400, 400, 400, 405, 404]
        assert one_second(service, [get(), post(b"{")]) == [200, 429]
        assert one_second(service, [post(b"{")]) == [400]

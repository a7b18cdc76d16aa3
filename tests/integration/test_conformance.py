"""`check_endpoint` against whole endpoints: our own, one that shares nothing with it, and none at all."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.errors import ConfigError, EndpointRefused, EndpointUnreachable
from forewarn.testing.conformance import (
    CHECKS,
    CheckPhase,
    CheckVerdict,
    ConformanceReport,
    check_endpoint,
    select_checks,
)
from tests.support.ports import reserve_address
from tests.support.service import Running, running
from tests.support.spans import GUARD_S
from tests.support.wire import get
from tests.support.wrong_endpoint import FAULTS, Fault, Told, wrong_endpoint


def check_own(service: Running, **arguments: Any) -> ConformanceReport:  # noqa: ANN401 - those of `check_endpoint`
    """Check an endpoint that answers, however slow this machine is."""
    return check_endpoint(service.url, timeout_s=GUARD_S, **arguments)


def told(report: ConformanceReport) -> str:
    return "\n".join(f"{f.check.code}: {f.outcome.verdict}, {f.outcome.seen}" for f in report.findings)


def verdicts(report: ConformanceReport, verdict: CheckVerdict) -> set[str]:
    return {f.check.code for f in report.findings if f.outcome.verdict is verdict}


def seen(report: ConformanceReport, code: str) -> str:
    return next(f.outcome.seen for f in report.findings if f.check.code == code)


def test_our_own_endpoint_holds_everything(service: Running) -> None:
    """With an event of a newer type, and one to approve."""
    vm = service.web[0]
    service.enable(vm)
    eviction = MaintenanceRequest(cause="spot-eviction", vms=(service.web[-1].name,))
    service.run(service.service.engine.maintenances.schedule(eviction, actor="operator:test"))
    service.schedule(vm)
    report = check_own(service, allow_approve=True, source_address=vm.address)
    assert verdicts(report, CheckVerdict.HOLDS) == {check.code for check in CHECKS}, told(report)


def test_looking_only_starts_nothing(service: Running) -> None:
    vm = service.vm()
    event_id = service.event(vm)
    report = check_own(service, source_address=vm.address)
    assert report.is_conformant, told(report)
    assert not service.is_approved(event_id)
    assert {check.code for check in CHECKS if check.phase is CheckPhase.APPROVE} <= verdicts(
        report, CheckVerdict.INCONCLUSIVE
    )


def test_without_an_event_what_is_about_events_is_inconclusive(service: Running) -> None:
    report = check_own(service, allow_approve=True, source_address=service.vm().address)
    assert report.is_conformant, told(report)
    assert {"members", "types", "event-id", "approve", "life", "incarnation-growth"} <= verdicts(
        report, CheckVerdict.INCONCLUSIVE
    )
    assert seen(report, "approve") == "no event is Scheduled now, so there is none to approve"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "code", "said"),
    [
        ({"notbefore_2017_03_01": "rfc1123"}, "not-before-preview", "A1: rfc1123"),
        ({"cloud": "china"}, "versions", "A2"),
        ({"require_metadata_2017_03_01": "get"}, "metadata-preview", "A3: get"),
        ({"require_metadata_2017_03_01": "all"}, "metadata-preview", "A3: all"),
        ({"legacy_latest": True}, "version-latest", "A4: on"),
        ({"unknown_event": 404}, "approve-unknown", "A11: 404"),
        ({"unknown_event": 200}, "approval-unknown", "A11: 200"),
        ({"post_body": "document"}, "approval-body", "A13: document"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_every_value_of_a_switch_is_accepted_and_named(
    tmp_path: Path, settings: dict[str, Any], code: str, said: str
) -> None:
    """A1, A3, A4, A11, A13."""
    checks = [check for check in CHECKS if not check.is_extension and check.code != "approve-started"]
    with running(tmp_path, **settings) as service:
        vm = service.vm()
        service.event(vm)
        report = check_own(service, checks=checks, allow_approve=True, source_address=vm.address)
    assert report.is_conformant, told(report)
    assert said in seen(report, code)


@pytest.mark.slow
def test_a_rate_limit_is_waited_out_and_named(tmp_path: Path) -> None:
    """R9: the limiter refuses, the checks ask again, and what they judge is not the 429."""
    checks = select_checks(["R3", "R9", "R15", "R66"])
    with running(tmp_path, rate_limit_per_s=5) as service:
        vm = service.vm()
        service.enable(vm)
        report = check_own(service, checks=checks, source_address=vm.address)
    assert report.is_conformant, told(report)
    assert "return 429" in seen(report, "rate")
    assert "429" in seen(report, "outages")


@pytest.mark.slow
def test_an_endpoint_that_shares_nothing_with_ours_holds_everything() -> None:
    with wrong_endpoint() as url:
        report = check_endpoint(url, allow_approve=True)
    assert verdicts(report, CheckVerdict.HOLDS) == {check.code for check in CHECKS}, told(report)


def test_what_refuses_nothing_is_blamed_once_for_the_start() -> None:
    """R10: the first approval that had to be refused let the event start; those after it cannot be judged any more."""
    fault = next(fault for fault in FAULTS if fault.check == "approve-headers")
    checks = select_checks(["approve-headers", "approve-malformed", "approve-unknown"])
    with wrong_endpoint(fault) as url:
        report = check_endpoint(url, checks=checks, allow_approve=True)
    assert verdicts(report, CheckVerdict.BREAKS) == {"approve-headers"}, told(report)


def test_a_stranger_is_told_in_one_line_that_it_is_no_vm(service: Running) -> None:
    """R2: not in a broken check for each thing that it was not shown."""
    with pytest.raises(EndpointRefused, match="with 404, so nothing was checked: the caller's address"):
        check_own(service, source_address=service.stranger)


@pytest.mark.parametrize("status", [400, 403, 404])
def test_an_endpoint_that_refuses_every_get_alike_refuses_the_caller(status: int) -> None:
    fault = Fault("", "refuses", tell=lambda _, __, ___: Told(status, b'{ "error": "Bad request" }'))
    with wrong_endpoint(fault) as url, pytest.raises(EndpointRefused) as refused:
        check_endpoint(url, checks=select_checks(["X2"]))
    assert refused.value.details["status"] == status


def test_the_path_of_the_events_may_stand_in_the_url(service: Running) -> None:
    url = f"{service.url}/metadata/scheduledevents"
    report = check_endpoint(url, checks=select_checks(["R1"]), source_address=service.vm().address)
    assert report.is_conformant
    assert report.url == service.url


def test_nobody_there_is_an_error_and_no_finding() -> None:
    with pytest.raises(EndpointUnreachable, match="cannot reach endpoint"):
        check_endpoint(f"http://{reserve_address()}")


def test_https_is_refused() -> None:
    with pytest.raises(ConfigError, match="plain HTTP"):
        check_endpoint("https://127.0.0.1")


@contextmanager
def speaking(data: bytes) -> Iterator[str]:
    """A listener that says the same to everybody, and then nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        is_over = threading.Event()

        def serve() -> None:
            kept = []
            while not is_over.is_set():
                try:
                    sock, _ = listener.accept()
                except TimeoutError:
                    continue
                sock.sendall(data)
                kept.append(sock)
            for sock in kept:
                sock.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            is_over.set()
            thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull",
        b'HTTP/1.1 200 OK\r\nContent-Length: 27\r\n\r\n{"Events":[5,{"EventId":5}]',
        b'HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\n{"Events":[5,{"EventId":[]}]}',
        b'HTTP/1.1 200 OK\r\nContent-Length: 59\r\n\r\n{"Events":[{"EventId":"a","Resources":5,"EventType":[1,{}]}]',
        b"HTTP/1.1 304 Not Modified\r\n\r\n",
    ],
    ids=["no HTTP", "an array", "null", "half JSON", "odd ids", "odd members", "nothing"],
)
def test_whatever_an_endpoint_says_is_a_finding_and_no_trace(data: bytes) -> None:
    with speaking(data) as url:
        report = check_endpoint(url, timeout_s=0.2, allow_approve=True)
    assert not report.is_conformant


def test_a_silent_endpoint_is_given_up_on_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forewarn.testing.conformance.probe.FIRST_TIMEOUT_S", 0.1)
    with speaking(b"") as url:
        report = check_endpoint(url, timeout_s=0.1)
    assert not report.is_conformant
    assert "not sent" in seen(report, "instance")


def test_the_service_is_as_it_was(service: Running) -> None:
    """After all that was sent to it, a VM is answered as before."""
    with service.wire(service.vm()) as wire:
        assert wire.ask(get()).status == 200

"""Who may name the trace that a request belongs to, what of a request is told, and what is done from the dashboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from forewarn.core.access import Role
from forewarn.observability.tracing.trace_ids import derive_root_span_id, derive_trace_id, format_traceparent
from tests.support.access import client_of, tenant, token_of
from tests.support.collector import Collector, Told, collector
from tests.support.processes import wait_for
from tests.support.service import Running, Vm, running
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.slow

CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{CALLER}-00f067aa0ba902b7-01"
NAMES_A_TRACE = {"traceparent": TRACEPARENT, "tracestate": "mine=1", "baggage": "a=b"}


@pytest.fixture
def told() -> Iterator[Collector]:
    with collector() as made:
        yield made


@pytest.fixture
def traced(told: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
    with running(tmp_path, tracing_endpoint=told.url, tracing_sample_ratio="1") as service:
        yield service


def ask(service: Running, token: str | None, path: str = "/v1/whoami", **headers: str) -> int:
    own = {} if token is None else {"authorization": f"Bearer {token}"}
    with httpx.Client(base_url=service.service.control_url, trust_env=False, timeout=GUARD_S) as client:
        return client.get(path, headers=own | headers).status_code


def spans_of(told: Collector, path: str, count: int) -> list[Told]:
    def found() -> list[Told]:
        return [span for span in told.spans if span.attributes.get("url.path") == path]

    wait_for(lambda: len(found()) == count)
    return found()


# Whose trace


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.READ_ONLY])
def test_who_may_see_everything_may_name_the_trace(traced: Running, told: Collector, role: Role) -> None:
    assert ask(traced, token_of(traced, role), **NAMES_A_TRACE) == 200
    (span,) = spans_of(told, "/v1/whoami", 1)
    assert (span.trace, span.parent) == (CALLER, TRACEPARENT.split("-")[2])


@pytest.mark.parametrize("role", [Role.TENANT, Role.HOST])
def test_a_tenant_or_a_host_is_in_a_trace_of_its_own(traced: Running, told: Collector, role: Role) -> None:
    assert ask(traced, token_of(traced, role), **NAMES_A_TRACE) == 200
    (span,) = spans_of(told, "/v1/whoami", 1)
    assert span.trace != CALLER
    assert span.parent == ""


def test_a_stranger_is_in_a_trace_of_its_own_and_is_refused_as_ever(traced: Running, told: Collector) -> None:
    assert ask(traced, None, **NAMES_A_TRACE) == 401
    assert ask(traced, "a token that nobody has made", **NAMES_A_TRACE) == 401
    assert {span.parent for span in spans_of(told, "/v1/whoami", 2)} == {""}
    assert told.trace(CALLER) == []
    with traced.operator() as operator:

        def refused() -> list[Any]:
            return [e for e in operator.get("/v1/audit-log").json()["items"] if e["kind"] == "refused"]

        wait_for(refused)
    refused_in = {span.trace for span in spans_of(told, "/v1/whoami", 2)}
    assert [span.name for span in told.spans if span.trace in refused_in] == ["GET /v1/whoami"] * 2


def test_a_tenant_cannot_write_into_the_trace_of_a_maintenance(traced: Running, told: Collector) -> None:
    vm = traced.vm()
    traced.enable(vm)
    made = traced.schedule(vm)
    trace, root = derive_trace_id(made.id), derive_root_span_id(made.id)
    with tenant(traced, vms=[vm.name]) as mine:
        header = {"traceparent": format_traceparent(trace, root, is_sampled=True)}
        path = f"/v1/maintenance/{made.id}/x-this-is-not-so"
        assert mine.get(path, headers=header).status_code == 404
    (span,) = spans_of(told, path, 1)
    assert span.trace != f"{trace:032x}"
    assert {each.name for each in told.trace(f"{trace:032x}")} == {"maintenance Freeze", "announced"}


@pytest.mark.parametrize(
    "named",
    [
        TRACEPARENT.upper(),
        "00-" + "0" * 32 + "-00f067aa0ba902b7-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        TRACEPARENT + "-and-more",
        "0" * 5000,
    ],
    ids=["upper case", "zeros", "version", "more", "long"],
)
def test_a_trace_that_is_named_wrongly_is_none(traced: Running, told: Collector, named: str) -> None:
    assert ask(traced, traced.service.tokens.operator_token, traceparent=named) == 200
    (span,) = spans_of(told, "/v1/whoami", 1)
    assert span.parent == ""


# What is told of a request


def test_no_token_key_query_or_body_is_told(traced: Running, told: Collector) -> None:
    vm = traced.vm()
    traced.enable(vm)
    made = token_of(traced, Role.OPERATOR)
    with client_of(traced, made) as client:
        body = {"vms": [vm.name], "type": "Freeze", "description": "what-the-body-says"}
        answer = client.post("/v1/maintenance", json=body, headers={"idempotency-key": "what-the-key-says"})
        assert answer.status_code == 201
        again = client.post(
            "/v1/maintenance", json=body | {"type": "Reboot"}, headers={"idempotency-key": "what-the-key-says"}
        )
        assert again.status_code == 422
        assert client.get("/v1/vms", params={"token": "what-the-query-says"}).status_code == 200
        cookie = {"cookie": "forewarn=what-the-cookie-says", "user-agent": "what-the-agent-says"}
        assert client.get("/v1/whoami", headers=cookie).status_code == 200
    spans_of(told, "/v1/whoami", 1)
    wait_for(lambda: told.named("engine create token"))
    (asked,) = spans_of(told, "/v1/vms", 1)
    assert asked.attributes["url.query"] == "REDACTED"
    for secret in (made, traced.service.tokens.operator_token, "what-the-"):
        assert not [body for body in told.bodies if secret.encode() in body]


def test_what_a_stranger_makes_long_is_cut(traced: Running, told: Collector) -> None:
    assert ask(traced, None, "/v1/" + "x" * 7000, host="y" * 7000) == 404
    wait_for(lambda: told.named("GET"))
    lengths = [len(str(value)) for span in told.named("GET") for value in span.attributes.values()]
    assert max(lengths) == 1000


# The dashboard


def test_what_is_done_from_the_dashboard_is_traced_and_its_pages_are_not(traced: Running, told: Collector) -> None:
    vm = traced.vm()
    traced.enable(vm)
    origin = traced.service.control_url
    with httpx.Client(base_url=origin, follow_redirects=True, trust_env=False, timeout=GUARD_S) as browser:
        headers = {"origin": origin, "sec-fetch-site": "same-origin"} | NAMES_A_TRACE

        def send(path: str, **fields: str) -> None:
            answer = browser.post(path, data=fields, headers=headers)
            assert answer.status_code == 200, answer.text

        send("/login", token=traced.service.tokens.operator_token)
        made = _announced(traced, vm)
        assert browser.get(f"/maintenance/{made}").status_code == 200
        send(f"/maintenance/{made}/cancel", reason="no more")
    wait_for(lambda: told.named("canceled"))
    (post,) = spans_of(told, f"/maintenance/{made}/cancel", 1)
    assert post.parent == ""
    (cancel,) = told.named("engine cancel")
    assert (cancel.trace, cancel.parent) == (post.trace, post.id)
    (canceled,) = told.named("canceled")
    assert [trace for trace, _ in canceled.links] == [post.trace]
    paths = [str(span.attributes["url.path"]) for span in told.spans if "url.path" in span.attributes]
    assert paths == [f"/maintenance/{made}/cancel"]


def _announced(service: Running, vm: Vm) -> str:
    return service.schedule(vm).id

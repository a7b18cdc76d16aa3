"""Traces, as a collector gets them from a real service."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from forewarn.core.maintenance.approval import Approver
from forewarn.observability.tracing.trace_ids import derive_root_span_id, derive_trace_id
from tests.support.collector import Collector, Told, collector
from tests.support.operator_service import operator_service
from tests.support.processes import Served, served, wait_for
from tests.support.service import Running, running
from tests.support.spans import GUARD_S
from tests.support.wire import LATEST, approval, get, post

SOON = {"OTEL_BSP_SCHEDULE_DELAY": "100"}
CALLER = "4bf92f3577b34da6a3ce929d0e0e4736"
CALLED = "00f067aa0ba902b7"
TRACEPARENT = f"00-{CALLER}-{CALLED}-01"


@pytest.fixture
def told() -> Iterator[Collector]:
    with collector() as made:
        yield made


def below(spans: list[Told], parent: str = "") -> dict[str, object]:
    """The tree of the names below a span."""
    return {span.name: below(spans, span.id) for span in spans if span.parent == parent}


def one(spans: list[Told], name: str) -> Told:
    (span,) = (each for each in spans if each.name == name)
    return span


# In a service of this process


@pytest.fixture
def traced(told: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    for name, value in SOON.items():
        monkeypatch.setenv(name, value)
    with running(tmp_path, tracing_endpoint=told.url, simulate_complete_after="0s") as service:
        yield service


@pytest.mark.slow
def test_a_request_of_the_control_api_joins_the_trace_of_its_caller(traced: Running, told: Collector) -> None:
    vm = traced.vm()
    traced.enable(vm)
    with traced.operator() as operator:
        answer = operator.post(
            "/v1/maintenance", json={"vms": [vm.name], "type": "Freeze"}, headers={"traceparent": TRACEPARENT}
        )
        assert answer.status_code == 201
        operator.get("/v1/maintenance/nonsense", headers={"traceparent": TRACEPARENT})
        assert operator.post("/v1/maintenance/nonsense/cancel", headers={"traceparent": TRACEPARENT}).status_code == 404
        for path in ("/healthz", "/metrics", "/docs"):
            operator.get(path)
    wait_for(lambda: len(told.trace(CALLER)) == 8)
    spans = told.trace(CALLER)
    assert below(spans, CALLED) == {
        "POST /v1/maintenance": {"engine schedule": {"transaction": {}, "publish": {}}},
        "GET /v1/maintenance/{maintenance_id}": {},
        "POST /v1/maintenance/{maintenance_id}/cancel": {"engine cancel": {"transaction": {}}},
    }
    assert one(spans, "POST /v1/maintenance").kind == Span.SPAN_KIND_SERVER
    refused = one(spans, "engine cancel")
    assert refused.is_error
    assert refused.attributes["error.type"] == "not_found"
    assert {span.name for span in told.spans if span.name.startswith("GET")} == {"GET /v1/maintenance/{maintenance_id}"}
    assert set(told.posts) == {"/v1/traces"}

    schedule = one(spans, "engine schedule")
    maintenance = answer.json()["items"][0]["id"]
    assert schedule.attributes["forewarn.maintenance.id"] == maintenance
    assert schedule.attributes["forewarn.events.count"] == 1
    assert schedule.links == [(f"{derive_trace_id(maintenance):032x}", f"{derive_root_span_id(maintenance):016x}")]


@pytest.mark.slow
def test_approvals_that_come_together_are_each_below_the_post_of_their_vm(traced: Running, told: Collector) -> None:
    vms = [traced.vm() for _ in range(5)]
    ids = {vm.name: traced.event(vm) for vm in vms}

    async def approve() -> None:
        authority = traced.service.backend.authority
        await asyncio.gather(*(authority.approve([ids[vm.name]], _approver(vm.name)) for vm in vms))

    traced.run(approve())
    wait_for(lambda: len(told.named("approved")) == 5 and len(told.named("engine approve")) == 5)
    posts = {span.id: span for span in told.named("POST /metadata/scheduledevents")}
    assert {span.attributes["forewarn.vm"] for span in posts.values()} == set(ids)
    assert len({span.trace for span in posts.values()}) == 5
    assert {span.parent for span in told.named("engine approve")} == set(posts)
    by_vm = {span.attributes["forewarn.vm"]: span for span in told.named("approved")}
    assert {vm: span.attributes["forewarn.event.id"] for vm, span in by_vm.items()} == ids
    done = {span.id for span in told.spans if span.name.startswith("engine approve")}
    assert all(span.links[0][1] in done for span in by_vm.values())


def _approver(vm: str) -> Approver:
    return Approver(actor=f"vm:{vm}", audience=f"vm:{vm}", vm=vm)


@pytest.mark.slow
def test_a_vm_cannot_join_a_trace_and_its_polls_are_in_none(traced: Running, told: Collector) -> None:
    vm = traced.vm()
    event = traced.event(vm)
    with traced.wire(vm) as wire:
        for _ in range(5):
            assert wire.ask(get(LATEST, f"traceparent: {TRACEPARENT}")).status == 200
        assert wire.ask(post(approval(event), LATEST, f"traceparent: {TRACEPARENT}")).status == 200
    wait_for(lambda: told.named("POST /metadata/scheduledevents"))
    assert told.trace(CALLER) == []
    assert not [span for span in told.spans if span.name.startswith("GET")]


@pytest.mark.slow
@pytest.mark.parametrize(("ratio", "share"), [("0", 0), ("1", 1)])
def test_the_ratio_is_of_whole_traces(told: Collector, tmp_path: Path, ratio: str, share: int) -> None:
    with running(tmp_path, tracing_endpoint=told.url, tracing_sample_ratio=ratio) as service:
        service.event(service.vm())
    assert len(told.named("maintenance Freeze")) == share
    assert bool(told.spans) is bool(share)


@pytest.mark.slow
def test_half_of_the_maintenances_have_all_of_their_spans_and_half_have_none(told: Collector, tmp_path: Path) -> None:
    with running(tmp_path, tracing_endpoint=told.url, tracing_sample_ratio="0.5", simulate_complete_after="0s") as made:
        for vm in [made.vm() for _ in range(16)]:
            event = made.event(vm)
            made.run(made.service.engine.authority.approve([event], _approver(vm.name)))
        with made.operator() as operator:
            ids = [item["id"] for item in operator.get("/v1/maintenance").json()["items"]]
    roots = told.named("maintenance Freeze")
    lower_half = {f"{derive_trace_id(i):032x}" for i in ids if derive_trace_id(i) % (1 << 64) < 1 << 63}
    assert len(ids) == 16
    assert {root.trace for root in roots} == lower_half
    for root in roots:
        names = {span.name for span in told.trace(root.trace)}
        assert names >= {"maintenance Freeze", "announced", "approved", "waiting", "started"}
    traces = {span.trace for span in told.named("started")}
    assert traces == {root.trace for root in roots}


@pytest.mark.slow
def test_of_a_large_change_some_steps_are_told(told: Collector, tmp_path: Path) -> None:
    with running(tmp_path, tracing_endpoint=told.url, tracing_moments_max=3) as made:
        made.enable(made.web[0])
        with made.operator() as operator:
            names = [vm.name for vm in made.web[:2]]
            assert operator.post("/v1/maintenance", json={"vms": names, "type": "Freeze"}).status_code == 201
    steps = [span.name for span in told.spans if span.name in {"maintenance Freeze", "announced", "queued"}]
    assert sorted(steps) == ["announced", "maintenance Freeze", "maintenance Freeze"]  # and one queued


# A real process


def ask(service: Served, method: str = "GET", content: dict[str, object] | None = None) -> bytes:
    """What a VM asks."""
    url = service.metadata_url + "/metadata/scheduledevents?api-version=2020-07-01"
    answer = httpx.request(method, url, json=content, headers={"Metadata": "true"}, timeout=GUARD_S, trust_env=False)
    assert answer.status_code == 200
    return answer.content


def event_of(service: Served) -> str:
    return str(json.loads(ask(service))["Events"][0]["EventId"])


def approve(service: Served) -> None:
    ask(service, "POST", {"StartRequests": [{"EventId": event_of(service)}]})


def sets(**settings: object) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]


def scheduled(service: Served, kind: str = "Freeze") -> str:
    return str(service.forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", kind)[0]["id"])


def is_over(service: Served, maintenance: str, state: str = "completed") -> bool:
    return bool(service.forewarn("maintenance", "show", maintenance)["state"] == state)


@pytest.mark.slow
def test_a_maintenance_is_one_trace_from_the_call_to_the_end(told: Collector, tmp_path: Path) -> None:
    """Announced, seen, approved by a VM over HTTP, started, carried out, completed: a tree, linked to who asked."""
    command = tmp_path / "carry-out"
    command.write_text(
        f'#!/bin/sh\nprintf %s "$TRACEPARENT" > {tmp_path}/traceparent\n'
        f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n"
    )
    command.chmod(0o755)
    settings = sets(tracing_endpoint=told.url, actuator="exec", exec_command=command, tracing_service_name="cloud-1")
    with served(tmp_path, *settings, settings=SOON | {"TRACEPARENT": TRACEPARENT}) as service:
        ask(service)
        maintenance = scheduled(service)
        time.sleep(1.1)  # when somebody asked is known to the second
        ask(service)
        wait_for(lambda: told.named("seen"))
        approve(service)
        wait_for(lambda: told.named("exec execute"))
        (tmp_path / "go").touch()
        wait_for(lambda: is_over(service, maintenance))
    assert service.process.returncode == 0

    trace = f"{derive_trace_id(maintenance):032x}"
    spans = told.trace(trace)
    assert below(spans) == {"maintenance Freeze": {name: {} for name in STEPS}}
    root = one(spans, "maintenance Freeze")
    assert root.id == f"{derive_root_span_id(maintenance):016x}"
    assert root.attributes["forewarn.maintenance.id"] == maintenance
    assert {span.service for span in told.spans} == {"cloud-1"}
    order = [one(spans, name) for name in ("announced", "approved", "started", "completed")]
    assert order == sorted(order, key=lambda span: span.ended_ns)
    assert one(spans, "waiting").ended_ns == one(spans, "started").began_ns
    assert one(spans, "under way").ended_ns == one(spans, "completed").began_ns
    assert one(spans, "approved").attributes["forewarn.vm"] == "vm-1"

    # who asked for it, and what they asked
    schedule = one(told.trace(CALLER), "engine schedule")
    assert root.links == [(CALLER, schedule.id)]
    (post,) = told.named("POST /metadata/scheduledevents")
    assert one(spans, "approved").links[0][0] == one(spans, "started").links[0][0] == post.trace

    # what was carried out can go on in the same trace
    given = (tmp_path / "traceparent").read_text().split("-")
    assert given == ["00", trace, one(spans, "exec execute").id, "01"]


STEPS = [
    *("announced", "seen", "approved", "waiting", "started", "exec execute"),
    *("exec observe", "impacted", "impact measured", "under way", "completed"),
]


@pytest.mark.slow
@pytest.mark.anyio
async def test_the_webhook_gets_the_traceparent_of_its_call(told: Collector, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of more than a few letters")
    secret.chmod(0o600)
    async with operator_service() as receiver:
        receiver.state = {"state": "completed", "impacted": True}
        settings = sets(
            tracing_endpoint=told.url, actuator="webhook", webhook_url=receiver.url, webhook_secret_file=secret
        )
        maintenance = await asyncio.to_thread(_carry_out, tmp_path, settings)
    spans = told.trace(f"{derive_trace_id(maintenance):032x}")
    asked = next(each for each in receiver.asked if each.method == "POST")
    call = one(spans, "webhook execute")
    assert asked.headers["traceparent"] == f"00-{call.trace}-{call.id}-01"
    assert call.kind == Span.SPAN_KIND_CLIENT
    look = next(each for each in receiver.asked if each.method == "GET")
    assert look.headers["traceparent"] == f"00-{call.trace}-{derive_root_span_id(maintenance):016x}-01"


def _carry_out(folder: Path, settings: list[str]) -> str:
    with served(folder, *settings, settings=SOON) as service:
        ask(service)
        maintenance = scheduled(service)
        approve(service)
        wait_for(lambda: is_over(service, maintenance))
    return maintenance


@pytest.mark.slow
def test_what_fell_due_and_what_a_restart_finds_are_in_the_same_trace(told: Collector, tmp_path: Path) -> None:
    settings = sets(tracing_endpoint=told.url, simulate_complete_after="none")
    with served(tmp_path, *settings, settings=SOON) as service:
        ask(service)
        maintenance = scheduled(service)
        service.forewarn("maintenance", "start", maintenance, "--reason", "a test")
        wait_for(lambda: is_over(service, maintenance, "started"))
    with served(tmp_path, *settings, settings=SOON) as service:
        service.forewarn("maintenance", "complete", maintenance)
    spans = told.trace(f"{derive_trace_id(maintenance):032x}")
    (root,) = (span for span in spans if not span.parent)
    assert {span.parent for span in spans} == {"", root.id}
    assert {"started", "under way", "completed"} <= {span.name for span in spans}
    linked = {trace for span in spans for trace, _ in span.links}
    assert linked == {span.trace for span in told.spans if span.name.startswith("POST /v1/maintenance")}


# A collector in trouble


def trouble(folder: Path) -> list[dict[str, str]]:
    """What the log says of traces."""
    written = (folder / "serve.log").read_text().splitlines(keepends=True)
    lines = [json.loads(line) for line in written if line.endswith("\n")]  # the last one may be half written
    return [line for line in lines if "trace" in line["event"]]


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["away", "refusing", "slow"])
def test_a_collector_in_trouble_holds_nothing_up_and_is_told_of_once(
    told: Collector, tmp_path: Path, fault: str
) -> None:
    url = told.url
    if fault == "away":
        url = "http://127.0.0.1:1"
    elif fault == "refusing":
        told.status = 400
    else:
        told.holds.clear()
    quick = SOON | {"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "1"}
    with served(tmp_path, *sets(tracing_endpoint=url), settings=quick) as service:
        ask(service)
        maintenance = scheduled(service)
        approve(service)
        assert is_over(service, maintenance, "started")
        wait_for(lambda: trouble(tmp_path))
        for _ in range(3):
            service.forewarn("maintenance", "list")
            time.sleep(0.3)
    assert service.process.returncode == 0
    (line,) = trouble(tmp_path)
    assert line["event"].startswith("cannot send traces")
    assert line["error"]
    assert line["to"] == f"{url}/v1/traces"


@pytest.mark.slow
def test_a_collector_that_comes_back_is_told_of_and_gets_what_follows(told: Collector, tmp_path: Path) -> None:
    told.status = 400
    with served(tmp_path, *sets(tracing_endpoint=told.url), settings=SOON) as service:
        ask(service)
        wait_for(lambda: trouble(tmp_path))
        told.status = 200
        maintenance = scheduled(service)
        wait_for(lambda: told.trace(f"{derive_trace_id(maintenance):032x}"))
    assert [line["event"] for line in trouble(tmp_path)] == [
        "cannot send traces; they are lost for now",
        "traces are sent again",
    ]


@pytest.mark.slow
def test_a_queue_that_is_full_drops_and_says_so_once(told: Collector, tmp_path: Path) -> None:
    told.holds.clear()
    full = "the trace queue is full; the oldest spans are lost"
    small = SOON | {"OTEL_BSP_MAX_QUEUE_SIZE": "4", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "2"}
    with served(tmp_path, *sets(tracing_endpoint=told.url), settings=small) as service:
        ask(service)
        scheduled(service)
        wait_for(lambda: full in [line["event"] for line in trouble(tmp_path)])
        scheduled(service)
    assert [line["event"] for line in trouble(tmp_path)].count(full) == 1


# Without the extra


WITHOUT = """
import sys
for name in ("google.protobuf", "opentelemetry.exporter", "opentelemetry.proto", "opentelemetry.sdk", "requests"):
    sys.modules[name] = None
from forewarn.cli.main import main
sys.argv = ["forewarn", *sys.argv[1:]]
main()
"""


def _serve(environment: dict[str, str], *settings: str) -> subprocess.CompletedProcess[str]:
    words = [word for each in settings for word in ("--set", each)]
    command = [sys.executable, "-c", WITHOUT, "serve", "--database-url", "sqlite://", *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | environment
    )


@pytest.mark.slow
def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    ran = _serve({"FOREWARN_STATE_DIR": str(tmp_path)}, "tracing_endpoint=http://127.0.0.1:4318")
    assert ran.returncode == 1
    assert "pip install 'forewarn[server,tracing]'" in ran.stderr
    assert "Traceback" not in ran.stderr


SERVES = """
import asyncio, sys
{blocked}
from pathlib import Path
from forewarn.server.service import Service
from forewarn.config.loading import make_settings
async def run():
    where = dict(metadata_listen="127.0.0.1:0", control_listen="127.0.0.1:0")
    settings = make_settings(database_url="sqlite://", state_dir=Path(sys.argv[1]), **where)
    async with Service(settings).running():
        loaded = [name for name in sys.modules if sys.modules[name] is not None]
        wanted = ("opentelemetry.sdk", "forewarn.observability.tracing.")
        print(sorted(name for name in loaded if name.startswith(wanted)))
asyncio.run(run())
"""


@pytest.mark.slow
@pytest.mark.parametrize("blocked", ["", WITHOUT.split("from forewarn", maxsplit=1)[0]], ids=["installed", "missing"])
def test_while_it_is_off_nothing_of_it_is_loaded_or_missed(tmp_path: Path, blocked: str) -> None:
    code = SERVES.format(blocked=blocked)
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "opentelemetry.sdk" not in ran.stdout
    assert "forewarn.observability.tracing.otel" not in ran.stdout

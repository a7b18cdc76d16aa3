"""What pages and commands say about a maintenance in each state: only what is true in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forewarn.actuators import Progress
from forewarn.core.access import Role
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventType, Maintenance, MaintenanceState
from forewarn.errors import ActuationFailed, ActuatorError
from tests.support.access import token_of
from tests.support.observed import Observed
from tests.support.pages import Browser, text_of
from tests.support.service import Running, Vm, running
from tests.support.warm import run_warm

REASON = "virsh on host-17: domain is stuck"


@dataclass
class Acts(Observed):
    """Fails for some VMs, ends for some, and takes its time with all others."""

    fails: set[str] = field(default_factory=set)
    gives_up: set[str] = field(default_factory=set)
    ends: set[str] = field(default_factory=set)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        if self.gives_up.intersection(maintenance.vms):
            raise ActuationFailed(REASON)
        if self.fails.intersection(maintenance.vms):
            raise ActuatorError(REASON)
        is_over = bool(self.ends.intersection(maintenance.vms))
        check_at = None if is_over else now + timedelta(days=1)
        return Progress(is_impacted=True, is_complete=is_over, check_at=check_at)


@contextmanager
def logged_in(service: Running, token: str) -> Iterator[Browser]:
    with Browser(service) as made:
        assert made.send_form("/login", token=token, next="/").status_code == 200
        yield made


@dataclass
class Stage:
    """A service on virtual time, and a maintenance in each state."""

    service: Running
    acts: Acts
    ids: dict[str, str] = field(default_factory=dict)
    vms: dict[str, Vm] = field(default_factory=dict)

    def vm(self, name: str) -> Vm:
        found = self.vms[name] = self.service.vm()
        self.service.enable(found)
        return found

    def schedule(self, vm: Vm, **request: Any) -> Maintenance:  # noqa: ANN401 - fields of `MaintenanceRequest`
        wanted = replace(
            MaintenanceRequest(cause="host-maintenance", type=EventType.FREEZE, vms=(vm.name,), duration_s=60),
            **request,
        )
        return self.service.run(self.service.service.engine.maintenances.schedule(wanted, actor="operator:ann"))[0]

    def start(self, made: Maintenance) -> None:
        maintenances = self.service.service.engine.maintenances
        self.service.run(maintenances.start(made.id, actor="operator:ann", reason="agreed"))

    def advance(self, **span: float) -> None:
        self.service.run(self.service.service.scheduler.advance_clock(timedelta(**span)))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A maintenance in each state, an hour and more after it got there; `pending` and `started` are fresh."""
    acts = Acts()
    settings: dict[str, Any] = {"clock": "virtual", "actuator_attempts_max": 100}
    settings |= {"late_start_after": "none", "late_end_after": "none"}
    with running(tmp_path_factory.mktemp("states"), actuator=acts, **settings) as service:
        made = Stage(service, acts)
        for name in ("failed", "failing", "completed", "canceled", "overdue"):
            vm = made.vm(name)
            {"failed": acts.gives_up, "failing": acts.fails, "completed": acts.ends}.get(name, set()).add(vm.name)
            it = made.schedule(vm)
            made.ids[name] = it.id
            if name == "canceled":
                service.run(service.service.engine.maintenances.cancel(it.id, actor="operator:ann"))
            else:
                made.start(it)
        # One that could start, but for another one on its VM.
        made.vms["held"] = made.vms["overdue"]
        made.ids["held"] = made.schedule(made.vms["held"], cause="user-redeploy", type=None).id
        made.advance(hours=1)
        made.ids["started"] = made.schedule(made.vm("started"), notice=timedelta(days=3)).id
        service.run(service.service.engine.maintenances.start(made.ids["started"], actor="operator:ann", reason="now"))
        made.ids["pending"] = made.schedule(made.vm("pending"), notice=timedelta(days=3)).id
        first, second = service.web[:2]
        service.enable(first)
        made.schedule(first)
        made.vms["queued"] = second
        made.ids["queued"] = made.schedule(second).id
        yield made


@dataclass(frozen=True, kw_only=True)
class Words:
    """What is said of a maintenance in one state.

    Attributes:
        lead: Sentence on its page and in its row; TIME stands for a time.
        badges: All badges beside its title.
        approval: What its page says of the tenant's approval.
        measured: What its page says of the measured impact.
        start: When it starts or has started, in the list of the command line.
        fields: Fields of `maintenance show` that are about time, with their words; TIME stands for a time.
        history: Words of `vm history`.
        event: NotBefore of its event in `event list`.
    """

    lead: str
    badges: str
    approval: str = "not approved"
    measured: str | None = "not yet"
    start: str
    fields: Mapping[str, str]
    history: tuple[str, ...] = ()
    event: str | None = "-"


STATES = {
    "queued": Words(
        lead="It is announced when Freeze of Web_0 is over.",
        badges="queued",
        approval="No tenant is notified: the maintenance is queued.",
        start="-",
        fields={},
        history=("announced not yet: queued",),
        event=None,
    ),
    "pending": Words(
        lead="It starts as soon as {vm} approves, at the latest TIME.",
        badges="scheduled",
        approval="not approved yet",
        start="in 3d",
        fields={"not before": "TIME (in 3d)"},
        history=("approved  not yet",),
        event="in 3d",
    ),
    "held": Words(
        lead="It starts when Freeze of {vm} is over.",
        badges="scheduled Not approved",
        start="due 50m ago",
        fields={"not before": "TIME (50m ago)"},
        event="50m ago",
    ),
    "started": Words(
        lead="It is under way and expected to end TIME.",
        badges="started",
        start="now",
        fields={"not before": "TIME", "started": "TIME (now)"},
        history=("no impact reported yet", "approved  by no one"),
    ),
    "overdue": Words(
        lead="It is under way and was expected to end TIME.",
        badges="started",
        start="1h ago",
        fields={"not before": "TIME", "started": "TIME (1h ago)"},
        history=("duration not measured yet",),
    ),
    "failing": Words(
        lead="The actuator has failed {attempts} times and will be retried.",
        badges="started Failing",
        start="1h ago",
        fields={"not before": "TIME", "started": "TIME (1h ago)"},
        history=("no impact reported yet",),
    ),
    "completed": Words(
        lead="It is over.",
        badges="completed",
        measured="not measured",
        start="1h ago",
        fields={"not before": "TIME", "started": "TIME", "ended": "TIME"},
        history=("duration not measured;",),
    ),
    "canceled": Words(
        lead="It was canceled.",
        badges="canceled",
        measured=None,
        start="-",
        fields={"not before": "TIME", "ended": "TIME"},
    ),
    "failed": Words(
        lead="It failed and is not retried. See History for the cause.",
        badges="failed",
        measured="not measured",
        start="1h ago",
        fields={"not before": "TIME", "started": "TIME", "ended": "TIME"},
        history=("no impact reported;",),
    ),
}
"""Every state, and what is said of it."""

TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?: UTC|Z)")


def timeless(text: str) -> str:
    return re.sub(r"\s+([.,;])", r"\1", TIME.sub("TIME", text))


def command(stage: Stage, folder: Path, *arguments: str) -> str:
    """What a command prints for the operator."""
    environment = {"FOREWARN_TOKEN": str(stage.service.service.tokens.operator_token)}
    environment |= {"FOREWARN_CONTROL_URL": stage.service.service.control_url, "PATH": os.environ["PATH"]}
    status, out, err = run_warm(arguments, environment, folder=folder)
    assert (status, err) in {(0, ""), (0, "no events\n")}
    return out


def test_every_state_is_on_the_stage(stage: Stage) -> None:
    with stage.service.operator() as api:
        found = {api.get(f"/v1/maintenance/{stage.ids[name]}").json()["state"] for name in STATES}
    assert found == {state.value for state in MaintenanceState}


@pytest.mark.parametrize("name", STATES)
def test_a_page_says_what_is_true_in_the_state(stage: Stage, name: str) -> None:
    words, vm = STATES[name], stage.vms[name]
    with logged_in(stage.service, stage.service.service.tokens.operator_token) as browser:
        answer = browser.get(f"/maintenance/{stage.ids[name]}")
        with stage.service.operator() as api:
            entries = api.get("/v1/audit-log", params={"maintenance": stage.ids[name]}).json()["items"]
        attempts = sum(entry["kind"] == "attempt-failed" for entry in entries)
        lead = words.lead.format(vm=vm.name, attempts=attempts)
        page = timeless(text_of(answer))
        assert lead in page
        title = re.search(r"<h1>(.*?)</h1>", answer.text, re.DOTALL)
        assert title is not None
        badges = " ".join(re.sub(r"<[^>]+>|[^\w\s<>/]", " ", re.sub(r"<[^>]+>", " ", title[1])).split())
        assert (
            badges.removeprefix(re.sub(r"[^\w]", " ", f"Freeze of {vm.name} ")).removeprefix(
                re.sub(r"[^\w]", " ", f"Redeploy of {vm.name} ")
            )
            == words.badges
        )
        tenants = page[page.index(" Tenants ") : page.index(" Facts ")]
        assert words.approval in tenants
        for status in ("Failed", "Completed", "Canceled", "Started"):
            assert status not in tenants
        measured = re.search(r"Measured impact (\D+?) (?:Forced|Latest|Hosts)", page)
        assert (None if measured is None else measured[1].strip()) == words.measured
        assert lead in timeless(text_of(browser.get(f"/vms/{vm.name}"))), "the row says the same"


@pytest.mark.parametrize("name", STATES)
def test_a_command_says_what_is_true_in_the_state(stage: Stage, name: str, tmp_path: Path) -> None:
    words, vm, id_ = STATES[name], stage.vms[name], stage.ids[name]
    (row,) = (row for row in command(stage, tmp_path, "maintenance", "list").splitlines() if row.startswith(id_))
    assert re.split(r"  +", row)[3] == words.start
    shown = timeless(command(stage, tmp_path, "maintenance", "show", id_)).partition("\nHistory")[0]
    fields = dict(re.findall(r"^(not before|started|ended) +(.+)$", shown, re.MULTILINE))
    assert fields == words.fields
    history = command(stage, tmp_path, "vm", "history", vm.name)
    (episode,) = (part for part in re.split(r"\n(?=\d)", history) if id_ in part)
    for each in words.history:
        assert each in episode
    listed = command(stage, tmp_path, "event", "list", "--all", "--vm", vm.name).splitlines()
    with stage.service.operator() as api:
        events = [e["id"] for e in api.get(f"/v1/maintenance/{id_}").json()["events"]]
    cells = [re.split(r"  +", row)[3] for row in listed for event in events if row.startswith(event)]
    assert cells == ([] if words.event is None else [words.event])


def tenant_of(stage: Stage, name: str) -> str:
    return token_of(stage.service, Role.TENANT, owns={"vms": [stage.vms[name].name]})


@pytest.mark.parametrize("name", ["failed", "failing"])
def test_a_tenant_is_not_sent_to_a_history_that_hides_the_cause_from_it(stage: Stage, name: str) -> None:
    path = f"/maintenance/{stage.ids[name]}"
    with logged_in(stage.service, stage.service.service.tokens.operator_token) as browser:
        assert "See History for the cause" in browser.get(path).text
        assert REASON in browser.get(path).text
    with logged_in(stage.service, tenant_of(stage, name)) as browser:
        for address in (path, "/", f"/vms/{stage.vms[name].name}"):
            page = browser.get(address).text
            assert "Ask the operator for the cause" in page, address
            assert "See History" not in page
            assert REASON not in page

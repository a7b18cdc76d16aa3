"""What pages and commands say about a maintenance in each state: only what is true in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from forewarn.actuators import Progress
from forewarn.core.access import Role
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventType, Maintenance
from forewarn.errors import ActuationFailed, ActuatorError
from tests.support.access import token_of
from tests.support.observed import Observed
from tests.support.pages import Browser
from tests.support.service import Running, Vm, running

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
    acts = Acts()
    with running(tmp_path_factory.mktemp("states"), actuator=acts, clock="virtual", actuator_retry="30s") as service:
        made = Stage(service, acts)
        for name in ("failed", "failing"):
            vm = made.vm(name)
            (acts.gives_up if name == "failed" else acts.fails).add(vm.name)
            it = made.schedule(vm)
            made.ids[name] = it.id
            made.start(it)
        made.advance(seconds=1)
        yield made


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

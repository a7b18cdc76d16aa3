"""What the dashboard is looked at with: a small cloud on virtual time, in which nothing, much, or too much happens."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from forewarn.actuators import Progress
from forewarn.core.access import Role
from forewarn.core.maintenance.approval import Approver
from forewarn.core.maintenance.maintenance_request import MaintenanceRequest
from forewarn.core.model import EventType, Maintenance
from forewarn.core.rollout.rollout import RolloutSpec
from forewarn.core.subscription import Delivery, DeliveryState, NotificationKind
from forewarn.errors import ActuationFailed, ActuatorError
from forewarn.util.ids import SeededIds
from tests.support.access import token_of
from tests.support.observed import Observed
from tests.support.service import Running, running
from tests.support.wire import Wire, get

__all__ = ["STORIES", "Story", "story"]

START = "2026-11-20T08:00:00Z"
_ROLLED = [f"hv-{n:02}" for n in range(5, 13)]
_ACTOR = "operator:dana"


def _inventory() -> dict[str, Any]:
    hosts = [f"hv-{n:02}" for n in range(1, 13)]
    vms: list[dict[str, Any]] = []

    def vm(name: str, host: str, scope: str | None = None, **more: object) -> None:
        address = f"127.0.40.{len(vms) + 1}"
        vms.append({"name": name, "host": host, "scope": scope, "addresses": [address], **more})

    for n in range(3):
        vm(f"shop-web-{n}", f"hv-{n + 1:02}", "shop-web", fault_domain=n, update_domain=n)
    for n in range(2):
        vm(f"payments-{n}", f"hv-{n + 1:02}", "payments", fault_domain=n)
    for n in range(4):
        vm(f"batch-{n}", f"hv-{n % 2 + 3:02}", "batch", fault_domain=n % 2)
    for name, host in (("pg-primary", "hv-01"), ("pg-replica", "hv-02"), ("legacy-crm", "hv-01"), ("build-7", "hv-04")):
        vm(name, host)
    for n, host in enumerate(_ROLLED):
        vm(f"edge-{n}", host)
    return {
        "hosts": [{"name": host} for host in hosts],
        "scopes": [
            {"name": "shop-web", "kind": "availability-set"},
            {"name": "payments", "kind": "cloud-service"},
            {"name": "batch", "kind": "scale-set"},
        ],
        "vms": [{key: value for key, value in each.items() if value is not None} for each in vms],
    }


@dataclass
class _Acts(Observed):
    """Takes as long with each host, or fails as often, as the story says."""

    takes: Mapping[str, timedelta] = field(default_factory=dict)
    fails: set[str] = field(default_factory=set)
    fails_for_good: set[str] = field(default_factory=set)

    async def observe(self, maintenance: Maintenance, now: datetime) -> Progress | None:
        place = (*maintenance.hosts, *maintenance.vms)
        if self.fails_for_good.intersection(place):
            raise ActuationFailed("virsh reboot batch-0: domain is stuck in state 'in shutdown'")
        if self.fails.intersection(place):
            raise ActuatorError("qemu+ssh://hv-04: no route to host")
        begun_at = maintenance.started_at or now
        took = next((self.takes[name] for name in place if name in self.takes), timedelta(seconds=9))
        is_over = now >= begun_at + took
        return Progress(is_impacted=True, is_complete=is_over, check_at=None if is_over else begun_at + took)


class Story:
    """Somebody makes things happen.

    Args:
        service: On virtual time, with the inventory of the story.
        acts: What carries maintenances out.

    Attributes:
        tenant: The token of somebody who owns a part of it.
    """

    def __init__(self, service: Running, acts: _Acts) -> None:
        self.service = service
        self.acts = acts
        owns = {"scopes": ["shop-web"], "vms": ["legacy-crm"]}
        self.tenant = token_of(service, Role.TENANT, name="shop", owns=owns)
        self._addresses = {vm["name"]: vm["addresses"][0] for vm in _inventory()["vms"]}

    def look(self, *names: str) -> None:
        """These VMs ask."""
        for name in names:
            with Wire(self.service.address, self._addresses[name]) as wire:
                assert wire.ask(get()).status == 200

    def look_all(self, *, but: str = "") -> None:
        """All VMs ask, or all but one."""
        self.look(*(name for name in self._addresses if name != but))

    def advance(self, **span: float) -> None:
        """Time passes."""
        self.service.run(self.service.service.scheduler.advance_clock(timedelta(**span)))

    def schedule(self, event_type: EventType, **request: Any) -> Maintenance:  # noqa: ANN401 - fields of `MaintenanceRequest`
        """Somebody announces something."""
        wanted = MaintenanceRequest(**({"cause": "host-maintenance", "type": event_type} | request))
        return self.service.run(self.service.service.engine.maintenances.schedule(wanted, actor=_ACTOR))[0]

    def approve(self, maintenance: Maintenance, *tenants: str) -> None:
        """These tenants approve, each from its first VM."""
        engine = self.service.service.engine
        events = self.service.run(engine.read(lambda reader: reader.find_events_of([maintenance.id])))[maintenance.id]
        for event in events:
            if event.audience.partition(":")[2] in tenants:
                name = event.resources[0]
                by = Approver(
                    actor=f"vm:{name}",
                    audience=event.audience,
                    source_address=self._addresses[name],
                    api_version="2020-07-01",
                )
                self.service.run(engine.authority.approve([event.id], by))

    def cancel(self, maintenance: Maintenance, reason: str) -> None:
        """It is taken back."""
        self.service.run(self.service.service.engine.maintenances.cancel(maintenance.id, actor=_ACTOR, reason=reason))

    def roll(self) -> None:
        """A rollout begins."""
        spec = RolloutSpec(
            name="kernel-6.12.9",
            cause="host-maintenance",
            type=EventType.REBOOT,
            description="New kernel with the fix for the clock of guests",
            hosts=tuple(_ROLLED),
            batch_size=4,
            hosts_at_once=2,
            failures_max=1,
        )
        self.service.run(self.service.service.engine.rollouts.create(spec, actor=_ACTOR))

    def subscribe(self, *, is_failing: bool = False) -> None:
        """Two receivers of notifications, one of which has lost some. Last, so that no ids of a story change."""
        subscriptions, committer = self.service.service.engine.subscriptions, self.service.service.engine.committer
        chat, web = (
            self.service.run(subscriptions.create(name, url, scopes=scopes, kinds=kinds, actor=_ACTOR))
            for name, url, scopes, kinds in (
                ("chat", "http://127.0.0.1:9/hooks/T0123?key=abcdef", (), (NotificationKind.FAILED,)),
                ("web-team", "http://127.0.0.1:9/forewarn", ("shop-web",), ()),
            )
        )
        if not is_failing:
            return
        now, kind = committer.clock.now(), NotificationKind.SCHEDULED
        lost = [
            Delivery(
                subscription_id=web.id,
                sequence=number,
                subject="0123456789AB",
                kind=kind,
                at=now - timedelta(minutes=60 - number),
                attempts=9,
                state=DeliveryState.DEAD if number < 4 else DeliveryState.WAITING,
                next_at=None if number < 4 else now + timedelta(minutes=5),
                last_error="the receiver answered 503 Service Unavailable",
            )
            for number in range(1, 6)
        ]
        self.service.run(committer.write(lambda tx: tx.save_deliveries(lost)))
        self.service.run(subscriptions.pause(chat.id, actor=_ACTOR, reason="The chat is moved to another server"))


def _empty(_story: Story) -> None:
    """Nothing has happened yet."""


def _busy(story: Story) -> None:
    """An ordinary morning: much is under way, and nothing is wrong but that somebody has not answered yet."""
    story.look_all()
    done = story.schedule(EventType.FREEZE, hosts=("hv-03",), description="Memory module is tested", duration_s=9)
    taken = story.schedule(EventType.REBOOT, vms=("build-7",), description="Firmware of the network card")
    story.approve(done, "shop-web", "batch")
    story.advance(seconds=30)
    story.cancel(taken, "The vendor has withdrawn this firmware")
    story.roll()
    for _ in range(6):
        story.advance(minutes=3)
        story.look_all()
    first = story.schedule(
        EventType.FREEZE, hosts=("hv-01",), description="Host is patched against a flaw of its hypervisor", duration_s=9
    )
    story.advance(minutes=2)
    story.schedule(EventType.REDEPLOY, vms=("pg-replica",), cause="platform-redeploy", description="Disk wears out")
    story.acts.takes = {"hv-04": timedelta(minutes=5)}
    long = story.schedule(EventType.REBOOT, hosts=("hv-04",), description="New microcode", duration_s=600)
    story.schedule(EventType.FREEZE, hosts=("hv-01",), description="Network cables are changed", duration_s=0)
    story.approve(first, "shop-web", "payments")
    story.approve(long, "batch", "build-7")
    story.advance(seconds=40)
    story.look_all()
    story.advance(seconds=2)
    story.subscribe()


def _failing(story: Story) -> None:
    """A bad morning: one tenant never looks, one maintenance has failed, one does not end, a rollout has stopped."""
    story.look_all()
    story.acts.fails_for_good = {"batch-0", _ROLLED[0]}
    story.acts.fails = {"build-7"}
    story.acts.takes = {"pg-replica": timedelta(days=1)}
    story.roll()
    for _ in range(6):
        story.advance(minutes=3)
        story.look_all(but="legacy-crm")
    failed = story.schedule(EventType.REBOOT, vms=("batch-0",), description="Firmware of the network card")
    failing = story.schedule(EventType.FREEZE, vms=("build-7",), description="Moved to hv-05", duration_s=5)
    held = story.schedule(
        EventType.FREEZE, hosts=("hv-01",), description="Host is patched against a flaw of its hypervisor", duration_s=9
    )
    late = story.schedule(EventType.FREEZE, vms=("pg-replica",), description="Moved to hv-06", duration_s=9)
    story.approve(failed, "batch")
    story.approve(failing, "build-7")
    story.approve(late, "pg-replica")
    story.approve(held, "shop-web", "payments")
    story.advance(minutes=8)  # more than half of the notice, so that a VM that has not asked is reported
    story.look_all(but="legacy-crm")
    story.advance(seconds=3)
    story.subscribe(is_failing=True)


STORIES: Mapping[str, Callable[[Story], None]] = {"empty": _empty, "busy": _busy, "failing": _failing}
"""What can happen, by name."""


@contextmanager
def story(name: str, folder: Path) -> Iterator[Story]:
    """A service in which that has happened, and time stands still."""
    inventory = folder / "story.json"
    inventory.write_text(json.dumps(_inventory()))
    acts = _Acts()
    settings: dict[str, Any] = {
        "inventory": inventory,
        "clock": "virtual",
        "clock_start": START,
        "actuator_retry": "30s",
    }
    settings |= {"unseen_before": "8m", "late_end_after": "2m"}
    with running(folder, actuator=acts, **settings) as service:
        service.service.engine.committer._new_id = SeededIds(7)
        told = Story(service, acts)
        STORIES[name](told)
        yield told

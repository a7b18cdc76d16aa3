"""What every store owes: a working set that holds everything a decision may touch. See `forewarn.store.contract`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.inventory import Inventory
from forewarn.core.model import Audience, Event, EventType, Host, Maintenance, MaintenanceState, Scope, ScopeKind
from forewarn.core.policy import Policy
from forewarn.store import SqlStore
from tests.support.databases import save
from tests.support.world import NOW
from tests.unit.core.builders import an_event, availability_set, maintenance, scale_set, vm

S = MaintenanceState

WEB = [vm(f"web-{n}", host=f"host-{n}", scope="web", fault_domain=n) for n in range(3)]
GPU = [vm(f"gpu-{n}", host="host-0", scope="gpu", size="Standard_NC6") for n in range(2)]
DB = vm("db", host="host-0")
LONE = vm("lone", host="host-9")
KEYS = ["scope:web", "vm:gpu-0", "vm:gpu-1", "vm:db", "vm:lone"]


def event(number: int, of: Maintenance, audience: str, *, is_listed: bool = True) -> Event:
    id_ = f"00000000-0000-4000-8000-{number:012X}"
    return an_event(audience, id=id_, sequence=number, maintenance_id=of.id, audience=audience, is_listed=is_listed)


# One maintenance over two tenants, one queued behind it, one far away, one that has ended.
FIRST = maintenance(WEB[0], DB, id="first", sequence=1, not_before=NOW)
QUEUED = maintenance(WEB[1], id="queued", sequence=2, state=S.QUEUED)
FAR = maintenance(LONE, id="far", sequence=3, not_before=NOW)
ENDED = maintenance(WEB[0], DB, LONE, id="ended", sequence=4, state=S.CANCELED, ended_at=NOW)
GPU_ONE = maintenance(GPU[0], id="gpu", sequence=5, not_before=NOW)
FIRST_WEB, FIRST_DB = event(10, FIRST, "scope:web"), event(11, FIRST, "vm:db", is_listed=False)
FAR_LONE = event(12, FAR, "vm:lone")
ENDED_WEB = event(13, ENDED, "scope:web", is_listed=False)
GPU_EVENT = event(14, GPU_ONE, "vm:gpu-0")


@pytest.fixture
def store(store: SqlStore) -> Iterator[SqlStore]:
    scopes = (availability_set("web"), scale_set("gpu", fault_domain_count=1))
    hosts = tuple(Host(name=f"host-{n}") for n in range(10))
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=hosts, scopes=scopes, vms=(*WEB, *GPU, DB, LONE)), "f")
    audiences = [Audience(key=k, enabled_at=NOW, epoch=1, incarnation=3, active_until=NOW) for k in KEYS]
    save(store, FIRST, QUEUED, FAR, ENDED, GPU_ONE, FIRST_WEB, FIRST_DB, FAR_LONE, ENDED_WEB, GPU_EVENT, *audiences)
    return store  # type: ignore[return-value]


def test_a_request_for_a_vm_finds_its_audience_its_document_and_who_holds_it_or_its_scope(store: SqlStore) -> None:
    with store.write() as tx:
        state = tx.load_targets((), ["web-2", "unknown"])
    assert not state.hosts
    assert state.vms == {"web-2": WEB[2]}
    assert state.scopes == {"web": availability_set("web")}
    assert state.maintenances.keys() == {"first", "queued"}
    # Also those of the other tenant of a maintenance that may be touched.
    assert state.audiences.keys() == {"scope:web", "vm:db"}
    assert state.events == {e.id: e for e in (FIRST_WEB, FIRST_DB)}
    assert state.focus == set()


def test_a_request_for_a_host_finds_it_with_all_its_vms(store: SqlStore) -> None:
    with store.write() as tx:
        state = tx.load_targets(["host-0", "host-8", "unknown"], ())
    assert state.hosts.keys() == {"host-0", "host-8"}
    assert state.vms.keys() == {"web-0", "gpu-0", "gpu-1", "db"}
    assert state.scopes.keys() == {"web", "gpu"}
    assert state.maintenances.keys() == {"first", "queued", "gpu"}
    # R58: each GPU VM of that scale set has a document of its own.
    assert state.audiences.keys() == {"scope:web", "vm:gpu-0", "vm:gpu-1", "vm:db"}


def test_a_request_finds_no_audience_that_never_asked(store: SqlStore) -> None:
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=(Host(name="host-1"),), vms=(vm("new"),)), "g")
        assert tx.load_targets(["host-1"], ()).audiences == {}


def test_ended_maintenances_hold_nothing(store: SqlStore) -> None:
    with store.write() as tx:
        assert tx.load_targets((), ["lone"]).maintenances.keys() == {"far"}
        assert sorted(tx.list_active_ids()) == ["far", "first", "gpu", "queued"]
        state = tx.load_maintenances(["ended", "unknown"])
    assert state.maintenances.keys() == {"ended"}
    assert state.focus == {"ended"}


def test_a_maintenance_comes_with_its_neighbours_and_whole_documents(store: SqlStore) -> None:
    with store.write() as tx:
        state = tx.load_maintenances(["first"])
    assert state.focus == {"first"}
    assert state.maintenances.keys() == {"first", "queued"}
    assert state.events.keys() == {FIRST_WEB.id, FIRST_DB.id}
    assert state.audiences.keys() == {"scope:web", "vm:db"}
    assert state.scopes == {"web": availability_set("web")}


def test_with_neighbours_what_an_end_may_free_is_in_focus_and_complete(store: SqlStore) -> None:
    """R61: the one that is queued behind it needs its VMs, scopes and audiences to be announced."""
    behind = maintenance(WEB[2], LONE, id="behind", sequence=6, state=S.QUEUED)
    save(store, behind)
    with store.write() as tx:
        state = tx.load_maintenances(["first"], with_neighbours=True)
    assert state.focus == {"first", "queued", "behind"}
    # "far" is no neighbour of "first", but one of "behind": whether that may start depends on it.
    assert state.maintenances.keys() == {"first", "queued", "behind", "far"}
    assert state.vms.keys() >= {"web-1", "web-2", "lone"}
    assert state.audiences.keys() == {"scope:web", "vm:db", "vm:lone"}
    assert FAR_LONE.id in state.events


def test_a_terminate_or_preempt_comes_with_its_vm_since_its_end_takes_it_away(store: SqlStore) -> None:
    """R74, R90."""
    for number, kind in enumerate((EventType.PREEMPT, EventType.TERMINATE)):
        made = replace(maintenance(GPU[1], id=kind, sequence=20 + number, state=S.STARTED, not_before=NOW), type=kind)
        save(store, replace(made, started_at=NOW))
        with store.write() as tx:
            assert tx.load_maintenances([kind]).vms == {"gpu-1": GPU[1]}


def test_two_loads_make_one_working_set(store: SqlStore) -> None:
    with store.write() as tx:
        state = tx.load_audiences(["vm:lone"])
        assert state.focus == {"far"}
        both = tx.load_maintenances({"first", *state.focus}, into=state)
    assert both is state
    assert both.focus == {"far", "first"}
    assert both.audiences.keys() == {"scope:web", "vm:db", "vm:lone"}


def test_events_come_with_their_maintenances_finished_ones_included(store: SqlStore) -> None:
    """R49, R55."""
    with store.write() as tx:
        state = tx.load_events([FIRST_DB.id, FIRST_WEB.id, ENDED_WEB.id, "unknown"])
        assert state.events.keys() == {FIRST_WEB.id, FIRST_DB.id, ENDED_WEB.id}
        assert state.focus == {"first", "ended"}
        assert state.maintenances.keys() == {"first", "ended", "queued"}
        assert state.audiences.keys() == {"scope:web", "vm:db"}
        assert tx.load_events([]).events == {}


def test_an_event_of_a_maintenance_that_waits_for_another_vote_comes_alone(store: SqlStore) -> None:
    """R83: one approval of twenty changes nothing but its event, so it must not cost what all twenty do."""
    scope = replace(scale_set("many"), policy=Policy(approvers=("operator",)))
    policy = Policy(approves_freezes_up_to=timedelta(seconds=9))
    vms = [replace(vm("own"), policy=policy), vm("in-scope", scope="many"), vm("plain"), vm("last")]
    with store.write() as tx:
        tx.replace_inventory(Inventory(hosts=(Host(name="host-1"),), scopes=(scope,), vms=tuple(vms)), "m")
    shared = maintenance(*vms, id="shared", sequence=50, not_before=NOW)
    keys = ("vm:own", "scope:many", "vm:plain", "vm:last")
    events = [
        replace(event(60 + n, shared, key), resources=(each.name,))
        for n, (key, each) in enumerate(zip(keys, vms, strict=True))
    ]
    save(store, shared, *events, *(Audience(key=key, enabled_at=NOW, epoch=1) for key in keys))
    ids = [each.id for each in events]
    with store.write() as tx:
        some, all_of_them = tx.load_events(ids[:3]), tx.load_events(ids)
    assert some.focus == set()
    assert some.events.keys() == set(ids[:3])
    assert some.maintenances.keys() == {"shared"}
    assert some.audiences == {}
    assert (some.vms, some.scopes) == ({"own": vms[0]}, {"many": scope})  # who may approve is up to the tenant's policy
    assert all_of_them.focus == {"shared"}
    assert all_of_them.audiences.keys() == set(keys)
    save(store, replace(events[3], approved_at=NOW, approved_by="vm:last"), is_new=False)
    with store.write() as tx:
        assert tx.load_events(ids[:3]).focus == {"shared"}
        assert tx.load_events(ids[:2]).focus == set()


def test_the_audience_of_an_event_is_known_also_once_it_has_ended(store: SqlStore) -> None:
    """R55."""
    many = [f"unknown-{number}" for number in range(1200)]
    with store.read() as reader:
        found = reader.find_event_audiences([FIRST_DB.id, ENDED_WEB.id, FIRST_DB.id, *many])
        assert found == {FIRST_DB.id: FIRST_DB.audience, ENDED_WEB.id: ENDED_WEB.audience}
        assert reader.find_event_audiences([]) == {}


def test_an_event_of_a_delete_comes_with_the_deletes_that_may_wait_for_it(store: SqlStore) -> None:
    """R92."""
    fleet = [vm(f"fleet-{n}", scope="fleet") for n in range(2)]
    deletes = [
        replace(maintenance(each, id=f"delete-{n}", sequence=30 + n, not_before=NOW), type=EventType.TERMINATE)
        for n, each in enumerate(fleet)
    ]
    events = [event(40 + n, each, "scope:fleet") for n, each in enumerate(deletes)]
    with store.write() as tx:
        tx.replace_inventory(Inventory(scopes=(scale_set("fleet", couples_deletes=True),), vms=tuple(fleet)), "f")
    save(store, *deletes, *events)
    with store.write() as tx:
        state = tx.load_events([events[1].id])
    assert state.focus == {"delete-0", "delete-1"}
    assert state.events.keys() == {e.id for e in events}


def test_an_audience_comes_with_its_document_and_the_maintenances_it_votes_on(store: SqlStore) -> None:
    with store.write() as tx:
        state = tx.load_audiences(["scope:web", "vm:unknown"])
    assert state.focus == {"first"}
    assert state.audiences.keys() == {"scope:web", "vm:db"}
    assert state.events.keys() == {FIRST_WEB.id, FIRST_DB.id}
    assert state.maintenances.keys() == {"first", "queued"}


def test_another_event_of_a_loaded_audience_comes_with_its_maintenance(store: SqlStore) -> None:
    """R42: a document counts as changed only when its whole array is known."""
    other = maintenance(LONE, id="other", sequence=7, not_before=NOW)
    theirs = event(50, other, "scope:web")
    save(store, other, theirs)
    with store.write() as tx:
        state = tx.load_events([FIRST_WEB.id])
    assert theirs.id in state.events
    assert "other" in state.maintenances


def test_claims_are_kept_while_a_maintenance_is_active_and_go_when_it_ends(store: SqlStore) -> None:
    save(store, replace(FIRST, state=S.STARTED, started_at=NOW), is_new=False)
    with store.write() as tx:
        assert tx.load_targets((), ["db"]).maintenances.keys() == {"first"}
    ended = replace(FIRST, state=S.COMPLETED, started_at=NOW, ended_at=NOW)
    save(store, ended, replace(FIRST_WEB, is_listed=False), is_new=False)
    with store.write() as tx:
        assert tx.load_targets((), ["db"]).maintenances.keys() == set()
        assert tx.load_targets((), ["web-0"]).maintenances.keys() == {"queued"}


def test_a_maintenance_that_ends_as_it_is_made_holds_nothing(store: SqlStore) -> None:
    save(store, maintenance(LONE, id="instant", sequence=60, state=S.CANCELED, ended_at=NOW))
    with store.write() as tx:
        assert tx.load_targets((), ["lone"]).maintenances.keys() == {"far"}


def test_a_lone_vm_that_has_a_policy_comes_with_what_is_scheduled_for_it(store: SqlStore) -> None:
    """Others are left out: there may be many, and what is not here has none."""
    policy = Policy(approvers=("operator",))
    scope = Scope(name="alone", kind=ScopeKind.STANDALONE, policy=policy)
    owned, alone = replace(LONE, policy=policy), replace(DB, scope="alone")
    with store.write() as tx:
        tx.replace_inventory(Inventory(scopes=(scope, availability_set("web")), vms=(*WEB, owned, alone)), "g")
    with store.write() as tx:
        states = [tx.load_maintenances(["far", "first"]), tx.load_events([FAR_LONE.id, FIRST_DB.id, FIRST_WEB.id])]
    for state in states:
        assert state.vms == {"lone": owned, "db": alone}
        assert state.scopes.keys() == {"web", "alone"}
    with store.write() as tx:
        tx.replace_inventory(Inventory(scopes=(availability_set("web"),), vms=(*WEB, LONE, DB)), "h")
        assert tx.load_maintenances(["far", "first"]).vms == {}


def test_an_audience_that_is_being_enabled_comes_with_what_waits_for_its_vms(store: SqlStore) -> None:
    """R70b: scheduled ones, complete, with all their VMs; neither queued nor ended ones."""
    with store.write() as tx:
        state = tx.load_audiences(["scope:web"], with_waiting=True)
        lone = tx.load_audiences(["vm:db"], with_waiting=True)
        nothing = tx.load_audiences(["vm:gpu-1"], with_waiting=True)
    assert state.focus == {"first"}
    assert {"web-0", "db"} <= state.vms.keys()
    assert {FIRST_WEB.id, FIRST_DB.id} <= state.events.keys()
    assert state.scopes == {"web": availability_set("web")}
    assert lone.focus == {"first"}
    assert {"web-0", "db"} <= lone.vms.keys()
    assert nothing.focus == set()

"""The store in memory beside the store on SQL: the same operations, and the same told afterwards.

Keys and moments are drawn from so few that operations meet: a second value of one key, an end of what has ended,
a pruning of what is just as old as that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from forewarn.core.audit_chain import ChainPage
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.alert_schedule import AlertCheck
from forewarn.core.maintenance.decision import ChangeSet, WorkingSet
from forewarn.core.model import (
    Audience,
    AuditEntry,
    Claim,
    EntryKind,
    Event,
    EventSource,
    EventType,
    Host,
    Maintenance,
    MaintenanceState,
    NotificationProfile,
    Scope,
    ScopeKind,
    VirtualMachine,
)
from forewarn.core.selection import Selection
from forewarn.core.subscription import Delivery, DeliveryState, NotificationKind, Subscription, SubscriptionState
from forewarn.core.vm_filter import VmFilter
from forewarn.errors import Conflict, ForewarnError, StoreUnavailable
from forewarn.store import MemoryStore, SqlStore, Store
from forewarn.store.contract import IdempotencyRecord, Reader, Transaction
from tests.support.databases import read_documents, save
from tests.support.world import NOW, minutes
from tests.unit.core.builders import an_event, maintenance, vm

S = MaintenanceState

HOSTS = ["host-1", "host-2", "Host-3"]
SCOPES = ["web", "gpu"]
VMS = ["a", "b", "B", "c"]
KEYS = ["scope:web", "vm:a", "vm:b", "vm:c"]
MAINTENANCES = ["m-1", "m-2", "m-3", "m-4"]
EVENTS = ["E-1", "E-2", "E-3", "E-4"]
LATEST = 3
SOME_STATES = Selection(states=(S.QUEUED, S.STARTED, S.QUEUED))

moments = st.integers(0, LATEST).map(lambda n: NOW + minutes(n))
numbers = st.integers(100, 160)
"""Of maintenances and events; so few that two may get the same."""

vms = st.builds(
    VirtualMachine,
    name=st.sampled_from(VMS),
    host=st.sampled_from(HOSTS),
    scope=st.none() | st.sampled_from(SCOPES),
    size=st.sampled_from(["Standard_NC6", "Standard_D2"]),
    addresses=st.lists(st.sampled_from(["10.0.0.1", "10.0.0.2"]), max_size=1).map(tuple),
    tags=st.just((("b", "2"), ("a", "1"))),
)
scopes = st.builds(
    Scope,
    name=st.sampled_from(SCOPES),
    kind=st.sampled_from([ScopeKind.SCALE_SET, ScopeKind.AVAILABILITY_SET]),
    fault_domain_count=st.sampled_from([None, 1]),
    terminate_notification=st.builds(NotificationProfile, enable=st.booleans()),
)
inventories = st.builds(
    Inventory,
    hosts=st.lists(st.builds(Host, name=st.sampled_from(HOSTS)), max_size=3).map(tuple),
    scopes=st.lists(scopes, max_size=2).map(tuple),
    vms=st.lists(vms, max_size=4).map(tuple),
)
audiences = st.builds(
    Audience,
    key=st.sampled_from(KEYS),
    scope=st.sampled_from([None, "web"]),
    enabled_at=st.none() | moments,
    epoch=st.integers(0, 1),
    incarnation=st.integers(0, 3),
    active_until=st.none() | moments,
)
claims = st.builds(
    Claim,
    vm=st.sampled_from(VMS),
    host=st.sampled_from(HOSTS),
    scope=st.none() | st.sampled_from(SCOPES),
    fault_domain=st.integers(0, 1),
)
maintenances = st.builds(
    Maintenance,
    id=st.sampled_from(MAINTENANCES),
    sequence=numbers,
    request_id=st.just("r"),
    cause=st.just("host-maintenance"),
    type=st.sampled_from(EventType),
    impact=st.just(EventType.FREEZE),
    source=st.sampled_from(EventSource),
    description=st.sampled_from(["one", "another"]),
    force_reason=st.sampled_from([None, "One more"]),
    duration_s=st.just(9),
    state=st.sampled_from(S),
    created_at=moments,
    notice=st.just(timedelta(minutes=15)),
    not_before=st.none() | moments,
    due_at=st.none() | moments,
    ended_at=st.none() | moments,
    attempts=st.integers(0, 1),
    claims=st.lists(claims, max_size=3, unique_by=lambda c: c.vm).map(tuple),
).map(lambda m: replace(m, ended_at=None if m.is_active else m.ended_at or NOW))
events = st.builds(
    Event,
    id=st.sampled_from(EVENTS),
    sequence=numbers,
    maintenance_id=st.sampled_from(MAINTENANCES),
    audience=st.sampled_from(KEYS),
    update_domain=st.just(0),
    resources=st.just(("a",)),
    is_listed=st.booleans(),
    approved_at=st.none() | moments,
)
entries = st.builds(
    AuditEntry,
    kind=st.sampled_from(EntryKind),
    at=moments,
    actor=st.sampled_from(["forewarn", "operator:ann"]),
    maintenance_id=st.none() | st.sampled_from(MAINTENANCES),
    vm=st.none() | st.sampled_from(VMS),
    audience=st.none() | st.sampled_from(KEYS),
    reason=st.sampled_from([None, "a", "B", "\u00c4%_"]),
)


looks = st.dictionaries(
    st.sampled_from(MAINTENANCES),
    st.none() | moments.map(lambda at: AlertCheck(maintenance_id="", at=at)),
).map(lambda drawn: {key: look and replace(look, maintenance_id=key) for key, look in drawn.items()})
subscriptions = st.builds(
    Subscription,
    id=st.sampled_from(["s-1", "s-2", "s-3"]),
    name=st.sampled_from(["chat", "mail"]),
    url=st.just("http://receiver/"),
    secret=st.just("whsec_c2VjcmV0"),
    scopes=st.lists(st.sampled_from(SCOPES), max_size=2).map(tuple),
    state=st.sampled_from(SubscriptionState),
    cursor=st.integers(0, 3),
    created_at=moments,
    created_by=st.just("operator:ann"),
    failing_since=st.none() | moments,
)
deliveries = st.builds(
    Delivery,
    subscription_id=st.sampled_from(["s-1", "s-2"]),
    sequence=st.integers(1, 3),
    subject=st.sampled_from(["a", "B"]),
    kind=st.sampled_from(NotificationKind),
    at=moments,
    attempts=st.integers(0, 2),
    next_at=st.none() | moments,
    state=st.sampled_from(DeliveryState),
)


@dataclass(frozen=True)
class Operation:
    """A call of a transaction, that can be shown."""

    name: str
    args: tuple[Any, ...] = ()

    def __call__(self, tx: Transaction) -> object:
        return getattr(tx, self.name)(*self.args)


def calls(method: Callable[..., object], *args: st.SearchStrategy[Any]) -> st.SearchStrategy[Operation]:
    return st.tuples(*args).map(lambda drawn: Operation(method.__name__, drawn))


@st.composite
def changes(draw: st.DrawFn) -> ChangeSet:
    """What a decision may have changed, and more: nothing here keeps to the rules of the core."""
    made = ChangeSet(
        vms={v.name: v for v in draw(st.lists(vms, max_size=1))},
        audiences={a.key: a for a in draw(st.lists(audiences, max_size=2))},
        maintenances={m.id: m for m in draw(st.lists(maintenances, max_size=2))},
        events={e.id: e for e in draw(st.lists(events, max_size=2))},
        entries=draw(st.lists(entries, max_size=3)),
        alert_checks=draw(looks),
    )
    made.created.update(key for key in (*made.maintenances, *made.events) if draw(st.booleans()))
    return made


outcomes = st.builds(
    IdempotencyRecord,
    key=st.sampled_from(["k", "l"]),
    fingerprint=st.just("f"),
    outcome=st.just({"maintenances": ["m-1"], "n": None}),
    at=moments,
)
touched = st.dictionaries(st.sampled_from([*KEYS, "vm:unknown"]), moments, min_size=1, max_size=2)
operations = st.one_of(
    calls(Transaction.save, changes()),
    calls(Transaction.save, changes()),
    calls(Transaction.save, changes()),
    calls(Transaction.replace_inventory, inventories, st.just("f")),
    calls(Transaction.extend_active_until, touched),
    calls(Transaction.save_idempotency_record, outcomes),
    calls(Transaction.save_clock_kind, st.sampled_from(["real", "virtual"])),
    calls(Transaction.next_sequence),
    calls(Transaction.save_subscription, subscriptions),
    calls(Transaction.delete_subscription, st.sampled_from(["s-1", "s-2"])),
    calls(
        Transaction.save_deliveries, st.lists(deliveries, max_size=3, unique_by=lambda d: (d.subscription_id, *d.key))
    ),
    calls(Transaction.delete_deliveries, st.just("s-1"), st.just([(1, "a"), (2, "B"), (9, "z")])),
    calls(Transaction.prune_history, moments, moments, st.integers(1, 3)),
)
transactions = st.tuples(st.lists(operations, min_size=1, max_size=4), st.integers(0, 4).map(lambda n: n == 0))
"""Operations, and whether the transaction fails at its end."""


WORLD = ChangeSet(
    audiences={key: Audience(key=key, enabled_at=NOW, epoch=1, active_until=NOW + minutes(1)) for key in KEYS[:3]},
    maintenances={
        "m-1": maintenance(vm("a", scope="web"), id="m-1", sequence=1, not_before=NOW),
        "m-2": maintenance(vm("b", scope="web"), vm("c"), id="m-2", sequence=2, type=EventType.TERMINATE),
        "m-3": replace(maintenance(vm("c"), id="m-3", sequence=3, state=S.COMPLETED, ended_at=NOW), tenant_key="red"),
    },
    events={
        f"E-{n}": an_event(id=f"E-{n}", sequence=10 + n, maintenance_id=f"m-{n}", audience=KEYS[n - 1])
        for n in (1, 2, 3)
    },
    created={"m-1", "m-2", "m-3", "E-1", "E-2", "E-3"},
    entries=[
        *(AuditEntry(kind=EntryKind.QUEUED, at=NOW, actor="forewarn", maintenance_id=i) for i in (None, "m-1", "m-3")),
        AuditEntry(kind=EntryKind.CANCELED, at=NOW, actor="tenant:ann", maintenance_id="m-3"),
    ],
)
"""What there is at first, so that nearly everything that is drawn finds something to change."""


def carry_out(store: Store, works: Sequence[Operation], *, fails: bool) -> list[object]:
    """What the operations answered, or what was raised."""
    answers: list[object] = []
    try:
        with store.write() as tx:
            answers += [work(tx) for work in works]
            if fails:
                raise Conflict("it shall not be")
    except ForewarnError as error:
        answers.append(type(error))
    return answers


def loaded(state: WorkingSet) -> dict[str, object]:
    return {f.name: getattr(state, f.name) for f in fields(WorkingSet)}


def answered(ask: Callable[[], object]) -> object:
    """The answer; the order of what has none does not count."""
    try:
        return ask()
    except KeyError as error:
        return repr(error)


def pages(ask: Callable[[int | None], Any]) -> Iterator[tuple[Any, Any]]:
    """Each page with what it says of the following one."""
    after: int | None = None
    while True:
        page = ask(after)
        yield [(item.sequence, item) for item in page.items], page.next
        if page.next is None:
            return
        after = page.next


def _follow(ask: Callable[[int | None], Any]) -> Iterator[Any]:
    """The items of all pages. How many there are in one is not asked: a page may end early."""
    after: int | None = None
    while True:
        page = ask(after)
        yield [(item.sequence, item) for item in page.items]
        if page.next is None:
            return
        assert page.next != after
        after = page.next


def forwards(reader: Reader, selection: Selection) -> Iterator[Any]:
    for items in _follow(lambda after: reader.list_entries(after=after or 0, limit=2, selection=selection)):
        yield from items


def backwards(reader: Reader, selection: Selection) -> Iterator[Any]:
    for items in _follow(lambda before: reader.list_entries(before=before, limit=2, newest=True, selection=selection)):
        yield from reversed(items)


def newest_first(reader: Reader, selection: Selection) -> Iterator[Any]:
    for items in _follow(lambda before: reader.list_maintenances(before=before, limit=2, selection=selection)):
        yield from items


SELECTIONS = [
    Selection(since=NOW + minutes(1)),
    Selection(until=NOW + minutes(1)),
    Selection(since=NOW + minutes(1), until=NOW + minutes(2), kinds=(EntryKind.QUEUED, EntryKind.APPROVED)),
    Selection(vm="a"),
    Selection(scope="web"),
    Selection(host="host-1"),
    Selection(vm="b", scope="web"),
    Selection(vm="b", host="host-2", until=NOW + minutes(3)),
    Selection(maintenance_id="m-1"),
    Selection(maintenance_id="m-1", vm="a", text="A"),
    Selection(kinds=(EntryKind.QUEUED,)),
    Selection(actor="forewarn", scan_max=20),
    Selection(actor="operator:ann", scan_max=20),
    Selection(actor="forewarn", kinds=(EntryKind.QUEUED,), scan_max=20),
    Selection(states=(S.COMPLETED,)),
    Selection(states=(S.COMPLETED, S.STARTED), scan_max=20),
    Selection(type=EventType.FREEZE, scan_max=20),
    Selection(source=EventSource.USER, scan_max=50),
    Selection(text="ONE", scan_max=20),
    Selection(text="a", scan_max=7),
    Selection(text="\u00c4%_", scan_max=20),
]
"""What is asked for in the history; few numbers are looked at in one go, so that pages end early."""


def chosen(reader: Reader, selection: Selection) -> list[list[Any]]:
    """All that a selection takes, by each way to ask for it."""
    return [list(ask(reader, selection)) for ask in (forwards, backwards, newest_first)]


def all_links(reader: Reader) -> list[ChainPage]:
    found = [reader.get_link_page(None, 2)]
    while (after := found[-1].next) is not None:
        found.append(reader.get_link_page(after, 2))
    return found


def told(reader: Reader) -> Mapping[str, object]:
    """Everything that a reader tells."""
    ids = [*reversed(MAINTENANCES), "unknown"]
    asked: dict[str, Callable[[], object]] = {
        "inventory": reader.get_inventory,
        "vms of hosts": lambda: [reader.list_vms(host=host) for host in HOSTS],
        "vms of names": lambda: [reader.list_vms(name=name) for name in VMS],
        "vms of both": lambda: reader.list_vms(host=HOSTS[0], name=VMS[0]),
        "vm pages": lambda: [reader.get_vm_page(after, 2) for after in (None, "B", "a", "z")],
        "filtered vm pages": lambda: [
            reader.get_vm_page(after, 2, wanted=VmFilter(host=host, scope=scope, prefix=prefix))
            for after in (None, "a")
            for host in (None, HOSTS[0])
            for scope in (None, SCOPES[0])
            for prefix in ("", VMS[0][:1], VMS[-1], "z")
        ],
        "some host pages": lambda: [list(reader.get_host_page(None, 2, HOSTS[0][:n]).items()) for n in (1, 5, 6)],
        "host pages": lambda: [list(reader.get_host_page(after, 2).items()) for after in (None, "Host-3", "host-1")],
        "scope pages": lambda: [
            reader.get_scope_page(after, 2, prefix=SCOPES[0][:n]) for n in (0, 1) for after in (None, "a")
        ],
        "vms of scopes": lambda: reader.count_vms_by_scope([*SCOPES, "unknown"]),
        "scopes": lambda: reader.find_scopes(iter([*SCOPES, "unknown"])),
        "documents": lambda: read_documents(reader),
        "audiences": lambda: reader.find_audiences(iter([*KEYS, "unknown"])),
        "all maintenances": lambda: list(pages(lambda before: reader.list_maintenances(before=before, limit=2))),
        "some maintenances": lambda: list(
            pages(lambda before: reader.list_maintenances(selection=SOME_STATES, before=before, limit=1))
        ),
        "maintenance": lambda: [reader.get_maintenance(i) for i in ids],
        "events": lambda: reader.find_events_of(iter(ids)),
        "audit_log": lambda: list(pages(lambda after: reader.list_entries(after=after or 0, limit=3))),
        "audit-log of one": lambda: list(
            pages(
                lambda after: reader.list_entries(after=after or 0, limit=1, selection=Selection(maintenance_id="m-1"))
            )
        ),
        "end of the audit log": lambda: [
            [(e.sequence, e) for e in reader.list_entries(after=after, limit=2, newest=True).items]
            for after in (0, 1, 4)
        ],
        "links": lambda: all_links(reader),
        "nth newest of a tenant": lambda: [
            reader.find_nth_newest_of_tenant(key, NOW + minutes(since), n)
            for key in ("red", "blue")
            for since in (0, 1)
            for n in (1, 2)
        ],
        "excess": lambda: [reader.get_newest_excess_at(count) for count in (0, 1, 3, 50)],
        "counts": lambda: dict(reader.count_by_state()),
        "next due": lambda: [reader.next_due_at(), reader.next_due_at(iter(["m-1", "m-2"]))],
        "next silent": reader.next_inactive_at,
        "due": lambda: [reader.list_due(NOW + minutes(n), 2) for n in range(LATEST + 1)],
        "silent": lambda: [reader.list_inactive(NOW + minutes(n), 2) for n in range(LATEST + 1)],
        "outcomes": lambda: [reader.get_idempotency_record(key) for key in ("k", "l", "m")],
        "maintenances by id": lambda: reader.find_maintenances(iter(ids)),
        "looks": lambda: [
            reader.next_alert_check_at(),
            *(reader.list_due_alert_checks(NOW + minutes(n), 2) for n in range(LATEST + 1)),
        ],
        "subscriptions": reader.list_subscriptions,
        "deliveries": lambda: [
            reader.list_deliveries(i, state, after=after, limit=2)
            for i in ("s-1", "s-2")
            for state in DeliveryState
            for after in ((0, ""), (1, "B"), (2, "a"))
        ],
        "delivery counts": lambda: dict(reader.count_deliveries()),
        "fingerprint": reader.get_inventory_fingerprint,
        "clock": reader.get_clock_kind,
    }
    return {name: answered(ask) for name, ask in asked.items()}


def working_sets(tx: Transaction) -> Mapping[str, object]:
    """Everything that a transaction loads, and the next number."""
    asked: dict[str, Callable[[], object]] = {
        "active": lambda: sorted(tx.list_active_ids()),
        "of hosts": lambda: loaded(tx.load_targets(iter(HOSTS[:2]), ())),
        "of vms": lambda: loaded(tx.load_targets((), iter(["a", "unknown"]))),
        "of one": lambda: loaded(tx.load_maintenances(iter(["m-1", "unknown"]))),
        "of neighbours": lambda: loaded(tx.load_maintenances(["m-2"], with_neighbours=True)),
        "of two": lambda: loaded(tx.load_maintenances(["m-3"], into=tx.load_maintenances(["m-1"]))),
        "of events": lambda: [loaded(tx.load_events(iter(ids))) for ids in (EVENTS[:1], EVENTS)],
        "of audiences": lambda: [loaded(tx.load_audiences(iter(keys))) for keys in (KEYS[:1], KEYS)],
        "number": tx.next_sequence,
    }
    return {name: answered(ask) for name, ask in asked.items()}


def compare(sql: Store, memory: Store) -> None:
    with sql.read() as theirs, memory.read() as ours:
        assert told(ours) == told(theirs)
    with sql.write() as theirs, memory.write() as ours:
        assert working_sets(ours) == working_sets(theirs)


@pytest.fixture(scope="module")
def blank() -> Iterator[Callable[[], SqlStore]]:
    """A database in memory, made empty by each call: making one takes longer than to play on it."""
    store = SqlStore("sqlite://")
    assert store._writer is not None
    driver = store._writer.raw_connection().driver_connection
    assert driver is not None
    content = driver.serialize()

    def empty() -> SqlStore:
        driver.deserialize(content)
        return store

    yield empty
    store.close()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(
    played=st.lists(transactions, min_size=1, max_size=6),
    selections=st.lists(st.sampled_from(SELECTIONS), min_size=3, max_size=3),
)
def test_the_store_in_memory_tells_what_the_store_on_sql_tells(
    blank: Callable[[], SqlStore], played: list[tuple[list[Operation], bool]], selections: list[Selection]
) -> None:
    sql, memory = blank(), MemoryStore()
    played = [([Operation(Transaction.save.__name__, (WORLD,))], False), *played]
    for works, fails in played:
        assert carry_out(memory, works, fails=fails) == carry_out(sql, works, fails=fails)
    compare(sql, memory)
    with sql.read() as theirs, memory.read() as ours:
        for selection in selections:
            assert chosen(ours, selection) == chosen(theirs, selection)


def test_what_the_store_handed_out_and_what_it_was_given_can_be_changed_without_changing_it() -> None:
    store = MemoryStore()
    given_in: dict[str, Any] = {"maintenances": ["m"]}
    with store.write() as tx:
        tx.save_idempotency_record(IdempotencyRecord(key="k", fingerprint="f", outcome=given_in, at=NOW))
    given_in["maintenances"].append("later")
    with store.read() as reader:
        found = reader.get_idempotency_record("k")
        assert found is not None
        found.outcome["maintenances"].clear()
        again = reader.get_idempotency_record("k")
    assert again is not None
    assert again.outcome == {"maintenances": ["m"]}


@pytest.mark.parametrize("error", [Conflict("it shall not be"), KeyboardInterrupt()], ids=type)
def test_a_block_that_raises_whatever_leaves_everything_as_it_was(error: BaseException) -> None:
    store = MemoryStore()
    first = replace(maintenance(vm("a"), id="first"), due_at=NOW)
    save(store, first, an_event(maintenance_id="first"), Audience(key="vm:a", enabled_at=NOW, active_until=NOW))
    with store.read() as reader:
        before = told(reader)

    def work() -> None:
        with store.write() as tx:
            tx.save(ChangeSet(maintenances={"first": replace(first, state=S.CANCELED, ended_at=NOW, due_at=None)}))
            tx.replace_inventory(Inventory(vms=(vm("a"),)), "f")
            tx.extend_active_until({"vm:a": NOW + minutes(1)})
            tx.prune_history(NOW + minutes(1), NOW, 9)
            raise error

    with pytest.raises(type(error)):
        work()
    with store.read() as reader:
        assert told(reader) == before


def test_a_key_or_number_that_is_there_already_is_refused_in_words_that_name_it() -> None:
    store = MemoryStore()
    save(store, maintenance(id="m"))
    for second in (maintenance(id="m", sequence=2), maintenance(id="n")):
        with pytest.raises(StoreUnavailable, match=f"cannot store maintenance '{second.id}'"):
            save(store, second)


def test_both_refuse_an_address_of_two_vms(blank: Callable[[], SqlStore]) -> None:
    twice = Inventory(vms=tuple(replace(vm(name), addresses=("10.0.0.1",)) for name in ("a", "b")))
    for store in (blank(), MemoryStore()):
        works = [Operation(Transaction.replace_inventory.__name__, (twice, "f"))]
        assert carry_out(store, works, fails=False) == [StoreUnavailable]


def test_both_forget_entries_of_no_maintenance_only_with_the_last_old_maintenance(
    blank: Callable[[], SqlStore],
) -> None:
    ended = [maintenance(id=f"m-{n}", sequence=n, state=S.CANCELED, ended_at=NOW) for n in (1, 2)]
    for store in (blank(), MemoryStore()):
        save(store, *ended, AuditEntry(kind=EntryKind.CLOCK_ADVANCED, at=NOW, actor="forewarn"))
        with store.write() as tx:
            left = [
                (tx.prune_history(NOW + minutes(1), NOW, 1).maintenances, len(tx.list_entries().items))
                for _ in range(3)
            ]
        assert left == [(1, 1), (1, 1), (0, 0)]


def test_closing_forgets_everything() -> None:
    store = MemoryStore()
    save(store, maintenance(id="m"))
    store.close()
    with store.read() as reader:
        assert reader.get_maintenance("m") is None


def test_a_read_waits_until_a_transaction_is_over() -> None:
    store = MemoryStore()
    found: list[int] = []

    def read() -> None:
        with store.read() as reader:
            found.append(len(reader.list_maintenances().items))

    with store.write() as tx:
        tx.save(ChangeSet(maintenances={"m": maintenance(id="m")}, created={"m"}))
        thread = threading.Thread(target=read)
        thread.start()
        thread.join(0.05)
        assert found == []
    thread.join()
    assert found == [1]

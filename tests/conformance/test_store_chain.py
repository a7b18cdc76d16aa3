"""What every store owes to who checks the audit log: hash chains that tampering breaks, and retention does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forewarn.core.audit_chain import (
    Chain,
    ChainFault,
    ChainHead,
    ChainVerifier,
    append_entry,
    choose_chain,
    hash_entry,
)
from forewarn.core.model import AuditEntry, EntryKind, MaintenanceState
from forewarn.errors import StoreUnavailable
from forewarn.store import SqlStore, Store
from forewarn.store import tables as t
from forewarn.store.audit_chain import HEADS, encode_heads, parse_heads
from forewarn.store.contract import Reader
from tests.support.databases import Database, Dictionaries, PostgreSql, save
from tests.support.world import NOW, minutes
from tests.unit.core.builders import maintenance

K = EntryKind
S = MaintenanceState
OPERATOR, TENANT = "operator:ann", "tenant:red"


def note(number: int, actor: str = TENANT, kind: EntryKind = K.SCHEDULED, **about: str) -> AuditEntry:
    return AuditEntry(kind=kind, at=NOW + minutes(number), actor=actor, reason=f"reason {number}", **about)  # type: ignore[arg-type] # names of fields that are text


def verified(reader: Reader, **noted: Sequence[ChainHead]) -> ChainVerifier:
    verifier = ChainVerifier({Chain(name): heads for name, heads in noted.items()})
    page = reader.get_link_page(None, 3)
    verifier.verify_page(page)
    while page.next is not None:
        page = reader.get_link_page(page.next, 3)
        verifier.verify_page(page)
    return verifier


def verify(store: Store, **noted: Sequence[ChainHead]) -> ChainVerifier:
    with store.read() as reader:
        return verified(reader, **noted)


def test_an_empty_audit_log_is_whole(store: Store) -> None:
    found = verify(store)
    assert found.findings == []
    assert {chain: report.head for chain, report in found.chains.items()} == {chain: ChainHead() for chain in Chain}


def test_entries_of_operators_and_of_tenants_are_in_chains_apart(store: Store) -> None:
    for number in range(1, 8):
        save(store, note(number, OPERATOR if number % 3 == 0 else TENANT))
    found = verify(store)
    assert found.findings == []
    assert {chain: report.entries for chain, report in found.chains.items()} == {Chain.AUDIT: 2, Chain.EVENTS: 5}


@pytest.mark.parametrize(
    ("kind", "actor", "chain"),
    [
        (K.SCHEDULED, OPERATOR, Chain.AUDIT),
        (K.REFUSED, "unknown", Chain.AUDIT),
        (K.REFUSED, TENANT, Chain.AUDIT),
        (K.PRUNED, "forewarn", Chain.AUDIT),
        (K.TOKEN_CREATED, OPERATOR, Chain.AUDIT),
        (K.SCHEDULED, TENANT, Chain.EVENTS),
        (K.APPROVED, "vm:db", Chain.EVENTS),
        (K.ENABLED, "vm:db", Chain.EVENTS),
        (K.COMPLETED, "actuator", Chain.EVENTS),
        (K.CLOCK_JUMPED, "forewarn", Chain.AUDIT),
        (K.INVENTORY_APPLIED, "host:host-1", Chain.EVENTS),
        (K.REFUSED, "host:host-1", Chain.AUDIT),
    ],
)
def test_what_a_tenant_can_cause_without_a_limit_is_no_audit_entry(kind: EntryKind, actor: str, chain: Chain) -> None:
    assert choose_chain(note(1, actor, kind)) is chain


def test_a_hash_covers_every_field_the_number_the_chain_and_what_was_before() -> None:
    entry = note(1)
    others = [replace(entry, at=NOW), replace(entry, kind=K.FAILED)]
    texts = ("actor", "maintenance_id", "event_id", "audience", "vm", "source_address", "api_version", "reason")
    others += [replace(entry, **{name: "x"}) for name in texts]  # type: ignore[arg-type] # fields that are text
    hashes = {hash_entry(bytes(32), Chain.EVENTS, 1, each) for each in (entry, *others)}
    hashes |= {hash_entry(bytes(32), Chain.AUDIT, 1, entry), hash_entry(bytes(32), Chain.EVENTS, 2, entry)}
    hashes |= {hash_entry(b"\1" * 32, Chain.EVENTS, 1, entry)}
    assert len(hashes) == len(others) + 4


def test_a_head_that_was_noted_is_found_again_and_a_different_one_is_not(store: Store) -> None:
    save(store, note(1), note(2, OPERATOR))
    heads = {chain: report.head for chain, report in verify(store).chains.items()}
    save(store, note(3), note(4, OPERATOR))
    noted = {chain.value: [ChainHead.parse(str(head))] for chain, head in heads.items()}
    assert verify(store, **noted).findings == []
    events = heads[Chain.EVENTS]
    for wrong in (replace(events, hash=bytes(32)), replace(events, sequence=99)):
        (finding,) = verify(store, events=[wrong]).findings
        assert finding.fault is ChainFault.HEAD


@pytest.mark.parametrize("text", ["", "x", "1", "1:", "1:00", f"-1:{'0' * 64}", f"1:{'g' * 64}"])
def test_a_head_that_is_written_differently_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ChainHead.parse(text)


# Retention


def test_audit_entries_are_forgotten_by_their_own_age_and_the_rest_by_its(store: Store) -> None:
    ended = maintenance(id="m", state=S.CANCELED, ended_at=NOW)
    save(store, ended, *(note(n, OPERATOR if n % 2 else TENANT, maintenance_id="m") for n in range(6)), note(6))
    with store.write() as tx:
        assert tx.prune_history(NOW + minutes(60), NOW, 10, NOW + minutes(3)).entries == 4 + 1
    with store.read() as reader:
        assert [entry.reason for entry in reader.list_entries().items] == ["reason 3", "reason 5"]
        assert verified(reader).findings == []
    save(store, note(7), note(8, OPERATOR))
    assert verify(store).findings == []


def test_what_is_forgotten_before_and_after_older_gaps_becomes_one_gap_with_them(store: Store) -> None:
    made = [maintenance(id=i, sequence=900 + n, state=S.SCHEDULED, not_before=NOW) for n, i in enumerate("ab")]
    save(store, *made)
    save(store, *(note(n, maintenance_id="ab"[n % 2]) for n in range(8)))
    for each in made:
        save(store, replace(each, state=S.CANCELED, ended_at=NOW), is_new=False)
        with store.write() as tx:
            tx.prune_history(NOW + minutes(1), NOW, 2, NOW)
    report = verify(store).chains[Chain.EVENTS]
    assert (report.entries, report.gaps) == (0, 1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    actors=st.lists(st.sampled_from([OPERATOR, TENANT, "vm:db"]), min_size=1, max_size=25),
    owners=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=25, max_size=25),
    moments=st.lists(st.tuples(st.integers(0, 25), st.integers(0, 25), st.sampled_from("abc")), max_size=4),
    make=st.sampled_from([lambda: SqlStore("sqlite://"), Dictionaries().open]),
)
def test_whatever_retention_forgets_the_rest_can_be_verified_and_gaps_are_few(
    actors: list[str], owners: list[str | None], moments: list[tuple[int, int, str]], make: Callable[[], Store]
) -> None:
    store = make()
    save(store, *(maintenance(id=i, sequence=n + 900, state=S.SCHEDULED, not_before=NOW) for n, i in enumerate("abc")))
    for number, (actor, owner) in enumerate(zip(actors, owners, strict=False)):
        save(store, replace(note(number, actor), maintenance_id=owner))
    head = verify(store).chains[Chain.AUDIT].head
    for number, (until, audit_until, ended) in enumerate(moments):
        made = maintenance(id=ended, sequence="abc".index(ended) + 900, state=S.CANCELED, ended_at=NOW)
        save(store, made, note(30 + number), is_new=False)
        with store.write() as tx:
            tx.prune_history(NOW + minutes(until), NOW, 2, NOW + minutes(audit_until))
        found = verify(store, audit=[head])
        assert found.findings == []
        for report in found.chains.values():
            assert report.gaps <= report.entries + 1
    store.close()


# Tampering


class Tampered:
    """An audit log of fifteen entries in which somebody has changed something, by SQL."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        for number in range(1, 16):
            save(store, note(number, OPERATOR if number % 3 == 0 else TENANT))
        with store.read() as reader:
            self.heads = {chain: report.head for chain, report in verified(reader).chains.items()}

    def run(self, *statements: str) -> ChainVerifier:
        with self._store.write() as tx:
            for statement in statements:
                tx._connection.exec_driver_sql(statement)
        return verify(self._store)


@pytest.fixture
def sql_store(shared_database: Database) -> Iterator[SqlStore]:
    store = shared_database.open()
    yield store
    store.close()


@pytest.fixture
def tampered(sql_store: SqlStore) -> Tampered:
    return Tampered(sql_store)


def test_a_changed_entry_is_found_at_its_number(tampered: Tampered) -> None:
    (finding,) = tampered.run("UPDATE audit_log SET actor = 'tenant:blue' WHERE sequence = 7").findings
    assert (finding.chain, finding.sequence, finding.fault) == (Chain.EVENTS, 7, ChainFault.BROKEN)
    assert finding.message.startswith("entry 7 (events): hash does not match")


def test_a_removed_entry_is_found_at_the_next_of_its_chain(tampered: Tampered) -> None:
    found = tampered.run("DELETE FROM audit_log WHERE sequence = 6").findings
    assert [(each.chain, each.sequence) for each in found] == [(Chain.AUDIT, 9)]


def test_an_entry_that_moves_to_the_other_chain_is_found(tampered: Tampered) -> None:
    assert tampered.run("UPDATE audit_log SET chain = 'events' WHERE sequence = 6").findings_total >= 2


def test_entries_removed_at_the_end_or_the_beginning_are_found(tampered: Tampered) -> None:
    (end,) = tampered.run("DELETE FROM audit_log WHERE sequence = 15").findings
    assert (end.chain, end.sequence, end.fault) == (Chain.AUDIT, 12, ChainFault.END)
    found = tampered.run("DELETE FROM audit_log WHERE sequence <= 3").findings
    assert {(each.chain, each.sequence) for each in found} == {(Chain.AUDIT, 6), (Chain.EVENTS, 4), (Chain.AUDIT, 12)}


def test_an_audit_entry_that_is_removed_as_retention_removes_others_is_found(tampered: Tampered) -> None:
    insert = "INSERT INTO audit_log_forgotten SELECT chain, sequence, hash FROM audit_log WHERE sequence = 9"
    (finding,) = tampered.run(insert, "DELETE FROM audit_log WHERE sequence = 9").findings
    assert (finding.sequence, finding.fault) == (9, ChainFault.GAP)


@pytest.mark.parametrize("number", [-1, 0])
def test_an_inserted_entry_is_found(tampered: Tampered, number: int) -> None:
    columns = "at, kind, actor, chain, hash"
    values = f"SELECT {number}, {columns} FROM audit_log WHERE sequence = 6"  # noqa: S608 - a test
    found = tampered.run(f"INSERT INTO audit_log (sequence, {columns}) {values}").findings
    assert (found[0].sequence, found[0].fault) == (number, ChainFault.BROKEN)


@pytest.mark.parametrize("column", ["chain", "hash"])
def test_no_entry_is_outside_of_the_chains(tampered: Tampered, column: str) -> None:
    with pytest.raises(StoreUnavailable, match=column):
        tampered.run(f"UPDATE audit_log SET {column} = NULL WHERE sequence = 6")  # noqa: S608 - a test


def test_who_rewrites_the_chain_to_its_end_is_found_by_a_head_noted_elsewhere(
    tampered: Tampered, sql_store: SqlStore
) -> None:
    tampered.run("UPDATE audit_log SET actor = 'operator:eve' WHERE sequence = 6")
    rewrite(sql_store)
    assert verify(sql_store).findings == []
    (finding,) = verify(sql_store, audit=[tampered.heads[Chain.AUDIT]]).findings
    assert (finding.sequence, finding.fault) == (15, ChainFault.HEAD)


def rewrite(store: SqlStore) -> None:
    """As somebody who knows how it is done can do."""
    with store.write() as tx:
        heads = parse_heads(None)
        entries = tx.list_entries().items
        chained = [(e.sequence, e, *append_entry(heads, e.sequence, e)) for e in entries]
        tx._connection.execute(sa.delete(t.audit_log))
        tx._insert_entries(chained)
        tx._connection.execute(sa.update(t.meta).where(t.meta.c.key == HEADS).values(value=encode_heads(heads)))


FIELDS = ("actor", "reason", "kind", "chain", "hash")
SPOTS = st.integers(1, 15)
TAMPERING = st.one_of(
    st.tuples(st.just("change"), SPOTS, st.sampled_from(FIELDS)),
    st.tuples(st.just("remove"), SPOTS, st.just("")),
    st.tuples(st.just("insert"), SPOTS, st.just("")),
    st.tuples(st.just("swap"), SPOTS, SPOTS.map(str)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.lists(TAMPERING, min_size=1, max_size=3))
def test_no_tampering_goes_unnoticed(works: list[tuple[str, int, str]]) -> None:
    store = SqlStore("sqlite://")
    tampered = Tampered(store)
    before = contents(store)
    statements = [statement for work in works for statement in said(*work)]
    found = tampered.run(*statements)
    assert bool(found.findings) == (contents(store) != before)
    store.close()


def contents(store: SqlStore) -> list[tuple[object, ...]]:
    with store.read() as reader:
        return [
            tuple(row) for row in reader._connection.execute(sa.select(t.audit_log).order_by(t.audit_log.c.sequence))
        ]


def said(what: str, spot: int, more: str) -> list[str]:
    """Statements of SQL that do it; rows of other numbers are moved out of the way first."""
    match what:
        case "change":
            values = {"kind": "'failed'", "chain": "'audit'", "hash": "zeroblob(32)"}
            value = values.get(more, "'x'")
            return [f"UPDATE audit_log SET {more} = {value} WHERE sequence = {spot}"]  # noqa: S608 - a test
        case "remove":
            return [f"DELETE FROM audit_log WHERE sequence = {spot}"]  # noqa: S608 - a test
        case "insert":
            shown = ", ".join(column.name for column in t.audit_log.columns if column.name != "sequence")
            select = f"SELECT {100 + spot}, {shown} FROM audit_log WHERE sequence = {spot}"  # noqa: S608 - a test
            return [f"INSERT OR IGNORE INTO audit_log (sequence, {shown}) {select}"]
        case _:
            moves = [(spot, 1000 + spot), (int(more), spot), (1000 + spot, int(more))]
            return [f"UPDATE OR IGNORE audit_log SET sequence = {new} WHERE sequence = {old}" for old, new in moves]  # noqa: S608 - a test


# Several processes


@pytest.mark.slow
def test_replicas_on_postgresql_write_one_chain(server: PostgreSql) -> None:
    with server.database() as made:
        replicas = [made.open(busy_timeout_ms=60_000) for _ in range(3)]

        def write(replica: Store) -> None:
            for number in range(20):
                save(replica, note(number, OPERATOR if number % 2 else TENANT))

        with ThreadPoolExecutor(len(replicas)) as pool:
            for done in [pool.submit(write, replica) for replica in replicas]:
                done.result()
        found = verify(replicas[0])
        assert found.findings == []
        assert {report.entries for report in found.chains.values()} == {30}
        for replica in replicas:
            replica.close()


def test_a_database_file_keeps_its_chains_over_a_restart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'forewarn.db'}"
    for number in range(3):
        store = SqlStore(url)
        save(store, note(number), note(number, OPERATOR))
        assert verify(store).findings == []
        store.close()

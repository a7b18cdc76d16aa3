"""What a tenant owns and is shown; what a token says."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from forewarn.core.access import FILE_OPERATOR, Ownership, Principal, Role, Token
from forewarn.core.model import AuditEntry, Claim, EntryKind, Scope, ScopeKind, VirtualMachine
from forewarn.core.selection import Selection
from tests.support.world import NOW
from tests.unit.core.builders import an_event, maintenance, vm

SHOP = Principal(
    actor="tenant:shop", role=Role.TENANT, scopes=frozenset({"web"}), vms=frozenset({"db", "Web_9", "solo"})
)
HELD = replace(
    maintenance(),
    hosts=("host-1",),
    force_reason="host-1 smokes",
    claims=(
        Claim(vm="Web_0", host="host-1", scope="web", fault_domain=0),
        Claim(vm="Foreign_0", host="host-1", scope="foreign", fault_domain=0),
        Claim(vm="db", host="host-1", scope=None, fault_domain=0),
        Claim(vm="Web_9", host="host-1", scope="foreign", fault_domain=0),
    ),
)


@pytest.mark.parametrize(
    ("name", "scope", "kind", "is_owned"),
    [
        ("Web_0", "web", ScopeKind.AVAILABILITY_SET, True),
        ("db", None, None, True),
        ("solo", "names", ScopeKind.STANDALONE, True),
        ("Web_9", "foreign", ScopeKind.SCALE_SET, False),
        ("other", None, None, False),
    ],
)
def test_a_scope_is_owned_as_a_whole_and_a_vm_by_name_only_if_it_stands_alone(
    name: str, scope: str | None, kind: ScopeKind | None, *, is_owned: bool
) -> None:
    """R58."""
    known = None if scope is None or kind is None else Scope(name=scope, kind=kind)
    assert SHOP.owns_vm(replace(vm(name), scope=scope), known) is is_owned
    assert FILE_OPERATOR.owns_vm(replace(vm(name), scope=scope), known)


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.READ_ONLY])
def test_who_may_see_everything_is_shown_everything(role: Role) -> None:
    who = Principal(actor=f"{role}:x", role=role)
    entry = AuditEntry(kind=EntryKind.FAILED, at=NOW, actor="actuator", reason="host-1 burnt")
    assert who.ownership is None
    assert who.redact_maintenance(HELD) == HELD
    assert who.redact_entry(entry) == entry
    assert who.redact_events(HELD, [an_event()]) == [an_event()]


def test_a_host_owns_nothing() -> None:
    who = Principal(actor="host:h", role=Role.HOST, host="h")
    assert who.ownership == Ownership()
    assert not who.owns_vm(vm("db"))


def test_of_a_maintenance_a_tenant_is_shown_its_vms_and_neither_hosts_nor_reasons() -> None:
    shown = SHOP.redact_maintenance(HELD)
    assert (shown.vms, shown.hosts, shown.force_reason) == (("Web_0", "db"), (), None)
    assert not SHOP.owns_maintenance(HELD)
    assert SHOP.owns_maintenance(shown)


def test_events_of_others_are_left_out_and_operators_have_no_name() -> None:
    own = replace(an_event(), resources=("Web_0",), approved_at=NOW, approved_by="operator:ann")
    foreign = replace(an_event(), resources=("Foreign_0",))
    assert SHOP.redact_events(HELD, [own, foreign]) == [replace(own, approved_by="operator")]
    for approver in ("vm:Web_1", "policy", "tenant:shop"):
        by = replace(own, approved_by=approver)
        assert SHOP.redact_events(HELD, [by]) == [by]


@pytest.mark.parametrize(
    ("kind", "actor", "shown_actor", "is_told"),
    [
        (EntryKind.CANCELED, "operator:ann", "operator", False),
        (EntryKind.CANCELED, "tenant:shop", "tenant:shop", True),
        (EntryKind.CANCELED, "tenant:rival", "tenant", False),
        (EntryKind.FAILED, "actuator", "actuator", False),
        (EntryKind.IMPACT_MEASURED, "actuator", "actuator", True),
        (EntryKind.APPROVED, "vm:Web_0", "vm:Web_0", False),
        (EntryKind.STARTED, "vm:db", "vm:db", False),
        (EntryKind.STARTED, "vm:Foreign_0", "vm", False),
        (EntryKind.APPROVED, "host:host-1", "host", False),
    ],
)
def test_words_of_others_are_not_told(kind: EntryKind, actor: str, shown_actor: str, *, is_told: bool) -> None:
    shown = SHOP.redact_entry(AuditEntry(kind=kind, at=NOW, actor=actor, reason="words", sequence=7))
    assert (shown.actor, shown.reason, shown.sequence) == (shown_actor, "words" if is_told else None, 7)


def test_a_token_is_taken_before_it_ends() -> None:
    token = Token(id="t", name="ann", role=Role.OPERATOR, digest="d", created_at=NOW, created_by="", expires_at=NOW)
    assert not token.is_valid(NOW)
    assert token.is_valid(NOW - timedelta(microseconds=1))
    assert not replace(token, expires_at=None, revoked_at=NOW).is_valid(NOW - timedelta(days=1))
    assert token.to_principal().actor == "operator:ann"
    assert replace(token, role=Role.HOST, host="h").to_principal().actor == "host:h"


# Entries of the audit log

OWNED = Ownership(scopes=frozenset({"web"}), vms=frozenset({"db", "Web_9"}))
VMS = {name: vm(name) for name in ("db", "other")} | {"Web_9": replace(vm("Web_9"), scope="foreign")}


def entry_of(**about: str) -> AuditEntry:
    return replace(AuditEntry(kind=EntryKind.STARTED, at=NOW, actor="forewarn"), **about)  # type: ignore[arg-type] # of any field


def find_vm(name: str) -> tuple[VirtualMachine, Scope | None] | None:
    found = VMS.get(name)
    return None if found is None else (found, None)


@pytest.mark.parametrize(
    ("about", "is_owned"),
    [
        ({"audience": "scope:web"}, True),
        ({"audience": "scope:foreign"}, False),
        ({"audience": "vm:web"}, False),  # a VM of that name is no scope
        ({"audience": "vm:db"}, True),
        ({"audience": "vm:other"}, False),
        ({"vm": "db"}, True),
        ({"vm": "other"}, False),
        ({"vm": "Web_9"}, False),  # it has joined the scope of another tenant
        ({"vm": "gone"}, False),
        ({"vm": "db", "audience": "scope:foreign"}, True),
        ({}, False),
    ],
)
def test_an_entry_without_a_maintenance_belongs_to_the_owner_of_what_it_names(
    about: dict[str, str], is_owned: bool
) -> None:
    assert OWNED.has_entry(entry_of(**about), None, find_vm) is is_owned


@pytest.mark.parametrize(
    ("about", "is_owned"),
    [
        ({}, True),
        ({"vm": "Web_0"}, True),
        ({"vm": "Foreign_0"}, False),
        ({"vm": "Web_9"}, False),  # by its claim it was another tenant's
        ({"audience": "scope:web"}, True),
        ({"audience": "vm:db"}, True),
        ({"audience": "scope:foreign"}, False),
        ({"audience": "scope:web", "event_id": "E"}, True),
        ({"event_id": "E"}, False),  # of whose VMs it is, nothing says
    ],
)
def test_an_entry_of_a_maintenance_belongs_to_the_owner_of_its_claims(about: dict[str, str], is_owned: bool) -> None:
    entry = entry_of(maintenance_id="m", **about)
    assert OWNED.has_entry(entry, HELD, find_vm) is is_owned
    assert not OWNED.has_entry(entry, None, find_vm)


def test_the_claim_that_makes_an_entry_the_tenants_is_at_the_selected_place() -> None:
    entry = entry_of(maintenance_id="m")
    assert OWNED.has_entry(entry, HELD, find_vm, Selection(vm="Web_0"))
    assert not OWNED.has_entry(entry, HELD, find_vm, Selection(vm="Foreign_0"))
    assert not OWNED.has_entry(entry, HELD, find_vm, Selection(host="host-2"))

"""What the verification of the audit log's chains finds, beyond what a database can be made to hold."""

from __future__ import annotations

from forewarn.core.audit_chain import (
    Chain,
    ChainFault,
    ChainFinding,
    ChainHead,
    ChainLink,
    ChainPage,
    ChainVerifier,
    append_entry,
)
from forewarn.core.model import AuditEntry, EntryKind
from tests.support.world import NOW


def test_a_number_that_appears_twice_is_found() -> None:
    """Entries of the two chains share one sequence, so each chain alone would be whole."""
    heads = {chain: ChainHead() for chain in Chain}
    links = []
    for actor in ("operator:ann", "vm:web-0"):
        entry = AuditEntry(kind=EntryKind.APPROVED, at=NOW, actor=actor)
        chain, digest = append_entry(heads, 7, entry)
        links.append(ChainLink(sequence=7, chain=chain, hash=digest, entry=entry))
    verifier = ChainVerifier()
    verifier.verify_page(ChainPage(links=tuple(links), heads=heads, oldest=dict.fromkeys(Chain, 7), next=None))
    message = "entry 7 (events): duplicate sequence number"
    assert verifier.findings == [ChainFinding(chain=Chain.EVENTS, sequence=7, fault=ChainFault.BROKEN, message=message)]
    assert verifier.findings_total == 1

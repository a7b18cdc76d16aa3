"""Hash chains over the audit log: each entry carries a hash over its content and the hash of the entry before it.

There are two chains. `Chain.AUDIT` holds operator actions and refusals; it is pruned by age alone, so what is left is
always the end of a sequence without gaps. `Chain.EVENTS` holds what tenants, VMs and the passing of time caused; a
maintenance is deleted as a whole, so entries may be missing in the middle. For each run of deleted entries the last
number and its hash are kept, and the chain continues from there. See `docs/adr/0028-audit-log-chain.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from hashlib import sha256

import msgspec

from forewarn.core.model import AuditEntry, EntryKind

__all__ = [
    "START",
    "Chain",
    "ChainFault",
    "ChainFinding",
    "ChainHead",
    "ChainLink",
    "ChainPage",
    "ChainReport",
    "ChainVerifier",
    "append_entry",
    "choose_chain",
    "hash_entry",
]

START = bytes(32)
"""Hash that the first entry of a chain follows."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_HASH_BYTES = 32
_FINDINGS_MAX = 100
_encode = msgspec.json.Encoder().encode


class Chain(StrEnum):
    """Chain of audit log entries with common retention."""

    AUDIT = "audit"
    """Operator actions, access and refusals; pruned by age alone."""
    EVENTS = "events"
    """Entries caused by tenants, VMs and the passing of time; pruned by age and by number."""


_AUDIT_KINDS = frozenset(
    {
        EntryKind.INVENTORY_APPLIED,
        EntryKind.TOKEN_CREATED,
        EntryKind.TOKEN_REVOKED,
        EntryKind.REFUSED,
        EntryKind.CLOCK_ADVANCED,
        EntryKind.CLOCK_JUMPED,
        EntryKind.CLOCK_CONFIRMED,
        EntryKind.ROLLOUT,
        EntryKind.FAULT_INJECTED,
        EntryKind.FAULT_CLEARED,
        EntryKind.PRUNED,
        EntryKind.SUBSCRIPTION,
    }
)
"""Kinds that no tenant and no VM can cause, or whose number is limited elsewhere (`refused_entries_max`)."""


def choose_chain(entry: AuditEntry) -> Chain:
    """Return the chain that an entry belongs to."""
    # A refusal counts here even if a VM caused it, because the number of refusals is limited elsewhere.
    if entry.kind is EntryKind.REFUSED or entry.actor.startswith("operator:"):
        return Chain.AUDIT
    # A host declares its own VMs as often as it likes, so retention by age alone would not bound its entries.
    is_ours = entry.kind in _AUDIT_KINDS and not entry.actor.startswith("host:")
    return Chain.AUDIT if is_ours else Chain.EVENTS


def hash_entry(previous: bytes, chain: Chain, sequence: int, entry: AuditEntry) -> bytes:
    """Return the hash of an entry.

    Args:
        previous: Hash of the entry before it in the same chain; `START` for the first.
        chain: The chain.
        sequence: Number of the entry; `AuditEntry.sequence` is ignored, because a new entry has none yet.
        entry: The content.
    """
    # An array keeps the fields apart: in concatenated text, characters could move to the next field unnoticed.
    content = (
        chain.value,
        sequence,
        # An integer, because the text form of a time differs between databases.
        (entry.at - _EPOCH) // _MICROSECOND,
        entry.kind.value,
        entry.actor,
        entry.maintenance_id,
        entry.event_id,
        entry.audience,
        entry.vm,
        entry.source_address,
        entry.api_version,
        entry.reason,
    )
    return sha256(previous + _encode(content)).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainHead:
    """Last entry of a chain at some moment. A copy kept outside the database proves later that nothing was changed.

    Attributes:
        sequence: Number of the entry; 0 if there was none yet.
        hash: Hash of the entry.
    """

    sequence: int = 0
    hash: bytes = START

    def __str__(self) -> str:
        """Return the printed form, ``SEQUENCE:HASH``."""
        return f"{self.sequence}:{self.hash.hex()}"

    @classmethod
    def parse(cls, text: str) -> ChainHead:
        """Parse the printed form.

        Raises:
            ValueError: `text` is not ``SEQUENCE:HASH``.
        """
        number, _, digits = text.partition(":")
        found = cls(sequence=int(number), hash=bytes.fromhex(digits))
        if found.sequence < 0 or len(found.hash) != _HASH_BYTES:
            raise ValueError(f"{text!r} is not SEQUENCE:HASH")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """One link of a chain, as stored.

    Attributes:
        entry: The entry; None for the last of a run of entries deleted by retention.
    """

    sequence: int
    chain: Chain
    hash: bytes
    entry: AuditEntry | None


def append_entry(heads: dict[Chain, ChainHead], sequence: int, entry: AuditEntry) -> tuple[Chain, bytes]:
    """Chain a new entry, which becomes the head of its chain in `heads`; return its chain and its hash."""
    chain = choose_chain(entry)
    digest = hash_entry(heads[chain].hash, chain, sequence, entry)
    heads[chain] = ChainHead(sequence=sequence, hash=digest)
    return chain, digest


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainPage:
    """Part of both chains, in order of sequence numbers, in one consistent view.

    Attributes:
        heads: Last entry of each chain according to the store.
        oldest: Number of the oldest entry kept in each chain; no key if there is none.
        next: Position of the next page; None at the end.
    """

    links: tuple[ChainLink, ...]
    heads: Mapping[Chain, ChainHead]
    oldest: Mapping[Chain, int]
    next: int | None


class ChainFault(StrEnum):
    """Kind of damage to a chain."""

    BROKEN = "broken"
    """The entry does not follow from the one before: it was changed or inserted, or one before it was removed."""
    GAP = "gap"
    """Entries were removed where retention removes none."""
    END = "end"
    """The chain does not end where the store says."""
    HEAD = "head"
    """The chain does not contain a head that was noted earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFinding:
    """One fault found in a chain.

    Attributes:
        sequence: Number of the entry at which it was noticed.
        message: One sentence for a person.
    """

    chain: Chain
    sequence: int
    fault: ChainFault
    message: str


@dataclass(slots=True, kw_only=True)
class ChainReport:
    """Summary of one chain.

    Attributes:
        entries: Number of entries kept.
        gaps: Number of runs of entries deleted by retention.
        head: Last link read.
    """

    entries: int = 0
    gaps: int = 0
    head: ChainHead = field(default_factory=ChainHead)


class ChainVerifier:
    """Verifier of both chains, from their beginnings, page by page.

    Args:
        noted: Heads noted earlier.

    Attributes:
        chains: Summary of each chain.
        findings: Faults found, at most 100.
        findings_total: Number of faults found.
    """

    def __init__(self, noted: Mapping[Chain, Iterable[ChainHead]] | None = None) -> None:
        self.chains = {chain: ChainReport() for chain in Chain}
        self.findings: list[ChainFinding] = []
        self.findings_total = 0
        self._noted = {chain: {head.sequence: head for head in (noted or {}).get(chain, ())} for chain in Chain}
        self._last: int | None = None

    def verify_page(self, page: ChainPage) -> None:
        """Verify the next page; after the last page, also check where the chains end."""
        for link in page.links:
            self._verify_link(link, page)
        if page.next is None:
            for chain in Chain:
                self._verify_end(chain, page.heads.get(chain, ChainHead()))

    def _verify_link(self, link: ChainLink, page: ChainPage) -> None:
        # Both chains share one sequence of numbers, so no number may appear twice.
        if self._last is not None and link.sequence <= self._last:
            self._add_finding(link.chain, link.sequence, ChainFault.BROKEN, "duplicate sequence number")
        self._last = link.sequence
        report = self.chains[link.chain]
        if link.entry is None:
            # A gap has no content to verify. Its stored hash is what the next entry must follow from.
            report.gaps += 1
            # Retention prunes this chain from its start only, so a gap after the oldest entry is damage.
            if link.chain is Chain.AUDIT and link.sequence > page.oldest.get(Chain.AUDIT, link.sequence):
                message = "entries up to this one are missing although older ones remain"
                self._add_finding(link.chain, link.sequence, ChainFault.GAP, message)
        else:
            report.entries += 1
            if link.hash != hash_entry(report.head.hash, link.chain, link.sequence, link.entry):
                message = "hash does not match: this entry was changed, inserted or moved, or an earlier one removed"
                self._add_finding(link.chain, link.sequence, ChainFault.BROKEN, message)
        self._compare_noted_heads(link)
        report.head = ChainHead(sequence=link.sequence, hash=link.hash)

    def _compare_noted_heads(self, link: ChainLink) -> None:
        """Check the noted heads up to this link; heads whose entry retention has deleted cannot be compared."""
        noted = self._noted[link.chain]
        for sequence in [number for number in noted if number <= link.sequence]:
            head = noted.pop(sequence)
            if sequence == link.sequence and head.hash != link.hash:
                self._add_finding(link.chain, sequence, ChainFault.HEAD, "hash differs from the noted head")
            # A noted entry inside a gap may have been pruned; before an entry without a gap it must exist. Head 0 is an
            # empty chain.
            elif sequence != link.sequence and link.entry is not None and sequence:
                self._add_finding(link.chain, sequence, ChainFault.HEAD, "the entry noted as the head is missing")

    def _verify_end(self, chain: Chain, head: ChainHead) -> None:
        report = self.chains[chain]
        if report.head != head:
            message = f"the chain ends here instead of at {head.sequence}: entries were removed or added at the end"
            self._add_finding(chain, report.head.sequence, ChainFault.END, message)
        # A noted head beyond the last link means that the chain was truncated.
        for sequence in sorted(number for number in self._noted[chain] if number):
            self._add_finding(chain, sequence, ChainFault.HEAD, "the entry noted as the head is missing")
        self._noted[chain].clear()

    def _add_finding(self, chain: Chain, sequence: int, fault: ChainFault, message: str) -> None:
        self.findings_total += 1
        if len(self.findings) < _FINDINGS_MAX:
            finding = ChainFinding(
                chain=chain, sequence=sequence, fault=fault, message=f"entry {sequence} ({chain}): {message}"
            )
            self.findings.append(finding)

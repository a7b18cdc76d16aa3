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

from forewarn.core.model import Entry, EntryKind

__all__ = [
    "START",
    "Chain",
    "ChainReport",
    "Fault",
    "Finding",
    "Head",
    "Link",
    "LinkPage",
    "Verifier",
    "chain_of",
    "link",
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


def chain_of(entry: Entry) -> Chain:
    """Return the chain that an entry belongs to."""
    if entry.kind is EntryKind.REFUSED or entry.actor.startswith("operator:"):
        return Chain.AUDIT
    # A host declares its own VMs as often as it likes, so retention by age alone would not bound its entries.
    is_ours = entry.kind in _AUDIT_KINDS and not entry.actor.startswith("host:")
    return Chain.AUDIT if is_ours else Chain.EVENTS


def link(previous: bytes, chain: Chain, sequence: int, entry: Entry) -> bytes:
    """Return the hash of an entry.

    Args:
        previous: Hash of the entry before it in the same chain; `START` for the first.
        chain: The chain.
        sequence: Number of the entry; `Entry.sequence` is ignored, because a new entry has none yet.
        entry: The content.
    """
    content = (
        chain.value,
        sequence,
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
class Head:
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
    def parse(cls, text: str) -> Head:
        """Parse the printed form.

        Raises:
            ValueError: `text` is not ``SEQUENCE:HASH``.
        """
        number, _, digits = text.partition(":")
        found = cls(sequence=int(number), hash=bytes.fromhex(digits))
        if found.sequence < 0 or len(found.hash) != _HASH_BYTES:
            msg = f"{text!r} is not SEQUENCE:HASH"
            raise ValueError(msg)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One link of a chain, as stored.

    Attributes:
        chain: Chain of the entry; None if an older version wrote it and no newer version has written since.
        hash: Hash of the entry; None as for `chain`.
        entry: The entry; None for the last of a run of entries deleted by retention.
    """

    sequence: int
    chain: Chain | None
    hash: bytes | None
    entry: Entry | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPage:
    """Part of both chains, in order of sequence numbers, in one consistent view.

    Attributes:
        heads: Last entry of each chain according to the store.
        oldest: Number of the oldest entry kept in each chain; no key if there is none.
        sealed_until: Number after which entries without a hash are an older version's; the next change will chain them.
        next: Position of the next page; None at the end.
    """

    links: tuple[Link, ...]
    heads: Mapping[Chain, Head]
    oldest: Mapping[Chain, int]
    sealed_until: int
    next: int | None


class Fault(StrEnum):
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
class Finding:
    """One fault found in a chain.

    Attributes:
        sequence: Number of the entry at which it was noticed.
        words: One sentence for a person.
    """

    chain: Chain
    sequence: int
    fault: Fault
    words: str


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
    head: Head = field(default_factory=Head)


class Verifier:
    """Verifier of both chains, from their beginnings, page by page.

    Args:
        noted: Heads noted earlier.

    Attributes:
        chains: Summary of each chain.
        findings: Faults found, at most 100.
        findings_total: Number of faults found.
    """

    def __init__(self, noted: Mapping[Chain, Iterable[Head]] | None = None) -> None:
        self.chains = {chain: ChainReport() for chain in Chain}
        self.findings: list[Finding] = []
        self.findings_total = 0
        self._noted = {chain: {head.sequence: head for head in (noted or {}).get(chain, ())} for chain in Chain}
        self._last: int | None = None

    def take(self, page: LinkPage) -> None:
        """Verify the next page; after the last page, also check where the chains end."""
        for each in page.links:
            self._follow(each, page)
        if page.next is None:
            for chain in Chain:
                self._end(chain, page.heads.get(chain, Head()))

    def _follow(self, each: Link, page: LinkPage) -> None:
        if self._last is not None and each.sequence <= self._last:
            self._find(each.chain or Chain.EVENTS, each.sequence, Fault.BROKEN, "its number is used twice")
        self._last = each.sequence
        if each.chain is None or each.hash is None:
            if each.sequence <= page.sealed_until:
                self._find(each.chain or Chain.EVENTS, each.sequence, Fault.BROKEN, "it has no hash")
            return
        report = self.chains[each.chain]
        if each.entry is None:
            report.gaps += 1
            if each.chain is Chain.AUDIT and each.sequence > page.oldest.get(Chain.AUDIT, each.sequence):
                words = "entries up to this one are missing, though older ones are kept"
                self._find(each.chain, each.sequence, Fault.GAP, words)
        else:
            report.entries += 1
            if each.hash != link(report.head.hash, each.chain, each.sequence, each.entry):
                words = "it does not follow from the entry before it: changed, inserted or moved, or one was removed"
                self._find(each.chain, each.sequence, Fault.BROKEN, words)
        self._compare(each.chain, each)
        report.head = Head(sequence=each.sequence, hash=each.hash)

    def _compare(self, chain: Chain, each: Link) -> None:
        """Check the noted heads up to this link; heads whose entry retention has deleted cannot be compared."""
        noted = self._noted[chain]
        for sequence in [number for number in noted if number <= each.sequence]:
            head = noted.pop(sequence)
            if sequence == each.sequence and head.hash != each.hash:
                self._find(chain, sequence, Fault.HEAD, "its hash is different from the head that was noted")
            elif sequence != each.sequence and each.entry is not None and sequence:
                self._find(chain, sequence, Fault.HEAD, "the entry that was noted as the head is missing")

    def _end(self, chain: Chain, head: Head) -> None:
        report = self.chains[chain]
        if report.head != head:
            words = f"the chain ends here, and not at {head.sequence}: entries were removed or added at the end"
            self._find(chain, report.head.sequence, Fault.END, words)
        for sequence in sorted(number for number in self._noted[chain] if number):
            self._find(chain, sequence, Fault.HEAD, "the entry that was noted as the head is missing")
        self._noted[chain].clear()

    def _find(self, chain: Chain, sequence: int, fault: Fault, words: str) -> None:
        self.findings_total += 1
        if len(self.findings) < _FINDINGS_MAX:
            finding = Finding(chain=chain, sequence=sequence, fault=fault, words=f"entry {sequence} ({chain}): {words}")
            self.findings.append(finding)

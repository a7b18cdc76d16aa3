"""The result of checking the audit log's hash chains, as the control API and the CLI show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict

from forewarn.core.chain import Chain, Fault, Head, Verifier
from forewarn.errors import InvalidRequest

__all__ = ["ChainOut", "FindingOut", "HeadsOut", "VerificationOut", "parse_noted", "show_head"]


class _Out(BaseModel):
    model_config = ConfigDict(frozen=True)


class HeadsOut(_Out):
    """Head of each hash chain, as ``CHAIN:SEQUENCE:HASH``."""

    heads: list[str]

    @classmethod
    def of(cls, heads: Mapping[Chain, Head]) -> HeadsOut:
        """Build from the model."""
        return cls(heads=[show_head(chain, heads.get(chain, Head())) for chain in Chain])


class ChainOut(_Out):
    """Result for one hash chain."""

    chain: Chain
    entries: int
    gaps: int
    head: str


class FindingOut(_Out):
    """A fault in a hash chain."""

    chain: Chain
    sequence: int
    fault: Fault
    message: str


class VerificationOut(_Out):
    """Result of a verification; `findings` holds at most a hundred of `findings_total`."""

    chains: list[ChainOut]
    findings: list[FindingOut]
    findings_total: int

    @classmethod
    def of(cls, verifier: Verifier) -> VerificationOut:
        """Build from the model."""
        return cls(
            chains=[
                ChainOut(chain=chain, entries=found.entries, gaps=found.gaps, head=show_head(chain, found.head))
                for chain, found in verifier.chains.items()
            ],
            findings=[
                FindingOut(chain=each.chain, sequence=each.sequence, fault=each.fault, message=each.words)
                for each in verifier.findings
            ],
            findings_total=verifier.findings_total,
        )


def show_head(chain: Chain, head: Head) -> str:
    """Return a head as it is printed and noted."""
    return f"{chain}:{head}"


def parse_noted(texts: Iterable[str]) -> dict[Chain, list[Head]]:
    """Parse heads that were noted earlier.

    Raises:
        InvalidRequest: One is not ``CHAIN:SEQUENCE:HASH``.
    """
    noted: dict[Chain, list[Head]] = {}
    for text in texts:
        name, _, rest = text.strip().partition(":")
        try:
            noted.setdefault(Chain(name), []).append(Head.parse(rest))
        except ValueError as error:
            msg = f"{text[:100]!r} is not a head of the audit log: expected CHAIN:SEQUENCE:HASH "
            msg += "(see 'forewarn audit-log head')"
            raise InvalidRequest(msg) from error
    return noted

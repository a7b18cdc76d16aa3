"""The result of checking the audit log's hash chains, as the control API and the CLI show it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forewarn.core.audit_chain import Chain, ChainFault, ChainHead, ChainVerifier
from forewarn.errors import InvalidRequest
from forewarn.wire.json_types import ResponseModel

__all__ = ["ChainFindingOut", "ChainOut", "HeadsOut", "VerificationOut", "format_head", "parse_noted_heads"]


class HeadsOut(ResponseModel):
    """Head of each hash chain, as ``CHAIN:SEQUENCE:HASH``."""

    heads: list[str]

    @classmethod
    def from_model(cls, heads: Mapping[Chain, ChainHead]) -> HeadsOut:
        """Build from the model."""
        return cls(heads=[format_head(chain, heads.get(chain, ChainHead())) for chain in Chain])


class ChainOut(ResponseModel):
    """Result for one hash chain."""

    chain: Chain
    entries: int
    gaps: int
    head: str


class ChainFindingOut(ResponseModel):
    """A fault in a hash chain."""

    chain: Chain
    sequence: int
    fault: ChainFault
    message: str


class VerificationOut(ResponseModel):
    """Result of a verification; `findings` holds at most a hundred of `findings_total`."""

    chains: list[ChainOut]
    findings: list[ChainFindingOut]
    findings_total: int

    @classmethod
    def from_verifier(cls, verifier: ChainVerifier) -> VerificationOut:
        """Build from the model."""
        return cls(
            chains=[
                ChainOut.copy_from(found, chain=chain, head=format_head(chain, found.head))
                for chain, found in verifier.chains.items()
            ],
            findings=[ChainFindingOut.copy_from(each) for each in verifier.findings],
            findings_total=verifier.findings_total,
        )


def format_head(chain: Chain, head: ChainHead) -> str:
    """Return a head as it is printed and noted."""
    return f"{chain}:{head}"


def parse_noted_heads(texts: Iterable[str]) -> dict[Chain, list[ChainHead]]:
    """Parse heads that were noted earlier.

    Raises:
        InvalidRequest: One is not ``CHAIN:SEQUENCE:HASH``.
    """
    noted: dict[Chain, list[ChainHead]] = {}
    for text in texts:
        name, _, rest = text.strip().partition(":")
        try:
            noted.setdefault(Chain(name), []).append(ChainHead.parse(rest))
        except ValueError as error:
            msg = f"{text[:100]!r} is not a head of the audit log: expected CHAIN:SEQUENCE:HASH "
            msg += "(see 'forewarn audit-log head')"
            raise InvalidRequest(msg) from error
    return noted

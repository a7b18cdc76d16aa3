"""Outcomes of requests under an ``Idempotency-Key``, stored with the changes that the request made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from forewarn.errors import IdempotencyMismatch
from forewarn.store.contract import IdempotencyRecord, Reader, Transaction

__all__ = ["IdempotencyKey", "recall_outcome", "save_outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyKey:
    """An ``Idempotency-Key`` and the fingerprint of its request."""

    key: str
    fingerprint: str


def recall_outcome(reader: Reader, key: IdempotencyKey | None) -> dict[str, Any] | None:
    """Return the outcome of the request under this key; None if it was not carried out yet.

    Raises:
        IdempotencyMismatch: The key was used for a different request.
    """
    known = None if key is None else reader.get_idempotency_record(key.key)
    if known is None or key is None:
        return None
    # A client that reuses a key by mistake must not take the outcome of another request for its own.
    if known.fingerprint != key.fingerprint:
        raise IdempotencyMismatch("this Idempotency-Key was used for a different request: use a new key")
    return known.outcome


def save_outcome(tx: Transaction, key: IdempotencyKey | None, outcome: dict[str, Any], at: datetime) -> None:
    """Store the outcome of a request under its key, in the transaction of its changes; without a key, do nothing."""
    if key is not None:
        tx.save_idempotency_record(IdempotencyRecord(key=key.key, fingerprint=key.fingerprint, outcome=outcome, at=at))

"""Trace and span ids of a maintenance: pure functions of its id, so the same in every process at any time."""

from __future__ import annotations

import hashlib

__all__ = ["derive_root_span_id", "derive_trace_id", "format_traceparent"]

_TRACE_BYTES = 16
_SPAN_BYTES = 8


def derive_trace_id(maintenance_id: str) -> int:
    """Return the trace id, 128 bits: the start of the SHA-256 of ``forewarn maintenance ID``; never 0."""
    return _hash_id(f"forewarn maintenance {maintenance_id}", _TRACE_BYTES)


def derive_root_span_id(maintenance_id: str) -> int:
    """Return the id of the trace's root span, 64 bits; never 0."""
    return _hash_id(f"forewarn maintenance {maintenance_id} root", _SPAN_BYTES)


def format_traceparent(trace_id: int, span_id: int, *, is_sampled: bool) -> str:
    """Return the W3C ``traceparent`` that names a span as the parent."""
    return f"00-{trace_id:032x}-{span_id:016x}-{1 if is_sampled else 0:02x}"


def _hash_id(text: str, length_bytes: int) -> int:
    # W3C defines an id of zeros as invalid. No input with such a hash is known.
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:length_bytes]) or 1

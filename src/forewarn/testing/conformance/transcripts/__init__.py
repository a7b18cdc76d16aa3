"""Golden transcripts: requests, and the answers of an endpoint to them, byte for byte.

They need no code of Forewarn; `docs/reference/conformance.md` describes their format.
"""

from __future__ import annotations

from importlib import resources

__all__ = ["TRANSCRIPTS", "read_golden_transcript"]

TRANSCRIPTS = ("requests", "instance", "life", "preempt")
"""Names of the transcripts."""


def read_golden_transcript(name: str) -> list[str]:
    """Return the lines of a transcript, each a JSON object."""
    text = (resources.files("forewarn.testing.conformance.transcripts") / f"{name}.jsonl").read_text(encoding="utf-8")
    return text.splitlines()

"""Signatures of notifications, after Standard Webhooks: they prove sender, time and integrity."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from standardwebhooks import Webhook

__all__ = ["sign_headers"]


def sign_headers(secrets: Iterable[str], message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that sign a message; with several secrets, a receiver needs to know only one.

    Args:
        secrets: Signing secrets, ``whsec_…`` each.
        message_id: Message id, the same at every attempt.
        at: Time of sending; receivers refuse messages that are minutes old.
        body: Message body in UTF-8.
    """
    text = body.decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(Webhook(secret).sign(message_id, at, text) for secret in secrets),
    }

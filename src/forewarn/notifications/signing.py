"""Signatures of notifications, after Standard Webhooks: who sent it, when, and that it is whole."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from standardwebhooks import Webhook

__all__ = ["signed_headers"]


def signed_headers(secrets: Iterable[str], message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The headers that sign a message; with several secrets, a receiver that knows one of them is content.

    Args:
        secrets: ``whsec_…`` each.
        message_id: The same at every try.
        at: When it is sent; receivers refuse what is minutes old.
        body: UTF-8.
    """
    text = body.decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(Webhook(secret).sign(message_id, at, text) for secret in secrets),
    }

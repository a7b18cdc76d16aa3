"""Headers of a notification, with signatures after Standard Webhooks: they prove sender, time and integrity."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from forewarn.clock import RealClock
from forewarn.core.subscription import Subscription

__all__ = ["build_headers", "sign_headers"]


def build_headers(subscription: Subscription, message_id: str, body: bytes, now: datetime) -> dict[str, str]:
    """Return the headers of a notification, with signatures."""
    from forewarn.wire.notification import CONTENT_TYPE  # noqa: PLC0415 - unused by most services

    # The receiver checks the signature's time by a real clock, even if ours is virtual.
    signed = sign_headers(subscription.get_signing_secrets(now), message_id, RealClock().now(), body)
    return {"Content-Type": f"{CONTENT_TYPE}; charset=utf-8"} | signed


def sign_headers(secrets: Iterable[str], message_id: str, at: datetime, body: bytes) -> dict[str, str]:
    """Return the headers that sign a message; with several secrets, a receiver needs to know only one.

    Args:
        secrets: Signing secrets, ``whsec_…`` each.
        message_id: Message id, the same at every attempt.
        at: Time of sending; receivers refuse messages that are minutes old.
        body: Message body in UTF-8.
    """
    from standardwebhooks import Webhook  # noqa: PLC0415 - unused by most services

    text = body.decode()
    return {
        "webhook-id": message_id,
        # The library signs whole seconds, so the header must name the same second.
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(Webhook(secret).sign(message_id, at, text) for secret in secrets),
    }

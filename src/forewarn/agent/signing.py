"""Messages between agents, signed with the secret that all of them share. Nothing here does I/O.

An agent trusts only the answer to its own question, and the answer carries that question's nonce, which no one could
know before. So an answer is never older than its question: no clock, counter or memory of earlier messages is needed,
even after a restart, and a replayed message is worthless. Nothing in a question is trusted.
"""

from __future__ import annotations

import hmac
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from forewarn.agent.agreement import PeerState
from forewarn.agent.codec import decode_json, encode_json

__all__ = ["EVENTS_MAX", "SIGNATURE", "InvalidMessage", "MessageSigner", "PeerQuery", "PeerResponse"]

M = TypeVar("M", bound="PeerQuery | PeerResponse")

SIGNATURE = "Forewarn-Signature"
"""Header with the signature."""

EVENTS_MAX = 500
"""Maximum number of events in one question."""

_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]
_Nonce: TypeAlias = Annotated[str, msgspec.Meta(min_length=32, max_length=64)]
_Version: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]


class PeerQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Question to a peer for its states.

    Attributes:
        sender: VM that asks.
        receiver: VM that is asked.
        nonce: Value that was never used before and that no one can predict.
        version: Version of the sender's own states. If it has changed, it is worth asking back at once.
        events: Ids of the events in question.
    """

    sender: _Name = msgspec.field(name="from")
    receiver: _Name = msgspec.field(name="to")
    nonce: _Nonce
    version: _Version
    events: Annotated[tuple[str, ...], msgspec.Meta(max_length=EVENTS_MAX)] = ()


class PeerResponse(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question.

    Attributes:
        nonce: Nonce of the question. Only the receiver of the question answers, so it also identifies the sender.
        version: Version of the VM's states.
        standings: State of each event that the VM knows; unknown events are left out.
        refusal: Reason for a refusal, in words; empty if it answers.
    """

    nonce: _Nonce
    version: _Version = ""
    standings: Annotated[dict[str, PeerState], msgspec.Meta(max_length=EVENTS_MAX)] = {}
    refusal: str = ""


class InvalidMessage(ValueError):
    """A message that was not signed with this secret, or is malformed; the message is the reason."""


_PURPOSES: dict[type, bytes] = {
    PeerQuery: b"forewarn peers 1, question",
    PeerResponse: b"forewarn peers 1, response",
}
"""Key purpose for each kind of message, so that none passes for the other."""


class MessageSigner:
    """Signs messages, and verifies those of others.

    Args:
        secret: Secret that all agents of one group share.
    """

    def __init__(self, secret: bytes) -> None:
        self._keys = {kind: hmac.digest(secret, purpose, "sha256") for kind, purpose in _PURPOSES.items()}

    def sign_message(self, message: PeerQuery | PeerResponse) -> tuple[bytes, str]:
        """Return the bytes of a message, and their signature."""
        body = encode_json(message)
        return body, self._compute_signature(body, type(message))

    def verify_message(self, body: bytes, signature: str, kind: type[M]) -> M:
        """Verify and decode a message.

        Raises:
            InvalidMessage: The signature is wrong, or the bytes are no such message. The signature is checked before
                anything is decoded.
        """
        # As bytes, because compare_digest raises an error for text that is not ASCII.
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), self._compute_signature(body, kind).encode()):
            raise InvalidMessage("its signature does not match this agent's secret")
        try:
            return decode_json(body, kind)
        except (msgspec.DecodeError, ValueError) as error:
            raise InvalidMessage(f"its content is malformed: {error}") from error

    def _compute_signature(self, body: bytes, kind: type) -> str:
        return hmac.digest(self._keys[kind], body, "sha256").hex()

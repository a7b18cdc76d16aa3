"""What agents say to each other, sealed with the secret that all of them share. Nothing here does I/O.

Only the answer to one's own question is believed, and it carries that question's nonce, which nobody could know before
it was asked. So an answer is never older than its question: no clock, no counter and no memory of former messages is
needed, whoever restarts, and a recording of anything said before is worth nothing. A question says nothing that is
believed.
"""

from __future__ import annotations

import hmac
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from forewarn.agent.codec import decode, encode
from forewarn.agent.together import PeerState

__all__ = ["EVENTS_MAX", "SIGNATURE", "BrokenSeal", "Question", "Response", "Seal"]

M = TypeVar("M", bound="Question | Response")

SIGNATURE = "Forewarn-Signature"
"""The header that carries it."""

EVENTS_MAX = 500
"""Most events that one question is about."""

_Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=1024)]
_Nonce: TypeAlias = Annotated[str, msgspec.Meta(min_length=32, max_length=64)]
_Version: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """How far are you?

    Attributes:
        sender: The VM that asks.
        receiver: The VM that is asked.
        nonce: Never used before, and nobody can foresee it.
        version: Of what the sender would answer itself. Another one than last time: it is worth asking back at once.
        events: Ids of the events that it is about.
    """

    sender: _Name = msgspec.field(name="from")
    receiver: _Name = msgspec.field(name="to")
    nonce: _Nonce
    version: _Version
    events: Annotated[tuple[str, ...], msgspec.Meta(max_length=EVENTS_MAX)] = ()


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one question.

    Attributes:
        nonce: The question's. Only who was asked answers, so it also says who does.
        version: Of all that the VM would answer.
        standings: How far it is, by event; those that it does not know are left out.
        refusal: Why it does not say, in words; empty when it does.
    """

    nonce: _Nonce
    version: _Version = ""
    standings: Annotated[dict[str, PeerState], msgspec.Meta(max_length=EVENTS_MAX)] = {}
    refusal: str = ""


class BrokenSeal(ValueError):
    """A message that was not sealed with this secret, or says nothing; the message is the reason."""


_PURPOSES: dict[type, bytes] = {
    Question: b"forewarn peers 1, question",
    Response: b"forewarn peers 1, response",
}
"""A key for each kind of message, so that none passes for the other."""


class Seal:
    """Signs messages, and opens those that others have signed.

    Args:
        secret: All agents of one group have the same.
    """

    def __init__(self, secret: bytes) -> None:
        self._keys = {kind: hmac.digest(secret, purpose, "sha256") for kind, purpose in _PURPOSES.items()}

    def close(self, message: Question | Response) -> tuple[bytes, str]:
        """The bytes of a message, and their signature."""
        body = encode(message)
        return body, self._sign(body, type(message))

    def open(self, body: bytes, signature: str, kind: type[M]) -> M:
        """The message of these bytes.

        Raises:
            BrokenSeal: The signature is not theirs, or they are no such message. Nothing is read before it is checked.
        """
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), self._sign(body, kind).encode()):
            msg = "it is not sealed with this agent's secret"
            raise BrokenSeal(msg)
        try:
            return decode(body, kind)
        except (msgspec.DecodeError, ValueError) as error:
            msg = f"it is no {kind.__name__.lower()}: {error}"
            raise BrokenSeal(msg) from error

    def _sign(self, body: bytes, kind: type) -> str:
        return hmac.digest(self._keys[kind], body, "sha256").hex()

"""A sealed message is opened by who knows the secret, as it was closed, and not at all when anything was changed."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.agreement import PeerState
from forewarn.agent.codec import decode_json, encode_json
from forewarn.agent.signing import EVENTS_MAX, SIGNATURE, InvalidMessage, MessageSigner, PeerQuery, PeerResponse

SECRET = b"0123456789abcdef"
NONCE = "0" * 32
E1 = "E1"
QUESTION = PeerQuery(sender="a", receiver="b", nonce=NONCE, version="v", events=(E1,))
RESPONSE = PeerResponse(nonce=NONCE, version="w", standings={E1: PeerState.PREPARED})

names = st.text(max_size=20)
questions = st.builds(
    PeerQuery,
    sender=names,
    receiver=names,
    nonce=st.text("0123456789abcdef", min_size=32, max_size=32),
    version=st.text(max_size=20),
    events=st.lists(names, max_size=5).map(tuple),
)
responses = st.builds(
    PeerResponse,
    nonce=st.text("0123456789abcdef", min_size=32, max_size=32),
    version=st.text(max_size=20),
    standings=st.dictionaries(names, st.sampled_from(PeerState), max_size=5),
    refusal=names,
)


@pytest.mark.parametrize(
    ("message", "purpose", "body"),
    [
        (
            QUESTION,
            b"forewarn peers 1, question",
            b'{"from":"a","to":"b","nonce":"00000000000000000000000000000000","version":"v","events":["E1"]}',
        ),
        (
            RESPONSE,
            b"forewarn peers 1, response",
            b'{"nonce":"00000000000000000000000000000000","version":"w","standings":{"E1":"prepared"},"refusal":""}',
        ),
    ],
)
def test_a_message_is_as_agents_of_other_versions_expect_it(
    message: PeerQuery | PeerResponse, purpose: bytes, body: bytes
) -> None:
    signature = hmac.digest(hmac.digest(SECRET, purpose, "sha256"), body, "sha256").hex()
    assert MessageSigner(SECRET).sign_message(message) == (body, signature)
    assert SIGNATURE == "Forewarn-Signature"


@given(message=st.one_of(questions, responses), secret=st.binary(min_size=16, max_size=64))
def test_what_is_sealed_can_be_opened_with_the_same_secret(message: PeerQuery | PeerResponse, secret: bytes) -> None:
    body, signature = MessageSigner(secret).sign_message(message)
    assert MessageSigner(secret).verify_message(body, signature, type(message)) == message


@given(
    message=st.one_of(questions, responses),
    other=st.binary(max_size=64).filter(lambda other: other.rstrip(b"\0") != SECRET),
)
def test_another_secret_opens_nothing(message: PeerQuery | PeerResponse, other: bytes) -> None:
    body, signature = MessageSigner(SECRET).sign_message(message)
    with pytest.raises(InvalidMessage):
        MessageSigner(other).verify_message(body, signature, type(message))


@given(message=st.one_of(questions, responses), tampering=st.data())
def test_a_message_of_which_anything_was_changed_is_not_opened(
    message: PeerQuery | PeerResponse, tampering: st.DataObject
) -> None:
    body, signature = MessageSigner(SECRET).sign_message(message)
    whole = body + signature.encode()
    begin = tampering.draw(st.integers(0, len(whole)))
    end = tampering.draw(st.integers(begin, len(whole)))
    changed = whole[:begin] + tampering.draw(st.binary(max_size=80)) + whole[end:]
    split = tampering.draw(st.sampled_from([len(changed) - 64, len(body)]))
    if changed == whole:
        return
    with pytest.raises(InvalidMessage):
        MessageSigner(SECRET).verify_message(changed[:split], changed[split:].decode("latin-1"), type(message))


@given(message=st.one_of(questions, responses))
def test_a_message_of_one_kind_does_not_pass_for_the_other(message: PeerQuery | PeerResponse) -> None:
    body, signature = MessageSigner(SECRET).sign_message(message)
    other: type[PeerQuery | PeerResponse] = PeerResponse if isinstance(message, PeerQuery) else PeerQuery
    with pytest.raises(InvalidMessage):
        MessageSigner(SECRET).verify_message(body, signature, other)


@pytest.mark.parametrize("signature", ["", "0" * 64, "ä" * 64, "\udcff", "x" * 10_000])
def test_whatever_stands_in_the_header_is_no_signature(signature: str) -> None:
    body, _ = MessageSigner(SECRET).sign_message(QUESTION)
    with pytest.raises(InvalidMessage):
        MessageSigner(SECRET).verify_message(body, signature, PeerQuery)


@pytest.mark.parametrize(
    "change",
    [
        {"nonce": "short"},
        {"nonce": "0" * 65},
        {"from": "x" * 1025},
        {"version": "x" * 65},
        {"events": [E1] * (EVENTS_MAX + 1)},
        {"events": "E1"},
        {"to": 1},
        {"to": None},
    ],
)
def test_what_a_peer_of_another_make_has_sealed_is_still_checked(change: dict[str, object]) -> None:
    seal = MessageSigner(SECRET)
    body = encode_json(decode_json(seal.sign_message(QUESTION)[0], dict) | change)
    with pytest.raises(InvalidMessage, match="its content is malformed"):
        seal.verify_message(body, seal._compute_signature(body, PeerQuery), PeerQuery)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_a_sealed_nothing_is_no_message(body: bytes) -> None:
    seal = MessageSigner(SECRET)
    with pytest.raises(InvalidMessage, match="its content is malformed"):
        seal.verify_message(body, seal._compute_signature(body, PeerResponse), PeerResponse)


def test_members_that_are_not_known_yet_are_taken() -> None:
    seal = MessageSigner(SECRET)
    body = encode_json(decode_json(seal.sign_message(RESPONSE)[0], dict) | {"later": 1})
    assert seal.verify_message(body, seal._compute_signature(body, PeerResponse), PeerResponse) == RESPONSE

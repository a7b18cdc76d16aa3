"""Types of columns: how a value is stored, and read.

Moments are whole microseconds since 1970 UTC and spans are microseconds, both as big integers: exact, sortable and the
same on every database.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from pydantic import ValidationError

from forewarn.core.model import Claim, NotificationProfile
from forewarn.core.policy import NO_POLICY, Policy
from forewarn.errors import StoreCorrupt
from forewarn.wire.policy import PolicyIn, to_policy, to_policy_in

__all__ = [
    "ClaimsType",
    "CommonStringType",
    "DurationType",
    "LabelsType",
    "MomentType",
    "NotificationProfileType",
    "OutcomeType",
    "PolicyType",
    "StrEnumType",
    "StringPairsType",
    "StringTupleType",
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

_SHARED_MAX = 1024
"""Maximum number of different values of a type that rows share."""

_SHARED_LENGTH_MAX = 2000
"""Maximum length of a text that rows share, where some are long."""

T = TypeVar("T")


def _make_type(  # noqa: PLR0913 - what differs between types
    name: str,
    about: str,
    stored: type[sa.types.TypeEngine[Any]] | sa.types.TypeEngine[Any],
    encode: Callable[[Any], Any],
    decode: Callable[[Any], Any],
    *,
    absent: object = None,
    shared: bool = False,
) -> type[sa.types.TypeDecorator[Any]]:
    """Return a column type that stores a value as `encode` returns it; None is stored as NULL.

    Args:
        name: Name of the type.
        about: What it stores; its docstring.
        stored: Type that the database knows.
        encode: Function for each value that is stored, except None.
        decode: Function for each value that is read, except NULL; JSON comes as text.
        absent: Value that NULL is read as.
        shared: True if many rows have the same value: most are then decoded only once, and are in memory once, too. The
            values must be immutable, and short, since many of them are kept.
    """
    if shared:
        decode = lru_cache(maxsize=_SHARED_MAX)(decode)

    # A class for each, since SQLAlchemy caches statements by the classes of their types.
    class Converted(sa.types.TypeDecorator[Any]):
        impl = stored
        cache_ok = True
        convert = staticmethod(encode)
        is_shared = shared

        def process_bind_param(self, value: Any, dialect: object) -> Any:  # noqa: ANN401, ARG002
            return None if value is None else encode(value)

        # In the place of `process_result_value`, around which SQLAlchemy puts two more functions: they took a large
        # part of the time of reading an inventory.
        def result_processor(self, dialect: object, coltype: object) -> Callable[[Any], Any]:  # noqa: ARG002
            return lambda value: absent if value is None else decode(value)

    Converted.__name__ = Converted.__qualname__ = name
    Converted.__doc__ = about
    return Converted


def _decode_json(shape: Any, build: Callable[[Any], Any] | None = None) -> Callable[[str], Any]:  # noqa: ANN401
    """Return a function that decodes JSON of a shape, which is a Python type, and builds a value from it."""
    decode = msgspec.json.Decoder(shape).decode
    return decode if build is None else lambda text: build(decode(text))


def _share_short(decode: Callable[[str], T]) -> Callable[[str], T]:
    """Return a function that decodes most short texts only once, for values of which some are too long to be kept."""
    shared = lru_cache(maxsize=_SHARED_MAX)(decode)
    return lambda text: shared(text) if len(text) <= _SHARED_LENGTH_MAX else decode(text)


def _build_claims(rows: list[Any]) -> tuple[Claim, ...]:
    return tuple(Claim(vm=vm, host=host, scope=scope, fault_domain=domain) for vm, host, scope, domain in rows)


def _build_profile(row: tuple[bool, float]) -> NotificationProfile:
    return NotificationProfile(enable=row[0], not_before_timeout=timedelta(seconds=row[1]))


def _encode_policy(policy: Policy) -> dict[str, Any] | None:
    declared = to_policy_in(policy)
    return None if declared is None else declared.model_dump(mode="json", exclude_unset=True)


def _build_policy(declared: Any) -> Policy:  # noqa: ANN401 - pydantic checks it
    try:
        return to_policy(PolicyIn.model_validate(declared))
    except ValidationError as error:
        words = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise StoreCorrupt(f"cannot read a policy in the database: {words}") from error


MomentType = _make_type(
    "MomentType",
    "A moment, as whole microseconds since 1970 UTC.",
    sa.BigInteger,
    lambda value: (value - _EPOCH) // _MICROSECOND,
    lambda n: _EPOCH + n * _MICROSECOND,
)
DurationType = _make_type(
    "DurationType",
    "A span, as microseconds.",
    sa.BigInteger,
    lambda value: value // _MICROSECOND,
    lambda n: n * _MICROSECOND,
)
CommonStringType = _make_type(
    "CommonStringType",
    "A text that many rows have in common, such as the host of a VM; each is in memory once.",
    sa.String,
    str,
    sys.intern,
    shared=True,
)

StringTupleType = _make_type(
    "StringTupleType", "Several texts, as a JSON array.", sa.JSON, list, _decode_json(tuple[str, ...])
)
StringPairsType = _make_type(
    "StringPairsType",
    "Pairs of texts, such as tags, as a JSON array of arrays.",
    sa.JSON,
    lambda pairs: [list(pair) for pair in pairs],
    _decode_json(tuple[tuple[str, str], ...]),
    shared=True,
)
# NULL rather than an empty object: most objects have no labels, and rows of older versions have none.
LabelsType = _make_type(
    "LabelsType",
    "Labels, as a JSON object; NULL if there are none.",
    sa.JSON(none_as_null=True),
    lambda labels: dict(labels) or None,
    _decode_json(dict[str, str], lambda labels: tuple(sorted(labels.items()))),
    absent=(),
    shared=True,
)
ClaimsType = _make_type(
    "ClaimsType",
    "The claims of a maintenance; the table `claim` is their index.",
    sa.JSON,
    lambda claims: [[c.vm, c.host, c.scope, c.fault_domain] for c in claims],
    # Each VM that approves loads the same claims again.
    _share_short(_decode_json(list[tuple[str, str, str | None, int]], _build_claims)),
)

NotificationProfileType = _make_type(
    "NotificationProfileType",
    "A notification profile, as a JSON array.",
    sa.JSON,
    lambda profile: [profile.enable, profile.not_before_timeout.total_seconds()],
    _decode_json(tuple[bool, float], _build_profile),
    shared=True,
)
OutcomeType = _make_type(
    "OutcomeType", "The result of a command; a JSON object.", sa.JSON, lambda value: value, _decode_json(dict[str, Any])
)


# NULL rather than JSON's null: a query for VMs with a policy asks whether the column is NULL.
PolicyType = _make_type(
    "PolicyType",
    "A policy, stored in the form of the inventory; NULL if none is declared.",
    sa.JSON(none_as_null=True),
    _encode_policy,
    _decode_json(Any, _build_policy),
    absent=NO_POLICY,
    shared=True,
)


class StrEnumType(sa.types.TypeDecorator[Any]):
    """A member of an enum, stored as its word."""

    impl = sa.String
    cache_ok = True
    is_shared = True

    def __init__(self, words: type[StrEnum]) -> None:
        super().__init__()
        # SQLAlchemy's cache key has the attributes that are named like parameters. With another name, columns of
        # different enums would have the same key, and values would be read as members of the wrong one.
        self.words = words

    @staticmethod
    def convert(value: StrEnum) -> str:
        """Return the word that is stored."""
        return value.value

    def process_bind_param(self, value: StrEnum | None, dialect: object) -> str | None:  # noqa: ARG002
        return None if value is None else value.value

    def result_processor(self, dialect: object, coltype: object) -> Callable[[Any], Any]:  # noqa: ARG002
        words = self.words
        members: dict[str | None, StrEnum | None] = {None: None, **{member.value: member for member in words}}
        # Text that is no member is an error of the enum.
        return lambda value: members[value] if value in members else words(value)

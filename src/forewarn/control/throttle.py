"""Callers who go on after they were refused: the listener refuses them, before a request is read or anybody looked up.

Who is refused by a route has cost as much as who is answered: a task, a look-up of the token, an error in its shape.
So refusals are limited, too. A caller who is known has so many in a minute (`core.budget.Use.REFUSALS`), for each kind
of request, so that a page that reconnects without a pause does not stop the approvals of the same tenant. Callers who
are not known are counted by address and in all; those who showed a valid token or session before pass by that limit.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from typing import TYPE_CHECKING

from forewarn.core.budget import Account, Bucket, Use
from forewarn.net.pool import counted_address, is_among

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forewarn.net.pool import Network

__all__ = ["UNKNOWN", "Credential", "Throttle", "credential_of", "use_of"]

_KNOWN_MAX = 20_000
_ADDRESSES_MAX = 20_000
UNKNOWN = "unknown-requests"
"""The limit of callers who are not known, as metrics name it."""

_ADDRESS_BURST_S = 10
_UNKNOWN_BURST_S = 4
"""At once, strangers may send what is allowed in so many seconds: each request costs as much as an answer."""

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_NAMES = frozenset({b"authorization", b"cookie"})

Credential = bytes
"""A digest of what a request shows of who sends it."""

_KEY = secrets.token_bytes(16)


def credential_of(headers: Iterable[tuple[bytes, bytes]]) -> Credential | None:
    """Return a digest of the token and cookies that a request shows; None: it shows none."""
    shown = [value for name, value in headers if name in _NAMES]
    return blake2b(b"\n".join(shown), digest_size=16, key=_KEY).digest() if shown else None


def use_of(method: str, path: str) -> Use:
    """Return what a request is for: a watch, a live page, a change or a read."""
    if method not in _READS:
        return Use.CHANGES
    if path.startswith("/live/"):
        return Use.LIVE_PAGES
    return Use.WATCHES if path.endswith("/watch") else Use.REQUESTS


def _bucket(per_minute_max: int, burst_s: float) -> Bucket:
    return Bucket(per_minute_max, max(1.0, per_minute_max * burst_s / 60))


class Throttle:
    """Decides which requests are refused unread.

    Args:
        per_address_max: Requests of callers who are not known, per minute and address.
        unknown_max: The same, of all addresses together.
        proxies: Addresses that speak for many callers, to which `per_address_max` does not apply.

    Attributes:
        refused: How many requests have been refused unread, of callers who are known and of others.
    """

    def __init__(self, *, per_address_max: int, unknown_max: int, proxies: Sequence[Network] = ()) -> None:
        self.refused: Counter[str] = Counter({Use.REFUSALS.value: 0, UNKNOWN: 0})
        self._per_address_max = per_address_max
        self._proxies = proxies
        self._unknown = _bucket(unknown_max, _UNKNOWN_BURST_S)
        self._addresses: OrderedDict[str, Bucket] = OrderedDict()
        self._known: OrderedDict[Credential, Account] = OrderedDict()

    def remember(self, credential: Credential, account: Account) -> None:
        """Somebody is known by this credential."""
        self._known[credential] = account
        self._known.move_to_end(credential)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    def note_unknown(self, credential: Credential | None, address: str, now_s: float) -> None:
        """Count a request from somebody who turned out not to be known."""
        if credential is not None:
            self._known.pop(credential, None)  # its token was revoked, or has expired
        self._unknown.add(now_s)
        if not is_among(address, self._proxies):
            self._address(address).add(now_s)

    def is_known(self, credential: Credential | None) -> bool:
        """Whether somebody was known by this credential, and nothing has been heard to the contrary."""
        return credential is not None and credential in self._known

    def refuse_unread(self, credential: Credential | None, use: Use, address: str, now_s: float) -> str | None:
        """Return who sends too much of what is refused; None: this request is to be read."""
        account = None if credential is None else self._known.get(credential)
        if account is not None:
            if account.refuse_unread(use, now_s) is None:
                return None
            self.refused[Use.REFUSALS.value] += 1
            return account.name
        is_over = self._unknown.wait_s(now_s) > 0
        if not is_among(address, self._proxies):
            is_over = is_over or self._address(address).wait_s(now_s) > 0
        if not is_over:
            return None
        self.refused[UNKNOWN] += 1
        return f"unknown callers at {address}"

    def _address(self, address: str) -> Bucket:
        key = counted_address(address)
        bucket = self._addresses.get(key)
        if bucket is None:
            if len(self._addresses) >= _ADDRESSES_MAX:
                self._addresses.popitem(last=False)
            bucket = self._addresses[key] = _bucket(self._per_address_max, _ADDRESS_BURST_S)
        self._addresses.move_to_end(key)
        return bucket

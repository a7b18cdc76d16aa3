"""Throttle for callers who ignore refusals: refuse them before a request is read or a token is looked up.

A refusal by a route costs as much as a response, so refusals are limited too. A known caller may have a number of them
per minute (`core.usage_limits.UseKind.REFUSALS`) for each kind of request, so a page that reconnects without a pause
does not block approvals by the same tenant. Unknown callers are counted by address and in total. That limit does not
affect callers who have shown a valid token or session before.
"""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from hashlib import blake2b

from forewarn.core.usage_limits import LeakyBucket, UsageAccount, UseKind
from forewarn.net.pool import Network, get_counting_key, is_in_networks

__all__ = ["UNKNOWN", "Credential", "Throttle", "classify_request", "credential_of"]

_KNOWN_MAX = 20_000
_ADDRESSES_MAX = 20_000
UNKNOWN = "unknown-requests"
"""Name of the limit on unknown callers in metrics."""

_ADDRESS_BURST_S = 10
_UNKNOWN_BURST_S = 4
"""Burst of unknown callers, as seconds of their rate; kept small since each request costs as much as a response."""

_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_NAMES = frozenset({b"authorization", b"cookie", b"host"})

Credential = bytes
"""Digest of the token or session that a request shows."""

# Random for each process, so that no caller can compute which tokens share a digest, or find a token from one.
_KEY = secrets.token_bytes(16)


def credential_of(headers: Iterable[tuple[bytes, bytes]]) -> Credential | None:
    """Return a digest of the token that a request shows, or else of its session; None if it shows neither.

    Other parts of the headers do not change the digest, so a caller cannot escape the limit by varying them.
    """
    shown: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in _NAMES:
            # The first of several equal headers, as Starlette reads them: otherwise a caller could show one token here
            # and another one to the route.
            shown.setdefault(name, value)
    if b"authorization" in shown:
        word = shown[b"authorization"].partition(b" ")[2].strip()
    else:
        word = _read_session_cookie(shown.get(b"cookie", b""), shown.get(b"host", b""))
    return blake2b(word, digest_size=16, key=_KEY).digest() if word else None


def _read_session_cookie(cookies: bytes, host: bytes) -> bytes:
    """Return the value of the dashboard's cookie, whose name ends with the port; empty if there is none."""
    port = host.rpartition(b":")[2]
    name = b"forewarn-" + (port if port.isdigit() else b"0")
    found = dict(pair.strip().partition(b"=")[::2] for pair in cookies.split(b";"))
    return found.get(name) or found.get(b"__Host-" + name) or b""


def classify_request(method: str, path: str) -> UseKind:
    """Return the kind of a request: a watch, a live page, a change or a read."""
    if method not in _READS:
        return UseKind.CHANGES
    if path.startswith("/live/"):
        return UseKind.LIVE_PAGES
    return UseKind.WATCHES if path.endswith("/watch") else UseKind.REQUESTS


def _make_bucket(per_minute_max: int, burst_s: float) -> LeakyBucket:
    return LeakyBucket(per_minute_max, max(1.0, per_minute_max * burst_s / 60))


class Throttle:
    """Decides which requests are refused unread.

    Args:
        per_address_max: Maximum number of requests from unknown callers, per minute and address.
        unknown_max: Maximum number of requests from unknown callers, per minute, from all addresses together.
        proxies: Addresses that forward for many callers, to which `per_address_max` does not apply.

    Attributes:
        refused: Number of requests refused unread, from known callers and from others.
    """

    def __init__(self, *, per_address_max: int, unknown_max: int, proxies: Sequence[Network] = ()) -> None:
        self.refused: Counter[str] = Counter({UseKind.REFUSALS.value: 0, UNKNOWN: 0})
        self._per_address_max = per_address_max
        self._proxies = proxies
        self._unknown = _make_bucket(unknown_max, _UNKNOWN_BURST_S)
        self._addresses: OrderedDict[str, LeakyBucket] = OrderedDict()
        self._known: OrderedDict[Credential, UsageAccount] = OrderedDict()

    def remember_credential(self, credential: Credential, account: UsageAccount) -> None:
        """Remember the account that a valid credential belongs to."""
        self._known[credential] = account
        self._known.move_to_end(credential)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    def count_unknown(self, credential: Credential | None, address: str, now_s: float) -> None:
        """Count a request from an unknown caller."""
        if credential is not None:
            self._known.pop(credential, None)  # its token was revoked, or has expired
        self._unknown.count_one(now_s)
        if not is_in_networks(address, self._proxies):
            self._get_bucket(address).count_one(now_s)

    def is_known(self, credential: Credential | None) -> bool:
        """Return True if the credential was valid when it was last looked up."""
        return credential is not None and credential in self._known

    def refuse_unread(self, credential: Credential | None, use: UseKind, address: str, now_s: float) -> str | None:
        """Count a request that is to be refused unread and return its sender; None if it is to be read."""
        account = None if credential is None else self._known.get(credential)
        if account is not None:
            if account.refuse_unread(use, now_s) is None:
                return None
            self.refused[UseKind.REFUSALS.value] += 1
            return account.name
        # Only compared here. A request is counted by `count_unknown`, once its credential turns out to be unknown.
        is_over = self._unknown.wait_s(now_s) > 0
        if not is_in_networks(address, self._proxies):
            is_over = is_over or self._get_bucket(address).wait_s(now_s) > 0
        if not is_over:
            return None
        self.refused[UNKNOWN] += 1
        return f"unknown callers at {address}"

    def _get_bucket(self, address: str) -> LeakyBucket:
        key = get_counting_key(address)
        bucket = self._addresses.get(key)
        if bucket is None:
            # A sender with very many addresses evicts only counts; the limit on all unknown callers still applies.
            if len(self._addresses) >= _ADDRESSES_MAX:
                self._addresses.popitem(last=False)
            bucket = self._addresses[key] = _make_bucket(self._per_address_max, _ADDRESS_BURST_S)
        self._addresses.move_to_end(key)
        return bucket

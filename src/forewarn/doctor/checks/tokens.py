"""Tokens do not expire unnoticed, and are in use."""

from __future__ import annotations

from datetime import datetime, timedelta

from forewarn.doctor.finding import Finding, ok, skip, warn
from forewarn.doctor.situation import Situation
from forewarn.errors import ForewarnError

__all__ = ["check_token_expiry", "check_token_use"]

_SOON = timedelta(days=14)
_OLD = timedelta(days=7)
_NAMES_MAX = 5
_ACCOUNTS_MAX = 1000


def check_token_expiry(situation: Situation) -> Finding:
    """Check that no token expires within two weeks."""
    tokens = situation.tokens
    if isinstance(tokens, ForewarnError):
        return skip(f"cannot list the tokens: {tokens.message}")
    ends = [(datetime.fromisoformat(t["expires_at"]), t["name"]) for t in tokens if t["expires_at"] is not None]
    now = datetime.fromisoformat((situation.status or {})["now"])
    soon = [f"{name} on {end:%Y-%m-%d}" for end, name in sorted(ends) if end - now < _SOON]
    if soon:
        advice = "Create new ones with 'forewarn token create', and revoke the old ones."
        return warn(f"tokens expire soon: {_join(soon)}", advice)
    return ok(f"no valid token expires within {_SOON.days} days")


def check_token_use(situation: Situation) -> Finding:
    """Check that each token that is older than a week has been used since the start of a service as old as that."""
    status, tokens = situation.status or {}, situation.tokens
    if isinstance(tokens, ForewarnError):
        return skip(f"cannot list the tokens: {tokens.message}")
    if status["replicas"]["role"] != "single":
        return skip("each replica knows only the calls that it answered")
    if timedelta(seconds=status["replicas"]["up_s"]) < _OLD:
        return skip("the service counts calls since its start, less than a week ago")
    try:
        accounts = situation.fetch("/v1/limits", limit=_ACCOUNTS_MAX)["items"]
    except ForewarnError as error:
        return skip(f"cannot list the callers: {error.message}")
    seen, now = {account["name"] for account in accounts}, datetime.fromisoformat(status["now"])
    unused = [
        token["name"]
        for token in tokens
        if f"{token['role']}:{token['name']}" not in seen and now - datetime.fromisoformat(token["created_at"]) > _OLD
    ]
    if unused:
        advice = "Revoke tokens that are not needed, with 'forewarn token revoke'."
        return warn(f"no calls for a week with tokens: {_join(unused)}", advice)
    return ok(f"all of {len(tokens)} valid tokens are in use or new")


def _join(names: list[str]) -> str:
    more = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")

"""Token pages: the list of tokens of people and programs, the form for a new one, and the new token."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from pydantic import ValidationError

from forewarn.core.access import Role, Token
from forewarn.dashboard.forms import describe_invalid_field, parse_duration_field, split_names
from forewarn.dashboard.list_filter import read_offset
from forewarn.dashboard.page import PageModel, PageView
from forewarn.errors import InvalidRequest
from forewarn.store.contract import Reader
from forewarn.util.secrets import new_token
from forewarn.wire.access import AccessTokenIn

__all__ = ["make_new_token_page", "make_token_form", "make_token_form_page", "make_token_list", "read_token_form"]

_ROWS = 100
_FIELDS = ("name", "role", "scopes", "vms", "lifetime", "key")
_ROLES = (Role.READ_ONLY, Role.TENANT, Role.OPERATOR)
"""Roles in the form; the first one, which may do the least, is chosen beforehand."""


def make_token_list(reader: Reader, view: PageView) -> PageModel:
    """Make the list of tokens, newest first: the valid ones, or all that are kept."""
    params, now = view.query_params, view.now
    is_all = params.get("show") == "all"
    found = [token for token in reader.list_tokens() if is_all or token.is_valid(now)][::-1]
    begin = read_offset(params)
    values = {
        "rows": [(token, _describe_state(token, now)) for token in found[begin : begin + _ROWS]],
        "is_all": is_all,
        "count": len(found),
        "from_": begin,
        "next_from": begin + _ROWS if begin + _ROWS < len(found) else None,
    }
    return PageModel(template="tokens.html", title="Tokens", values=values)


def _describe_state(token: Token, now: datetime) -> str:
    if token.revoked_at is not None:
        return "revoked"
    return "valid" if token.is_valid(now) else "expired"


def make_token_form_page(_reader: Reader, view: PageView) -> PageModel:
    """Make the form for a new token."""
    return make_token_form({}, "", view.context.settings.token_lifetime)


def make_token_form(form: Mapping[str, str], error_message: str, lifetime: timedelta) -> PageModel:
    """Make the form as it was filled in, with an error message if it is not empty; `lifetime` is the default."""
    filled = {name: form.get(name, "") for name in _FIELDS}
    filled["key"] = filled["key"] or new_token()
    filled["role"] = filled["role"] or _ROLES[0]
    values = {"form": filled, "roles": _ROLES, "lifetime": lifetime, "wrong": error_message}
    return PageModel(template="token_form.html", title="Create a token", values=values, is_live=False)


def make_new_token_page(token: Token, secret: str) -> PageModel:
    """Make the page of a token that was just created, the only one that shows its secret."""
    values = {"token": token, "secret": secret}
    return PageModel(template="token_created.html", title="New token", values=values, is_live=False)


def read_token_form(form: Mapping[str, str]) -> AccessTokenIn:
    """Return the token that the form requests.

    Raises:
        InvalidRequest: A field cannot be read.
    """
    lifetime = parse_duration_field(form, "lifetime")
    content: dict[str, object] = {
        "name": form.get("name", "").strip(),
        "role": form.get("role", ""),
        "scopes": split_names(form.get("scopes", "")),
        "vms": split_names(form.get("vms", "")),
        "expires_in_s": None if lifetime is None else lifetime.total_seconds(),
    }
    try:
        return AccessTokenIn.model_validate(content)
    except ValidationError as error:
        raise InvalidRequest(describe_invalid_field(error)) from error

"""The JSON of tokens, principals and accounts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from forewarn.core.access import Principal, Role, Token
from forewarn.core.budget import Use
from forewarn.core.limit_log import Guest
from forewarn.wire.control import Moment

__all__ = ["AccessTokenIn", "AccessTokenOut", "AccountOut", "LoginLinkOut", "PrincipalOut"]

_LIFETIME_MAX_S = 100 * 366 * 86400
_NAMES_MAX = 10_000
_Name = Annotated[str, Field(min_length=1, max_length=128)]
_PersonRole = Literal[Role.OPERATOR, Role.TENANT, Role.READ_ONLY]


class AccessTokenIn(BaseModel):
    """A token to make, for a person or a program. For tokens of endpoints on hosts, use `/v1/hosts/{name}/tokens`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = Field(
        description="Whose it is; the audit log says it. `local` is the name of the token in the state folder."
    )
    role: _PersonRole
    scopes: list[_Name] = Field(default_factory=list, max_length=_NAMES_MAX, description="Of a tenant.")
    vms: list[_Name] = Field(
        default_factory=list, max_length=_NAMES_MAX, description="Of a tenant: VMs that stand alone."
    )
    expires_in_s: Annotated[float, Field(gt=0, le=_LIFETIME_MAX_S, allow_inf_nan=False)] | None = Field(
        None, description="Default: the setting token_lifetime."
    )

    @model_validator(mode="after")
    def _makes_sense(self) -> AccessTokenIn:
        has_names = bool(self.scopes or self.vms)
        if has_names is not (self.role is Role.TENANT):
            msg = "only a tenant has scopes and VMs" if has_names else "name the scopes or VMs of the tenant"
            raise ValueError(msg)
        if self.name == "local":
            msg = "the name local is taken: it is that of the token in the state folder"
            raise ValueError(msg)
        return self


class AccessTokenOut(BaseModel):
    """A token; its secret is shown once, when it is made."""

    model_config = ConfigDict(frozen=True)
    id: str
    name: str
    role: Role
    scopes: list[str]
    vms: list[str]
    host: str | None
    created_at: Moment
    created_by: str
    expires_at: Moment | None
    revoked_at: Moment | None
    token: str | None = None

    @classmethod
    def of(cls, token: Token, word: str | None = None) -> AccessTokenOut:
        """Build from the model; `word` is the secret, to be shown once."""
        return cls(
            id=token.id,
            name=token.name,
            role=token.role,
            scopes=list(token.scopes),
            vms=list(token.vms),
            host=token.host,
            created_at=token.created_at,
            created_by=token.created_by,
            expires_at=token.expires_at,
            revoked_at=token.revoked_at,
            token=word,
        )


class PrincipalOut(BaseModel):
    """The authenticated caller."""

    model_config = ConfigDict(frozen=True)
    actor: str = Field(description="As the audit log names it.")
    role: Role
    scopes: list[str]
    vms: list[str]
    host: str | None
    token_id: str | None
    expires_at: Moment | None

    @classmethod
    def of(cls, principal: Principal) -> PrincipalOut:
        """Build from the model."""
        return cls(
            actor=principal.actor,
            role=principal.role,
            scopes=sorted(principal.scopes),
            vms=sorted(principal.vms),
            host=principal.host,
            token_id=principal.token_id,
            expires_at=principal.expires_at,
        )


class LoginLinkOut(BaseModel):
    """A link that logs a browser in, once."""

    model_config = ConfigDict(frozen=True)
    url: str = Field(description="To open in a browser: the first who presses its button is logged in as the caller.")
    expires_at: Moment


class AccountOut(BaseModel):
    """Present use of the control API by a caller, and the limits it has met there or at the metadata endpoint."""

    model_config = ConfigDict(frozen=True)
    name: str
    role: Role | Guest = Field(
        description="Role of a caller of the control API. `vm` and `address` are callers of the metadata endpoint: "
        "a VM, or a source address of no VM."
    )
    used: dict[Use, int] = Field(
        description="In use now, by what is limited; of changes, those of the last minute. Empty for `vm`, `address`."
    )
    most: dict[Use, int] = Field(description="The limits. Empty for `vm`, `address`.")
    limited: dict[str, int] = Field(
        description="How often each limit was met: for `vm` and `address` by setting, for others by what is limited."
    )
    limited_at: Moment | None = Field(description="When one was met last.")

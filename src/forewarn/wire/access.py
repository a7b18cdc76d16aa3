"""The JSON of tokens, principals and accounts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from forewarn.core.access import Role, Token
from forewarn.core.limit_log import CallerKind
from forewarn.core.usage_limits import UseKind
from forewarn.wire.json_types import Moment, RequestModel, ResponseModel

__all__ = ["AccessTokenIn", "AccessTokenOut", "AccountOut", "LoginLinkOut", "PrincipalOut"]

_LIFETIME_MAX_S = 100 * 366 * 86400
_NAMES_MAX = 10_000
_Name = Annotated[str, Field(min_length=1, max_length=128)]
_Sorted = Annotated[list[str], BeforeValidator(sorted)]
_PersonRole = Literal[Role.OPERATOR, Role.TENANT, Role.READ_ONLY]


class AccessTokenIn(RequestModel):
    """A token to create, for a person or a program. For tokens of endpoints on hosts, use `/v1/hosts/{name}/tokens`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = Field(
        description="Owner, as recorded in the audit log. `local` is reserved for the token in the state folder."
    )
    role: _PersonRole
    scopes: list[_Name] = Field(default_factory=list, max_length=_NAMES_MAX, description="Scopes that a tenant owns.")
    vms: list[_Name] = Field(
        default_factory=list, max_length=_NAMES_MAX, description="Standalone VMs that a tenant owns."
    )
    expires_in_s: Annotated[float, Field(gt=0, le=_LIFETIME_MAX_S, allow_inf_nan=False)] | None = Field(
        None,
        description="Lifetime in seconds, at most the setting `token_lifetime_max`. "
        "Default: the setting `token_lifetime`.",
    )

    @model_validator(mode="after")
    def _check_role_and_name(self) -> AccessTokenIn:
        has_names = bool(self.scopes or self.vms)
        if has_names is not (self.role is Role.TENANT):
            msg = "only role tenant can have scopes and vms" if has_names else "role tenant needs scopes or vms"
            raise ValueError(msg)
        if self.name == "local":
            raise ValueError("name local is reserved for the token in the state folder: choose another name")
        return self


class AccessTokenOut(ResponseModel):
    """A token. Its secret, `token`, is shown only once: when the token is created."""

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
    def from_model(cls, token: Token, secret: str | None = None) -> AccessTokenOut:
        """Build from the model, with the secret if it is to be shown."""
        return cls.copy_from(token, token=secret)


class PrincipalOut(ResponseModel):
    """The authenticated caller."""

    actor: str = Field(description="Caller, as recorded in the audit log.")
    role: Role
    scopes: _Sorted
    vms: _Sorted
    host: str | None
    token_id: str | None
    expires_at: Moment | None


class LoginLinkOut(ResponseModel):
    """A link that logs a browser in, once."""

    url: str = Field(
        description="URL to open in a browser. The first person to press the button there is logged in as the caller."
    )
    expires_at: Moment


class AccountOut(ResponseModel):
    """A caller's present use of the control API, and the limits the caller met there or at the metadata endpoint."""

    name: str
    role: Role | CallerKind = Field(
        description="Role of a caller of the control API. `vm` and `address` are callers of the metadata endpoint: "
        "a VM, or a source address that belongs to no VM."
    )
    used: dict[UseKind, int] = Field(
        description="Present use of each resource; for limits per minute, the use in the last minute. "
        "Empty if `role` is `vm` or `address`."
    )
    most: dict[UseKind, int] = Field(description="Limit of each resource. Empty if `role` is `vm` or `address`.")
    limited: dict[str, int] = Field(
        description="How often the caller exceeded each limit. The keys are resources or, if `role` is `vm` or "
        "`address`, names of settings."
    )
    limited_at: Moment | None = Field(description="Time at which the caller last exceeded a limit.")

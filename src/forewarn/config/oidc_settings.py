"""Settings of an OpenID Connect issuer, and what the claims of its tokens grant."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from forewarn.config.span import Span, limit_seconds
from forewarn.core.access import Role
from forewarn.errors import ConfigError
from forewarn.net.listen_address import is_loopback_name

__all__ = ["Grant", "Oidc"]

_Word = Annotated[str, Field(min_length=1, max_length=200)]
_Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519"]


class Grant(BaseModel):
    """Mapping from a claim of a signed token to a role; one row of `Oidc.grants`.

    Attributes:
        claim: Claim name, or a path with dots, such as ``realm_access.roles``.
        value: Value that the claim must equal or contain.
        role: ``operator``, ``tenant`` or ``read-only``.
        scopes: Scopes of the tenant.
        vms: Standalone VMs of the tenant.
        scopes_claim: Claim that names further scopes of the tenant; empty for none.
        vms_claim: Claim that names further standalone VMs of the tenant; empty for none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    claim: _Word
    value: _Word
    role: Literal[Role.OPERATOR, Role.TENANT, Role.READ_ONLY]
    scopes: tuple[_Word, ...] = ()
    vms: tuple[_Word, ...] = ()
    scopes_claim: str = ""
    vms_claim: str = ""

    @model_validator(mode="after")
    def _check_tenant_names(self) -> Grant:
        has_names = bool(self.scopes or self.vms or self.scopes_claim or self.vms_claim)
        if has_names is not (self.role is Role.TENANT):
            msg = f"role {self.role}: " + ("only a tenant has scopes and VMs" if has_names else "name scopes or VMs")
            raise ValueError(msg)
        return self


class Oidc(BaseModel):
    """OpenID Connect issuer whose tokens are accepted.

    Attributes:
        issuer: Issuer URL, exactly as in its tokens; https, except on loopback.
        audience: Value of ``aud`` in tokens for this service.
        algorithms: Accepted signature algorithms. None of them uses a shared key.
        name_claim: Claim that identifies a person; its values must never be reassigned to another person.
        grants: Mappings from claims to roles; the first match applies.
        leeway: Maximum difference between the issuer's clock and this one.
        keys_max_age: Age at which the issuer's keys are fetched again.
        keys_pause: Minimum interval between attempts to fetch the keys.
        timeout: Time limit for one attempt.
        ca_certificate: CA certificate that the issuer's is verified with, PEM; None for the system's trust store.
        client_id: OAuth client ID of the dashboard; empty disables browser log-in through the issuer.
        client_secret_file: File with the client secret; None for a public client.
        scope: OAuth scopes that the dashboard requests.
        dashboard_url: Public URL of the dashboard; empty for the address in the browser's request.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    issuer: Annotated[str, Field(max_length=1000)]
    audience: _Word
    algorithms: Annotated[tuple[_Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    name_claim: _Word = "sub"
    grants: Annotated[tuple[Grant, ...], Field(min_length=1, max_length=1000)]
    leeway: Span = Field(timedelta(seconds=30), **limit_seconds(300))
    keys_max_age: Span = Field(timedelta(hours=1), ge=timedelta(minutes=1), le=timedelta(days=7))
    keys_pause: Span = Field(timedelta(seconds=30), **limit_seconds(3600))
    timeout: Span = Field(timedelta(seconds=5), ge=timedelta(milliseconds=100), le=timedelta(minutes=1))
    ca_certificate: Path | None = None
    client_id: Annotated[str, Field(max_length=200)] = ""
    client_secret_file: Path | None = None
    scope: Annotated[str, Field(max_length=1000)] = "openid profile"
    dashboard_url: Annotated[str, Field(max_length=1000)] = ""

    def read_client_secret(self) -> str | None:
        """Read the client secret, each time anew: it may be replaced while the service runs.

        Raises:
            ConfigError: The file cannot be read.
        """
        if self.client_secret_file is None:
            return None
        try:
            return self.client_secret_file.read_text().strip()
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"cannot read {self.client_secret_file} (oidc.client_secret_file): {error}") from error

    @field_validator("dashboard_url")
    @classmethod
    def _check_dashboard_url(cls, url: str) -> str:
        """Require https except on loopback: an authorization code sent in the clear can be intercepted."""
        parts = urlsplit(url)
        if url and not (parts.scheme == "https" or (parts.scheme == "http" and is_loopback_name(parts.hostname or ""))):
            raise ValueError(f"{url!r} is expected to be like https://forewarn.example.com")
        return url

    @field_validator("issuer")
    @classmethod
    def _check_issuer_url(cls, url: str) -> str:
        """Require https except on loopback: anyone who can impersonate the issuer can create operators."""
        parts = urlsplit(url)
        if not parts.hostname or parts.scheme not in {"https", "http"} or parts.query or parts.fragment:
            raise ValueError(f"{url!r} is expected to be like https://login.example.com")
        if parts.scheme == "http" and not is_loopback_name(parts.hostname):
            msg = f"{url!r} is expected to begin with https: without TLS, anyone could impersonate the issuer"
            raise ValueError(msg)
        return url

"""OpenID Connect issuer whose tokens the control API accepts.

Its keys are fetched on first use, cached, and fetched again when they are old or a token names an unknown key; at most
once per `Oidc.keys_pause`, whatever callers send. While the issuer is unreachable, the known keys are used for another
day.

`docs/adr/0016-access.md` lists the checks of a token. The library is imported only if there is an issuer.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from forewarn.config.oidc_settings import Grant, Oidc
from forewarn.core.access import Principal
from forewarn.errors import ConfigError, Forbidden, IssuerUnreachable, Unauthorized
from forewarn.net.listen_address import is_loopback_name

if TYPE_CHECKING:
    import httpx
    from joserfc.jwk import KeySet

__all__ = ["Issuer"]

_DISCOVERY = "/.well-known/openid-configuration"
_ANSWER_SIZE_BYTES_MAX = 1 << 20
_KEYS_MAX = 100
_TOKEN_LENGTH_MAX = 16 << 10
_NAME_LENGTH_MAX = 128
_NAMES_MAX = 1000
_DOTS_OF_A_JWT = 2
_STALE = timedelta(days=1)
_NEVER = datetime.min.replace(tzinfo=UTC)


class Issuer:
    """Issuer named in the settings.

    Args:
        settings: Settings of the issuer and its grants.
        transport: HTTP transport; None for the network.

    Raises:
        ConfigError: The extra `oidc` is not installed, or the certificate cannot be read.
    """

    def __init__(self, settings: Oidc, transport: httpx.AsyncBaseTransport | None = None) -> None:
        try:
            import joserfc  # noqa: F401, PLC0415 - only if there is an issuer
            import oauthlib  # noqa: F401, PLC0415 - as above
        except ModuleNotFoundError as error:
            msg = f"an issuer needs a library ({error.name} is missing): pip install 'forewarn[oidc]'"
            raise ConfigError(msg) from error
        self.settings = settings
        self._transport = transport
        self._trust = _load_certificates(settings)
        self._lock = asyncio.Lock()
        self._discovery_document: dict[str, Any] = {}
        self._keys: KeySet | None = None
        self._fetched_at = _NEVER
        self._tried_at = _NEVER
        self._failure = ""

    def may_have_signed(self, token: str) -> bool:
        """Return True if the token has the form of a signed one; our own tokens have no dots."""
        return token.count(".") == _DOTS_OF_A_JWT

    # Tokens

    async def verify_token(self, token: str, now: datetime, *, audience: str | None = None) -> dict[str, Any]:
        """Return the claims of a token after checking its signature, issuer, audience and expiry.

        Args:
            token: Token as received.
            now: Current time.
            audience: Required audience; None for that of the settings.

        Raises:
            Unauthorized: The token is not accepted; the message gives the reason.
            IssuerUnreachable: The keys to check it are not available.
        """
        from joserfc import errors, jwt  # noqa: PLC0415 - only where there is an issuer

        if len(token) > _TOKEN_LENGTH_MAX:
            raise Unauthorized(f"token rejected: it is longer than {_TOKEN_LENGTH_MAX} characters")
        # From the settings, never from the token, whose header could name `none` or a shared secret (ADR 16).
        algorithms = list(self.settings.algorithms)
        try:
            try:
                read = jwt.decode(token, await self._load_keys(now), algorithms=algorithms)
            except (errors.InvalidKeyIdError, errors.BadSignatureError):  # the latter for a token without a key id
                read = jwt.decode(token, await self._load_keys(now, is_one_missing=True), algorithms=algorithms)
            registry = jwt.JWTClaimsRegistry(
                now=int(now.timestamp()),
                leeway=int(self.settings.leeway.total_seconds()),
                iss={"essential": True, "value": self.settings.issuer},
                aud={"essential": True, "value": audience or self.settings.audience},
                exp={"essential": True},
            )
            registry.validate(read.claims)
        except (errors.JoseError, ValueError, TypeError) as error:  # the library raises the last two for odd headers
            raise Unauthorized(f"token rejected: {_format_error(error)}") from error
        return dict(read.claims)

    def principal_from_claims(self, claims: Mapping[str, Any]) -> Principal:
        """Return the caller named by the claims, with the role of the first grant that matches.

        Further matching grants of the same role add their scopes and VMs.

        Args:
            claims: Checked claims, as returned by `verify_token`.

        Raises:
            Unauthorized: The claim with the name is missing or not a valid name.
            Forbidden: No grant matches.
        """
        name = _find_claim(claims, self.settings.name_claim)
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _NAME_LENGTH_MAX:
            raise Unauthorized(f"token rejected: its claim {self.settings.name_claim!r} is not a valid name")
        matching = [grant for grant in self.settings.grants if _matches_grant(grant, claims)]
        if not matching:
            raise Forbidden(f"oidc/{name} matches no grant: see the setting oidc")
        # Grants are in order of precedence. Names of another role's grants do not count: only tenants own anything.
        role = matching[0].role
        same = [grant for grant in matching if grant.role is role]
        return Principal(
            # No other token can have a name with this prefix, so the audit log is unambiguous (ADR 16).
            actor=f"{role}:oidc/{name}",
            role=role,
            scopes=frozenset(n for g in same for n in (*g.scopes, *_list_names(claims, g.scopes_claim))),
            vms=frozenset(n for g in same for n in (*g.vms, *_list_names(claims, g.vms_claim))),
            expires_at=datetime.fromtimestamp(claims["exp"], UTC) if "exp" in claims else None,
        )

    # Discovery

    async def find_endpoint(self, name: str, now: datetime) -> str:
        """Return a URL from the discovery document, such as ``token_endpoint``.

        Raises:
            IssuerUnreachable: The issuer does not answer and no recent keys are cached, or the URL is missing or not
                safe.
        """
        await self._load_keys(now)
        return _check_url(str(self._discovery_document.get(name, "")), name)

    async def post_form(self, url: str, body: str, auth: tuple[str, str] | None) -> dict[str, Any]:
        """Send a form to the issuer.

        Args:
            url: URL of the issuer.
            body: Encoded form.
            auth: Client id and secret for HTTP basic authentication; None if the form holds them.

        Returns:
            JSON object in the response, also for status 400 and 401.

        Raises:
            IssuerUnreachable: The issuer does not answer with a JSON object.
        """
        headers = {"content-type": "application/x-www-form-urlencoded", "accept": "application/json"}
        # OAuth reports errors as JSON with status 400 or 401 (RFC 6749, section 5.2).
        return await self._request_json("POST", url, {200, 400, 401}, content=body, headers=headers, auth=auth)

    async def _load_keys(self, now: datetime, *, is_one_missing: bool = False) -> KeySet:
        """Return the keys; fetch them first if they are old or one is missing, at most once per `keys_pause`."""
        async with self._lock:
            is_old = now - self._fetched_at > self.settings.keys_max_age
            if (is_old or is_one_missing) and now - self._tried_at >= self.settings.keys_pause:
                self._tried_at = now  # before the attempt, so that failures are rate limited, too
                try:
                    self._keys = await self._fetch_keys()
                    self._fetched_at, self._failure = now, ""
                except IssuerUnreachable as error:
                    self._failure = error.message
            if self._keys is None or now - self._fetched_at > self.settings.keys_max_age + _STALE:
                msg = self._failure or f"the keys of {self.settings.issuer} have not been fetched yet"
                raise IssuerUnreachable(msg)
            return self._keys

    async def _fetch_keys(self) -> KeySet:
        from joserfc.errors import JoseError  # noqa: PLC0415 - only where there is an issuer
        from joserfc.jwk import KeySet  # noqa: PLC0415 - as above

        issuer = self.settings.issuer
        document = await self._get_json(issuer.rstrip("/") + _DISCOVERY)
        # OpenID Connect Discovery, section 4.3: otherwise the document may be that of another issuer.
        if document.get("issuer") != issuer:
            named = str(document.get("issuer"))[:200]
            raise IssuerUnreachable(f"{issuer} calls itself {named!r}: set oidc.issuer to exactly that")
        found = (await self._get_json(_check_url(str(document.get("jwks_uri", "")), "keys"))).get("keys")
        try:
            keys = [key for key in list(found or [])[:_KEYS_MAX] if _can_verify(key)]
            made = KeySet.import_key_set({"keys": keys})
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise IssuerUnreachable(f"the keys of {issuer} cannot be read: {_format_error(error)}") from error
        self._discovery_document = document
        return made

    async def _get_json(self, url: str) -> dict[str, Any]:
        return await self._request_json("GET", url, {200})

    async def _request_json(
        self,
        method: str,
        url: str,
        statuses: Collection[int],
        **more: Any,  # noqa: ANN401 - those of httpx
    ) -> dict[str, Any]:
        """Return the JSON object in the response, which must have one of these statuses."""
        import httpx  # noqa: PLC0415 - only where there is an issuer

        host = urlsplit(url).hostname or ""
        body = b""
        try:
            async with (
                httpx.AsyncClient(
                    timeout=self.settings.timeout.total_seconds(),
                    transport=self._transport,
                    trust_env=not is_loopback_name(host),  # no proxy for a server on this machine
                    verify=self._trust,
                ) as client,
                # httpx limits each step; a server that sends a byte at a time would exceed the time without this.
                asyncio.timeout(self.settings.timeout.total_seconds()),
                client.stream(method, url, **more) as response,
            ):
                # Read in pieces, so that an endless answer is noticed before it fills the memory.
                async for piece in response.aiter_bytes():
                    body += piece
                    if len(body) > _ANSWER_SIZE_BYTES_MAX:
                        raise IssuerUnreachable(f"{url} answers with more than {_ANSWER_SIZE_BYTES_MAX} bytes")
                status = response.status_code
            content = json.loads(body) if status in statuses else None
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, OSError, ValueError) as error:
            raise IssuerUnreachable(f"the issuer does not answer: {url}: {_format_error(error)}") from error
        if not isinstance(content, dict):
            raise IssuerUnreachable(f"{url} does not answer like an issuer (status {status}): check oidc.issuer")
        return content


def _load_certificates(settings: Oidc) -> ssl.SSLContext | bool:
    if settings.ca_certificate is None:
        return True
    try:
        return ssl.create_default_context(cafile=settings.ca_certificate)
    except OSError as error:  # includes ssl.SSLError
        raise ConfigError(f"cannot use the certificate {settings.ca_certificate}: {error.strerror or error}") from error


def _check_url(url: str, name: str) -> str:
    """Return the URL if it is https or on this machine; raise IssuerUnreachable otherwise."""
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and is_loopback_name(parts.hostname or "")):
        return url
    raise IssuerUnreachable(f"the issuer's {name} is at {url[:200]!r}: https is expected")


def _can_verify(key: Any) -> bool:  # noqa: ANN401 - as sent by the issuer
    """Return True for a public signature key. With a published secret key, any reader could sign tokens."""
    return isinstance(key, dict) and key.get("kty") in {"RSA", "EC", "OKP"} and key.get("use", "sig") == "sig"


def _find_claim(claims: Mapping[str, Any], path: str) -> Any:  # noqa: ANN401 - JSON
    """Return the claim of this name, or else the one at this dotted path; None if there is neither."""
    # Some issuers name claims by URL, with dots in them, so the whole name comes first.
    if path in claims:
        return claims[path]
    found: Any = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _matches_grant(grant: Grant, claims: Mapping[str, Any]) -> bool:
    found = _find_claim(claims, grant.claim)
    return grant.value in found if isinstance(found, list) else isinstance(found, str) and grant.value == found


def _list_names(claims: Mapping[str, Any], path: str) -> list[str]:
    found = _find_claim(claims, path) if path else []
    listed = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    return [name for name in listed if isinstance(name, str)][:_NAMES_MAX]


def _format_error(error: Exception) -> str:
    """Return the error message in one line of limited length."""
    return " ".join(str(error).split())[:300] or type(error).__name__

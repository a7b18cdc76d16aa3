"""An OpenID Connect issuer with real keys, whose answers a test decides."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass, field
from typing import Any

import httpx
from joserfc import jwt
from joserfc.jwk import ECKey, OctKey, RSAKey

__all__ = ["AUDIENCE", "URL", "FakeIssuer", "unsigned"]

URL = "https://login.example.com/realms/cloud"
AUDIENCE = "forewarn"


@dataclass
class FakeIssuer:
    """Signs tokens, and answers for its keys.

    Attributes:
        keys: Those that it signs with, by their ids.
        shown: Ids of those that it shows; None: all.
        also: Further keys that it shows, as they are.
        says: What it says of itself differently.
        is_away: Whether nobody answers.
        asked: Paths that were asked for.
    """

    keys: dict[str, RSAKey | ECKey]
    shown: set[str] | None = None
    also: list[dict[str, Any]] = field(default_factory=list)
    says: dict[str, Any] = field(default_factory=dict)
    is_away: bool = False
    asked: list[str] = field(default_factory=list)

    @property
    def transport(self) -> httpx.MockTransport:
        """The way to it."""
        return httpx.MockTransport(self._answer)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if self.is_away:
            raise httpx.ConnectError("nobody answers")
        if request.url.path.endswith("/.well-known/openid-configuration"):
            said = {"issuer": URL, "jwks_uri": f"{URL}/keys", "token_endpoint": f"{URL}/token"} | self.says
            return httpx.Response(200, json=said)
        if request.url.path.endswith("/keys"):
            return httpx.Response(200, json={"keys": [*self._public(), *self.also]})
        return httpx.Response(404, text="<html>")

    def _public(self) -> list[Any]:
        shown = self.keys.keys() if self.shown is None else self.shown
        return [{**self.keys[kid].as_dict(private=False), "kid": kid, "use": "sig"} for kid in shown]

    def token(self, now_s: int, kid: str = "rsa", alg: str = "RS256", **claims: object) -> str:
        """A token that is right, but for what is said here; a claim that is None is left out."""
        full = {
            "iss": URL,
            "aud": AUDIENCE,
            "sub": "alice",
            "exp": now_s + 600,
            "iat": now_s,
            "roles": ["ops"],
        } | claims
        said = {name: value for name, value in full.items() if value is not None}
        return jwt.encode({"alg": alg, "kid": kid}, said, self.keys[kid], algorithms=[alg])

    def confused(self, now_s: int) -> str:
        """A token that takes the public key for a shared secret: HS256 with its PEM."""
        pem = self.keys["rsa"].as_pem(private=False)
        claims = {"iss": URL, "aud": AUDIENCE, "sub": "eve", "exp": now_s + 600, "roles": ["ops"]}
        text = f"{_packed({'alg': 'HS256', 'kid': 'rsa', 'typ': 'JWT'})}.{_packed(claims)}"
        signature = hmac.new(pem, text.encode(), hashlib.sha256).digest()
        return f"{text}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"

    def shared(self, now_s: int) -> tuple[str, dict[str, Any]]:
        """A token of a key that is secret, and that key as an issuer might show it by mistake."""
        key = OctKey.generate_key(256)
        claims = {"iss": URL, "aud": AUDIENCE, "sub": "eve", "exp": now_s + 600, "roles": ["ops"]}
        token = jwt.encode({"alg": "HS256", "kid": "oct"}, claims, key, algorithms=["HS256"])
        return token, {**key.as_dict(private=True), "kid": "oct"}


def unsigned(now_s: int, alg: str) -> str:
    """A token that says that it needs no signature."""
    claims = {"iss": URL, "aud": AUDIENCE, "sub": "eve", "exp": now_s + 600, "roles": ["ops"]}
    return f"{_packed({'alg': alg, 'kid': 'rsa'})}.{_packed(claims)}."


def _packed(content: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()

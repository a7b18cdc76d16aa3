"""Commands for access: create and revoke tokens, and record refused calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forewarn.core.access import Revocation, Role, Token
from forewarn.core.decision import Changes, Draft, State
from forewarn.core.model import Entry, EntryKind
from forewarn.engine.ownership import check_owned
from forewarn.engine.transaction import Committer, traced
from forewarn.errors import LimitExceeded, NotFound
from forewarn.store.contract import Transaction
from forewarn.util.secrets import digest, new_token

__all__ = ["TokenCommands", "TokenRequest"]

_HOST_TOKENS_MAX = 10
_REVOCATIONS_MAX = 1000
"""Maximum number of used links and ended sessions stored for each actor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """Request for a token for a person or a program.

    Attributes:
        name: Name of the owner.
        scopes: Scopes of the tenant.
        vms: Standalone VMs of the tenant.
        lasts: Lifetime from now.
    """

    name: str
    role: Role
    scopes: tuple[str, ...] = ()
    vms: tuple[str, ...] = ()
    lasts: timedelta


class TokenCommands(Committer):
    """Commands of operators on tokens, and of the control API on refused calls."""

    tokens_max: int = 1000
    """Maximum number of valid tokens of people and programs."""

    @traced
    async def create_token(self, request: TokenRequest, *, actor: str) -> tuple[Token, str]:
        """Create a token; return it with its secret, which is shown only once.

        Raises:
            NotFound: A scope or VM does not exist.
            InvalidRequest: A scope is of the kind standalone, or a VM is in another scope.
            LimitExceeded: There are too many tokens.
        """
        word = new_token()

        def change(draft: Draft, tx: Transaction) -> Token:
            if sum(each.is_taken(draft.now) for each in tx.tokens()) >= self.tokens_max:
                msg = f"there are {self.tokens_max} tokens already (tokens_max): see 'forewarn token revoke'"
                raise LimitExceeded(msg)
            check_owned(tx, request.scopes, request.vms)
            token = Token(
                id=draft.new_id("token"),
                name=request.name,
                role=request.role,
                scopes=tuple(sorted(set(request.scopes))),
                vms=tuple(sorted(set(request.vms))),
                digest=digest(word),
                created_at=draft.now,
                created_by=actor,
                expires_at=draft.now + request.lasts,
            )
            draft.note(EntryKind.TOKEN_CREATED, reason=f"token {token.id} for {token.principal().actor}")
            return token

        return await self._change_token(change, actor), word

    @traced
    async def revoke_token(self, token_id: str, *, actor: str) -> Token:
        """Revoke a token; repeating it changes nothing.

        Raises:
            NotFound: No token has this id.
        """

        def change(draft: Draft, tx: Transaction) -> Token:
            token = tx.token_of(token_id)
            if token is None:
                msg = f"token {token_id!r} does not exist: see 'forewarn token list'"
                raise NotFound(msg, id=token_id)
            return _revoked(draft, token, f"token {token_id} of {token.principal().actor}")

        return await self._change_token(change, actor)

    @traced
    async def create_host_token(self, host: str, *, actor: str) -> tuple[Token, str]:
        """Create a token for the endpoint on a host; return it with its secret, which is shown only once.

        Raises:
            NotFound: There is no such host.
            LimitExceeded: The host has too many tokens.
        """
        if host not in self.identity.hosts:
            msg = f"host {host!r} does not exist: see 'forewarn host list'"
            raise NotFound(msg, host=host)
        word = new_token()

        def change(draft: Draft, tx: Transaction) -> Token:
            if sum(each.is_taken(draft.now) for each in tx.tokens(host)) >= _HOST_TOKENS_MAX:
                msg = f"host {host!r} has {_HOST_TOKENS_MAX} tokens: revoke one with 'forewarn host revoke-token'"
                raise LimitExceeded(msg, host=host)
            token = Token(
                id=draft.new_id("token"),
                name=host,
                role=Role.HOST,
                host=host,
                digest=digest(word),
                created_at=draft.now,
                created_by=actor,
            )
            draft.note(EntryKind.TOKEN_CREATED, reason=f"token {token.id} of host {host}")
            return token

        return await self._change_token(change, actor), word

    @traced
    async def revoke_host_token(self, host: str, token_id: str, *, actor: str) -> Token:
        """Revoke a token of a host.

        Raises:
            NotFound: The host has no such token.
        """

        def change(draft: Draft, tx: Transaction) -> Token:
            token = next((each for each in tx.tokens(host) if each.id == token_id), None)
            if token is None:
                msg = f"host {host!r} has no token {token_id!r}: see 'forewarn host tokens'"
                raise NotFound(msg, host=host, id=token_id)
            return _revoked(draft, token, f"token {token_id} of host {host}")

        return await self._change_token(change, actor)

    async def _change_token(self, change: Callable[[Draft, Transaction], Token], actor: str) -> Token:
        def work(tx: Transaction) -> tuple[Token, Changes]:
            draft = self._draft(State(), tx, actor)
            token = change(draft, tx)
            tx.keep_token(token)
            changes = draft.finish()
            tx.save(changes)
            return token, changes

        def publish(result: tuple[Token, Changes]) -> Token:
            self._publish(result[1])
            return result[0]

        return await self._command(work, publish)

    async def token(self, token_digest: str) -> Token | None:
        """Return the token with this digest."""
        return await self.read(lambda reader: reader.token(token_digest))

    async def token_of(self, token_id: str) -> Token | None:
        """Return the token with this id."""
        return await self.read(lambda reader: reader.token_of(token_id))

    async def is_revoked(self, nonce: str) -> bool:
        """Return whether the login link or session with this nonce was revoked."""
        return await self.read(lambda reader: reader.is_revoked(nonce))

    async def revoke(self, revocation: Revocation) -> bool:
        """Revoke a login link or a session, on all replicas and permanently.

        Returns:
            True if it was neither revoked before nor expired.
        """
        now = self.clock.now()
        if revocation.expires_at <= now:
            return False
        return await self._command(lambda tx: tx.revoke(revocation, now, _REVOCATIONS_MAX), bool)

    async def is_token_taken(self, token_id: str, now: datetime) -> bool:
        """Return whether the token with this id is neither revoked nor expired."""
        token = await self.token_of(token_id)
        return token is not None and token.is_taken(now)

    async def note_refused(self, entries: Iterable[Entry]) -> None:
        """Record refused calls in the audit log."""
        changes = Changes(entries=list(entries))

        def work(tx: Transaction) -> Changes:
            tx.save(changes)
            return changes

        await self._command(work, self._publish)


def _revoked(draft: Draft, token: Token, words: str) -> Token:
    if token.revoked_at is not None:
        return token
    draft.note(EntryKind.TOKEN_REVOKED, reason=words)
    return replace(token, revoked_at=draft.now)

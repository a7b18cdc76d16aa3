"""Commands for access: create and revoke tokens, and record refused calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from forewarn.core.access import Revocation, Role, Token
from forewarn.core.hints import SEE_HOSTS
from forewarn.core.maintenance.decision import ChangeSet, Draft
from forewarn.core.model import AuditEntry, EntryKind
from forewarn.engine.idempotency import IdempotencyKey, recall_outcome, save_outcome
from forewarn.engine.ownership import check_owned
from forewarn.engine.token_lookup import TokenLookup
from forewarn.engine.transaction import Commands, Committer, TransactionResult, trace_command
from forewarn.errors import Conflict, Hint, LimitExceeded, NotFound
from forewarn.store.contract import Transaction
from forewarn.util.secrets import hash_token, new_token

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
        lifetime: Lifetime from now.
    """

    name: str
    role: Role
    scopes: tuple[str, ...] = ()
    vms: tuple[str, ...] = ()
    lifetime: timedelta


class TokenCommands(Commands):
    """Commands of operators on tokens, and of the control API on refused calls.

    Args:
        committer: Carries out the commands.
        tokens_max: Maximum number of valid tokens of people and programs.
    """

    def __init__(self, *, committer: Committer, tokens_max: int) -> None:
        super().__init__(committer=committer)
        self._tokens_max = tokens_max
        self._lookup = TokenLookup(committer)

    @trace_command("create token")
    async def create(
        self, request: TokenRequest, *, actor: str, key: IdempotencyKey | None = None
    ) -> tuple[Token, str]:
        """Create a token; return it with its secret, which is shown only once.

        Args:
            request: Token to create.
            actor: Actor named in the audit log.
            key: Creates only one token, however often it is used; None for a new token each time.

        Raises:
            Conflict: The key has created a token already, whose secret cannot be shown again.
            NotFound: A scope or VM does not exist.
            InvalidRequest: A scope is of the kind standalone, or a VM is in another scope.
            LimitExceeded: There are too many tokens.
        """
        word = new_token()

        def change(tx: Transaction, draft: Draft) -> Token:
            known = recall_outcome(tx, key)
            if known is not None:
                id = known["token"]
                msg = (
                    f"token {id} was created by an earlier request: if its secret is lost, revoke it and create another"
                )
                raise Conflict(msg, id=id)
            # Counted in the transaction, so that concurrent requests cannot exceed the limit together.
            if sum(each.is_valid(draft.now) for each in tx.list_tokens()) >= self._tokens_max:
                msg = f"there are {self._tokens_max} tokens already (tokens_max)"
                raise LimitExceeded(msg, hint=Hint("see 'forewarn token revoke'"))
            check_owned(tx, request.scopes, request.vms)
            token = Token(
                id=draft.new_id("token"),
                name=request.name,
                role=request.role,
                scopes=tuple(sorted(set(request.scopes))),
                vms=tuple(sorted(set(request.vms))),
                digest=hash_token(word),
                created_at=draft.now,
                created_by=actor,
                expires_at=draft.now + request.lifetime,
            )
            draft.record(EntryKind.TOKEN_CREATED, reason=f"token {token.id} for {token.to_principal().actor}")
            tx.save_token(token)
            save_outcome(tx, key, {"token": token.id}, draft.now)
            return token

        return await self._committer.record(change, actor=actor), word

    @trace_command("revoke token")
    async def revoke(self, token_id: str, *, actor: str) -> Token:
        """Revoke a token; repeating it changes nothing.

        Raises:
            NotFound: No token has this id.
        """

        def change(tx: Transaction, draft: Draft) -> Token:
            token = tx.get_token(token_id)
            if token is None:
                raise NotFound(
                    f"token {token_id!r} does not exist", hint=Hint("see 'forewarn token list'"), id=token_id
                )
            return _mark_revoked(tx, draft, token, f"token {token_id} of {token.to_principal().actor}")

        return await self._committer.record(change, actor=actor)

    @trace_command("create host token")
    async def create_host_token(self, host: str, *, actor: str) -> tuple[Token, str]:
        """Create a token for the endpoint on a host; return it with its secret, which is shown only once.

        Raises:
            NotFound: There is no such host.
            LimitExceeded: The host has too many tokens.
        """
        if host not in self._committer.identity.hosts:
            raise NotFound(f"host {host!r} does not exist", hint=SEE_HOSTS, host=host)
        word = new_token()

        def change(tx: Transaction, draft: Draft) -> Token:
            # A few are allowed, so that a new token can be installed before the former one is revoked.
            if sum(each.is_valid(draft.now) for each in tx.list_tokens(host)) >= _HOST_TOKENS_MAX:
                msg = f"host {host!r} has {_HOST_TOKENS_MAX} tokens"
                raise LimitExceeded(msg, hint=Hint("revoke one with 'forewarn host revoke-token'"), host=host)
            token = Token(
                id=draft.new_id("token"),
                name=host,
                role=Role.HOST,
                host=host,
                digest=hash_token(word),
                created_at=draft.now,
                created_by=actor,
            )
            draft.record(EntryKind.TOKEN_CREATED, reason=f"token {token.id} of host {host}")
            tx.save_token(token)
            return token

        return await self._committer.record(change, actor=actor), word

    @trace_command("revoke host token")
    async def revoke_host_token(self, host: str, token_id: str, *, actor: str) -> Token:
        """Revoke a token of a host.

        Raises:
            NotFound: The host has no such token.
        """

        def change(tx: Transaction, draft: Draft) -> Token:
            token = next((each for each in tx.list_tokens(host) if each.id == token_id), None)
            if token is None:
                msg = f"host {host!r} has no token {token_id!r}"
                raise NotFound(msg, hint=Hint("see 'forewarn host tokens'"), host=host, id=token_id)
            return _mark_revoked(tx, draft, token, f"token {token_id} of host {host}")

        return await self._committer.record(change, actor=actor)

    async def find_by_digest(self, token_digest: str) -> Token | None:
        """Return the token with this digest."""
        return await self._lookup.find(token_digest)

    async def find(self, token_id: str) -> Token | None:
        """Return the token with this id."""
        return await self._committer.read(lambda reader: reader.get_token(token_id))

    async def is_revoked(self, nonce: str) -> bool:
        """Return whether the login link or session with this nonce was revoked."""
        return await self._committer.read(lambda reader: reader.is_revoked(nonce))

    async def record_revocation(self, revocation: Revocation) -> bool:
        """Revoke a login link or a session, on all replicas and permanently.

        Returns:
            True if it was neither revoked before nor expired.
        """
        now = self._committer.clock.now()
        # An expired link or session is refused anyway, and must not displace a revocation that still matters.
        if revocation.expires_at <= now:
            return False
        return await self._committer.write(lambda tx: tx.add_revocation(revocation, now, _REVOCATIONS_MAX))

    async def is_valid(self, token_id: str, now: datetime) -> bool:
        """Return whether the token with this id is neither revoked nor expired."""
        token = await self.find(token_id)
        return token is not None and token.is_valid(now)

    async def find_invalid(self, token_ids: Iterable[str], now: datetime) -> set[str]:
        """Return those of these tokens that are revoked, expired or removed, in one read."""
        wanted = set(token_ids)
        found = await self._committer.read(lambda reader: reader.find_tokens(wanted))
        return {token_id for token_id in wanted if token_id not in found or not found[token_id].is_valid(now)}

    async def record_refused_calls(self, entries: Iterable[AuditEntry]) -> None:
        """Record refused calls in the audit log."""
        changes = ChangeSet(entries=list(entries))

        def work(tx: Transaction) -> TransactionResult[None]:
            # Without a draft: the entries already carry the times and callers of the refused calls.
            tx.save(changes)
            return TransactionResult(answer=None, changes=[changes])

        await self._committer.commit(work)


def _mark_revoked(tx: Transaction, draft: Draft, token: Token, description: str) -> Token:
    if token.revoked_at is None:
        token = replace(token, revoked_at=draft.now)
        tx.save_token(token)
        draft.record(EntryKind.TOKEN_REVOKED, reason=description)
    return token

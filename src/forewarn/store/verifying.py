"""Verification of the audit log's hash chains from outside of a service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from forewarn.core.audit_chain import Chain, ChainHead, ChainVerifier
from forewarn.errors import Conflict
from forewarn.store.audit_chain import read_link_page
from forewarn.store.migrate import HEAD
from forewarn.store.whole_database import WholeDatabase, parse_database_url, read_schema_revision

__all__ = ["verify_database"]

# Ten times the piece of the service, which must not occupy a reader's thread for long.
_PIECE = 5000


def verify_database(
    url: str, noted: Mapping[Chain, Iterable[ChainHead]] | None = None, on_progress: Callable[[int], None] | None = None
) -> ChainVerifier:
    """Follow both hash chains of a database in one view of it. It may be served meanwhile; nothing is changed.

    Args:
        url: URL of the database.
        noted: Heads that were noted earlier.
        on_progress: Callback, called with the number of the last entry after each piece but the last.

    Raises:
        ConfigError: The URL cannot be used, or there is no such file.
        Conflict: Its schema is a different one.
        StoreCorrupt: It is damaged or not Forewarn's.
        StoreUnavailable: It is away.
    """
    database = WholeDatabase(parse_database_url(url))
    database.check_exists()
    verifier = ChainVerifier(noted)
    with database.read() as connection:
        schema = read_schema_revision(connection, database.name)
        if schema != HEAD:
            msg = (
                f"database {database.name} has schema {schema}, but {HEAD} is expected: "
                "run this version of forewarn serve on it once"
            )
            raise Conflict(msg)
        page = read_link_page(connection, None, _PIECE)
        verifier.verify_page(page)
        while page.next is not None:
            if on_progress is not None:
                on_progress(page.next)
            page = read_link_page(connection, page.next, _PIECE)
            verifier.verify_page(page)
    return verifier

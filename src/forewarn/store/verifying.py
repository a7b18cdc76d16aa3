"""Verification of the audit log's hash chains from outside of a service."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from forewarn.core.chain import Chain, Head, Verifier
from forewarn.errors import Conflict
from forewarn.store.chaining import read_links
from forewarn.store.ends import WholeDatabase, database_url, schema_of
from forewarn.store.migrate import HEAD

__all__ = ["verify_database"]

_PIECE = 5000


def verify_database(
    url: str, noted: Mapping[Chain, Iterable[Head]] | None = None, tell: Callable[[int], None] | None = None
) -> Verifier:
    """Follow both hash chains of a database in one view of it. It may be served meanwhile; nothing is changed.

    Args:
        url: URL of the database.
        noted: Heads that were noted earlier.
        tell: Callback, called with the number of the last entry after each piece but the last.

    Raises:
        ConfigError: The URL cannot be used, or there is no such file.
        Conflict: Its schema is a different one.
        StoreCorrupt: It is damaged or not Forewarn's.
        StoreUnavailable: It is away.
    """
    database = WholeDatabase(database_url(url))
    database.check_exists()
    verifier = Verifier(noted)
    with database.read() as connection:
        schema = schema_of(connection, database.name)
        if schema != HEAD:
            msg = (
                f"database {database.name} has schema {schema}, and {HEAD} is expected: serve it with this version once"
            )
            raise Conflict(msg)
        page = read_links(connection, None, _PIECE)
        verifier.take(page)
        while page.next is not None:
            if tell is not None:
                tell(page.next)
            page = read_links(connection, page.next, _PIECE)
            verifier.take(page)
    return verifier

"""The database: it takes changes, there is room for it, and its schema is that of this version."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import sqlalchemy as sa

from forewarn.config.settings import Settings
from forewarn.doctor.finding import Finding, fail, ok, skip, warn
from forewarn.doctor.situation import Situation
from forewarn.errors import ForewarnError, StoreUnavailable
from forewarn.store.migrate import HEAD
from forewarn.store.sql import create_postgresql_engine, parse_store_url, wrap_driver_errors

__all__ = ["check_database", "check_database_file", "check_schema"]

_BUSY_TIMEOUT_MS = 5000
_REVISION = "SELECT version_num FROM alembic_version"
_FULL_SHARE = 0.9
_FREE_BYTES_MIN = 1 << 30


def check_database(situation: Situation) -> Finding:
    """Check that the service can change its database, and has no other problem."""
    status = situation.status or {}
    database, problems = status["database"], status["problems"]
    if not database["is_writable"]:
        text = "; ".join(problem["text"] for problem in problems)
        return fail(
            f"{database['kind']} takes no changes: {text}", "Look into the log of the service and the database."
        )
    return ok(f"{database['kind']} takes changes")


def check_database_file(situation: Situation) -> Finding:
    """Check the size of a SQLite file against its limit and the room on its disk."""
    assert situation.settings is not None  # noqa: S101 - see `Check.needs_settings`
    path = _find_file(situation.settings)
    if path is None:
        return skip("the database is not a SQLite file")
    try:
        log = Path(f"{path}-wal")
        # What was committed last is still in the write-ahead log.
        size = path.stat().st_size + (log.stat().st_size if log.exists() else 0)
        free = shutil.disk_usage(path.parent).free
    except FileNotFoundError:
        return warn(f"{path} does not exist", "Name the database with --config, or start the service once.")
    except OSError as error:
        return skip(f"cannot read {path}: {error.strerror}; run this as the user of the service")
    most = situation.settings.database_size_bytes_max
    if size >= most * _FULL_SHARE:
        advice = "Raise database_size_bytes_max, or keep less history (history_retention)."
        return fail(f"{path} has {_format_size(size)} of at most {_format_size(most)}", advice)
    if free < min(_FREE_BYTES_MIN, most - size):
        return warn(f"the disk of {path} has only {_format_size(free)} left", "Make room on the disk.")
    return ok(f"{path} has {_format_size(size)} of at most {_format_size(most)}; {_format_size(free)} are free")


def check_schema(situation: Situation) -> Finding:
    """Check that the database can be read from this machine, and that its schema is that of this version."""
    assert situation.settings is not None  # noqa: S101 - see `Check.needs_settings`
    path = _find_file(situation.settings)
    if path is None and parse_store_url(situation.settings.database_url).get_backend_name() == "sqlite":
        return skip("the database is in memory")
    if path is not None and not path.is_file():
        return skip(f"{path} does not exist")
    try:
        found = _read_revision(situation.settings)
    except ForewarnError as error:
        return fail(error.message, "Check database_url, and that this machine can reach the database.")
    return _compare_revision(found)


def _compare_revision(found: str | None) -> Finding:
    if found is None:
        return fail("the database has no schema of Forewarn", "Check database_url: it names another database.")
    if found < HEAD:
        advice = "Restart the service with this version, which upgrades the database."
        return warn(f"the schema is {found}, and that of this version is {HEAD}", advice)
    if found > HEAD:
        advice = "Upgrade Forewarn on this machine."
        return warn(f"the schema is {found}, newer than that of this version ({HEAD})", advice)
    return ok(f"the schema is that of this version ({HEAD})")


def _find_file(settings: Settings) -> Path | None:
    url = parse_store_url(settings.database_url)
    is_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
    return Path(str(url.database)) if is_file else None


def _read_revision(settings: Settings) -> str | None:
    """Return the revision of the schema, without a change to the database; None if it is not ours.

    Raises:
        StoreUnavailable: The database cannot be read.
    """
    path = _find_file(settings)
    if path is not None:
        return _read_sqlite_revision(path)
    engine = create_postgresql_engine(parse_store_url(settings.database_url), _BUSY_TIMEOUT_MS)
    try:
        with wrap_driver_errors("postgresql"), engine.connect() as connection:
            if not sa.inspect(connection).has_table("alembic_version"):
                return None
            found: str | None = connection.execute(sa.text(_REVISION)).scalar()
            return found
    finally:
        engine.dispose()


def _read_sqlite_revision(path: Path) -> str | None:
    # Without a write-ahead log no process has the file open. SQLite would then make files beside it, which would belong
    # to the user of this command instead of the service, unless the database counts as immutable.
    is_open = Path(f"{path}-wal").exists()
    url = f"file:{quote(str(path.absolute()))}?mode=ro{'' if is_open else '&immutable=1'}"
    try:
        with closing(sqlite3.connect(url, uri=True, timeout=_BUSY_TIMEOUT_MS / 1000)) as connection:
            tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
            found = connection.execute(_REVISION).fetchone() if tables[0] else None
    except sqlite3.Error as error:
        raise StoreUnavailable(f"cannot read {path}: {error}") from error
    return None if found is None else str(found[0])


def _format_size(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:  # noqa: PLR2004 - a unit is 1,024 of the smaller one
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"

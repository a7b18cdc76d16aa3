"""The migrations make exactly the tables that the code works with, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from forewarn.core.inventory import Inventory
from forewarn.errors import StoreCorrupt
from forewarn.store.migrate import HEAD, MIGRATIONS, upgrade_schema
from forewarn.store.tables import metadata
from tests.conformance.conftest import ON_DISK
from tests.support.databases import Database, PostgreSql
from tests.support.schema import NEXT, next_version
from tests.unit.core.builders import vm


@pytest.fixture(params=ON_DISK)
def bare(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A database with nothing in it."""
    if request.param == "postgresql":
        server: PostgreSql = request.getfixturevalue("server")
        with server.database("template0") as made:
            yield made
    else:
        yield Database(f"sqlite:///{tmp_path / 'forewarn.db'}")


def test_the_constant_names_the_newest_revision() -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


def test_migrating_makes_the_tables_of_the_code(bare: Database) -> None:
    with bare.engine().begin() as connection:
        upgrade_schema(connection)
    with bare.engine().connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_migrating_again_does_nothing(bare: Database) -> None:
    bare.open().close()
    bare.open().close()
    with bare.engine().connect() as connection:
        assert connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalars().all() == [HEAD]


def test_a_migration_that_breaks_off_leaves_nothing_behind(bare: Database) -> None:
    engine = bare.engine()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE vm (x INTEGER)")
    with pytest.raises(StoreCorrupt):
        bare.open()
    assert sa.inspect(bare.engine()).get_table_names() == ["vm"]


@pytest.mark.parametrize(("since", "is_taken"), [(HEAD, True), ("0000", True), ("9999", False), (None, False)])
def test_a_later_schema_is_taken_only_where_it_says_that_we_can_live_with_it(
    bare: Database, since: str | None, *, is_taken: bool
) -> None:
    """A rolling upgrade: a replica of this version starts anew on the schema of the next."""
    bare.open().close()
    bare.migrate_further(since)
    if not is_taken:
        with pytest.raises(StoreCorrupt, match="has unknown schema 9998"):
            bare.open()
        return
    store = bare.open()
    with store.write() as tx:
        tx.replace_inventory(Inventory(vms=(vm("db"),)), "mark")
    with store.read() as reader:
        assert [each.name for each in reader.list_vms()] == ["db"]
    store.close()


def test_an_older_schema_is_upgraded_and_keeps_its_rows(bare: Database, tmp_path: Path) -> None:
    store = bare.open()
    with store.write() as tx:
        tx.replace_inventory(Inventory(vms=(vm("db"),)), "mark")
    store.close()
    with next_version(tmp_path / "migrations"):
        store = bare.open()
        with store.read() as reader:
            assert [each.name for each in reader.list_vms()] == ["db"]
        store.close()
    with pytest.raises(StoreCorrupt, match=f"has unknown schema {NEXT}"):
        bare.open()


def test_the_indexes_are_those_of_the_code(bare: Database) -> None:
    """Also their conditions, which Alembic does not compare."""
    bare.open().close()
    made = _indexes(bare)
    with bare.engine().begin() as connection:
        metadata.drop_all(connection)
        metadata.create_all(connection)
    assert made == _indexes(bare)


def _indexes(database: Database) -> dict[str | None, tuple[object, ...]]:
    inspector = sa.inspect(database.engine())
    found = [index for name in metadata.tables for index in inspector.get_indexes(name)]
    where = f"{inspector.dialect.name}_where"
    return {x["name"]: (x["column_names"], x["unique"], str(x.get("dialect_options", {}).get(where))) for x in found}


def test_going_down_leaves_no_table(bare: Database) -> None:
    bare.open().close()
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with bare.engine().begin() as connection:
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    assert sa.inspect(bare.engine()).get_table_names() == ["alembic_version"]

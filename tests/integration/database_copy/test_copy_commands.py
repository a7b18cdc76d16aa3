"""The commands `forewarn database`, and the page that moves a service with them."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import sqlalchemy as sa
import typer

from forewarn.cli.database import app, format_progress
from forewarn.cli.main import format_error
from forewarn.errors import ForewarnError
from forewarn.store.copying import COPIED, CopyProgress
from forewarn.store.migrate import HEAD
from tests.support.copied import MEBIBYTE, contents, letter, missing, nothing, run_sql, somebody_else
from tests.support.databases import Database, PostgreSql
from tests.support.documents import ROOT
from tests.support.processes import Served, served
from tests.support.schema import NEXT
from tests.support.spans import GUARD_S

PAGE = ROOT / "docs" / "how-to" / "move-a-database.md"


# The commands


class Cli:
    """The commands of `database`, in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._app = typer.Typer()
        self._app.add_typer(app)
        self._capsys = capsys

    def run(self, *arguments: str) -> str:
        self._app(args=["database", *arguments], standalone_mode=False)
        captured = self._capsys.readouterr()
        assert captured.err == ""
        return captured.out

    def fails(self, *arguments: str) -> str:
        with pytest.raises((ForewarnError, typer.BadParameter)) as caught:
            self._app(args=["database", *arguments], standalone_mode=False)
        captured = self._capsys.readouterr()
        assert (captured.out, captured.err) == ("", "")
        return format_error(caught.value)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys)


def test_copy_tells_people_what_it_did(cli: Cli, source: Database, target: Database) -> None:
    rows = {name: len(found) for name, found in contents(source).items()}
    lines = cli.run("copy", source.url, target.url).splitlines()
    assert lines[0].split() == ["TABLE", "ROWS", "CHECKSUM"]
    told = {words[0]: int(words[1]) for words in (line.split() for line in lines[1 : 1 + len(rows)])}
    assert told == rows
    assert f"copied {sum(rows.values())} rows from {source.url} to {target.url}" in lines
    assert "row counts and checksums match for every table" in lines


def test_copy_tells_programs_what_it_did(cli: Cli, source: Database, target: Database) -> None:
    told = json.loads(cli.run("copy", source.url, target.url, "--json"))
    assert set(told) == {"from", "to", "schema", "rows", "tables"}
    assert (told["from"], told["to"], told["schema"]) == (source.url, target.url, HEAD)
    assert [table["name"] for table in told["tables"]] == [table.name for table in COPIED]
    assert sum(table["rows"] for table in told["tables"]) == told["rows"]


def test_copy_upgrades_a_source_when_it_is_told_to(cli: Cli, older: Database, target: Database) -> None:
    assert "--upgrade-source" in cli.fails("copy", older.url, target.url)
    cli.run("copy", older.url, target.url, "--upgrade-source")
    assert contents(target) == contents(older)


def test_progress_is_told_in_words() -> None:
    progress = CopyProgress(is_comparing=False, table="audit_log", rows_done=1200, rows=1_000_000)
    assert format_progress(progress) == "copying audit_log: 1,200 of 1,000,000 rows"
    assert format_progress(replace(progress, is_comparing=True)).startswith("comparing audit_log")


def test_a_wrong_url_is_a_matter_of_usage_and_says_which(cli: Cli, source: Database) -> None:
    assert cli.fails("copy", "forewarn.db", source.url).startswith("invalid value for FROM: invalid database URL")
    assert cli.fails("copy", source.url, "mysql://a:secret@b/c").startswith(
        "invalid value for TO: invalid database URL"
    )
    assert cli.fails("show", "forewarn.db").startswith("invalid value for URL")


def test_show_tells_what_a_served_file_holds(cli: Cli, source: Database) -> None:
    rows = {name: len(found) for name, found in contents(source).items()}
    with closing(source.open()) as store:
        told = json.loads(cli.run("show", source.url, "--json"))
        with store.read() as reader:
            assert told["counter"] == reader.get_position() > 0
        words = cli.run("show", source.url)
    # A migration has recorded which versions can read the schema; that row is not copied.
    assert told["rows"] == rows | {"lease": 0, "meta": rows["meta"] + 1}
    assert (told["url"], told["schema"], told["newest_schema"], told["leases"]) == (source.url, HEAD, HEAD, [])
    assert told["size_bytes"] >= source.path.stat().st_size
    assert f"schema    {HEAD} (the newest)" in words
    assert re.search(r"^lease +none$", words, re.MULTILINE)
    assert re.search(rf"^audit_log +{rows['audit_log']}$", words, re.MULTILINE)


def test_show_tells_that_a_schema_is_old_and_leaves_it(cli: Cli, older: Database) -> None:
    run_sql(older, "DROP TABLE lease")  # as if it had come later
    before = older.path.read_bytes()
    assert f"0001 (the newest here is {NEXT})" in cli.run("show", older.url)
    assert "lease" not in json.loads(cli.run("show", older.url, "--json"))["rows"]
    assert older.path.read_bytes() == before


@pytest.mark.parametrize("spoil", [letter, nothing, somebody_else, missing], ids=lambda spoil: spoil.__name__)
def test_show_refuses_what_is_no_database_of_ours(
    spoil: Callable[[Database], None], cli: Cli, source: Database
) -> None:
    spoil(source)
    assert re.search("not a Forewarn database|does not exist", cli.fails("show", source.url))
    assert source.path.exists() is (spoil is not missing)


@pytest.mark.slow
def test_show_tells_who_holds_the_lease_of_a_postgresql_database(cli: Cli, filled: Database) -> None:
    run_sql(filled, "INSERT INTO lease VALUES ('scheduler', 'replica-7', 3, 4102444800000000)")
    assert re.search("lease scheduler +replica-7 until 2100-01-01 00:00:00Z", cli.run("show", filled.url))
    run_sql(filled, "UPDATE lease SET expires_at = 0")
    assert re.search("lease scheduler +expired; last held by replica-7", cli.run("show", filled.url))
    told = json.loads(cli.run("show", filled.url, "--json"))
    expected = {"name": "scheduler", "holder": "replica-7", "term": 3, "expires_at": "1970-01-01T00:00:00Z"}
    assert told["leases"] == [expected | {"is_over": True}]
    assert told["size_bytes"] > MEBIBYTE


# The page


_BLOCK = re.compile(r"<!-- moves: [^>]+ -->\n *```\n(.*?)```", re.DOTALL)


class Reader:
    """Does what the page says, line by line: services are real processes, one at a time."""

    def __init__(self, folder: Path, server: PostgreSql, cli: Cli) -> None:
        socket = sa.make_url(server._url("postgres")).query["host"]
        self.url = f"postgresql://forewarn@/forewarn?host={quote(str(socket))}"
        self.service: Served | None = None
        self.shown: list[Any] = []
        self._folder, self._cli = folder, cli
        self._environment = os.environ | {"PGHOST": str(socket), "PGUSER": "postgres"}
        self._environment["PATH"] = f"{server._server.bin_path}:{self._environment['PATH']}"
        self._stack = ExitStack()

    def serve(self, *arguments: str) -> None:
        self.service = self._stack.enter_context(served(self._folder, *arguments))

    def stop(self) -> None:
        self._stack.close()
        self.service = None

    def do(self, line: str) -> None:
        words = shlex.split(line.replace("postgresql://forewarn@db.example/forewarn", shlex.quote(self.url)))
        match words:
            case ["forewarn", "database", "copy", *_]:
                self.note()
                assert re.search("is in use by another forewarn|is served", self._cli.fails(*words[2:]))
                self.stop()
                self._cli.run(*words[2:])
            case ["forewarn", "database", *_]:
                self._cli.run(*words[2:])
            case ["forewarn", "serve", *arguments]:
                self.serve(*arguments)
                self.note()
            case ["forewarn", *arguments]:
                assert self.service is not None
                assert self.service.forewarn(*arguments)
            case _:
                subprocess.run(words, check=True, cwd=self._folder, env=self._environment, timeout=60)

    def document(self) -> Any:  # noqa: ANN401 - JSON
        """What the VM sees."""
        assert self.service is not None
        url = f"{self.service.metadata_url}/metadata/scheduledevents?api-version=2020-07-01"
        return httpx.get(url, headers={"Metadata": "true"}, trust_env=False, timeout=GUARD_S).json()

    def note(self) -> None:
        """What is there to see."""
        assert self.service is not None
        self.shown.append(
            {noun: self.service.forewarn(noun, "list") for noun in ("vm", "maintenance", "event")}
            | {"audit_log": self.service.forewarn("audit-log")}
        )


@pytest.mark.slow
def test_the_page_moves_a_service_there_and_back(
    cli: Cli, server: PostgreSql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path, server, cli)
    try:
        reader.serve()
        assert reader.service is not None
        assert reader.document()["DocumentIncarnation"] == 1
        reader.service.forewarn("maintenance", "schedule", "--vm", "vm-1", "--type", "Redeploy")
        lines = [line for block in _BLOCK.findall(PAGE.read_text()) for line in block.splitlines() if line.strip()]
        assert len(lines) > 8
        for line in lines:
            reader.do(line)
        document = reader.document()
        assert document["DocumentIncarnation"] == 2
        assert [event["EventStatus"] for event in document["Events"]] == ["Scheduled"]
    finally:
        reader.stop()
    assert len(reader.shown) == 4
    assert all(shown == reader.shown[0] for shown in reader.shown)

"""The doctor on the machine of a real service: it finds nothing when all is well, and each thing that is wrong."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from forewarn.cli.main import run_command_line
from forewarn.clock import RealClock
from forewarn.core.access import Role
from forewarn.doctor.checks import CHECKS, run_checks
from forewarn.doctor.checks.certificate import check_certificate
from forewarn.doctor.checks.clock import check_ntp
from forewarn.doctor.checks.configuration import check_configuration
from forewarn.doctor.checks.database import check_database_file, check_schema
from forewarn.doctor.checks.metadata_address import check_metadata_address
from forewarn.doctor.checks.state_folder import check_state_folder
from forewarn.doctor.finding import CheckResult, Finding
from forewarn.doctor.situation import Situation
from forewarn.errors import ServerUnreachable
from tests.support.access import token_of
from tests.support.databases import postgresql
from tests.support.service import Running, running


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    with running(tmp_path) as started:
        yield started


@pytest.fixture
def config(service: Running, tmp_path: Path) -> Path:
    """The file with the settings of that service."""
    host, port = service.address
    return write(tmp_path, metadata_listen=f"{host}:{port}")


def write(folder: Path, **settings: object) -> Path:
    path = folder / "forewarn.toml"
    values = {"database_url": f"sqlite:///{folder}/forewarn.db", "state_dir": str(folder), **settings}
    path.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items()))
    return path


def at(config: Path | None, now: datetime | None = None) -> Situation:
    def fetch(_path: str, **_params: object) -> Any:  # noqa: ANN401 - JSON
        raise ServerUnreachable("not asked for")

    return Situation(now=now or RealClock().now(), fetch=fetch, config=config)


def check(found: Finding, result: str, reason: str) -> None:
    assert (found.result.value, reason in found.reason) == (result, True), found
    assert bool(found.advice) is (found.result in {CheckResult.WARN, CheckResult.FAIL})


def test_a_good_set_up_passes_all_checks(
    service: Running, config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREWARN_CONTROL_URL", service.service.control_url)
    monkeypatch.setenv("FOREWARN_TOKEN", service.service.tokens.operator_token)
    run_command_line(["doctor", "--config", str(config), "--json"])
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert list(found) == [each.name for each in CHECKS]
    # The state of NTP and the limit of open files are the machine's.
    wrong = {name: each for name, each in found.items() if each["result"] in {"warn", "fail"}}
    assert wrong.keys() <= {"ntp", "open-files"}, wrong
    for name in ("configuration", "state-folder", "database-file", "schema", "metadata-address", "database"):
        assert found[name]["result"] == "ok", found[name]
    assert run_command_line(["doctor", "--config", str(config), "--json"]) == (1 if wrong else 0)


def test_the_command_shows_what_to_do_and_ends_with_1(
    service: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FOREWARN_CONTROL_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("FOREWARN_TOKEN", "x")
    monkeypatch.setenv("COLUMNS", "250")
    assert run_command_line(["doctor", "--config", str(tmp_path / "none.toml")]) == 1
    shown = capsys.readouterr().out
    assert "no such file" in shown
    assert "Correct the setting" in shown
    assert "Start the service, or check --control-url" in shown
    assert "the configuration is invalid" in shown
    monkeypatch.setenv("FOREWARN_CONTROL_URL", service.service.control_url)
    monkeypatch.setenv("FOREWARN_TOKEN", token_of(service, Role.TENANT))
    assert run_command_line(["doctor", "--remote"]) == 0
    assert "use the token of an operator" in capsys.readouterr().out


def test_local_checks_are_skipped_elsewhere(config: Path) -> None:
    results = {each.name: finding.result for each, finding in run_checks(at(config), is_remote=True)}
    assert {results[each.name] for each in CHECKS if each.is_local} == {CheckResult.SKIPPED}
    assert results["control-api"] is CheckResult.FAIL


def test_an_invalid_configuration_fails(tmp_path: Path) -> None:
    check(check_configuration(at(write(tmp_path, notice_max="soon"))), "fail", "notice_max")
    check(check_configuration(at(write(tmp_path))), "ok", "forewarn.toml")
    (tmp_path / "forewarn.toml").write_text("=")
    check(check_configuration(at(tmp_path / "forewarn.toml")), "fail", "cannot read")


def test_a_state_folder_that_others_can_use_fails(config: Path, tmp_path: Path) -> None:
    check(check_state_folder(at(config)), "ok", "only its owner")
    (tmp_path / "operator.token").chmod(0o644)
    check(check_state_folder(at(config)), "fail", "mode 0644")
    tmp_path.chmod(0o777)
    check(check_state_folder(at(config)), "fail", "others can write")
    check(check_state_folder(at(write(tmp_path, state_dir=str(tmp_path / "none")))), "warn", "does not exist")


def test_a_database_file_near_its_limit_fails(config: Path, tmp_path: Path) -> None:
    check(check_database_file(at(config)), "ok", "are free")
    (tmp_path / "full.db").write_bytes(bytes(1 << 20))
    limited = write(tmp_path, database_url=f"sqlite:///{tmp_path}/full.db", database_size_bytes_max=1 << 20)
    check(check_database_file(at(limited)), "fail", "1 MiB of at most 1 MiB")
    missing = write(tmp_path, database_url=f"sqlite:///{tmp_path}/none.db")
    check(check_database_file(at(missing)), "warn", "does not exist")
    check(check_schema(at(missing)), "skipped", "does not exist")
    check(check_schema(at(write(tmp_path, database_url="sqlite://"))), "skipped", "in memory")


@pytest.mark.parametrize(
    ("change", "result", "reason"),
    [
        ("SELECT 1", "ok", "that of this version"),
        ("UPDATE alembic_version SET version_num = '0000'", "warn", "the schema is 0000"),
        ("UPDATE alembic_version SET version_num = '9999'", "warn", "newer than that of this version"),
        ("DROP TABLE alembic_version", "fail", "no schema of Forewarn"),
    ],
)
def test_a_schema_of_another_version_is_found_and_the_folder_stays_as_it_is(
    tmp_path: Path, change: str, result: str, reason: str
) -> None:
    with running(tmp_path):
        pass
    with closing(sqlite3.connect(tmp_path / "forewarn.db")) as connection, connection:
        connection.execute(change)
    config = write(tmp_path)
    before = sorted(path.name for path in tmp_path.iterdir())
    check(check_schema(at(config)), result, reason)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_file_that_is_no_database_fails(tmp_path: Path) -> None:
    (tmp_path / "forewarn.db").write_text("no database" * 1000)
    check(check_schema(at(write(tmp_path))), "fail", "cannot read")


@pytest.mark.slow
def test_a_postgresql_is_read_and_one_that_is_away_fails(tmp_path: Path) -> None:
    with postgresql() as server, server.database() as database:
        config = write(tmp_path, database_url=database.url)
        database.open().close()
        check(check_schema(at(config)), "ok", "that of this version")
        check(check_database_file(at(config)), "skipped", "not a SQLite file")
        with database.engine().begin() as connection:
            connection.exec_driver_sql("DROP TABLE alembic_version")
        check(check_schema(at(config)), "fail", "no schema of Forewarn")
    away = write(tmp_path, database_url="postgresql://x@127.0.0.1:9/x")
    check(check_schema(at(away)), "fail", "refused")


def test_a_certificate_near_its_end_is_found(tmp_path: Path) -> None:
    check(check_certificate(at(write(tmp_path))), "skipped", "no TLS certificate")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", "key.pem", "-out", "certificate.pem", "-days", "30", "-subj", "/CN=localhost"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    config = write(tmp_path, tls_certificate=str(tmp_path / "certificate.pem"), tls_key=str(tmp_path / "key.pem"))
    now = RealClock().now()
    check(check_certificate(at(config, now)), "ok", "is valid until")
    check(check_certificate(at(config, now + timedelta(days=20))), "warn", "ends on")
    check(check_certificate(at(config, now + timedelta(days=40))), "fail", "ended on")
    (tmp_path / "certificate.pem").write_text("nonsense")
    check(check_certificate(at(config, now)), "fail", "not a readable certificate")


def test_a_metadata_address_that_does_not_answer_fails(config: Path, tmp_path: Path) -> None:
    check(check_metadata_address(at(config)), "ok", "answers")
    check(check_metadata_address(at(write(tmp_path, metadata_listen="127.0.0.1:9"))), "fail", "does not answer")
    check(check_metadata_address(at(write(tmp_path, metadata_listen="127.0.0.1:0"))), "skipped", "at each start")


@pytest.mark.parametrize(
    ("script", "result", "reason"),
    [
        ("echo yes", "ok", "NTP sets"),
        ("echo no", "warn", "not synchronized"),
        ("exit 1", "skipped", "does not answer"),
        (None, "skipped", "not installed"),
    ],
)
def test_the_state_of_ntp_is_that_of_timedatectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, result: str, reason: str
) -> None:
    if script is not None:
        (tmp_path / "timedatectl").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "timedatectl").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    check(check_ntp(at(None)), result, reason)

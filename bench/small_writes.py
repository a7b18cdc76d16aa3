"""Small writes of PostgreSQL and etcd, each on disk before it is answered, for comparison with Forewarn's approvals.

PostgreSQL gets the load from `pgbench`: each transaction updates one row of a table. etcd gets it from `h2load`, which
speaks etcd's protocol (gRPC): each request stores a value under one key.
"""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from bench.postgresql import open_engine, pgbench_program
from bench.process import LOAD_CORE, SERVER_CORE, BenchError, Child
from bench.result import percentile
from tests.support.ports import reserve_port

__all__ = ["encode_put", "press_etcd", "press_postgresql", "read_latencies_ms"]

_ROWS = 100_000
_UPDATE = f"\\set id random(1, {_ROWS})\nUPDATE pair SET value = value + 1 WHERE id = :id;\n"
_PATIENCE_S = 30.0


def press_postgresql(url: str, folder: Path, log: Path, *, clients: int, seconds: float) -> dict[str, Any]:
    """Let `pgbench` update single rows of a new table.

    Args:
        url: URL of the database, on the server that Forewarn used.
        folder: Folder for the script and the log of `pgbench`.
        log: File for its stderr.
        clients: Connections, each with one transaction at a time.
        seconds: Duration.

    Returns:
        `per_s`, `p50_ms` and `p99_ms`.

    Raises:
        BenchError: The server does not wait for its disk, or lost a transaction.
    """
    engine = open_engine(url)
    with engine.begin() as connection:
        for setting in ("fsync", "synchronous_commit"):
            if connection.exec_driver_sql(f"SHOW {setting}").scalar_one() != "on":
                raise BenchError(f"PostgreSQL's setting {setting} is expected to be on")
        connection.exec_driver_sql("CREATE TABLE pair (id integer PRIMARY KEY, value integer NOT NULL)")
        connection.execute(sa.text("INSERT INTO pair SELECT n, 0 FROM generate_series(1, :rows) n"), {"rows": _ROWS})
    script, prefix = folder / "update.sql", folder / "pgbench"
    script.write_text(_UPDATE, encoding="utf-8")
    arguments = [str(pgbench_program()), "--no-vacuum", "--client", str(clients), "--time", f"{max(1, round(seconds))}"]
    arguments += ["--file", str(script), "--log", "--log-prefix", str(prefix), url]
    with Child(arguments, core=LOAD_CORE, log=log) as load:
        output = load.finish(seconds + _PATIENCE_S).decode()
    took_ms = read_latencies_ms(line for file in folder.glob("pgbench.*") for line in file.read_text().splitlines())
    with engine.connect() as connection:
        written = connection.exec_driver_sql("SELECT sum(value) FROM pair").scalar_one()
    if written != len(took_ms):
        raise BenchError(f"{written} of {len(took_ms)} updates are in the table")
    rate = re.search(r"^tps = ([\d.]+)", output, re.MULTILINE)
    if rate is None:
        raise BenchError(f"pgbench said {output!r}")
    return {"per_s": float(rate[1]), "p50_ms": percentile(took_ms, 50), "p99_ms": percentile(took_ms, 99)}


def read_latencies_ms(lines: Iterable[str]) -> list[float]:
    """Return all durations in a log of `pgbench` or `h2load`, whose third column is in microseconds."""
    return [int(line.split()[2]) / 1000 for line in lines]


def press_etcd(folder: Path, log: Path, *, clients: int, seconds: float) -> dict[str, Any]:
    """Start etcd with its default settings, and let `h2load` store values.

    Args:
        folder: Folder for its data, and for the log of `h2load`.
        log: File for its stderr.
        clients: Connections, each with one request at a time.
        seconds: Duration.

    Returns:
        `per_s`, `p50_ms` and `p99_ms`, and `cpu_ms`, the CPU time of etcd for each put.

    Raises:
        BenchError: etcd does not answer, or lost a put.
    """
    port = reserve_port()
    clients_url, peers_url = (f"http://127.0.0.1:{each}" for each in (port, reserve_port()))
    arguments = ["etcd", "--data-dir", str(folder / "etcd"), "--logger", "zap", "--log-level", "warn"]
    arguments += ["--listen-client-urls", clients_url, "--advertise-client-urls", clients_url]
    arguments += ["--listen-peer-urls", peers_url, "--initial-advertise-peer-urls", peers_url]
    arguments += ["--initial-cluster", f"default={peers_url}"]
    message, times = folder / "put", folder / "h2load.log"
    message.write_bytes(encode_put(b"vm-000001", bytes(48)))
    load = ["h2load", "-t", "1", "-c", str(clients), "-m", "1", "-D", f"{max(1, round(seconds))}", "-d", str(message)]
    load += ["-H", "content-type: application/grpc", "-H", "te: trailers", f"--log-file={times}"]
    with Child(arguments, core=SERVER_CORE, log=log) as etcd:
        _wait_for_etcd(port)
        before, before_s = _count_changes(port), etcd.cpu_s()
        with Child([*load, f"{clients_url}/etcdserverpb.KV/Put"], core=LOAD_CORE, log=log) as h2load:
            output = h2load.finish(seconds + _PATIENCE_S).decode()
        spent_s, stored = etcd.cpu_s() - before_s, _count_changes(port) - before
    took_ms = read_latencies_ms(times.read_text(encoding="utf-8").splitlines())
    rate = re.search(r", ([\d.]+) req/s", output)
    # A put that is answered after the end is stored as well.
    if rate is None or not 0 < len(took_ms) <= stored:
        raise BenchError(f"etcd stored {stored} values after {len(took_ms)} answers: {output!r}")
    return {
        "per_s": float(rate[1]),
        "p50_ms": percentile(took_ms, 50),
        "p99_ms": percentile(took_ms, 99),
        "cpu_ms": spent_s / len(took_ms) * 1000,
    }


def encode_put(key: bytes, value: bytes) -> bytes:
    """Return etcd's `PutRequest` as one message of gRPC: key and value must be shorter than 128 bytes."""
    request = b"".join(bytes((tag, len(each))) + each for tag, each in ((0x0A, key), (0x12, value)))
    return b"\0" + len(request).to_bytes(4, "big") + request


def _wait_for_etcd(port: int) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            if json.loads(_ask_etcd(port, "GET", "/health"))["health"] == "true":
                return
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline_s:
                raise BenchError(f"etcd does not answer: {error}") from error
        time.sleep(0.1)


def _count_changes(port: int) -> int:
    """Return etcd's revision, which each put increases by one."""
    # "AA==" is the zero byte in base64, as the start and the end of a range: all keys.
    question = {"key": "AA==", "range_end": "AA==", "count_only": True}
    return int(json.loads(_ask_etcd(port, "POST", "/v3/kv/range", question))["header"]["revision"])


def _ask_etcd(port: int, method: str, path: str, content: dict[str, Any] | None = None) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, None if content is None else json.dumps(content))
        return connection.getresponse().read()
    finally:
        connection.close()

"""Creates databases with many VMs, without the service, for a service to start on."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from bench.postgresql import open_engine
from forewarn.core.access import Role, Token
from forewarn.core.inventory import Inventory
from forewarn.core.maintenance.decision import ChangeSet
from forewarn.core.model import Audience, Host, Scope, ScopeKind, VirtualMachine, audience_key
from forewarn.store import SqlStore
from forewarn.store.tables import metadata
from forewarn.util.secrets import hash_token

__all__ = [
    "COPIED",
    "VMS_PER_HOST",
    "WIDE",
    "address_of",
    "fill",
    "host_name",
    "multiply",
    "token_of",
    "vm_name",
    "wide_name",
    "write_fleet",
]

VMS_PER_HOST = 20

WIDE = "wide"
"""Scope with a VM on every host."""

_PAUSE_MS = 600_000


def vm_name(number: int) -> str:
    """Return the name of a VM, counted from 0."""
    return f"vm-{number:06}"


def wide_name(number: int) -> str:
    """Return the name of the wide scope's VM on the host with this number."""
    return f"wide-{number:05}"


def host_name(number: int) -> str:
    """Return the name of a host, counted from 0."""
    return f"host-{number:05}"


def token_of(host: str) -> str:
    """Return the token of the host's endpoint."""
    return f"token-of-{host}"


def address_of(number: int) -> str:
    """Return the address of a VM. It is on loopback, so that the load generator can use it."""
    return f"127.{1 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def write_fleet(folder: Path, count: int) -> str:
    """Create a SQLite database with `count` standalone VMs, twenty per host.

    Returns:
        URL of the database.
    """
    url = f"sqlite:///{folder}/fleet.db"
    fill(url, -(-count // VMS_PER_HOST), count=count)
    return url


def fill(
    url: str, hosts: int, *, per_host: int = VMS_PER_HOST, count: int | None = None, has_wide: bool = False
) -> None:
    """Fill a database with hosts, a token for each host, and enabled standalone VMs, each with an address.

    Args:
        url: URL of an empty database.
        hosts: Number of hosts.
        per_host: Maximum number of standalone VMs on each host.
        count: Total number of standalone VMs; None: `per_host` on each host.
        has_wide: Whether to add a scope with a VM on every host.
    """
    now = datetime.now(UTC)
    names = [host_name(number) for number in range(hosts)]
    vms = [
        VirtualMachine(name=vm_name(number), host=names[number // per_host], addresses=(address_of(number),))
        for number in range(hosts * per_host if count is None else count)
    ]
    wide = Scope(name=WIDE, kind=ScopeKind.CLOUD_SERVICE)
    keys: dict[str, str | None] = {audience_key(vm, None): None for vm in vms}
    if has_wide:
        vms += [VirtualMachine(name=wide_name(number), host=name, scope=WIDE) for number, name in enumerate(names)]
        keys[audience_key(vms[-1], wide)] = WIDE
    audiences = {
        key: Audience(key=key, scope=scope, enabled_at=now, epoch=1, incarnation=1, active_until=now)
        for key, scope in keys.items()
    }
    inventory = Inventory(hosts=tuple(Host(name=name) for name in names), scopes=(wide,) * has_wide, vms=tuple(vms))
    # On a slow machine, preparing the rows takes longer than PostgreSQL otherwise lets a transaction pause.
    store = SqlStore(url, busy_timeout_ms=_PAUSE_MS)
    try:
        with store.write() as transaction:
            transaction.replace_inventory(inventory, "benchmark")
            transaction.save(ChangeSet(audiences=audiences))
            for name in names:
                token = hash_token(token_of(name))
                transaction.save_token(
                    Token(
                        id=f"t-{name}",
                        name=name,
                        role=Role.HOST,
                        host=name,
                        digest=token,
                        created_at=now,
                        created_by="benchmark",
                    )
                )
    finally:
        store.close()


COPIED = (
    ("host", "name", {"name": "'host-' || lpad(n::text, 5, '0')"}, "hosts", "host-00000"),
    (
        "token",
        "host",
        {
            "id": "'t-host-' || lpad(n::text, 5, '0')",
            "name": "'host-' || lpad(n::text, 5, '0')",
            "host": "'host-' || lpad(n::text, 5, '0')",
            "digest": "encode(sha256(('token-of-host-' || lpad(n::text, 5, '0'))::bytea), 'hex')",
        },
        "hosts",
        "host-00000",
    ),
    (
        "vm",
        "name",
        {
            "name": "'vm-' || lpad(n::text, 6, '0')",
            "host": "'host-' || lpad((n / :per_host)::text, 5, '0')",
            "addresses": "json_build_array('10.' || (n >> 16) || '.' || (n >> 8 & 255) || '.' || (n & 255))",
        },
        "vms",
        "vm-000000",
    ),
    (
        "address",
        "vm",
        {
            "vm": "'vm-' || lpad(n::text, 6, '0')",
            "address": "'10.' || (n >> 16) || '.' || (n >> 8 & 255) || '.' || (n & 255)",
        },
        "vms",
        "vm-000000",
    ),
    ("audience", "key", {"key": "'vm:vm-' || lpad(n::text, 6, '0')"}, "vms", "vm:vm-000000"),
)
"""Tables of a fleet: name, key, columns that differ from the first row, count of rows, and key of the first row."""


def multiply(url: str, hosts: int, per_host: int) -> None:
    """Do the same as `fill`, but let PostgreSQL copy one host with one VM: a million VMs take seconds."""
    fill(url, 1, per_host=1)
    counts = {"hosts": hosts, "vms": hosts * per_host}
    with open_engine(url).begin() as connection:
        for table, key, changed, count, first in COPIED:
            columns = [column.name for column in metadata.tables[table].columns]
            values = ", ".join(changed.get(name, f"one.{name}") for name in columns)
            query = (
                f"INSERT INTO {table} ({', '.join(columns)}) SELECT {values} "  # noqa: S608 - of constants
                f"FROM {table} one, generate_series(1, :last) n WHERE one.{key} = :first"
            )
            numbers = {"last": counts[count] - 1, "first": first}
            connection.execute(sa.text(query), numbers | ({"per_host": per_host} if ":per_host" in query else {}))
    with open_engine(url).connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE")

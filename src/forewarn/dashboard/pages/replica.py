"""Replicas page: this replica, the leader, and the endpoints on hosts that are connected here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from forewarn import __version__
from forewarn.control.context import Context
from forewarn.control.host_streams import HostStream
from forewarn.dashboard.list_filter import read_offset
from forewarn.dashboard.page import PageModel, PageView
from forewarn.store.contract import Reader
from forewarn.store.lease import Lease

__all__ = ["ConnectedEndpoint", "ReplicaState", "collect_replica_state", "make_replica_page"]

_ROWS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectedEndpoint:
    """An endpoint on a host that is connected to this replica.

    Attributes:
        version: Version of the endpoint; empty if it does not say.
        began_at: Time at which it connected; None if unknown.
        waiting: Number of changed documents that were not sent yet; None if everything has to be sent.
        is_reading: True if it takes what is sent.
    """

    host: str
    actor: str
    version: str
    began_at: datetime | None
    waiting: int | None
    is_reading: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaState:
    """What this replica knows about itself, the leader, and its endpoints.

    Attributes:
        name: Name of this replica; empty if it is the only one on its database.
        lease: Lease of the leader, as last read; None if there is none.
        skew: Lead of this replica's clock over the database's.
        position: Number of the last audit log entry that this replica has published.
        endpoints: A page of the connected endpoints, by host.
        endpoint_count: Number of all connected endpoints.
        host_count: Number of all declared hosts.
    """

    name: str
    version: str
    is_leader: bool
    has_replicas: bool
    lease: Lease | None
    skew: timedelta
    position: int
    endpoints: tuple[ConnectedEndpoint, ...]
    endpoint_count: int
    host_count: int


def collect_replica_state(context: Context, query_params: Mapping[str, str]) -> ReplicaState:
    """Collect the state of this replica, with the page of endpoints that the query asks for."""
    leadership, streams = context.engine.leadership, context.host_streams.list_streams()
    begin = read_offset(query_params)
    return ReplicaState(
        name=leadership.holder,
        version=__version__,
        is_leader=leadership.is_held,
        has_replicas=leadership.has_replicas,
        lease=leadership.lease,
        skew=leadership.skew,
        position=context.engine.committer.position,
        endpoints=tuple(_describe_stream(each) for each in streams[begin : begin + _ROWS]),
        endpoint_count=len(streams),
        host_count=len(context.engine.identity.hosts),
    )


def make_replica_page(_reader: Reader, view: PageView) -> PageModel:
    """Make the page of this replica, the leader, and the endpoints on hosts."""
    state: ReplicaState = view.collected
    begin = read_offset(view.query_params)
    values = {
        "state": state,
        "from_": begin,
        "next_from": begin + _ROWS if begin + _ROWS < state.endpoint_count else None,
    }
    return PageModel(template="replicas.html", title="Replicas and hosts", values=values)


def _describe_stream(stream: HostStream) -> ConnectedEndpoint:
    return ConnectedEndpoint(
        host=stream.host,
        actor=stream.caller.actor,
        version=stream.version,
        began_at=stream.began_at,
        waiting=stream.waiting_count,
        is_reading=stream.is_writable,
    )

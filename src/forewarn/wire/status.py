"""The JSON of the status of the service."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forewarn.core.maintenance.forecast import MaintenanceProblem
from forewarn.core.model import EventType
from forewarn.wire.control_response import ClockOut
from forewarn.wire.json_types import Moment, ResponseModel

__all__ = [
    "AttentionOut",
    "DatabaseStatusOut",
    "EndpointStatusOut",
    "InventoryStatusOut",
    "ReplicaStatusOut",
    "ServiceProblemOut",
    "StatusOut",
]


class ReplicaStatusOut(ResponseModel):
    """The replica that answered, and the others."""

    role: Literal["single", "leader", "follower"] = Field(
        description="`single`: only one replica can use this database (SQLite). "
        "`leader`: this replica carries out what is due. `follower`: another one does."
    )
    name: str | None = Field(description="Name of this replica. Null for a single one.")
    leader: str | None = Field(description="Name of the leader. Null: none is known, or the replica is single.")
    count: int | None = Field(description="Number of replicas that listen to the database now. Null: not known.")
    up_s: float = Field(description="Seconds since this replica was started.")


class DatabaseStatusOut(ResponseModel):
    """The database."""

    kind: Literal["sqlite", "postgresql"]
    is_writable: bool = Field(description="True if it takes changes now, and VMs are shown the newest documents.")


class EndpointStatusOut(ResponseModel):
    """Endpoints on hosts that are connected to this replica."""

    connected: int
    oldest_s: float | None = Field(description="Age of the oldest connection in seconds. Null: none is connected.")
    newest_s: float | None = Field(description="Age of the newest connection in seconds. Null: none is connected.")


class InventoryStatusOut(ResponseModel):
    """Size of the inventory."""

    hosts: int
    scopes: int
    vms: int


class ServiceProblemOut(ResponseModel):
    """A problem of the service itself."""

    name: str = Field(description="Name of the problem, such as `clock_off`: the code of an error.")
    text: str = Field(description="What is wrong, and what to do.")


class AttentionOut(ResponseModel):
    """A maintenance or a host that needs attention."""

    kind: Literal["maintenance", "host"]
    id: str = Field(description="Id of the maintenance, or name of the host.")
    problem: MaintenanceProblem
    text: str
    at: Moment = Field(description="Time of the failure, of the end, of the start or of NotBefore.")
    type: EventType | None = Field(description="Type of the maintenance. Null for a host.")
    hosts: list[str] = Field(description="At most 10 of its hosts.")
    vms: list[str] = Field(description="At most 10 of its VMs.")


class StatusOut(ResponseModel):
    """Health of the service, and what needs attention."""

    is_well: bool = Field(description="True if there are no problems and nothing needs attention.")
    version: str
    now: Moment
    replicas: ReplicaStatusOut
    clock: ClockOut
    skew_s: float = Field(description="Seconds by which this replica's clock is ahead of the database's.")
    database: DatabaseStatusOut
    endpoints: EndpointStatusOut
    inventory: InventoryStatusOut
    open_files_max: int | None = Field(description="Maximum number of open files of the process. Null: no limit.")
    maintenances: dict[str, int] | None = Field(
        description="Number of active maintenances by state. Null: the database cannot be read."
    )
    rollouts: dict[str, int] | None = Field(
        description="Number of active rollouts by state. Null: the database cannot be read."
    )
    problems: list[ServiceProblemOut]
    attention_count: int
    attention: list[AttentionOut] = Field(description="The first 100 of them, worst first, failed hosts before these.")

"""What a libvirt runs, as an inventory; and word of what starts and stops there.

What libvirt does not know of a VM may stand in its metadata:

.. code-block:: xml

    <forewarn:vm xmlns:forewarn="urn:forewarn:vm" scope="web" kind="availability-set"
                 fault_domain="0" update_domain="1">
      <forewarn:address>10.9.0.11</forewarn:address>
    </forewarn:vm>
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

import structlog
from pydantic import BaseModel, ValidationError

from forewarn.actuators.libvirt_connection import Connect, Domain, Line, Session, load_libvirt, open_connection
from forewarn.actuators.payload import as_reason
from forewarn.core.inventory import Inventory
from forewarn.errors import ActuatorError, InvalidRequest
from forewarn.wire.inventory import HostIn, InventoryIn, ScopeIn, VmIn, to_inventory

__all__ = ["NAMESPACE", "News", "follow", "read_inventory"]

M = TypeVar("M", bound=BaseModel)

_log = structlog.get_logger("forewarn.actuators.libvirt")

NAMESPACE = "urn:forewarn:vm"
"""Of the element that says what libvirt does not know."""

RECONNECT_S = 5.0
"""From the loss of a connection to the next try."""

_ATTRIBUTES = frozenset({"scope", "kind", "fault_domain", "update_domain", "size", "priority", "zone", "location"})
_CHECK_S = 1.0
_CALL_TIMEOUT = timedelta(seconds=30)
_KIB_PER_MIB = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """That a VM runs or does not.

    Attributes:
        what: libvirt's word: defined, undefined, started, suspended, resumed, stopped, shutdown, pmsuspended, crashed;
            or present, for what was there when the connection was made.
        is_running: Whether it runs now, as far as that follows from it.
    """

    vm: str
    what: str
    is_running: bool


_EVENTS = ("defined", "undefined", "started", "suspended", "resumed", "stopped", "shutdown", "pmsuspended", "crashed")
_RUNS_AFTER = frozenset({"started", "resumed"})
_LEAVES_AS_IT_IS = frozenset({"defined"})


def read_inventory(uri: str, host_name: str = "") -> Inventory:
    """Every domain of a libvirt, running or not, as a VM of one host. Blocks.

    Args:
        uri: libvirt's, for example ``qemu:///system``.
        host_name: What the host is called; empty: as it calls itself.

    Raises:
        ActuatorError: libvirt cannot be reached.
        InvalidRequest: A domain cannot be declared as it is; the message says which.
    """
    library = load_libvirt()
    connect = open_connection(uri)
    try:
        name = host_name or connect.getHostname()
        described = sorted((d.name(), d.XMLDesc(_flags(library, d))) for d in connect.listAllDomains())
    except library.libvirtError as error:
        msg = f"libvirt at {uri}: {as_reason(str(error))}"
        raise ActuatorError(msg) from error
    finally:
        with contextlib.suppress(library.libvirtError):
            connect.close()
    scopes: dict[str, ScopeIn] = {}
    vms = [_declared(vm, xml, name, scopes) for vm, xml in described]
    host = _valid(HostIn, f"host {name}", name=name)
    return to_inventory(InventoryIn(hosts=[host], scopes=[*scopes.values()], vms=vms))


def _flags(library: Any, domain: Domain) -> int:  # noqa: ANN401 - libvirt's module
    """What will be there the next time it starts, where that is kept: a running VM may still have been edited."""
    return int(library.VIR_DOMAIN_XML_INACTIVE) if domain.isPersistent() else 0


def _declared(vm: str, xml: str, host: str, scopes: dict[str, ScopeIn]) -> VmIn:
    """One VM; its scope is added to `scopes`.

    Raises:
        InvalidRequest: What stands there cannot be declared, or two VMs disagree about their scope.
    """
    root = ET.fromstring(xml)  # noqa: S314 - written by libvirt
    said = root.find(f"./metadata/{{{NAMESPACE}}}vm")
    members: dict[str, Any] = {} if said is None else dict(said.attrib)
    unknown = sorted(members.keys() - _ATTRIBUTES)
    if unknown:
        msg = f"domain {vm}: {unknown[0]!r} in its metadata is none of {', '.join(sorted(_ATTRIBUTES))}"
        raise InvalidRequest(msg)
    kind = members.pop("kind", "availability-set")
    if "scope" in members:
        scope = _valid(ScopeIn, f"domain {vm}: scope {members['scope']}", name=members["scope"], kind=kind)
        if scopes.setdefault(scope.name, scope) != scope:
            msg = f"domain {vm}: scope {scope.name} is of kind {scope.kind}, and {scopes[scope.name].kind} elsewhere"
            raise InvalidRequest(msg)
    addresses = [] if said is None else [_text(e) for e in said.iterfind(f"./{{{NAMESPACE}}}address")]
    mac = root.find("./devices/interface/mac")
    known = {
        "vm_id": _text(root.find("./uuid")),
        "mac_address": "" if mac is None else mac.get("address", ""),
        "size": _size(root),
        "addresses": addresses,
    }
    return _valid(VmIn, f"domain {vm}", **(known | members), name=vm, host=host)


def _valid(model: type[M], where: str, **members: Any) -> M:  # noqa: ANN401 - checked here
    try:
        return model(**members)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        msg = as_reason(f"{where}: {field}: {fault['msg'].removeprefix('Value error, ')}")
        raise InvalidRequest(msg) from error


def _text(element: ET.Element | None) -> str:
    return "" if element is None or element.text is None else element.text.strip()


def _size(root: ET.Element) -> str:
    """As ``2 vCPU, 4096 MiB``: libvirt has no names for sizes."""
    vcpus = _text(root.find("./vcpu"))
    memory_kib = _text(root.find("./memory"))
    return f"{vcpus} vCPU, {int(memory_kib) // _KIB_PER_MIB} MiB" if vcpus and memory_kib.isdecimal() else ""


async def follow(uri: str, tell: Callable[[News], None], reconnect_s: float = RECONNECT_S) -> None:
    """Tell what is there, then what changes, until cancelled.

    Whenever the connection had to be made anew, everything that is there is told anew; what happened in between is not.

    Args:
        uri: libvirt's.
        tell: Called in the event loop.
        reconnect_s: From the loss of a connection to the next try.

    Raises:
        ConfigError: libvirt's library for Python is missing.
    """
    load_libvirt()
    while True:
        line = Line(uri, _CALL_TIMEOUT)
        try:
            await _follow_once(line, tell)
        except ActuatorError as error:
            _log.warning("libvirt cannot be followed, trying again", uri=uri, error=error.message)
        finally:
            await line.close()
        await asyncio.sleep(reconnect_s)


async def _follow_once(line: Line, tell: Callable[[News], None]) -> None:
    """Until the connection is another."""
    events: asyncio.Queue[News] = asyncio.Queue()
    watch = _Watch(events)
    try:
        for news in await line.call(watch.begin):
            tell(news)
        while await line.call(watch.is_same):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_S):
                    while True:
                        tell(await events.get())
    finally:
        with contextlib.suppress(ActuatorError):
            await line.call(watch.end)


class _Watch:
    """The registration of one connection. What it hears waits until it has been told what was there before."""

    def __init__(self, events: asyncio.Queue[News]) -> None:
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._connect: Connect | None = None
        self._number = -1

    def begin(self, session: Session) -> list[News]:
        """Register, and hand back what is there."""
        library, self._connect = session.library, session.connect
        kind = library.VIR_DOMAIN_EVENT_ID_LIFECYCLE
        self._number = session.connect.domainEventRegisterAny(None, kind, self._hear, None)
        domains = session.connect.listAllDomains()
        running = library.VIR_DOMAIN_RUNNING
        return [News(vm=d.name(), what="present", is_running=d.state()[0] == running) for d in domains]

    def is_same(self, session: Session) -> bool:
        """Whether the connection is still the one that was registered."""
        return session.connect is self._connect

    def end(self, session: Session) -> None:
        """Hear no more."""
        if self.is_same(session):
            session.connect.domainEventDeregisterAny(self._number)

    def _hear(self, _connect: Connect, domain: Domain, event: int, _detail: int, _opaque: None) -> None:
        """On the thread of libvirt's events."""
        what = _EVENTS[event] if event < len(_EVENTS) else f"event {event}"
        is_running = what in _RUNS_AFTER or (what in _LEAVES_AS_IT_IS and domain.isActive() == 1)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(
                self._events.put_nowait, News(vm=domain.name(), what=what, is_running=is_running)
            )

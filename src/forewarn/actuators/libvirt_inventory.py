"""The domains of a libvirt as an inventory.

A VM's metadata may hold what libvirt does not know:

.. code-block:: xml

    <forewarn:vm xmlns:forewarn="urn:forewarn:vm" scope="web" kind="availability-set"
                 fault_domain="0" update_domain="1">
      <forewarn:address>10.9.0.11</forewarn:address>
    </forewarn:vm>
"""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar
from xml.etree import ElementTree as ET

from pydantic import BaseModel, ValidationError

from forewarn.actuators.libvirt_connection import load_libvirt, open_connection
from forewarn.actuators.payload import make_printable
from forewarn.core.inventory import Inventory
from forewarn.errors import ActuatorError, InvalidRequest
from forewarn.wire.inventory import HostDeclarationIn, HostIn, InventoryIn, ScopeIn, VmIn, to_inventory

__all__ = ["NAMESPACE", "read_host", "read_inventory"]

M = TypeVar("M", bound=BaseModel)

NAMESPACE = "urn:forewarn:vm"
"""Namespace of the metadata element with what libvirt does not know."""

_ATTRIBUTES = frozenset({"scope", "kind", "fault_domain", "update_domain", "size", "priority", "zone", "location"})
_KIB_PER_MIB = 1024


def read_inventory(uri: str, host_name: str = "") -> Inventory:
    """Return every domain of a libvirt, running or not, as a VM of one host; see `read_host`."""
    name, said = read_host(uri, host_name)
    return to_inventory(InventoryIn(hosts=[HostIn(name=name)], scopes=said.scopes, vms=said.vms))


def read_host(uri: str, host_name: str = "") -> tuple[str, HostDeclarationIn]:
    """Return the name of the host, and every domain of its libvirt with its known properties. Blocks.

    Args:
        uri: URI of the libvirt, for example ``qemu:///system``.
        host_name: Name of the host; empty for the name that libvirt reports.

    Raises:
        ActuatorError: libvirt cannot be reached.
        InvalidRequest: A domain cannot be declared as it is; the message names it.
    """
    library = load_libvirt()
    connect = open_connection(uri)
    try:
        name = host_name or connect.getHostname()
        running = library.VIR_DOMAIN_RUNNING  # one that is arriving is active too, but paused
        described = sorted(
            # The persistent definition, if there is one: a running VM may have been edited since.
            (d.name(), d.XMLDesc(library.VIR_DOMAIN_XML_INACTIVE if d.isPersistent() else 0), d.state()[0] == running)
            for d in connect.listAllDomains()
        )
    except library.libvirtError as error:
        raise ActuatorError(f"libvirt at {uri}: {make_printable(str(error))}") from error
    finally:
        with contextlib.suppress(library.libvirtError):
            connect.close()
    _validate_model(HostIn, f"host {name}", name=name)
    scopes: dict[str, ScopeIn] = {}
    vms = [_declare_vm(vm, xml, name, scopes) for vm, xml, _ in described]
    return name, HostDeclarationIn(
        scopes=list(scopes.values()), vms=vms, idle=[vm for vm, _, is_running in described if not is_running]
    )


def _declare_vm(vm: str, xml: str, host: str, scopes: dict[str, ScopeIn]) -> VmIn:
    """Return the declaration of one VM; its scope is added to `scopes`.

    Raises:
        InvalidRequest: The metadata is invalid, or two VMs disagree about their scope.
    """
    root = ET.fromstring(xml)  # noqa: S314 - written by libvirt
    said = root.find(f"./metadata/{{{NAMESPACE}}}vm")
    members: dict[str, Any] = {} if said is None else dict(said.attrib)
    unknown = sorted(members.keys() - _ATTRIBUTES)
    # Refused instead of ignored: a misspelled `scope` would make the VM standalone.
    if unknown:
        expected = ", ".join(sorted(_ATTRIBUTES))
        raise InvalidRequest(f"domain {vm}: unknown metadata attribute {unknown[0]!r}: expected one of {expected}")
    kind = members.pop("kind", "availability-set")
    if "scope" in members:
        scope = _validate_model(ScopeIn, f"domain {vm}: scope {members['scope']}", name=members["scope"], kind=kind)
        if scopes.setdefault(scope.name, scope) != scope:
            msg = f"domain {vm}: scope {scope.name} is of kind {scope.kind}, and {scopes[scope.name].kind} elsewhere"
            raise InvalidRequest(msg)
    addresses = [] if said is None else [_read_text(e) for e in said.iterfind(f"./{{{NAMESPACE}}}address")]
    mac = root.find("./devices/interface/mac")
    known = {
        "vm_id": _read_text(root.find("./uuid")),
        "mac_address": "" if mac is None else mac.get("address", ""),
        "size": _format_size(root),
        "addresses": addresses,
    }
    known = {name: value for name, value in known.items() if value}
    # The metadata wins, because an operator may have named a size.
    return _validate_model(VmIn, f"domain {vm}", **(known | members), name=vm, host=host)


def _validate_model(model: type[M], where: str, **members: Any) -> M:  # noqa: ANN401 - checked here
    try:
        return model(**members)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in fault["loc"])
        msg = make_printable(f"{where}: {field}: {fault['msg'].removeprefix('Value error, ')}")
        raise InvalidRequest(msg) from error


def _read_text(element: ET.Element | None) -> str:
    return "" if element is None or element.text is None else element.text.strip()


def _format_size(root: ET.Element) -> str:
    """Return ``2 vCPU, 4096 MiB``; libvirt has no names for sizes."""
    vcpus = _read_text(root.find("./vcpu"))
    memory_kib = _read_text(root.find("./memory"))
    return f"{vcpus} vCPU, {int(memory_kib) // _KIB_PER_MIB} MiB" if vcpus and memory_kib.isdecimal() else ""

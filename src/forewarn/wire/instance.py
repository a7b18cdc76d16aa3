"""`/metadata/instance`: what a VM may know about itself (X3, W10).

Many handlers ask for their own name here before they ask for events. What the inventory does not say is an empty
string.
"""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any

from forewarn.core.model import Scope, ScopeKind, VirtualMachine

__all__ = ["OLDEST_VERSION", "describe", "is_version", "look_up", "render"]

OLDEST_VERSION = "2017-04-02"
_VERSION = re.compile(r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])")


def is_version(text: str) -> bool:
    """Whether `text` is an api-version of the instance metadata: a date from 2017-04-02 on."""
    return _VERSION.fullmatch(text) is not None and text >= OLDEST_VERSION


def describe(vm: VirtualMachine, scope: Scope | None) -> dict[str, Any]:
    """The whole instance document of a VM.

    Numbers such as fault and update domain are strings, as on the real endpoint; a VM without a scope has none.
    """
    is_scale_set = scope is not None and scope.kind is ScopeKind.SCALE_SET
    compute = {
        "location": vm.location,
        "name": vm.name,
        "osType": vm.os_type,
        "platformFaultDomain": "" if scope is None else str(vm.fault_domain),
        "platformUpdateDomain": "" if scope is None else str(vm.update_domain),
        "priority": vm.priority,
        "resourceGroupName": vm.resource_group,
        "subscriptionId": vm.subscription_id,
        "tags": ";".join(f"{key}:{value}" for key, value in vm.tags),
        "tagsList": [{"name": key, "value": value} for key, value in vm.tags],
        "vmId": vm.vm_id,
        "vmScaleSetName": scope.name if scope is not None and is_scale_set else "",
        "vmSize": vm.size,
        "zone": vm.zone,
    }
    return {"compute": compute, "network": {"interface": [_interface(vm)]}}


def _interface(vm: VirtualMachine) -> dict[str, Any]:
    families: dict[int, list[dict[str, str]]] = {4: [], 6: []}
    for address in vm.addresses:
        families[ipaddress.ip_address(address).version].append({"privateIpAddress": address, "publicIpAddress": ""})
    return {
        "ipv4": {"ipAddress": families[4], "subnet": []},
        "ipv6": {"ipAddress": families[6]},
        "macAddress": vm.mac_address.replace(":", "").replace("-", "").upper(),
    }


def look_up(document: dict[str, Any], path: list[str]) -> Any | None:  # noqa: ANN401 - a JSON value
    """The value at a path below `/metadata/instance`, matched without regard to case; None when there is none."""
    value: Any = document
    for part in path:
        if isinstance(value, dict):
            value = next((v for k, v in value.items() if k.lower() == part.lower()), None)
        elif isinstance(value, list):
            # Texts are compared: `int` raises for thousands of digits, and reads the digits of other scripts too.
            value = next((v for index, v in enumerate(value) if str(index) == part), None)
        else:
            return None
        if value is None:
            return None
    return value


def render(value: Any, text_format: bool) -> tuple[bytes, str]:  # noqa: ANN401, FBT001 - a JSON value; the query's switch
    """The body and its Content-Type: JSON, or for ``format=text`` the value itself or a list of what is below."""
    if not text_format:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), "application/json; charset=utf-8"
    if isinstance(value, dict):
        lines = [f"{key}/" if isinstance(child, dict | list) else key for key, child in value.items()]
    elif isinstance(value, list):
        lines = [f"{index}/" for index in range(len(value))]
    else:
        lines = [str(value)]
    return "\n".join(lines).encode(), "text/plain; charset=utf-8"

"""`/metadata/instance`: facts that a VM may know about itself (X3, W10, R111).

Many handlers ask for their own name here before they ask for events. Facts that the inventory lacks are empty strings.
"""

from __future__ import annotations

import ipaddress
import json
from typing import Any

from forewarn.core.model import Scope, ScopeKind, VirtualMachine
from forewarn.wire.imds import encode_error, encode_version_error

__all__ = [
    "LEAF_WITHOUT_TEXT",
    "VERSIONS",
    "VERSION_INVALID",
    "VERSION_MISSING",
    "build_document",
    "find_value",
    "get_version_error",
    "is_leaf",
    "render_value",
]

_NAMES = """
2017-04-02 2017-08-01 2017-10-01 2017-12-01 2018-02-01 2018-04-02 2018-10-01 2019-02-01 2019-03-11 2019-04-30 2019-06-01
2019-06-04 2019-08-01 2019-08-15 2019-11-01 2020-06-01 2020-07-15 2020-09-01 2020-10-01 2020-12-01 2021-01-01 2021-02-01
2021-03-01 2021-05-01 2021-08-01 2021-10-01 2021-11-01 2021-11-15 2021-12-13 2023-07-01 2023-11-15 2024-03-15 2024-07-17
2025-04-07
"""
VERSIONS = tuple(_NAMES.split())
"""Api-versions of the instance metadata that Azure documents, oldest first. Others never existed there."""

VERSION_MISSING = encode_version_error(VERSIONS)
"""Body of the 400 for a request without api-version (R111)."""

VERSION_INVALID = encode_version_error(VERSIONS, "Bad request. Invalid version requested")
"""Body of the 400 for an api-version that is not in `VERSIONS` (R111)."""

LEAF_WITHOUT_TEXT = encode_error("Bad request")
"""Body of the 400 for a single value without ``format=text``, as captured in 2021 (R111)."""


def get_version_error(text: str) -> bytes | None:
    """Return the body of the 400 that this api-version gets; None if it exists."""
    if text in VERSIONS:
        return None
    return VERSION_INVALID if text else VERSION_MISSING


def is_leaf(value: Any) -> bool:  # noqa: ANN401 - a JSON value
    """Return True for a single value. As on Azure, it is not available as JSON, only as ``format=text`` (R111)."""
    return not isinstance(value, dict | list)


def build_document(vm: VirtualMachine, scope: Scope | None) -> dict[str, Any]:
    """Build the whole instance document of a VM.

    Numbers such as fault and update domain are strings, as on the real endpoint; these two are empty for a VM without a
    scope.
    """
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
        "vmScaleSetName": scope.name if scope is not None and scope.kind is ScopeKind.SCALE_SET else "",
        "vmSize": vm.size,
        "zone": vm.zone,
    }
    return {"compute": compute, "network": {"interface": [_build_interface(vm)]}}


def _build_interface(vm: VirtualMachine) -> dict[str, Any]:
    families: dict[int, list[dict[str, str]]] = {4: [], 6: []}
    for address in vm.addresses:
        families[ipaddress.ip_address(address).version].append({"privateIpAddress": address, "publicIpAddress": ""})
    return {
        "ipv4": {"ipAddress": families[4], "subnet": []},
        "ipv6": {"ipAddress": families[6]},
        # The real endpoint shows twelve digits without separators.
        "macAddress": vm.mac_address.replace(":", "").replace("-", "").upper(),
    }


def find_value(document: dict[str, Any], path: list[str]) -> Any | None:  # noqa: ANN401 - a JSON value
    """Return the value at a path below `/metadata/instance`, ignoring case; None if there is none."""
    value: Any = document
    for part in path:
        if isinstance(value, dict):
            value = next((v for k, v in value.items() if k.lower() == part.lower()), None)
        elif isinstance(value, list):
            # Compare text: `int` raises for thousands of digits, and also reads the digits of other scripts.
            value = next((v for index, v in enumerate(value) if str(index) == part), None)
        else:
            return None
        if value is None:
            return None
    return value


def render_value(value: Any, text_format: bool) -> tuple[bytes, str]:  # noqa: ANN401, FBT001 - a JSON value; the query's switch
    """Return the body and its Content-Type: JSON, or for ``format=text`` the value or a list of its children."""
    if not text_format:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(), "application/json; charset=utf-8"
    if isinstance(value, dict):
        lines = [f"{key}/" if isinstance(child, dict | list) else key for key, child in value.items()]
    elif isinstance(value, list):
        lines = [f"{index}/" for index in range(len(value))]
    else:
        lines = [str(value)]
    return "\n".join(lines).encode(), "text/plain; charset=utf-8"

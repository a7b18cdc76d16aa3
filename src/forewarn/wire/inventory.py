"""The inventory file: YAML or JSON to hosts, scopes and VMs.

Every fault is found before anything is applied. Its message gives its place and the expected value.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, ValidationError, WithJsonSchema

from forewarn.core.causes import OS_IMAGE_NOTICE, OS_IMAGE_SERIES_EXCLUDED, TERMINATE_NOTICE_MAX, TERMINATE_NOTICE_MIN
from forewarn.core.inventory import HostDeclaration, Inventory
from forewarn.core.inventory_difference import InventoryDifference, KindDifference
from forewarn.core.label import KEY_PATTERN, LABELS_MAX, VALUE_PATTERN, Labels
from forewarn.core.model import Host, NotificationProfile, Scope, ScopeKind, VirtualMachine
from forewarn.core.policy import ALL_APPROVERS
from forewarn.errors import Conflict, InvalidRequest
from forewarn.wire.inventory_text import load_text
from forewarn.wire.policy import PolicyIn, to_policy, to_policy_in
from forewarn.wire.yaml_line import find_line

__all__ = [
    "HostDeclarationIn",
    "HostIn",
    "InventoryDifferenceOut",
    "InventoryIn",
    "ScopeIn",
    "VmIn",
    "compute_fingerprint",
    "format_file_error",
    "parse_inventory",
    "to_difference_out",
    "to_host_declaration",
    "to_host_in",
    "to_inventory",
    "to_inventory_in",
    "to_scope_in",
]

_BROADCAST = ipaddress.IPv4Address("255.255.255.255")
_ISO_MINUTES = re.compile(r"PT(\d{1,3})M")


Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]*$")]
Text = Annotated[str, Field(max_length=256)]
LabelsIn = Annotated[
    dict[Annotated[str, Field(pattern=KEY_PATTERN)], Annotated[str, Field(pattern=VALUE_PATTERN)]],
    Field(max_length=LABELS_MAX, examples=[{"rack": "r1"}]),
]


def _parse_address(value: object) -> str:
    """Return the address in the one form in which callers are looked up: no zone, and a mapped IPv4 address as IPv4."""
    try:
        address = ipaddress.ip_address(value if isinstance(value, str) else str(value))
    except ValueError:
        raise ValueError(f"{value!r} is not an IP address") from None
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            raise ValueError(f"{value!r} has a zone: expected an address without one")
        return str(address.ipv4_mapped or address)
    return str(address)


def _parse_vm_address(value: object) -> str:
    """Return an address that a VM can call from."""
    said = _parse_address(value)
    address = ipaddress.ip_address(said)
    if address.is_unspecified or address.is_multicast or address == _BROADCAST:
        kind = (
            "the unspecified" if address.is_unspecified else "a multicast" if address.is_multicast else "the broadcast"
        )
        raise ValueError(f"{said!r} is {kind} address, which no VM can call from")
    return said


def _parse_timeout(value: object) -> timedelta:
    """Parse an ISO 8601 duration in whole minutes, as in the scale-set model: ``PT5M``."""
    if isinstance(value, timedelta):
        return value
    match = _ISO_MINUTES.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is not a number of minutes in ISO 8601: expected for example PT5M")
    return timedelta(minutes=int(match[1]))


def _format_timeout(span: timedelta) -> str:
    return f"PT{span.total_seconds() / 60:.0f}M"


_Timeout = Annotated[
    timedelta,
    BeforeValidator(_parse_timeout),
    PlainSerializer(_format_timeout),
    WithJsonSchema({"type": "string", "examples": ["PT5M"]}),
]
"""One type for requests and responses, so that one schema describes both."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HostIn(_Strict):
    """A host."""

    name: Name
    labels: LabelsIn = Field({}, description="Labels of the host and of its VMs.")


class NotificationProfileIn(_Strict):
    """Opt-in to events for deletes, or for changes of the OS image."""

    enable: bool = False
    not_before_timeout: _Timeout | None = Field(
        None, description="Notice in ISO 8601 minutes: PT5M to PT15M for deletes (default PT5M), PT15M for OS images."
    )


class ScopeIn(_Strict):
    """A scope."""

    name: Name
    kind: ScopeKind
    fault_domain_count: Annotated[int, Field(ge=1, le=1000)] | None = None
    terminate_notification: NotificationProfileIn = NotificationProfileIn()
    os_image_notification: NotificationProfileIn = NotificationProfileIn()
    couples_deletes: bool = False
    policy: PolicyIn | None = None
    labels: LabelsIn = Field({}, description="Labels of the scope and of its VMs; they override those of the host.")


class VmIn(_Strict):
    """A VM."""

    name: Name
    host: Name
    scope: Name | None = None
    fault_domain: Annotated[int, Field(ge=0, le=1000)] = 0
    update_domain: Annotated[int, Field(ge=0, le=1000)] = 0
    addresses: Annotated[list[Annotated[str, BeforeValidator(_parse_vm_address)]], Field(max_length=64)] = []
    vm_id: Text = ""
    size: Text = ""
    location: Text = ""
    zone: Text = ""
    resource_group: Text = ""
    subscription_id: Text = ""
    os_type: Text = ""
    priority: Literal["", "Regular", "Low", "Spot"] = ""
    tags: Annotated[dict[Text, Text], Field(max_length=64)] = {}
    mac_address: Text = ""
    policy: PolicyIn | None = Field(
        None, description="Policy of a VM without a scope. Other VMs have the policy of their scope."
    )
    labels: LabelsIn = Field({}, description="Labels of the VM; they override those of its scope and host.")


_VM_PLAIN_FIELDS = tuple(name for name in VmIn.model_fields if name not in {"addresses", "tags", "policy", "labels"})
"""Fields that have the same value in the file as in the model."""


class InventoryIn(_Strict):
    """A whole inventory file."""

    hosts: list[HostIn] = []
    scopes: list[ScopeIn] = []
    vms: list[VmIn] = []


class HostDeclarationIn(_Strict):
    """All VMs of one host, as that host knows them."""

    scopes: list[ScopeIn] = Field(
        [], description="Scopes of these VMs. Scopes that are already declared stay unchanged."
    )
    vms: list[VmIn] = Field([], description="VMs of the host. Omitted fields keep their declared values.")
    idle: list[Name] = Field(
        [], description="VMs in `vms` that do not run now. If such a VM is declared for another host, it stays there."
    )


class FieldDifferenceOut(BaseModel):
    """One field of a host, scope or VM, before and after."""

    field: str
    before: Any
    after: Any


class ChangedItemOut(BaseModel):
    """A host, scope or VM that would change."""

    name: str
    fields: list[FieldDifferenceOut]


class DifferenceOut(BaseModel):
    """Hosts, scopes or VMs that would be added, changed or removed."""

    added: list[str]
    changed: list[ChangedItemOut]
    removed: list[str]


class InventoryDifferenceOut(BaseModel):
    """Changes that applying an inventory would make."""

    hosts: DifferenceOut
    scopes: DifferenceOut
    vms: DifferenceOut
    refusal: str | None = Field(
        description="Reason why the file would be refused if it were sent now without `remove_missing`. "
        "`remove_missing` helps only against too many removals, not against other reasons. Null: the file would be "
        "accepted."
    )


def compute_fingerprint(text: bytes) -> str:
    """Return the hash of the file as it is; an unchanged file need not be applied again."""
    return hashlib.sha256(text).hexdigest()


def parse_inventory(text: bytes) -> Inventory:
    """Parse an inventory file.

    Raises:
        InvalidRequest: It is malformed, or contradicts itself. The message gives the place; ``details["line"]`` counts
            from 1, ``details["path"]`` has the keys and indexes that lead there.
    """
    content = load_text(text)
    if not isinstance(content, dict):
        raise InvalidRequest("inventory: expected a mapping with hosts, scopes and vms")
    try:
        return to_inventory(_validate_inventory(content))
    except InvalidRequest as error:
        path = error.details.get("path", [])
        raise _add_line(error, find_line(text, path) if path else None) from error


def _validate_inventory(content: dict[Any, Any]) -> InventoryIn:
    try:
        declared = InventoryIn.model_validate(content)
    except ValidationError as error:
        # Without the input, which may be the whole inventory.
        path = list(error.errors(include_url=False, include_input=False, include_context=False)[0]["loc"])
        raise InvalidRequest(_describe_first_fault(error, content), path=path) from error
    _check_approvers(declared)
    return declared


def _add_line(error: InvalidRequest, line: int | None) -> InvalidRequest:
    if line is None:
        return error
    words = error.message.removeprefix("inventory: ")
    return InvalidRequest(f"inventory: line {line}: {words}", **error.details, line=line)


def format_file_error(error: InvalidRequest, file: str) -> str:
    """Return the message of a fault in an inventory, prefixed with the file's name: ``FILE:LINE: what is wrong``."""
    words = error.message.removeprefix("inventory: ")
    line, column = error.details.get("line"), error.details.get("column")
    if not isinstance(line, int):
        return f"{file}: {words}"
    place = f"line {line}, column {column}: " if isinstance(column, int) else f"line {line}: "
    return f"{file}:{line}: {words.removeprefix(place)}"


def _check_approvers(declared: InventoryIn) -> None:
    """Refuse a policy that leaves approvals to a VM which never sees them. This needs the whole inventory."""
    members = {(vm.scope, f"vm:{vm.name}") for vm in declared.vms}
    for index, scope in enumerate(declared.scopes):
        for approver in scope.policy.approvers if scope.policy is not None else ():
            if approver not in ALL_APPROVERS and (scope.name, approver) not in members:
                msg = f"inventory: scope {scope.name}: approver {approver} is not a VM of this scope"
                raise InvalidRequest(msg, path=["scopes", index, "policy", "approvers"])


def _describe_first_fault(error: ValidationError, content: dict[Any, Any]) -> str:
    fault = error.errors(include_url=False)[0]
    words = fault["msg"].removeprefix("Value error, ")
    where: Any = content
    path = ""
    for part in fault["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
        where = where[part] if _has_part(where, part) else None
        if isinstance(where, dict) and isinstance(where.get("name"), str):
            path += f" ({where['name']})"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return " ".join(f"inventory: {path}: {words}{more}".split())


def _has_part(where: Any, part: Any) -> bool:  # noqa: ANN401 - parsed YAML
    return (isinstance(where, dict) and part in where) or (
        isinstance(where, list) and isinstance(part, int) and part < len(where)
    )


def to_inventory(declared: InventoryIn) -> Inventory:
    """Convert a declared inventory to the model's values, checked as a whole.

    Raises:
        InvalidRequest: A name or address is repeated, a name is not declared, or a profile is not allowed (R91, R93).
    """
    _refuse_repeated("hosts", declared.hosts)
    _refuse_repeated("scopes", declared.scopes)
    _refuse_repeated("vms", declared.vms)
    _refuse_repeated_addresses(declared.vms)
    hosts = {h.name for h in declared.hosts}
    scopes: dict[str, Scope] = {}
    vms: list[VirtualMachine] = []
    path: list[str | int] = []
    try:
        for index, scope in enumerate(declared.scopes):
            path = ["scopes", index]
            scopes[scope.name] = _to_scope(scope)
        for index, vm in enumerate(declared.vms):
            path = ["vms", index]
            vms.append(_to_vm(vm, hosts, scopes))
    except InvalidRequest as error:
        raise InvalidRequest(error.message, path=path) from error
    return Inventory(
        hosts=tuple(Host(name=host.name, labels=_to_labels(host.labels)) for host in declared.hosts),
        scopes=tuple(scopes.values()),
        vms=tuple(vms),
    )


def _to_labels(declared: LabelsIn) -> Labels:
    return tuple(sorted(declared.items()))


def to_host_declaration(host: str, declared: HostDeclarationIn) -> HostDeclaration:
    """Convert a host's declaration of itself, checked as a whole.

    Raises:
        InvalidRequest: As `to_inventory`; or a VM is of another host, or an idle one is none of the VMs.
    """
    for vm in declared.vms:
        if vm.host != host:
            msg = f"inventory: vm {vm.name}: host is {vm.host!r}, but expected {host!r}, whose VMs these are"
            raise InvalidRequest(msg)
    unknown = sorted(set(declared.idle) - {vm.name for vm in declared.vms})
    if unknown:
        raise InvalidRequest(f"inventory: idle: {unknown[0]!r} is not one of the VMs")
    made = to_inventory(InventoryIn(hosts=[HostIn(name=host)], scopes=declared.scopes, vms=declared.vms))
    return HostDeclaration(
        host=host,
        scopes=made.scopes,
        vms=made.vms,
        # Only what the host has sent: a default must not replace a declared value.
        known_fields={vm.name: frozenset(vm.model_fields_set - {"name", "host"}) for vm in declared.vms},
        idle_vms=frozenset(declared.idle),
    )


def _refuse_repeated(noun: str, items: Sequence[HostIn | ScopeIn | VmIn]) -> None:
    seen: set[str] = set()
    for index, item in enumerate(items):
        if item.name in seen:
            msg = f"inventory: duplicate {noun.removesuffix('s')} name {item.name!r}"
            raise InvalidRequest(msg, path=[noun, index, "name"])
        seen.add(item.name)


def _refuse_repeated_addresses(vms: list[VmIn]) -> None:
    seen: set[str] = set()
    for index, vm in enumerate(vms):
        for number, address in enumerate(vm.addresses):
            if address in seen:
                msg = f"inventory: duplicate address {address!r}"
                raise InvalidRequest(msg, path=["vms", index, "addresses", number])
            seen.add(address)


def _to_scope(scope: ScopeIn) -> Scope:
    terminate, os_image = scope.terminate_notification, scope.os_image_notification
    notice = terminate.not_before_timeout or TERMINATE_NOTICE_MIN
    if not TERMINATE_NOTICE_MIN <= notice <= TERMINATE_NOTICE_MAX:
        msg = f"inventory: scope {scope.name}: terminate_notification.not_before_timeout must be PT5M to PT15M"
        raise InvalidRequest(msg)
    if os_image.not_before_timeout not in (None, OS_IMAGE_NOTICE):
        raise InvalidRequest(f"inventory: scope {scope.name}: os_image_notification.not_before_timeout must be PT15M")
    if (terminate.enable or os_image.enable) and scope.kind is not ScopeKind.SCALE_SET:
        msg = f"inventory: scope {scope.name} is a {scope.kind}: only a scale-set can have notification profiles"
        raise InvalidRequest(msg)
    if scope.kind is ScopeKind.STANDALONE and scope.policy is not None and scope.policy.unavailable_max is not None:
        msg = f"inventory: scope {scope.name} is standalone, so its VMs are not a group: leave out unavailable_max"
        raise InvalidRequest(msg)
    return Scope(
        name=scope.name,
        kind=scope.kind,
        fault_domain_count=scope.fault_domain_count,
        terminate_notification=NotificationProfile(enable=terminate.enable, not_before_timeout=notice),
        os_image_notification=NotificationProfile(enable=os_image.enable, not_before_timeout=OS_IMAGE_NOTICE),
        couples_deletes=scope.couples_deletes,
        policy=to_policy(scope.policy),
        labels=_to_labels(scope.labels),
    )


def _to_vm(vm: VmIn, hosts: set[str], scopes: dict[str, Scope]) -> VirtualMachine:
    if vm.host not in hosts:
        raise InvalidRequest(f"inventory: vm {vm.name}: host {vm.host!r} is not declared")
    if vm.scope is not None and vm.scope not in scopes:
        raise InvalidRequest(f"inventory: vm {vm.name}: scope {vm.scope!r} is not declared")
    count = scopes[vm.scope].fault_domain_count if vm.scope is not None else None
    if count is not None and vm.fault_domain >= count:
        msg = f"inventory: vm {vm.name}: fault domain {vm.fault_domain} does not exist, scope {vm.scope} has {count}"
        raise InvalidRequest(msg)
    if vm.policy is not None and vm.scope is not None:
        msg = f"inventory: vm {vm.name}: its policy is that of scope {vm.scope}; only a VM without a scope has its own"
        raise InvalidRequest(msg)
    if vm.policy is not None and vm.policy.unavailable_max is not None:
        raise InvalidRequest(f"inventory: vm {vm.name}: unavailable_max is for scopes: leave it out of the VM's policy")
    fields = vm.model_dump(exclude={"addresses", "tags", "policy", "labels"})
    policy = to_policy(vm.policy)
    foreign = next((each for each in policy.approvers if each not in {*ALL_APPROVERS, f"vm:{vm.name}"}), None)
    if foreign is not None:
        raise InvalidRequest(f"inventory: vm {vm.name}: approver {foreign} is another VM, which never sees its events")
    made = VirtualMachine(
        addresses=tuple(vm.addresses),
        tags=tuple(vm.tags.items()),
        policy=policy,
        labels=_to_labels(vm.labels),
        **fields,
    )
    is_opted_in = vm.scope is not None and scopes[vm.scope].os_image_notification.enable
    if is_opted_in and made.size_series.startswith(OS_IMAGE_SERIES_EXCLUDED):
        msg = f"inventory: vm {vm.name}: size {vm.size} cannot have os_image_notification (series G, M, N and H cannot)"
        raise InvalidRequest(msg)
    return made


def to_inventory_in(inventory: Inventory) -> InventoryIn:
    """Convert an inventory to the form of the file: reading it back gives the same inventory."""
    return InventoryIn(
        hosts=[to_host_in(host) for host in inventory.hosts],
        scopes=[to_scope_in(scope) for scope in inventory.scopes],
        vms=[_to_vm_in(vm) for vm in inventory.vms],
    )


def to_difference_out(difference: InventoryDifference, refusal: Conflict | None) -> InventoryDifferenceOut:
    """Convert a difference of inventories, with values in the form of the file."""
    return InventoryDifferenceOut(
        hosts=_to_kind_out(difference.hosts, to_host_in),
        scopes=_to_kind_out(difference.scopes, to_scope_in),
        vms=_to_kind_out(difference.vms, _to_vm_in),
        refusal=None if refusal is None else refusal.message,
    )


def _to_kind_out(difference: KindDifference, show: Callable[[Any], BaseModel]) -> DifferenceOut:
    changed = []
    for name, change in difference.changed.items():
        before, after = (show(each).model_dump(mode="json") for each in (change.before, change.after))
        was = [
            FieldDifferenceOut(
                field=field,
                before=before[field] if field in before else _to_plain(getattr(change.before, field)),
                after=after[field] if field in after else _to_plain(getattr(change.after, field)),
            )
            for field in change.fields
        ]
        changed.append(ChangedItemOut(name=name, fields=was))
    return DifferenceOut(added=list(difference.added), changed=changed, removed=list(difference.removed))


def _to_plain(value: object) -> Any:  # noqa: ANN401 - JSON
    return _to_profile_in(value).model_dump(mode="json") if isinstance(value, NotificationProfile) else str(value)


def to_host_in(host: Host) -> HostIn:
    """Convert a host to the form of the file."""
    return HostIn(name=host.name, labels=dict(host.labels))


def to_scope_in(scope: Scope) -> ScopeIn:
    """Convert a scope to the form of the file."""
    return ScopeIn(
        name=scope.name,
        kind=scope.kind,
        fault_domain_count=scope.fault_domain_count,
        terminate_notification=_to_profile_in(scope.terminate_notification),
        os_image_notification=_to_profile_in(scope.os_image_notification),
        couples_deletes=scope.couples_deletes,
        policy=to_policy_in(scope.policy),
        labels=dict(scope.labels),
    )


def _to_profile_in(profile: NotificationProfile) -> NotificationProfileIn:
    return NotificationProfileIn(enable=profile.enable, not_before_timeout=profile.not_before_timeout)


def _to_vm_in(vm: VirtualMachine) -> VmIn:
    fields = {name: getattr(vm, name) for name in _VM_PLAIN_FIELDS}
    # Not validated again: checking the addresses of 100,000 VMs would take seconds.
    return VmIn.model_construct(
        addresses=list(vm.addresses),
        tags=dict(vm.tags),
        policy=to_policy_in(vm.policy),
        labels=dict(vm.labels),
        **fields,
    )

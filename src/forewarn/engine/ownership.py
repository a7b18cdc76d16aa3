"""Check of what a tenant can own: scopes and standalone VMs."""

from __future__ import annotations

from collections.abc import Iterable

from forewarn.core.hints import SEE_VMS
from forewarn.core.model import ScopeKind
from forewarn.errors import InvalidRequest, NotFound
from forewarn.store.contract import Reader

__all__ = ["check_owned"]


def check_owned(reader: Reader, scopes: Iterable[str], vms: Iterable[str]) -> None:
    """Check that these scopes and VMs exist and can have an owner.

    Raises:
        NotFound: A scope or VM does not exist.
        InvalidRequest: A scope is of the kind standalone, or a VM is in another scope.
    """
    known = reader.find_scopes(scopes)
    for name in scopes:
        scope = known.get(name)
        if scope is None:
            raise NotFound(f"scope {name!r} does not exist", hint=SEE_VMS, scope=name)
        if scope.kind is ScopeKind.STANDALONE:
            raise InvalidRequest(f"scope {name!r} is standalone and cannot be owned: name its VMs", scope=name)
    for name in vms:
        found = reader.list_vms(name=name)
        if not found:
            raise NotFound(f"vm {name!r} does not exist", hint=SEE_VMS, vm=name)
        # A VM sees all events of its scope (R58), so its owner has to own the whole scope (ADR 16).
        for scope in reader.find_scopes([found[0].scope or ""]).values():
            if scope.kind is not ScopeKind.STANDALONE:
                msg = f"vm {name!r} is in scope {scope.name!r} and sees all its events: name the scope"
                raise InvalidRequest(msg, vm=name)

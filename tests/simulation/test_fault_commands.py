"""Faults and the audit log agree, also where the store fails in between."""

from __future__ import annotations

from typing import NoReturn

import pytest

from forewarn.errors import NotFound, StoreUnavailable
from tests.support.simulated import inventory, simulated
from tests.support.simulated_world import SCOPES, VMS


async def _fail(*_: object, **__: object) -> NoReturn:
    raise StoreUnavailable("the disk is full")


@pytest.mark.anyio
async def test_no_fault_is_in_force_that_the_audit_log_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    made = await simulated(inventory(*VMS, scopes=SCOPES))
    faults = made.engine.faults
    with monkeypatch.context() as broken:
        broken.setattr(faults._committer, "decide", _fail)
        with pytest.raises(StoreUnavailable):
            await faults.inject("503", actor="operator:ann")
    assert faults.registry.all == ()


@pytest.mark.anyio
async def test_a_fault_stays_in_force_until_its_end_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = await simulated(inventory(*VMS, scopes=SCOPES))
    faults = made.engine.faults
    fault = await faults.inject("503", actor="operator:ann")
    with monkeypatch.context() as broken:
        broken.setattr(faults._committer, "record", _fail)
        with pytest.raises(StoreUnavailable):
            await faults.clear(actor="operator:ann")
    assert faults.registry.all == (fault,)
    assert await faults.clear(fault.id, actor="operator:ann") == 1
    assert await faults.clear(actor="operator:ann") == 0
    with pytest.raises(NotFound):
        await faults.clear(fault.id, actor="operator:ann")

"""The actuator `exec` begins nothing on a lease that is over, however late that is found out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from forewarn.actuators.contract import BEGIN_BEFORE_S
from forewarn.actuators.exec import Exec
from forewarn.clock import RealClock, uptime_s
from forewarn.errors import ActuatorError
from tests.support.actuated import started

pytestmark = pytest.mark.anyio

NOW = RealClock().now()


@pytest.fixture
def actuator(tmp_path: Path) -> Iterator[Exec]:
    token = BEGIN_BEFORE_S.set(0.0)
    yield Exec(["touch", str(tmp_path / "done")], tmp_path / "runs", observe_command=["sh", "-c", "exit 4"])
    BEGIN_BEFORE_S.reset(token)


async def test_nothing_is_begun_when_the_lease_is_over(actuator: Exec, tmp_path: Path) -> None:
    """Invariant 3: a replica that was halted after it had looked at its lease, and wakes when another one acts."""
    BEGIN_BEFORE_S.set(uptime_s())
    maintenance = started("db")
    with pytest.raises(ActuatorError, match="the lease has expired"):
        await actuator.execute(maintenance, NOW)
    assert not (tmp_path / "done").exists()
    assert await actuator.observe(maintenance, NOW) is None


async def test_it_is_begun_when_the_lease_is_held_again(actuator: Exec, tmp_path: Path) -> None:
    maintenance = started("db")
    with pytest.raises(ActuatorError):
        await actuator.execute(maintenance, NOW)
    BEGIN_BEFORE_S.set(uptime_s() + 60)
    progress = await actuator.execute(maintenance, NOW)
    while not progress.is_complete:
        seen = await actuator.observe(maintenance, NOW)
        assert seen is not None
        progress = seen
    assert (tmp_path / "done").exists()

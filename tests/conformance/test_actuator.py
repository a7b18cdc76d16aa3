"""What every actuator owes, over each of them at work: processes, an HTTP server, libvirt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from forewarn.errors import ActuatorError
from tests.support.actuated import ACTUATORS, Subject, carried_out, subject, until
from tests.support.hypervisor import NEEDS_LIBVIRT
from tests.support.spans import GUARD_S

pytestmark = pytest.mark.anyio

EVERY = [pytest.param(name, marks=[pytest.mark.slow, NEEDS_LIBVIRT] if name == "libvirt" else ()) for name in ACTUATORS]
REAL = EVERY[1:]

MOMENTS_S = (0.0, 0.001, 0.005, 0.02, 0.04)
"""When a call is cancelled: before anything, and in the middle of what takes tens of milliseconds."""


@pytest.fixture(params=EVERY)
async def it(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    async with subject(request.param, tmp_path) as made:
        yield made


@pytest.fixture(params=REAL)
async def real(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    async with subject(request.param, tmp_path) as made:
        yield made


async def once(it: Subject) -> bool:
    """Whether it was begun exactly once, told by those who may be slow to tell."""
    await until(lambda: it.count() > 0)
    await asyncio.sleep(0.03)
    return it.count() == 1


# Before


async def test_a_plan_names_the_vm_in_lines_and_does_nothing(it: Subject) -> None:
    lines = it.actuator.plan(it.maintenance)
    assert lines
    assert all("web-0" in line and line.isprintable() for line in lines)
    if it.is_aware:
        assert await it.actuator.observe(it.maintenance, it.clock.now()) is None
        assert it.count() == 0


async def test_a_check_passes_where_everything_is_there_and_begins_nothing(it: Subject) -> None:
    await it.actuator.check()
    if it.is_aware:
        assert await it.actuator.observe(it.maintenance, it.clock.now()) is None


async def test_a_check_says_in_a_line_what_is_missing(real: Subject) -> None:
    assert real.broken is not None
    broken = real.broken()
    with pytest.raises(ActuatorError) as caught:
        await broken.check()
    await broken.close()
    assert caught.value.message.isprintable()
    assert any(word in caught.value.message for word in ("/no/such", "127.0.0.1"))


async def test_what_cannot_be_begun_is_an_error_and_nothing_was_begun(real: Subject) -> None:
    assert real.broken is not None
    broken = real.broken()
    for _ in range(2):
        with pytest.raises(ActuatorError) as caught:
            await broken.execute(real.maintenance, real.clock.now())
        assert caught.value.message.isprintable()
    await broken.close()
    assert real.count() == 0
    assert await real.actuator.observe(real.maintenance, real.clock.now()) is None


async def test_observing_says_that_nothing_was_begun_however_often(real: Subject) -> None:
    for _ in range(3):
        assert await real.actuator.observe(real.maintenance, real.clock.now()) is None
    assert real.count() == 0


# Once


async def test_it_is_carried_out_once_and_then_it_is_complete(it: Subject) -> None:
    progress = await carried_out(it)
    assert progress.is_impacted
    assert progress.check_at is None
    assert progress.impact_s is None or progress.impact_s >= 0
    assert await once(it)


async def test_after_completion_it_stays_complete(it: Subject) -> None:
    """R82."""
    await carried_out(it)
    for actuator in (it.actuator, it.make()):
        later = await actuator.observe(it.maintenance, it.clock.now())
        assert later is not None
        assert later.is_complete
    again = await it.actuator.execute(it.maintenance, it.clock.now())
    assert again.is_complete
    assert await once(it)


async def test_observing_under_way_is_harmless_also_many_times_at_once(it: Subject) -> None:
    now = it.clock.now()
    await it.actuator.execute(it.maintenance, now)
    seen = await asyncio.gather(*(it.actuator.observe(it.maintenance, now) for _ in range(10)))
    assert all(progress is not None for progress in seen)
    await carried_out(it)
    assert await once(it)


async def test_executing_again_or_at_the_same_time_does_nothing_twice(it: Subject) -> None:
    now = it.clock.now()
    await asyncio.gather(*(it.actuator.execute(it.maintenance, now) for _ in range(3)))
    await it.actuator.execute(it.maintenance, now)
    await it.make().execute(it.maintenance, now)
    await carried_out(it)
    assert await once(it)


@pytest.mark.parametrize("moment_s", MOMENTS_S)
async def test_a_call_that_is_cancelled_and_repeated_does_nothing_twice(it: Subject, moment_s: float) -> None:
    """Invariant 3: the answer is lost, the work is not."""
    task = asyncio.create_task(it.actuator.execute(it.maintenance, it.clock.now()))
    await asyncio.sleep(moment_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await carried_out(it)
    assert await once(it)


async def test_an_observation_that_is_cancelled_is_harmless(it: Subject) -> None:
    await it.actuator.execute(it.maintenance, it.clock.now())
    for moment_s in (0.0, 0.001):
        task = asyncio.create_task(it.actuator.observe(it.maintenance, it.clock.now()))
        await asyncio.sleep(moment_s)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await carried_out(it)
    assert await once(it)


async def test_another_that_comes_after_it_finds_what_it_has_begun(it: Subject) -> None:
    """A service that stops leaves its work going; the next one sees its end."""
    await it.actuator.execute(it.maintenance, it.clock.now())
    await it.actuator.close()
    await carried_out(it, it.make())
    assert await once(it)


async def test_closing_twice_is_harmless_and_it_can_be_used_again(it: Subject) -> None:
    await it.actuator.close()
    await it.actuator.close()
    await carried_out(it)
    assert await once(it)


# Stopping


async def test_aborting_what_was_never_begun_is_harmless(it: Subject) -> None:
    for _ in range(2):
        await it.actuator.abort(it.maintenance, it.clock.now())
    if it.is_aware:
        assert await it.actuator.observe(it.maintenance, it.clock.now()) is None
        assert it.count() == 0
    await carried_out(it)
    assert await once(it)


async def test_aborting_again_is_harmless(it: Subject) -> None:
    await it.actuator.execute(it.maintenance, it.clock.now())
    await until(lambda: it.count() > 0)
    for _ in range(2):
        await it.actuator.abort(it.maintenance, it.clock.now())
    assert await once(it)


async def test_aborting_what_is_complete_changes_nothing(it: Subject) -> None:
    await carried_out(it)
    for _ in range(2):
        await it.actuator.abort(it.maintenance, it.clock.now())
    later = await it.actuator.observe(it.maintenance, it.clock.now())
    assert later is not None
    assert later.is_complete
    assert await once(it)


# Failing


async def test_a_failure_is_one_line_each_time_and_nothing_is_begun_anew(real: Subject) -> None:
    await real.actuator.execute(real.maintenance, real.clock.now())
    assert await once(real)
    assert real.failing is not None
    real.failing()
    messages: list[str] = []
    async with asyncio.timeout(GUARD_S):
        while len(messages) < 3:
            try:
                progress = await real.actuator.observe(real.maintenance, real.clock.now())
            except ActuatorError as error:
                messages.append(error.message)
            else:
                assert progress is not None
                await asyncio.sleep(0.02)
    assert all(message.isprintable() for message in messages)
    assert messages[0] == messages[2]
    assert real.count() == 1

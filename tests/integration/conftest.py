"""A service that the tests of one module share, and the check that nothing it logs is an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import httpx
import pytest
from structlog.testing import capture_logs

from tests.support.service import Running, Vm, eventually, running
from tests.support.ways import ACCEPTOR, choose_way
from tests.support.wire import CLOSING, get


@pytest.fixture(scope="module")
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """How services accept connections of VMs; modules that say `both_ways` run once for each way."""
    chosen: str = getattr(request, "param", ACCEPTOR)
    with pytest.MonkeyPatch.context() as patch:
        choose_way(chosen, patch)
        yield chosen


@pytest.fixture(scope="module")
def service(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with default settings. Each test takes VMs of its own from `Running.vm`."""
    with running(tmp_path_factory.mktemp("service")) as started:
        yield started


@pytest.fixture
def api(service: Running) -> Iterator[httpx.Client]:
    """An operator."""
    with service.operator() as operator:
        yield operator


@pytest.fixture
def vm(service: Running) -> Vm:
    """A VM that has asked."""
    vm = service.vm()
    service.enable(vm)
    return vm


@pytest.fixture
def known(service: Running) -> Vm:
    """A VM whose requests are in the memo, and that has no open connection."""
    vm = service.vm()
    for request in (get(), CLOSING):
        with service.wire(vm) as wire:
            assert wire.ask(request).status == 200
    assert {get(), CLOSING} <= service.service.traffic.memo.keys()
    assert eventually(lambda: service.connection_count() == 0)
    return vm


@pytest.fixture(autouse=True)
def no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever clients do, it is no error of ours: neither our log nor uvicorn's says so."""
    with capture_logs() as ours:
        yield
    errors = [entry for entry in ours if entry["log_level"] in {"error", "critical"}]
    errors += [{"event": record.getMessage()} for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors

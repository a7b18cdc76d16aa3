"""A service that the tests of one module share, and the check that nothing it logs is an error."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import httpx
import pytest
from structlog.testing import capture_logs

from tests.support.service import Running, Vm, running


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
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


@pytest.fixture(autouse=True)
def no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever clients do, it is no error of ours: neither our log nor uvicorn's says so."""
    with capture_logs() as ours:
        yield
    errors = [entry for entry in ours if entry["log_level"] in {"error", "critical"}]
    errors += [{"event": record.getMessage()} for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors

"""A service that the tests of one module share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.service import Running, running


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with default settings. Each test takes VMs of its own from `Running.vm`."""
    with running(tmp_path_factory.mktemp("service")) as started:
        yield started

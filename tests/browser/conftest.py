"""Debian's Chromium, a service that the tests of one module share, and a profile of the browser for each test."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect
from structlog.testing import capture_logs

from tests.support.browsing import CHROMIUM, PATIENCE_MS, Witness, chromium, logged_in
from tests.support.dashboard_story import Story, story
from tests.support.estate import Estate, estates, write_inventory
from tests.support.service import Running, running


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever lies here needs the browser."""
    for item in items:
        if "tests/browser/" in item.path.as_posix():
            item.add_marker("browser")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One process for all tests."""
    if CHROMIUM is None:
        pytest.skip("Debian's package chromium-headless-shell is not installed")
    expect.set_options(timeout=PATIENCE_MS)
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service on real time, with the settings that the module calls SETTINGS."""
    folder = tmp_path_factory.mktemp("service")
    quick = {"simulate_impact_after": "0s", "simulate_complete_after": "none", "actuator_look_every": "200ms"}
    settings = quick | getattr(request.module, "SETTINGS", {})
    with running(folder, inventory=write_inventory(folder), **settings) as started:
        yield started


@pytest.fixture(scope="module")
def fresh_estates() -> Iterator[Estate]:
    """Those that no test of this module has used."""
    return estates()


@pytest.fixture
def estate(service: Running, fresh_estates: Iterator[Estate]) -> Estate:
    """A host of two tenants, both of which have asked."""
    found = next(fresh_estates)
    found.web.ask(service)
    found.db.ask(service)
    return found


@pytest.fixture(scope="session")
def stories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Story]]:
    """Services in which a story has happened, by its name; each is told once, and nothing happens after it."""
    with ExitStack() as stack:
        told: dict[str, Story] = {}

        def get(name: str) -> Story:
            if name not in told:
                told[name] = stack.enter_context(story(name, tmp_path_factory.mktemp(name)))
            return told[name]

        yield get


@pytest.fixture
def witness() -> Iterator[Witness]:
    """Fails the test when something went wrong in the browser."""
    watching = Witness()
    yield watching
    watching.check()


@pytest.fixture
def context(browser: Browser, service: Running, witness: Witness) -> Iterator[BrowserContext]:
    """A profile of the browser, whose user has logged in."""
    made = logged_in(browser, service, witness)
    yield made
    made.close()


@pytest.fixture
def page(context: BrowserContext) -> Page:
    """An empty page in it."""
    return context.new_page()


@pytest.fixture(autouse=True)
def no_error_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Whatever browsers do, it is no error of ours: neither our log nor uvicorn's says so."""
    with capture_logs() as ours:
        yield
    errors = [entry for entry in ours if entry["log_level"] in {"error", "critical"}]
    errors += [{"event": record.getMessage()} for record in caplog.records if record.levelno >= logging.ERROR]
    assert not errors

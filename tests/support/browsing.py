"""A real browser, and a witness of all that goes wrong in it: errors, failed requests, what the policy refused."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    Response,
    WebError,
    sync_playwright,
)

from tests.support.service import Running

__all__ = ["CHROMIUM", "Witness", "chromium", "cookie_of", "logged_in", "profile", "visit"]

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
"""Debian's; the one that cannot open a window takes a fifth less. None: neither is installed here."""

PATIENCE_MS = 60_000
"""How long a page may take to show something; most of it is for slow machines."""

_ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP *.example 127.0.0.1")
"""Names of other sites lead to this machine, as a hostile name server may have it."""

_KNOWN = (
    # vis-timeline's standalone build puts style sheets into the page, which the policy refuses; this one says that.
    re.compile("This build has been deprecated"),
)

_REPORT = """
document.addEventListener("securitypolicyviolation", (event) => {
  console.error(`policy: ${event.violatedDirective} refuses ${event.blockedURI} in ${event.sourceFile}`);
});
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Witness:
    """Writes down what went wrong on the pages of a context.

    Attributes:
        faults: All of it.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._expected: list[re.Pattern[str]] = list(_KNOWN)

    def watch(self, context: BrowserContext) -> None:
        """Look at every page of that context from now on."""
        context.add_init_script(_REPORT)
        context.on("console", self._console)
        context.on("weberror", self._error)
        context.on("requestfailed", self._failed)
        context.on("response", self._response)

    def expect(self, pattern: str) -> None:
        """What matches is part of the test."""
        self._expected.append(re.compile(pattern))

    def check(self) -> None:
        """Raises AssertionError when something went wrong that was not expected."""
        faults = [fault for fault in self.faults if not any(each.search(fault) for each in self._expected)]
        assert not faults, "\n".join(faults)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.faults.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _error(self, error: WebError) -> None:
        self.faults.append(f"script: {error.error}")

    def _failed(self, request: Request) -> None:
        # Whoever leaves a page lets go of its stream.
        if request.failure == "net::ERR_ABORTED":
            return
        self.faults.append(f"request: {request.failure} of {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"status: {response.status} of {response.url}")


def cookie_of(service: Running, token: str = "") -> dict[str, Any]:
    """The cookie of somebody who has logged in with that token, or with the operator's."""
    form = {"token": token or service.service.tokens.operator_token}
    url = service.service.control_url
    answer = httpx.post(f"{url}/login", data=form, headers={"origin": url}, trust_env=False, timeout=60)
    name, _, rest = answer.headers["set-cookie"].partition("=")
    return {"name": name, "value": rest.partition(";")[0], "url": url, "httpOnly": True, "sameSite": "Strict"}


def profile(browser: Browser, service: Running, witness: Witness | None = None, **options: Any) -> BrowserContext:  # noqa: ANN401 - Playwright's
    """A browser's profile of its own, at the address of that service."""
    context = browser.new_context(base_url=service.service.control_url, **options)
    context.set_default_timeout(PATIENCE_MS)
    if witness is not None:
        witness.watch(context)
    return context


def logged_in(
    browser: Browser,
    service: Running,
    witness: Witness | None = None,
    token: str = "",
    **options: Any,  # noqa: ANN401 - Playwright's
) -> BrowserContext:
    """Such a profile, whose user has logged in with that token, or with the operator's."""
    context = profile(browser, service, witness, **options)
    context.add_cookies([cookie_of(service, token)])  # type: ignore[list-item] # a TypedDict that Playwright does not export
    return context


def visit(page: Page, path: str) -> Page:
    """Open a page of the dashboard, and wait until its scripts have run; it is marked, so that a reload shows."""
    page.goto(path)
    assert urlsplit(page.url).path == urlsplit(path).path
    page.evaluate("window.stayed = true")
    return page

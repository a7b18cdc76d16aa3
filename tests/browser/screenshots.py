"""Pictures of every page: empty, busy and failing, light and dark, on a desk and on a phone.

`python -m tests.browser.screenshots` draws all into build/screenshots, and with `--docs` the few that the documentation
shows into docs/images.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from PIL import Image
from playwright.sync_api import Browser, Page

from tests.support.browsing import chromium, logged_in
from tests.support.dashboard_story import STORIES, Story, story

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build/screenshots"
IMAGES = ROOT / "docs/images"

Theme = Literal["light", "dark"]
THEMES: tuple[Theme, ...] = ("light", "dark")
WIDTHS: Mapping[str, tuple[int, int]] = {"desktop": (1280, 900), "phone": (390, 844)}

SHOWN = {
    ("failing", "overview", "light", "desktop"): "dashboard-overview.png",
    ("failing", "maintenance", "dark", "desktop"): "dashboard-maintenance.png",
    ("failing", "overview", "light", "phone"): "dashboard-phone.png",
}
"""The pictures of the documentation."""


PAGES: Mapping[str, str] = {
    "overview": "/",
    "overview-hosts": "/?by=host",
    "schedule": "/schedule",
    "rollouts": "/rollouts",
    "hosts": "/hosts",
    "vms": "/vms",
    "audit-log": "/audit-log",
    "host": "/hosts/hv-01",
    "scope": "/scopes/shop-web",
    "vm": "/vms/shop-web-0",
    "search": "/search?q=hv-0",
    "administration": "/administration",
    "tokens": "/administration/tokens?show=all",
    "token-form": "/administration/tokens/create",
    "subscriptions": "/administration/subscriptions",
    "replicas": "/administration/replicas",
    "access": "/administration/access",
    "settings": "/administration/settings",
    "settings-changed": "/administration/settings?show=changed",
    "missing": "/vms/nobody",
    "login": "/login",
}
"""Pages that every story has."""

LINKED: Mapping[str, tuple[str, str]] = {
    "rollout": ("/rollouts", "/rollouts/"),
    "maintenance": ("/?state=scheduled", "/maintenance/"),
    "started": ("/?state=started", "/maintenance/"),
    "subscription": ("/administration/subscriptions", "/administration/subscriptions/web-team"),
}
"""Pages of things that have ids: where they are listed, and how their paths begin; the first one is taken."""

OF_TENANTS = ("overview", "vms", "audit-log", "scope", "vm", "search", "missing", "maintenance")
"""Pages that a tenant sees."""


def names_of(name: str) -> list[str]:
    """The pages of a story."""
    return [*PAGES, *(LINKED if name != "empty" else ())]


def path_of(page: Page, name: str) -> str:
    """Where that page is."""
    if name in PAGES:
        return PAGES[name]
    listed, begin = LINKED[name]
    page.goto(listed)
    return page.locator(f'main table a[href^="{begin}"]').first.get_attribute("href") or ""


def draw(browser: Browser, told: Story, name: str, pages: Iterable[str], token: str = "") -> None:
    """These pages of a story, as the operator sees them, or whoever has that token."""
    for theme in THEMES:
        for width, (x, y) in WIDTHS.items():
            context = logged_in(
                browser, told.service, token=token, color_scheme=theme, viewport={"width": x, "height": y}
            )
            page = context.new_page()
            for which in pages:
                page.goto(link_of(told) if which == "link" else path_of(page, which))
                page.wait_for_load_state("load")
                page.wait_for_timeout(400)  # the timeline draws itself once more when it knows its size
                page.screenshot(path=FOLDER / f"{name}-{which}-{theme}-{width}.png", full_page=True)
            context.close()


def link_of(told: Story) -> str:
    """Where the page is that a link of `forewarn dashboard` leads to."""
    with told.service.operator() as api:
        link = str(api.post("/v1/login-links").json()["url"])
    return urlsplit(link).path


def compressed(source: Path, target: Path) -> None:
    """The picture with as many colours as it needs, and no more bytes."""
    with Image.open(source) as image:
        found = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
        found.save(target, optimize=True)


def main() -> None:
    """Draw what was asked for."""
    parser = argparse.ArgumentParser(description="Draw every page of the dashboard.")
    parser.add_argument("--docs", action="store_true", help="also write the pictures of the documentation anew")
    parser.add_argument("--story", choices=list(STORIES), help="this story only")
    parser.add_argument("--only", action="append", default=[], help="this page only; may be repeated")
    wanted = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for name in STORIES if wanted.story is None else [wanted.story]:
            with tempfile.TemporaryDirectory() as folder, story(name, Path(folder)) as told:
                chosen = set(wanted.only)
                draw(browser, told, name, [each for each in [*names_of(name), "link"] if not chosen or each in chosen])
                mine = [each for each in OF_TENANTS if each != "maintenance" or name != "empty"]
                draw(
                    browser,
                    told,
                    f"{name}-tenant",
                    [each for each in mine if not chosen or each in chosen],
                    told.tenant,
                )
    print(f"{FOLDER.relative_to(ROOT)}: {len(list(FOLDER.glob('*.png')))} pictures")  # noqa: T201 - what was asked for
    if wanted.docs:
        for (name, which, theme, width), target in SHOWN.items():
            compressed(FOLDER / f"{name}-{which}-{theme}-{width}.png", IMAGES / target)


if __name__ == "__main__":
    main()

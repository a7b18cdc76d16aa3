"""Every page by the rules of WCAG 2.2, level A and AA, as far as a program can tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.browser.screenshots import OF_TENANTS, THEMES, WIDTHS, names_of, path_of
from tests.support.browsing import Witness, logged_in
from tests.support.dashboard_story import STORIES, Story

AXE = (Path(__file__).parent / "vendored/axe.min.js").read_text()
_TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa")
_COLOURS = ("color-contrast", "link-in-text-block")
"""What another theme may break."""

_RUN = """async (only) => {
  const found = await axe.run(document, {runOnly: only, resultTypes: ["violations"]});
  return found.violations.flatMap((each) => each.nodes.map((node) => ({
    rule: each.id, target: node.target.join(" "), html: node.html.slice(0, 160), what: node.failureSummary,
  })));
}"""

EXCUSED: Mapping[str, str] = {}
"""Rules that are broken on purpose, and why."""


def faults(page: Page, *rules: str) -> list[dict[str, Any]]:
    """What breaks a rule on the page as it is now; of these rules, or of all."""
    only = {"type": "rule", "values": rules} if rules else {"type": "tag", "values": _TAGS}
    found: list[dict[str, Any]] = page.evaluate(_RUN, only)
    return [each for each in found if each["rule"] not in EXCUSED]


def broken_rules(page: Page) -> list[str]:
    """What breaks a rule on the page: all rules at both widths, in the other theme those of colours."""
    page.evaluate(AXE)
    found = []
    for number, (width, (x, y)) in enumerate(WIDTHS.items()):
        page.set_viewport_size({"width": x, "height": y})
        first, second = THEMES if number % 2 else reversed(THEMES)
        for theme, rules in ((first, ()), (second, _COLOURS)):
            page.emulate_media(color_scheme=theme)
            found += [f"{theme} {width}: {each}" for each in faults(page, *rules)]
    return found


@pytest.mark.parametrize(("told", "name"), [(told, name) for told in STORIES for name in names_of(told)])
def test_a_page_keeps_the_rules_in_both_themes_and_at_both_widths(
    browser: Browser, stories: Callable[[str], Story], witness: Witness, told: str, name: str
) -> None:
    witness.expect("404")
    context = logged_in(browser, stories(told).service, witness)
    page = context.new_page()
    page.goto(path_of(page, name))
    broken = broken_rules(page)
    context.close()
    assert broken == [], "\n".join(broken)


@pytest.mark.parametrize("name", OF_TENANTS)
def test_a_tenants_pages_keep_them_too(
    browser: Browser, stories: Callable[[str], Story], witness: Witness, name: str
) -> None:
    witness.expect("404")
    told = stories("failing")
    context = logged_in(browser, told.service, witness, token=told.tenant)
    page = context.new_page()
    page.goto(path_of(page, name))
    broken = broken_rules(page)
    context.close()
    assert broken == [], "\n".join(broken)


def test_a_page_that_breaks_a_rule_would_be_noticed(browser: Browser, witness: Witness) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.set_content("<img src='data:,'><input><p style='color: #ccc; background: #fff'>pale</p>")
    page.evaluate(AXE)
    assert {"image-alt", "label", "color-contrast"} <= {each["rule"] for each in faults(page)}
    context.close()

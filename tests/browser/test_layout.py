"""Every page at every width, in every dress."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.screenshots import names_of, path_of
from tests.support.browsing import Witness, logged_in, visit
from tests.support.dashboard_story import Story

_STICKS_OUT = """() => document.documentElement.scrollWidth - document.documentElement.clientWidth"""
_CUT_OFF = """() => [...document.querySelectorAll("main *, header *")].filter((each) => {
  if (each.closest("#timeline, pre, .hidden, .list thead") || !each.checkVisibility()) return false;
  const box = each.getBoundingClientRect();
  return box.width > 1 && (box.right > innerWidth + 1 || box.left < -1);
}).map((each) => each.outerHTML.slice(0, 120))"""


@pytest.fixture
def pages(browser: Browser, stories: Callable[[str], Story], witness: Witness) -> Iterator[Page]:
    """An empty page of somebody who has logged in where much goes wrong."""
    witness.expect("404")
    context = logged_in(browser, stories("failing").service, witness)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("name", names_of("failing"))
def test_no_page_scrolls_sideways_or_is_cut_off_on_a_phone_or_at_twice_the_size(pages: Page, name: str) -> None:
    pages.goto(path_of(pages, name))
    # 640 px at two device pixels each is what a window of 1280 px becomes at 200 %.
    for width in (390, 640, 320):
        pages.set_viewport_size({"width": width, "height": 844})
        assert (width, pages.evaluate(_STICKS_OUT)) == (width, 0)
        assert (width, pages.evaluate(_CUT_OFF)) == (width, [])


def test_who_has_chosen_larger_letters_gets_them(pages: Page) -> None:
    visit(pages, "/")
    size = "parseFloat(getComputedStyle(document.querySelector('main p, main td, main li')).fontSize)"
    before = pages.evaluate(size)
    pages.evaluate("document.documentElement.style.setProperty('font-size', '200%')")
    assert pages.evaluate(size) > before * 1.8
    assert pages.evaluate(_STICKS_OUT) == 0


def test_dark_and_light_follow_the_system_until_somebody_chooses(pages: Page) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    visit(pages, "/")
    pages.emulate_media(color_scheme="dark")
    dark = pages.evaluate(ground)
    pages.emulate_media(color_scheme="light")
    light = pages.evaluate(ground)
    assert dark != light
    pages.get_by_role("button", name="Switch between dark and light").click()
    assert pages.evaluate(ground) == dark
    visit(pages, "/hosts")
    assert pages.evaluate(ground) == dark
    pages.emulate_media(color_scheme="dark")
    pages.get_by_role("button", name="Switch between dark and light").click()
    assert pages.evaluate(ground) == light


def test_forced_colours_leave_everything_to_be_told_apart(pages: Page) -> None:
    pages.emulate_media(forced_colors="active")
    visit(pages, "/")
    for which in (".pill", ".figure", "nav a[aria-current]", "button"):
        control = pages.locator(which).first
        expect(control).to_be_visible()
        style = control.evaluate(
            "each => { const s = getComputedStyle(each); return [s.borderTopStyle, s.borderTopWidth] }"
        )
        assert style != ["none", "0px"], which
    bar = pages.locator(".vis-item.notice").first
    assert bar.evaluate("each => getComputedStyle(each).borderTopColor !== getComputedStyle(each).backgroundColor")


def test_nothing_moves_for_those_who_do_not_want_it(pages: Page) -> None:
    pages.emulate_media(reduced_motion="reduce")
    visit(pages, "/")
    moving = """() => [...document.querySelectorAll("*")].filter((each) => {
      const style = getComputedStyle(each);
      return style.animationName !== "none" || parseFloat(style.transitionDuration) > 0;
    }).map((each) => each.className)"""
    assert pages.evaluate(moving) == []

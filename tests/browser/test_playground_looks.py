"""Appearance and accessibility: light and dark, narrow and wide, touch, screen readers."""

from importlib.resources import files
from typing import Any

import pytest

from tests.browser.conftest import PHONE, PageVisit, visiting

GROUND = "getComputedStyle(document.documentElement).backgroundColor"
# Whether anything is wider than the window.
TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"


def brightness(colour: str) -> float:
    return sum(map(float, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_dark_by_the_system_and_by_the_toggle(chromium: Any, address: str) -> None:
    for scheme, dark in (("light", False), ("dark", True)):
        with visiting(chromium, address, color_scheme=scheme) as visit:
            visit.open()
            assert (brightness(visit.page.evaluate(GROUND)) < 60) == dark
            visit.page.get_by_role("button", name="Switch to").click()
            assert (brightness(visit.page.evaluate(GROUND)) < 60) != dark
            visit.page.reload()  # kept
            assert (brightness(visit.page.evaluate(GROUND)) < 60) != dark
            assert visit.page.get_by_role("button", name=f"Switch to {scheme}").is_visible()


@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1440])
def test_nothing_is_wider_than_the_window(chromium: Any, address: str, goods: list[str], width: int) -> None:
    with visiting(chromium, address, viewport={"width": width, "height": 800}) as visit:
        visit.open()
        assert not visit.page.evaluate(TOO_WIDE)
        visit.open(*(goods * 5), "an-unknown-item-with-" + "a-very-long-name" * 10)
        visit.page.locator("[aria-label^='Move later']").first.click()
        visit.page.locator(".summary").wait_for()
        visit.settle()
        assert visit.page.locator(".pull").count() == 20
        assert not visit.page.evaluate(TOO_WIDE)


def test_a_finger_drags_by_the_grip(chromium: Any, address: str, goods: list[str]) -> None:
    with visiting(chromium, address, viewport=PHONE, has_touch=True, is_mobile=True) as visit:
        visit.open(*goods)
        visit.page.locator("#session").scroll_into_view_if_needed()
        fingers = visit.page.context.new_cdp_session(visit.page)

        def touch(kind: str, *points: tuple[float, float]) -> None:
            touches = [{"x": x, "y": y} for x, y in points]
            fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})

        grips = visit.page.locator(".grip")
        start, end = grips.nth(0).bounding_box(), grips.nth(2).bounding_box()
        x, y, far = start["x"] + 16, start["y"] + 20, end["y"] - start["y"]
        touch("touchStart", (x, y))
        for step in range(1, 11):
            touch("touchMove", (x, y + far * step / 10))
        touch("touchEnd")
        visit.page.locator(".summary").wait_for()
        visit.settle()
        titles = visit.page.locator(".click").evaluate_all(
            "cards => cards.map(card => card.querySelector('.id').textContent)"
        )
        assert titles == [goods[1], goods[2], goods[0], goods[3]]


def test_targets_are_large_enough_for_a_finger(chromium: Any, address: str, goods: list[str]) -> None:
    with visiting(chromium, address, viewport=PHONE, has_touch=True, is_mobile=True) as visit:
        visit.open(*goods)
        small = visit.page.evaluate(
            "[...document.querySelectorAll('button, .jump a, .grip')].map(one => [one, one.getBoundingClientRect()])"
            ".filter(([one, box]) => box.width && (box.width < 30 || box.height < 30)).map(([one]) => one.outerHTML)"
        )
        assert small == []


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_axe_finds_nothing(chromium: Any, address: str, goods: list[str], scheme: str, width: int) -> None:
    """axe-core's rules of WCAG 2.1 A and AA, contrast among them, in every state of the page."""
    pytest.importorskip("axe_core_python")
    rules = files("axe_core_python").joinpath("axe.min.js").read_text()
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    with visiting(chromium, address, color_scheme=scheme, viewport={"width": width, "height": 900}) as visit:
        for session in ([], goods, [*goods, "no such item"], ["no such item"], goods * 5):
            visit.open(*session)
            if len(session) > 1:
                visit.page.locator("[aria-label^='Move later']").first.click()  # marks, up, down and new
                visit.page.locator(".summary").wait_for()
                visit.settle()
            assert violations(visit, rules, tags) == []


def violations(visit: PageVisit, rules: str, tags: list[str]) -> list[str]:
    visit.page.evaluate(rules)
    found = visit.page.evaluate("tags => axe.run(document, {runOnly: tags})", tags)
    assert len(found["passes"]) > 20
    return [f"{one['id']}: {node['html'][:120]}" for one in found["violations"] for node in one["nodes"]]

"""The playground, used as a visitor would; what it shows is compared with the results of the Recommender."""

import json
import subprocess
from typing import Any

import pytest

from posrec.recommend.recommender import Recommender
from tests.browser.conftest import PageVisit, visiting


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def test_clicks_build_a_session_and_recommendations_follow(visit: PageVisit, recommender: Recommender) -> None:
    visit.open()
    visit.settle()
    page = visit.page
    assert "The session is empty" in page.locator("#recommended .note").inner_text()
    assert visit.shown() == [one.item for one in recommender.recommend([])]
    assert page.locator("#explained .blank").is_visible()
    page.get_by_label("Search the catalogue").fill("TENT")
    page.wait_for_function("[...document.querySelectorAll('.goods')].every(one => /tent/i.test(one.textContent))")
    tent = page.locator(".goods").first
    first = tent.locator(".id").inner_text().split(" · ")[0]
    assert "Tent" in (recommender.title(recommender.known(first)) or "")
    tent.click()
    visit.settle()
    assert visit.session() == [first]
    assert visit.agrees_with(recommender.recommend([first]))
    second = visit.shown()[2]
    page.locator("#recommended .row .icon").nth(2).click()
    page.locator(".click").nth(1).wait_for()
    visit.settle()
    assert visit.session() == [first, second]
    assert visit.agrees_with(recommender.recommend([first, second]))
    assert "Added" in page.locator("#live").inner_text()


def test_catalogue_is_sorted_by_clicks_and_shows_more(visit: PageVisit, recommender: Recommender) -> None:
    visit.open()
    page = visit.page
    counts = page.locator(".goods .id").all_inner_texts()
    clicks = [int(text.split(" · ")[1].split()[0]) for text in counts]
    assert clicks == sorted(recommender.popularity.astype(int).tolist(), reverse=True)[:20]
    page.locator(".more").click()
    page.locator(".goods").nth(39).wait_for()
    assert page.locator(".goods").count() == 40


def test_reordering_shows_what_position_does(visit: PageVisit, recommender: Recommender, goods: list[str]) -> None:
    visit.open(*goods)
    assert visit.page.locator(".moved.up, .moved.down, .moved.new").count() == 0
    before = visit.shown()
    visit.page.locator("[aria-label^='Move later']").first.click()
    swapped = [goods[1], goods[0], *goods[2:]]
    visit.page.locator(".summary").wait_for()
    visit.settle()
    assert visit.session() == swapped
    assert visit.agrees_with(recommender.recommend(swapped))
    after = visit.shown()
    assert before != after, "the order of the clicks must matter"
    marks = visit.page.locator(".row .moved").all_text_contents()
    for rank, (item, mark) in enumerate(zip(after, marks, strict=True)):
        if item not in before:
            assert mark == "new"
        else:
            moved = before.index(item) - rank
            sign, word = ("▲", "up") if moved > 0 else ("▼", "down")
            assert mark == (f"{sign} {abs(moved)}{word} {abs(moved)}" if moved else "")
    visit.page.get_by_role("button", name="Undo").click()
    visit.page.wait_for_function("document.querySelector('.summary').textContent.startsWith('Undone')")
    assert visit.session() == goods
    assert visit.shown() == before


def drag(visit: PageVisit, card: int, over: int) -> None:
    """Pick up a card and hold it over the place of another."""
    cards, mouse = visit.page.locator(".click"), visit.page.mouse
    start, end = cards.nth(card).bounding_box(), cards.nth(over).bounding_box()
    mouse.move(start["x"] + 60, start["y"] + 12)
    mouse.down()
    mouse.move(end["x"] + 60, end["y"] + 12, steps=12)


def test_cards_are_dragged(visit: PageVisit, recommender: Recommender, goods: list[str]) -> None:
    visit.open(*goods)
    drag(visit, 0, over=2)
    visit.page.mouse.up()
    visit.page.locator(".summary").wait_for()
    visit.settle()
    dragged = [goods[1], goods[2], goods[0], goods[3]]
    assert visit.session() == dragged
    assert visit.agrees_with(recommender.recommend(dragged))


def test_an_abandoned_drag_changes_nothing(visit: PageVisit, goods: list[str]) -> None:
    visit.open(*goods)
    drag(visit, 0, over=3)
    visit.page.keyboard.press("Escape")
    visit.page.mouse.up()
    assert visit.session() == goods
    assert visit.page.locator(".dragged").count() == 0


def test_removing_clearing_and_undoing(visit: PageVisit, recommender: Recommender, goods: list[str]) -> None:
    visit.open(*goods)
    visit.page.locator("[aria-label^='Remove']").nth(1).click()
    visit.page.locator(".summary").wait_for()
    visit.settle()
    rest = [goods[0], *goods[2:]]
    assert visit.session() == rest
    assert visit.agrees_with(recommender.recommend(rest))
    visit.page.get_by_role("button", name="Clear").click()
    assert visit.session() == []
    visit.page.locator("#recommended .note").wait_for()
    assert visit.page.locator(".moved.up, .moved.down, .moved.new").count() == 0  # popular items are another list
    for left in (rest, goods):
        visit.page.get_by_role("button", name="Undo").click()
        visit.page.locator(".row").first.wait_for()
        visit.settle()
        assert visit.session() == left
    assert visit.page.get_by_role("button", name="Undo").is_disabled()


def test_k(visit: PageVisit, recommender: Recommender, goods: list[str]) -> None:
    visit.open(*goods)
    for k in (5, 50):
        visit.page.get_by_role("radio", name=str(k), exact=True).check(force=True)
        visit.page.wait_for_function(f"document.querySelectorAll('.row').length === {k}")
        assert visit.agrees_with(recommender.recommend(goods, k))
    visit.page.reload()  # the address holds the whole state
    visit.page.locator(".row").first.wait_for()
    visit.settle()
    assert visit.session() == goods
    assert visit.agrees_with(recommender.recommend(goods, 50))


def test_bars_of_an_explanation_add_up(visit: PageVisit, recommender: Recommender, goods: list[str]) -> None:
    visit.open(*goods)
    for place in (0, 7):
        item = visit.shown()[place]
        visit.page.locator("#recommended .why").nth(place).click()
        visit.page.wait_for_function(f"document.querySelector('.about .id').textContent === {json.dumps(item)}")
        visit.settle()
        why = recommender.explain(goods, item)
        rows = visit.page.locator(".part").all_inner_texts()
        values = [number(row.split("\n")[-1]) for row in rows]
        assert [row.split("\n")[0] for row in rows] == [*why.parts, "score"]
        assert values == pytest.approx([*why.parts.values(), why.score], abs=6e-4)
        assert sum(values[:-1]) == pytest.approx(values[-1], abs=0.0021)  # three roundings
        # On the page: each bar begins where the one before ended, and the last one is as long as their sum.
        bars = [bar.bounding_box() for bar in visit.page.locator(".track i").all()]
        unit = bars[-1]["width"] / abs(why.score)
        zero = bars[-1]["x"] if why.score > 0 else bars[-1]["x"] + bars[-1]["width"]
        place_now = zero
        for bar, part in zip(bars, why.parts.values(), strict=False):
            begin, end = (bar["x"], bar["x"] + bar["width"]) if part > 0 else (bar["x"] + bar["width"], bar["x"])
            assert begin == pytest.approx(place_now, abs=1.5)
            assert end - begin == pytest.approx(part * unit, abs=2.1)  # a bar of nothing is still 2 px
            place_now += part * unit


def test_strip_shows_the_pull_of_each_position(visit: PageVisit, recommender: Recommender, goods: list[str]) -> None:
    visit.open(*goods)
    why = recommender.explain(goods, visit.shown()[0])
    columns = visit.page.locator(".pull")
    assert columns.count() == len(goods)
    values = [number(text) for text in columns.locator(".value").all_inner_texts()]
    assert values == pytest.approx([click.effect for click in why.clicks], abs=6e-3)
    heights = [bar.bounding_box()["height"] for bar in columns.locator("i").all()]
    strongest = max(range(4), key=lambda place: abs(why.clicks[place].effect or 0))
    unit = heights[strongest] / abs(why.clicks[strongest].effect or 1)
    for height, click in zip(heights, why.clicks, strict=True):
        assert height == pytest.approx(abs(click.effect or 0) * unit, abs=2.1)
    heat = [int(text) for text in columns.nth(2).locator(".heat").all_inner_texts()]
    assert heat == [round(100 * share) for share in why.clicks[2].attention.values()]
    columns.nth(2).hover()
    assert visit.page.locator(".click.pointed .id").all_inner_texts() == [goods[2]]
    assert f"rank {why.clicks[2].rank_without:,}" in visit.page.locator(".detail").inner_text()


def test_one_click_can_not_be_left_out(visit: PageVisit, goods: list[str]) -> None:
    visit.open(goods[0])
    assert "the only click" in visit.page.locator(".detail").inner_text()
    assert visit.page.locator(".pull i").count() == 0


def test_copied_curl_gives_the_same_answer(chromium: Any, address: str, goods: list[str]) -> None:
    session = [*goods, 'it\'s "not" $HOME `known`']
    with visiting(chromium, address, permissions=["clipboard-read", "clipboard-write"]) as visit:
        visit.open(*session, k=10)
        page = visit.page
        for verb in ("recommend", "explain"):
            page.get_by_role("radio", name=verb).check(force=True)
            page.get_by_role("button", name="Copy").click()
            page.get_by_role("button", name="Copied").wait_for()
            copied = page.evaluate("navigator.clipboard.readText()")
            assert copied == page.locator("#curl").inner_text()
            answered = subprocess.run(["bash", "-c", copied], capture_output=True, text=True, check=True).stdout
            answer = json.loads(answered)
            assert answer["unknown"] == session[-1:]
            if verb == "recommend":
                assert [one["item"] for one in answer["items"]] == visit.shown()
                assert [one["score"] for one in answer["items"]] == pytest.approx(visit.scores(), abs=6e-4)
                assert len(answer["items"]) == 10
            else:
                assert answer["score"] == pytest.approx(number(page.locator(".about .big").inner_text()), abs=6e-4)
            page.get_by_role("button", name="Copy", exact=True).wait_for()


def test_keyboard_alone(visit: PageVisit, recommender: Recommender) -> None:
    visit.open()
    page, keys = visit.page, visit.page.keyboard
    keys.press("/")
    keys.type("tent")
    page.wait_for_function("[...document.querySelectorAll('.goods')].every(one => /tent/i.test(one.textContent))")
    keys.press("Enter")
    for _ in range(2):
        keys.press("ArrowDown")
    keys.press("Enter")
    page.locator(".click").nth(1).wait_for()
    keys.press("ArrowDown")
    keys.press("Space")
    page.locator(".click").nth(2).wait_for()
    visit.settle()
    first, second, third = visit.session()
    focus_on(visit, "[aria-label^='Move earlier']:not(:disabled)")
    ring = page.evaluate(
        "getComputedStyle(document.activeElement).outlineStyle + getComputedStyle(document.activeElement).outlineWidth"
    )
    assert ring == "solid2px"
    keys.press("ArrowRight")  # the second click goes last; the focus goes with it
    page.locator(".summary").wait_for()
    visit.settle()
    assert visit.session() == [first, third, second]
    assert second in page.evaluate("document.activeElement.closest('.click').textContent")
    keys.press("Home")
    page.wait_for_function("document.querySelector('.summary').textContent.includes('from 3 to 1')")
    visit.settle()
    assert visit.session() == [second, first, third]
    keys.press("Delete")
    page.wait_for_function("document.querySelectorAll('.click').length === 2")
    assert page.evaluate("document.activeElement.closest('.click') !== null")
    keys.press("Control+z")
    page.wait_for_function("document.querySelectorAll('.click').length === 3")
    visit.settle()
    assert visit.agrees_with(recommender.recommend([second, first, third]))
    focus_on(visit, "#recommended li:nth-child(2) .why")
    keys.press("Enter")
    item = visit.shown()[1]
    page.wait_for_function(f"document.querySelector('.about .id').textContent === {json.dumps(item)}")
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    focus_on(visit, ".pull")
    assert page.locator(".click.pointed").count() == 1
    focus_on(visit, "#copy")


def focus_on(visit: PageVisit, selector: str) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(200):
        visit.page.keyboard.press("Tab")
        if visit.page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab never reaches {selector}")

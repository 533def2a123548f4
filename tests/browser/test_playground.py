"""Ten things that a person does on the playground, compared with what the Recommender answers."""

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from posrec.recommend.recommender import Recommender
from tests.browser.conftest import Visit, answer_to, number
from tests.helpers import items_of
from tests.server.server_process import serving, until

TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"
CARD = {"x": 60.0, "y": 12.0}  # where a card is held


def search_tents(visit: Visit) -> None:
    visit.page.keyboard.press("/")
    visit.page.keyboard.type("tent")
    goods = visit.page.locator(".goods")
    until(lambda: goods.filter(has_text="tent").count() == goods.count() > 0)


def test_search_and_click(visitor: Any) -> None:
    with visitor(bypass_csp=False) as visit:
        visit.open()
        page = visit.page
        counts = [int(text.split()[2]) for text in visit.texts(".goods .id")]
        clicks = visit.recommender.popularity.astype(int).tolist()
        assert counts == sorted(clicks, reverse=True)[:20]
        assert visit.shown() == items_of(visit.recommender.recommend([]))
        search_tents(visit)
        first = visit.texts(".goods .id")[0].split()[0]
        page.locator(".goods").first.click()
        visit.expect([first])
        second = visit.shown()[2]
        page.locator("#recommended .row .icon").nth(2).click()
        visit.expect([first, second])
        page.get_by_role("link", name="API docs").click()
        form = page.locator("form").filter(has_text="POST /v1/recommend").first
        form.get_by_role("button", name="Send").click()
        form.locator("pre").filter(has_text='"popular": false').wait_for()
    # All of it works under the policy of the pages, which stops attempts of Playwright alone.
    assert [error for error in visit.errors if "Evaluating a string" not in error] == []


def test_reorder_remove_and_undo(visit: Visit, goods: list[str]) -> None:
    visit.open(*goods)
    page = visit.page
    before = visit.shown()
    page.locator("[aria-label^='Move later']").first.click()
    swapped = [goods[1], goods[0], *goods[2:]]
    visit.expect(swapped)
    marks = page.locator(".row .moved").all_text_contents()
    assert any(marks), "the order of the clicks must matter"
    for rank, (item, mark) in enumerate(zip(visit.shown(), marks, strict=True)):
        if item not in before:
            assert mark.startswith("new")
        elif moved := before.index(item) - rank:
            assert mark.startswith(f"▲ {moved}" if moved > 0 else f"▼ {-moved}")
    cards = page.locator(".click")
    cards.nth(0).drag_to(cards.nth(2), source_position=CARD, target_position=CARD)
    dragged = [swapped[1], swapped[2], swapped[0], swapped[3]]
    visit.expect(dragged)
    page.locator("[aria-label^='Remove']").nth(1).click()
    rest = [dragged[0], *dragged[2:]]
    visit.expect(rest)
    visit.button("Clear").click()
    for session in (rest, dragged, swapped, goods):
        visit.button("Undo").click()
        visit.expect(session)


def test_use_the_keyboard_alone(visit: Visit) -> None:
    def focus_on(selector: str) -> Any:
        for _ in range(200):
            visit.page.keyboard.press("Tab")
            element = visit.page.locator(f"{selector}:focus")
            if element.count():
                return element
        raise AssertionError(f"Tab never reaches {selector}")

    visit.open()
    keys = visit.page.keyboard
    search_tents(visit)
    for click in range(3):
        keys.press("Enter")
        visit.page.locator(".click").nth(click).wait_for()
        keys.press("ArrowDown")
    first, second, third = visit.texts(".click .id")
    move = focus_on("[aria-label^='Move earlier']:not(:disabled)")
    assert move.evaluate("move => getComputedStyle(move).outlineStyle") == "solid"
    keys.press("ArrowRight")  # the second click goes last; the focus goes with it
    visit.expect([first, third, second])
    keys.press("Home")
    visit.expect([second, first, third])
    keys.press("Delete")
    visit.expect([first, third])
    keys.press("Control+z")
    visit.expect([second, first, third])
    focus_on("#recommended li:nth-child(2) .why")
    keys.press("Enter")
    visit.expect_explained(visit.shown()[1])
    focus_on("#copy")


def test_read_an_explanation(visit: Visit, goods: list[str]) -> None:
    visit.open(*goods)
    item = visit.shown()[7]
    visit.page.locator("#recommended .why").nth(7).click()
    visit.expect_explained(item)
    why = visit.recommender.explain(goods, item)
    rows = [text.split("\n") for text in visit.texts(".part")]
    assert [row[0] for row in rows] == [*why.parts, "score"]
    values = [number(row[-1]) for row in rows]
    assert values == pytest.approx([*why.parts.values(), why.score], abs=6e-4)
    effects = [click.effect for click in why.clicks]
    assert visit.numbers(".pull .value") == pytest.approx(effects, abs=6e-3)


def test_set_rules(visit: Visit, goods: list[str]) -> None:
    visit.open(*goods, k=10)
    page = visit.page
    for rule in ("Filter", "Filter", "Boost", "Variety", "Leave out", "Put first"):
        visit.button(rule).click()
    page.get_by_label("Filter: how").first.select_option("not")
    page.get_by_label("Filter: value").first.fill("Sandals")
    page.get_by_label("Filter: column").nth(1).select_option("price")
    page.get_by_label("Filter: how").nth(1).select_option("max")
    page.get_by_label("Filter: value").nth(1).fill("60")
    page.get_by_label("Boost: value").fill("Tents")
    allowed = {"category": {"not": ["Sandals"]}, "price": {"max": 60}}
    pinned = visit.recommender.recommend([], 100, filter=allowed)[-1].item
    page.get_by_label("Put first: value").fill(pinned)
    rules: dict[str, Any] = {
        "filter": allowed,
        "boost": {"category": {"Tents": 1.5}},
        "diversify": 0.3,
        "pin": [pinned],
        "exclude": "seen",
    }
    page.locator(f".row[data-slide='{pinned}']").wait_for()
    page.reload()  # the address holds the rules
    visit.expect(goods, k=10, **rules)
    visit.choose("JSON")
    request = json.loads(visit.texts("#curl")[0])
    assert request.items() >= rules.items()
    for _ in range(6):
        page.get_by_role("button", name="Remove: ").first.click()
    page.locator(".rule").first.wait_for(state="detached")
    visit.expect(goods, k=10)


# Whether the lists of several runs share the whole width of their card.
FILLED = """() => {
    const lists = [...document.querySelectorAll(".runs > section")];
    const widths = lists.map((list) => list.getBoundingClientRect().width);
    const card = document.querySelector("#recommended").getBoundingClientRect().width;
    const all = widths.reduce((sum, width) => sum + width, 0);
    return Math.abs(all - card) < 1 && Math.max(...widths) - Math.min(...widths) < 1;
}"""
SHORTENED = """() => [...document.querySelectorAll("#recommended .named .clip")]
    .filter((title) => title.scrollWidth > title.clientWidth)
    .map((title) => title.textContent)"""


def test_compare_two_runs(visitor: Any, runs: Path, goods: list[str]) -> None:
    both = [runs / "plus", runs / "itemknn"]
    plus, itemknn = (Recommender.load(run, "cpu") for run in both)
    with serving(*both) as server, visitor(server.port) as visit:
        visit.open(*goods, k=5)
        left = "#recommended section:nth-last-of-type(2)"
        answer = plus.recommend(goods, 5)
        assert visit.shown(left) == items_of(answer)
        percents = [100 * math.exp(item.score) for item in answer]
        assert visit.numbers(f"{left} .score") == pytest.approx(percents, abs=0.06)
        why = plus.explain(goods, answer[0].item)
        assert f"{why.probability:.1%}" in visit.texts(".about")[0]
        assert f"{why.repeat_chance:.0%}" in visit.texts(".repeat")[0]
        right = "#recommended section:last-of-type"
        others = visit.shown(right)
        assert others == items_of(itemknn.recommend(goods, 5))
        for item, row in zip(others, visit.texts(f"{right} .row"), strict=True):
            assert ("only here" in row) == (item not in visit.shown(left))
        names = [title.split("\n")[0] for title in visit.texts(".runs h3")]
        assert names == ["plus", "itemknn"]  # as in posrec report
        for width in (1440, 1000):
            visit.page.set_viewport_size({"width": width, "height": 1000})
            assert visit.page.evaluate(FILLED)
            assert visit.page.evaluate(SHORTENED) == []
        visit.page.locator(f"{right} .why").nth(2).click()
        visit.expect_explained(others[2])  # by the run that recommends it
        score = itemknn.explain(goods, others[2]).score
        assert f"{score:.3f}" in visit.texts(".about")[0]
        items = answer_to(visit.texts("#curl")[0])["items"]
        assert [item["item"] for item in items] == others


def test_copy_a_request(visitor: Any, goods: list[str]) -> None:
    unknown = 'it\'s "not" $HOME `known` <img src=x onerror=alert(1)>'
    with visitor(permissions=["clipboard-read", "clipboard-write"]) as visit:
        visit.open(*goods, unknown)
        page = visit.page
        assert unknown in visit.texts("#clicks .note")[0]  # as text
        assert page.locator("#clicks img").count() == 0
        visit.choose("10")
        until(lambda: len(visit.shown()) == 10)
        page.locator("summary", has_text="Similar items").click()
        page.locator(".similar .row").first.wait_for()
        answers = {}
        for request in ("recommend", "explain", "similar"):
            visit.choose(request)
            visit.button("Copy").click()
            visit.button("Copied").wait_for()
            answers[request] = answer_to(
                page.evaluate("navigator.clipboard.readText()")
            )
            visit.button("Copy").wait_for()
        recommended = [item["item"] for item in answers["recommend"]["items"]]
        assert recommended == visit.shown()
        similar = [item["item"] for item in answers["similar"]["items"]]
        assert similar == visit.texts(".similar .id")
        score = pytest.approx(answers["explain"]["score"], abs=6e-4)
        assert visit.numbers(".about .big") == [score]
        assert answers["explain"]["unknown"] == [unknown]


def test_enter_the_api_key_once(visitor: Any, runs: Path, goods: list[str]) -> None:
    key = "open sesame"
    with serving(runs / "posrec", key=key) as server, visitor(server.port) as visit:
        page = visit.page
        page.goto(f"{visit.address}?item={goods[0]}")
        visit.button("Cancel").click()
        visit.button("Try again").click()
        page.get_by_label("API key").last.fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("not accepted").wait_for()
        page.get_by_label("API key").last.fill(key)
        page.keyboard.press("Enter")
        page.locator(".part").first.wait_for()
        page.reload()
        page.locator(".part").first.wait_for()
        assert not page.get_by_role("dialog").is_visible()
        (curl,) = visit.texts("#curl")
        assert key not in curl
        items = answer_to(curl, POSREC_API_KEY=key)["items"]
        assert [item["item"] for item in items] == visit.shown()


def test_wait_for_a_busy_or_absent_server(visitor: Any, goods: list[str]) -> None:
    with visitor() as visit:
        page = visit.page
        busy = {"status": 503, "headers": {"Retry-After": "1"}, "body": "{}"}
        page.route("**/v1/recommend", lambda route: route.fulfill(**busy), times=1)
        visit.open(*goods[:2])
        visit.expect(goods[:2])
        assert "503" in visit.errors[0]  # logged by the browser itself
        page.context.set_offline(True)
        page.locator(".goods").first.click()
        page.locator("#alert", has_text="can't be reached").wait_for()
        session = visit.texts(".click .id")
        page.context.set_offline(False)  # the page notices by itself
        page.locator("#alert").wait_for(state="hidden")
        visit.expect(session)


def test_drag_by_the_grip_on_a_phone(visitor: Any, goods: list[str]) -> None:
    phone = {"width": 390, "height": 844}
    with visitor(viewport=phone, is_mobile=True, has_touch=True) as visit:
        visit.open(*goods)
        assert not visit.page.evaluate(TOO_WIDE)
        visit.page.locator("#session").scroll_into_view_if_needed()
        finger = visit.page.context.new_cdp_session(visit.page)
        grips = visit.page.locator(".grip").all()
        start, _, end, _ = (grip.bounding_box() for grip in grips)
        for step in range(11):
            y = start["y"] + 20 + (end["y"] - start["y"]) * step / 10
            points = [{"x": start["x"] + 16, "y": y}]
            event = {"type": "touchMove" if step else "touchStart"}
            finger.send("Input.dispatchTouchEvent", {**event, "touchPoints": points})
        lifted = {"type": "touchEnd", "touchPoints": []}
        finger.send("Input.dispatchTouchEvent", lifted)
        visit.expect([goods[1], goods[2], goods[0], goods[3]])


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_axe_rules(visitor: Any, goods: list[str], scheme: str, width: int) -> None:
    """axe-core's rules of WCAG 2.1 A and AA, contrast among them, in every state of the page."""
    pytest.importorskip("axe_core_python")
    axe = files("axe_core_python").joinpath("axe.min.js").read_text()
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    long_name = "no such item with " + "a very long name" * 10
    with visitor(
        color_scheme=scheme, viewport={"width": width, "height": 900}
    ) as visit:
        for session in ([], goods, ["no such item"], [*goods * 5, long_name]):
            visit.open(*session)
            if len(session) > 1:  # with the marks up, down and new
                visit.page.locator("[aria-label^='Move later']").first.click()
                visit.page.locator(".summary").wait_for()
                visit.settle()
            assert not visit.page.evaluate(TOO_WIDE)
            visit.page.evaluate(axe)
            outcome = visit.page.evaluate("tags => axe.run({runOnly: tags})", tags)
            assert len(outcome["passes"]) > 20
            assert outcome["violations"] == []

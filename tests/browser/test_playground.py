"""The playground, used as a visitor would; what it shows is compared with the results of the
Recommender."""

import json
import math
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from posrec.recommend.recommender import Recommender
from tests.browser.conftest import PageVisit, answered, number, serving, visiting

ALL_TENTS = "[...document.querySelectorAll('.goods')].every(one => /tent/i.test(one.textContent))"
TOO_WIDE = "document.documentElement.scrollWidth > innerWidth"


def test_clicks_build_a_session_and_recommendations_follow(
    visit: PageVisit, recommender: Recommender
) -> None:
    visit.open()
    visit.settle()
    page = visit.page
    assert visit.shown() == [one.item for one in recommender.recommend([])]
    counts = [
        int(text.split(" · ")[1].split()[0])
        for text in page.locator(".goods .id").all_inner_texts()
    ]
    assert (
        counts == sorted(recommender.popularity.astype(int).tolist(), reverse=True)[:20]
    )
    page.get_by_label("Search the catalogue").fill("TENT")
    page.wait_for_function(ALL_TENTS)
    tent = page.locator(".goods").first
    first = tent.locator(".id").inner_text().split(" · ")[0]
    tent.click()
    visit.expect([first], recommender.recommend([first]))
    second = visit.shown()[2]
    page.locator("#recommended .row .icon").nth(2).click()
    visit.expect([first, second], recommender.recommend([first, second]))


def test_unknown_items_are_named_and_skipped(
    visit: PageVisit, recommender: Recommender, goods: list[str]
) -> None:
    markup = "<img src=x onerror=alert(1)>"
    visit.open(goods[0], goods[1], markup)
    page = visit.page
    assert markup in page.locator("#clicks .note").inner_text()  # as text
    assert page.locator("#clicks img").count() == 0
    assert visit.shown() == [one.item for one in recommender.recommend(goods[:2])]
    assert page.locator(".pull b").all_inner_texts() == ["1 first", "2 last"]
    visit.button("Clear").click()
    page.get_by_label("Search the catalogue").fill("tetn")
    page.get_by_text("Nothing found").wait_for()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "document.querySelector('#live').textContent.includes('Nothing was added')"
    )
    assert visit.session() == []
    page.get_by_role("button", name="Click it anyway").click()
    page.locator("#recommended .note", has_text="knows none").wait_for()
    assert page.locator(".click.unknown").count() == 1
    visit.settle()
    assert "Nothing to explain" in page.locator("#explained").inner_text()


def test_reordering_shows_what_position_does(
    visit: PageVisit, recommender: Recommender, goods: list[str]
) -> None:
    visit.open(*goods)
    before = visit.shown()
    visit.page.locator("[aria-label^='Move later']").first.click()
    swapped = [goods[1], goods[0], *goods[2:]]
    visit.expect(swapped, recommender.recommend(swapped))
    after = visit.shown()
    assert before != after, "the order of the clicks must matter"
    marks = visit.page.locator(".row .moved").all_text_contents()
    for rank, (item, mark) in enumerate(zip(after, marks, strict=True)):
        moved = before.index(item) - rank if item in before else None
        sign = "▲" if (moved or 0) > 0 else "▼"
        assert mark.startswith(
            "new" if moved is None else f"{sign} {abs(moved)}" if moved else ""
        )
    visit.button("Undo").click()
    visit.expect(goods, recommender.recommend(goods))


def test_cards_are_dragged_removed_and_restored(
    visit: PageVisit, recommender: Recommender, goods: list[str]
) -> None:
    visit.open(*goods)
    page = visit.page
    cards = visit.page.locator(".click")
    mouse = visit.page.mouse

    def hold(card: int, over: int) -> None:
        start = cards.nth(card).bounding_box()
        end = cards.nth(over).bounding_box()
        mouse.move(start["x"] + 60, start["y"] + 12)
        mouse.down()
        mouse.move(end["x"] + 60, end["y"] + 12, steps=12)

    hold(0, over=3)
    page.keyboard.press("Escape")
    mouse.up()
    assert visit.session() == goods
    hold(0, over=2)
    mouse.up()
    dragged = [goods[1], goods[2], goods[0], goods[3]]
    visit.expect(dragged, recommender.recommend(dragged))
    page.locator("[aria-label^='Remove']").nth(1).click()
    rest = [goods[1], goods[0], goods[3]]
    visit.expect(rest, recommender.recommend(rest))
    visit.button("Clear").click()
    page.locator("#recommended .note", has_text="The session is empty").wait_for()
    for left in (rest, dragged, goods):
        visit.button("Undo").click()
        visit.expect(left, recommender.recommend(left))
    assert visit.button("Undo").is_disabled()


def test_keyboard_alone(visit: PageVisit, recommender: Recommender) -> None:
    visit.open()
    page = visit.page
    keys = visit.page.keyboard
    keys.press("/")
    keys.type("tent")
    page.wait_for_function(ALL_TENTS)
    keys.press("Enter")
    for clicks in (2, 3):
        keys.press("ArrowDown")
        keys.press("ArrowDown")
        keys.press("Enter")
        page.locator(".click").nth(clicks - 1).wait_for()
    visit.settle()
    first, second, third = visit.session()
    focus_on(visit, "[aria-label^='Move earlier']:not(:disabled)")
    assert (
        page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        == "solid"
    )
    keys.press("ArrowRight")  # the second click goes last; the focus goes with it
    visit.expect([first, third, second], recommender.recommend([first, third, second]))
    keys.press("Home")
    moved = [second, first, third]
    visit.expect(moved, recommender.recommend(moved))
    keys.press("Delete")
    visit.expect(moved[1:], recommender.recommend(moved[1:]))
    keys.press("Control+z")
    visit.expect(moved, recommender.recommend(moved))
    focus_on(visit, "#recommended li:nth-child(2) .why")
    keys.press("Enter")
    visit.expect_explained(visit.shown()[1])
    focus_on(visit, "#copy")


def focus_on(visit: PageVisit, selector: str) -> None:
    """Press Tab until the element has the focus."""
    for _ in range(200):
        visit.page.keyboard.press("Tab")
        if visit.page.evaluate(
            "selector => document.activeElement.matches(selector)", selector
        ):
            return
    raise AssertionError(f"Tab never reaches {selector}")


def test_bars_of_an_explanation_add_up(
    visit: PageVisit, recommender: Recommender, goods: list[str]
) -> None:
    visit.open(*goods)
    item = visit.shown()[7]
    visit.page.locator("#recommended .why").nth(7).click()
    visit.expect_explained(item)
    why = recommender.explain(goods, item)
    rows = visit.page.locator(".part").all_inner_texts()
    assert [row.split("\n")[0] for row in rows] == [*why.parts, "score"]
    values = [number(row.split("\n")[-1]) for row in rows]
    assert values == pytest.approx([*why.parts.values(), why.score], abs=6e-4)
    # Each bar begins where the one before ended, and the last one is as long as their sum.
    bars = [bar.bounding_box() for bar in visit.page.locator(".track i").all()]
    unit = bars[-1]["width"] / abs(why.score)
    place = bars[-1]["x"] if why.score > 0 else bars[-1]["x"] + bars[-1]["width"]
    for bar, part in zip(bars, why.parts.values(), strict=False):
        begin, end = (
            (bar["x"], bar["x"] + bar["width"])
            if part > 0
            else (bar["x"] + bar["width"], bar["x"])
        )
        assert begin == pytest.approx(place, abs=1.5)
        assert end - begin == pytest.approx(
            part * unit, abs=2.1
        )  # a bar of nothing is still 2 px
        place += part * unit
    columns = visit.page.locator(".pull")
    effects = [number(text) for text in columns.locator(".value").all_inner_texts()]
    assert effects == pytest.approx([click.effect for click in why.clicks], abs=6e-3)
    heat = [int(text) for text in columns.nth(2).locator(".heat").all_inner_texts()]
    assert heat == [round(100 * share) for share in why.clicks[2].attention.values()]
    columns.nth(2).hover()
    assert visit.page.locator(".click.pointed .id").all_inner_texts() == [goods[2]]
    assert (
        f"rank {why.clicks[2].rank_without:,}"
        in visit.page.locator(".detail").inner_text()
    )


def test_probabilities_parts_and_repeats(
    chromium: Any, runs: dict[str, Path], goods: list[str]
) -> None:
    recommender = Recommender.load(runs["posrec-plus"], "cpu")
    with serving(runs["posrec-plus"]) as url, visiting(chromium, url) as visit:
        visit.open(*goods, k=10)
        answer = recommender.recommend(goods, 10)
        assert visit.shown() == [one.item for one in answer]
        shares = [
            float(text.removesuffix("%"))
            for text in visit.page.locator("#recommended .score").all_inner_texts()
        ]
        assert shares == pytest.approx(
            [100 * math.exp(one.score) for one in answer], abs=0.06
        )
        why = recommender.explain(goods, answer[0].item)
        assert not visit.page.locator(
            "details .part"
        ).first.is_visible()  # the normalisation
        assert f"{why.probability:.1%}" in visit.page.locator(".about").inner_text()
        repeats = [click.attention["clicked before"] for click in why.clicks]
        sentence = visit.page.locator(".repeat").inner_text()
        assert f"{why.repeat_chance:.0%}" in sentence
        assert f"click {repeats.index(max(repeats)) + 1}, " in sentence
        assert sentence.endswith(f"with {max(repeats):.0%}.")
        assert visit.errors == []


def test_items_of_the_session_are_marked_and_columns_shown(
    visit: PageVisit, recommender: Recommender, goods: list[str]
) -> None:
    visit.open(*goods, goods[0])
    marked = visit.page.locator(
        "#recommended .row", has=visit.page.locator(".tag", has_text="in session")
    )
    items = marked.evaluate_all("rows => rows.map(row => row.dataset.slide)")
    assert items == [item for item in visit.shown() if item in goods] != []
    for place, one in enumerate(
        recommender.recommend(
            [*goods, goods[0]], 5, fields=["category", "price", "stock"]
        )
    ):
        assert one.fields is not None
        stock = (
            "sold out"
            if one.fields["stock"] == "0"
            else f"{one.fields['stock']} in stock"
        )
        shown = (
            visit.page.locator("#recommended .details")
            .nth(place)
            .locator("span")
            .all_inner_texts()
        )
        assert shown == [
            one.item,
            one.fields["category"],
            f"{float(one.fields['price']):.2f}",
            stock,
        ]


def test_rules_are_asked_for_shown_as_json_and_kept_in_the_address(
    visit: PageVisit, recommender: Recommender, goods: list[str]
) -> None:
    visit.open(*goods, k=10)
    page = visit.page
    visit.button("Filter").click()
    page.get_by_label("Filter: how").select_option("not")
    page.get_by_label("Filter: value").fill("Sandals")
    visit.button("Filter").click()
    page.get_by_label("Filter: column").nth(1).select_option("price")
    page.get_by_label("Filter: how").nth(1).select_option("max")
    page.get_by_label("Filter: value").nth(1).fill("60")
    visit.button("Boost").click()
    page.get_by_label("Boost: value").fill("Tents")
    for rule in ("Variety", "Leave out", "Put first"):
        visit.button(rule).click()
    last = recommender.recommend(
        [], 1, filter={"category": ["Tents"], "price": {"max": 60}}
    )[0].item
    page.get_by_label("Put first: value").fill(last)
    rules: dict[str, Any] = {
        "filter": {"category": {"not": ["Sandals"]}, "price": {"max": 60}},
        "boost": {"category": {"Tents": 1.5}},
        "diversify": 0.3,
        "pin": [last],
    }
    page.wait_for_function(
        "item => document.querySelector('.row')?.dataset.slide === item", arg=last
    )
    page.reload()  # the address holds the rules
    page.locator(".row").first.wait_for()
    visit.expect(goods, recommender.recommend(goods, 10, exclude_seen=True, **rules))
    page.get_by_role("radio", name="JSON").check(force=True)
    sent = json.loads(page.locator("#curl").inner_text())
    seen = {"exclude": "seen"} if "exclude" in sent else {"exclude_seen": True}
    assert sent == {
        "session": goods,
        "k": 10,
        **rules,
        **seen,
        "fields": ["category", "price", "stock"],
    }
    for _ in range(6):
        page.get_by_role("button", name="Remove: ").first.click()
    page.wait_for_function(
        "!document.querySelector('.rule') && !document.querySelector('.row .tag + .tag')"
    )
    visit.expect(goods, recommender.recommend(goods, 10))


def test_similar_items_and_their_request(
    visit: PageVisit, recommender: Recommender, goods: list[str]
) -> None:
    visit.open(*goods)
    visit.page.locator("summary", has_text="Similar items").click()
    visit.page.locator(".similar .row").first.wait_for()
    similar = [one.item for one in recommender.similar_items(visit.shown()[0], 5)]
    assert visit.page.locator(".similar .id").all_inner_texts() == similar
    visit.page.get_by_role("radio", name="similar").check(force=True)
    answer = answered(visit.page.locator("#curl").inner_text())
    assert [one["item"] for one in answer["items"]] == similar


def test_two_runs_stand_beside_each_other(
    chromium: Any, runs: dict[str, Path], goods: list[str]
) -> None:
    both = [runs["posrec"], runs["itemknn"]]
    loaded = [Recommender.load(run, "cpu") for run in both]
    with serving(*both) as url, visiting(chromium, url) as visit:
        visit.open(*goods, k=5)
        lists = visit.page.locator("#recommended section")
        shown = [
            one.locator(".row").evaluate_all(
                "rows => rows.map(row => row.dataset.slide)"
            )
            for one in lists.all()
        ]
        assert shown == [
            [one.item for one in recommender.recommend(goods, 5)]
            for recommender in loaded
        ]
        left, right = (one.bounding_box() for one in lists.all())
        assert (left["y"], left["x"] < right["x"]) == (right["y"], True)
        for item, row in zip(shown[1], lists.nth(1).locator(".row").all(), strict=True):
            assert ("only here" in row.inner_text()) == (item not in shown[0])
        lists.nth(1).locator(".why").nth(
            2
        ).click()  # explained by the run that recommends it
        visit.expect_explained(shown[1][2])
        about = visit.page.locator(".about").inner_text()
        assert f"{loaded[1].explain(goods, shown[1][2]).score:.3f}" in about
        assert "not a sum of parts" in visit.page.locator("#explained").inner_text()
        answer = answered(visit.page.locator("#curl").inner_text())
        assert [one["item"] for one in answer["items"]] == shown[1]
        assert visit.errors == []


def test_copied_curl_gives_the_same_answer(
    chromium: Any, address: str, goods: list[str]
) -> None:
    session = [*goods, 'it\'s "not" $HOME `known`']
    with visiting(
        chromium, address, permissions=["clipboard-read", "clipboard-write"]
    ) as visit:
        visit.open(*session)
        page = visit.page
        page.get_by_role("radio", name="10", exact=True).check(force=True)
        page.wait_for_function("document.querySelectorAll('.row').length === 10")
        answers = {}
        for verb in ("recommend", "explain"):
            page.get_by_role("radio", name=verb).check(force=True)
            visit.button("Copy").click()
            visit.button("Copied").wait_for()
            answers[verb] = answered(page.evaluate("navigator.clipboard.readText()"))
            assert answers[verb]["unknown"] == session[-1:]
            visit.button("Copy").wait_for()
        assert [one["item"] for one in answers["recommend"]["items"]] == visit.shown()
        score = number(page.locator(".about .big").inner_text())
        assert answers["explain"]["score"] == pytest.approx(score, abs=6e-4)


def test_an_api_key_is_asked_for_once(
    chromium: Any, run: Path, goods: list[str]
) -> None:
    key = "open sesame"
    with serving(run, api_key=key) as url, visiting(chromium, url) as visit:
        page = visit.page
        page.goto(f"{url}?item={goods[0]}")
        page.get_by_role("dialog").wait_for()
        visit.button("Cancel").click()
        page.locator("#alert", has_text="API key").wait_for()
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
        line = page.locator("#curl").inner_text()
        assert key not in line
        answer = answered(line, POSREC_API_KEY=key)
        assert [one["item"] for one in answer["items"]] == visit.shown()


def test_a_server_that_goes_and_comes_back(
    chromium: Any, address: str, recommender: Recommender, goods: list[str]
) -> None:
    with visiting(chromium, address) as visit:
        visit.open(*goods[:2])
        before = visit.shown()
        visit.page.context.set_offline(True)
        visit.page.locator(".goods").first.click()
        visit.page.locator("#alert", has_text="can't be reached").wait_for()
        assert (len(visit.session()), visit.shown()) == (3, before)
        visit.page.context.set_offline(False)  # the page notices by itself
        visit.page.locator("#alert").wait_for(state="hidden")
        visit.expect(visit.session(), recommender.recommend(visit.session()))


def test_a_busy_server_is_asked_again(visit: PageVisit, goods: list[str]) -> None:
    asked = []

    def busy_once(route: Any) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            route.fulfill(
                status=503,
                headers={"Retry-After": "1"},
                json={"error": "the queue is full"},
            )
        else:
            route.continue_()

    visit.page.route("**/v1/recommend", busy_once)
    visit.open(goods[0])
    assert (len(asked), len(visit.shown())) == (2, 20)
    assert ["503" in said for said in visit.errors] == [
        True
    ]  # logged by the browser itself
    visit.errors.clear()


def test_the_pages_work_under_their_content_security_policy(
    chromium: Any, address: str
) -> None:
    with visiting(chromium, address, bypass_csp=False) as visit:
        visit.page.goto(address)
        visit.page.locator(".goods").first.click()
        visit.page.locator("#recommended .row").first.wait_for()
        visit.page.get_by_role("link", name="API docs").click()
        form = visit.page.locator("form").filter(has_text="POST /v1/recommend").first
        form.get_by_role("button", name="Send").click()
        form.locator("pre").filter(has_text='"popular": false').wait_for()
    # Playwright itself tries to evaluate texts in the page.
    assert [error for error in visit.errors if "Evaluating a string" not in error] == []


def test_a_phone_drags_by_the_grip(
    chromium: Any, address: str, recommender: Recommender, goods: list[str]
) -> None:
    phone = {"width": 390, "height": 844}
    with visiting(
        chromium, address, viewport=phone, has_touch=True, is_mobile=True
    ) as visit:
        visit.open(*goods)
        assert not visit.page.evaluate(TOO_WIDE)
        visit.page.locator("#session").scroll_into_view_if_needed()
        fingers = visit.page.context.new_cdp_session(visit.page)

        def touch(kind: str, *points: tuple[float, float]) -> None:
            touches = [{"x": x, "y": y} for x, y in points]
            fingers.send(
                "Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches}
            )

        start, end = (
            visit.page.locator(".grip").nth(place).bounding_box() for place in (0, 2)
        )
        x = start["x"] + 16
        y = start["y"] + 20
        far = end["y"] - start["y"]
        touch("touchStart", (x, y))
        for step in range(1, 11):
            touch("touchMove", (x, y + far * step / 10))
        touch("touchEnd")
        dragged = [goods[1], goods[2], goods[0], goods[3]]
        visit.expect(dragged, recommender.recommend(dragged))


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1440), ("dark", 390)])
def test_axe_finds_nothing(
    chromium: Any, address: str, goods: list[str], scheme: str, width: int
) -> None:
    """axe-core's rules of WCAG 2.1 A and AA, contrast among them, in every state of the page."""
    pytest.importorskip("axe_core_python")
    rules = files("axe_core_python").joinpath("axe.min.js").read_text()
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
    with visiting(
        chromium, address, color_scheme=scheme, viewport={"width": width, "height": 900}
    ) as visit:
        for session in (
            [],
            goods,
            ["no such item"],
            [*goods * 5, "no such item with " + "a very long name" * 10],
        ):
            visit.open(*session)
            if len(session) > 1:
                visit.page.locator(
                    "[aria-label^='Move later']"
                ).first.click()  # marks, up, down and new
                visit.page.locator(".summary").wait_for()
                visit.settle()
            assert not visit.page.evaluate(TOO_WIDE)
            visit.page.evaluate(rules)
            found = visit.page.evaluate(
                "tags => axe.run(document, {runOnly: tags})", tags
            )
            assert len(found["passes"]) > 20
            assert [
                node["html"] for one in found["violations"] for node in one["nodes"]
            ] == []

"""What the playground shows of items, the rules beside a session, and the answers of two runs beside each other."""

import json
import subprocess
from pathlib import Path
from typing import Any

from posrec.recommend.recommender import Recommender
from tests.browser.conftest import PageVisit, serving, visiting


def test_items_of_the_session_are_marked_and_columns_shown(
    visit: PageVisit, recommender: Recommender, goods: list[str]
) -> None:
    visit.open(*goods, goods[0])
    marked = visit.page.locator("#recommended .row", has=visit.page.locator(".tag")).evaluate_all(
        "rows => rows.map(row => [row.dataset.slide, row.querySelector('.tag').textContent])"
    )
    assert marked == [[item, "in session"] for item in visit.shown() if item in goods]
    assert marked, "the model expects no repeat, so this test says nothing"
    for place, one in enumerate(recommender.recommend([*goods, goods[0]], 5, fields=["category", "price", "stock"])):
        assert one.fields is not None
        stock = "sold out" if one.fields["stock"] == "0" else f"{one.fields['stock']} in stock"
        shown = visit.page.locator("#recommended .details").nth(place).locator("span").all_inner_texts()
        assert shown == [one.item, one.fields["category"], f"{float(one.fields['price']):.2f}", stock]


def test_rules_are_asked_for_shown_as_json_and_kept_in_the_address(
    visit: PageVisit, recommender: Recommender, goods: list[str]
) -> None:
    visit.open(*goods, k=10)
    page = visit.page

    def add(rule: str) -> None:
        page.get_by_role("button", name=rule, exact=True).click()

    add("Filter")
    page.get_by_label("Filter: how").select_option("not")
    page.get_by_label("Filter: value").fill("Sandals")
    add("Filter")
    page.get_by_label("Filter: column").nth(1).select_option("price")
    page.get_by_label("Filter: how").nth(1).select_option("max")
    page.get_by_label("Filter: value").nth(1).fill("60")
    add("Boost")
    page.get_by_label("Boost: value").fill("Tents")
    add("Variety")
    add("Leave out")
    add("Put first")
    last = recommender.recommend([], 1, filter={"category": ["Tents"], "price": {"max": 60}})[0].item
    page.get_by_label("Put first: value").fill(last)
    rules: dict[str, Any] = {
        "filter": {"category": {"not": ["Sandals"]}, "price": {"max": 60}},
        "boost": {"category": {"Tents": 1.5}},
        "diversify": 0.3,
        "pin": [last],
    }
    expected = recommender.recommend(goods, 10, exclude_seen=True, **rules)
    page.wait_for_function("item => document.querySelector('.row')?.dataset.slide === item", arg=last)
    page.reload()  # the address holds the rules
    page.locator(".row").first.wait_for()
    visit.settle()
    assert visit.agrees_with(expected)
    assert "put first" in page.locator(".row").first.inner_text()
    page.get_by_role("radio", name="JSON").check(force=True)
    sent = json.loads(page.locator("#curl").inner_text())
    seen = {"exclude": "seen"} if "exclude" in sent else {"exclude_seen": True}
    assert sent == {"session": goods, "k": 10, **rules, **seen, "fields": ["category", "price", "stock"]}
    for _ in range(6):
        page.get_by_role("button", name="Remove: ").first.click()
    page.wait_for_function(
        "!document.querySelector('.rule') && !document.querySelector('.row[data-slide] .tag + .tag')"
    )
    visit.settle()
    assert visit.agrees_with(recommender.recommend(goods, 10))


def test_similar_items_and_their_request(visit: PageVisit, recommender: Recommender, goods: list[str]) -> None:
    visit.open(*goods)
    page = visit.page
    page.locator("summary", has_text="Similar items").click()
    page.locator(".similar .row").first.wait_for()
    similar = [one.item for one in recommender.similar_items(visit.shown()[0], 5)]
    assert page.locator(".similar .id").all_inner_texts() == similar
    page.get_by_role("radio", name="similar").check(force=True)
    line = page.locator("#curl").inner_text()
    answered = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True).stdout
    assert [one["item"] for one in json.loads(answered)["items"]] == similar


def test_two_runs_stand_beside_each_other(chromium: Any, run: Path, counting_run: Path, goods: list[str]) -> None:
    loaded = [Recommender.load(one, "cpu") for one in (run, counting_run)]
    with serving(run, counting_run) as url, visiting(chromium, url) as visit:
        visit.open(*goods, k=5)
        page, lists = visit.page, visit.page.locator("#recommended section")
        shown = [
            each.locator(".row").evaluate_all("rows => rows.map(row => row.dataset.slide)") for each in lists.all()
        ]
        assert shown == [[one.item for one in rec.recommend(goods, 5)] for rec in loaded]
        left, right = (one.bounding_box() for one in lists.all())
        assert (left["y"], left["x"] < right["x"]) == (right["y"], True)
        for item, row in zip(shown[1], lists.nth(1).locator(".row").all(), strict=True):
            assert ("only here" in row.inner_text()) == (item not in shown[0])
        lists.nth(1).locator(".why").nth(2).click()  # explained by the run that recommends it
        page.wait_for_function(f"document.querySelector('.about .id').textContent === {json.dumps(shown[1][2])}")
        visit.settle()
        assert "by itemknn" in page.locator(".about").inner_text()
        assert f"{loaded[1].explain(goods, shown[1][2]).score:.3f}" in page.locator(".about").inner_text()
        answered = subprocess.run(["bash", "-c", page.locator("#curl").inner_text()], capture_output=True, check=True)
        assert [one["item"] for one in json.loads(answered.stdout)["items"]] == shown[1]
        assert visit.errors == []


def test_recommendations_come_first_on_a_phone(chromium: Any, address: str, goods: list[str]) -> None:
    with visiting(chromium, address, viewport={"width": 375, "height": 812}) as visit:
        visit.open(*goods)
        order = ["next", "session", "why", "catalogue", "request"]
        tops = [visit.page.locator(f"#{part}").bounding_box()["y"] for part in order]
        assert tops == sorted(tops)
        assert visit.page.locator("#recommended .row").nth(2).bounding_box()["y"] < 812
        visit.page.get_by_role("button", name="Boost", exact=True).click()
        visit.page.locator(".rule").wait_for()
        assert not visit.page.evaluate("document.documentElement.scrollWidth > innerWidth")

"""Unknown items, late answers, and a server that is gone, busy or asks for an API key."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from posrec.recommend.recommender import Recommender
from tests.browser.conftest import PageVisit, serving, visiting


def test_unknown_items_are_named_and_skipped(visit: PageVisit, recommender: Recommender, goods: list[str]) -> None:
    markup = "<img src=x onerror=alert(1)>"
    visit.open(goods[0], "sold last year", goods[1], markup)
    note = visit.page.locator("#clicks .note").inner_text()
    assert "sold last year" in note
    assert markup in note  # as text
    assert visit.page.locator("#clicks img").count() == 0
    assert visit.shown() == [one.item for one in recommender.recommend(goods[:2])]
    assert visit.page.locator(".click.unknown").count() == 2
    # The strip shows the clicks that were read, and highlights their cards.
    assert visit.page.locator(".pull b").all_inner_texts() == ["1 first", "3 last"]
    visit.page.locator(".pull").nth(1).hover()
    assert visit.page.locator(".click.pointed .id").inner_text() == goods[1]


def test_only_unknown_items_give_popular_ones(visit: PageVisit, recommender: Recommender) -> None:
    visit.open()
    visit.page.get_by_label("Search the catalogue").fill("no such thing")
    visit.page.get_by_role("button", name="Click it anyway").click()
    visit.settle()
    assert "knows none" in visit.page.locator("#recommended .note").inner_text()
    popular = recommender.recommend(["no such thing"])  # there are ties, so clicks are compared
    assert visit.page.locator(".score").all_inner_texts() == [f"{one.score:.0f} clicks" for one in popular]
    assert "Nothing to explain" in visit.page.locator("#explained").inner_text()
    assert not any(url.endswith("/v1/explain") for url in visit.requests)


def test_enter_adds_nothing_where_nothing_was_found(visit: PageVisit, goods: list[str]) -> None:
    visit.open(goods[0])
    visit.page.get_by_label("Search the catalogue").fill("tetn")
    visit.page.get_by_text("Nothing found").wait_for()
    visit.page.keyboard.press("Enter")
    visit.page.wait_for_function("document.querySelector('#live').textContent.includes('Nothing was added')")
    assert visit.session() == [goods[0]]


NEWEST_CLICK_IN_SIGHT = """number => {
    const card = document.querySelectorAll(".click")[number]?.getBoundingClientRect();
    const list = document.querySelector("#clicks").getBoundingClientRect();
    return card && list.top <= card.top && card.bottom <= list.bottom + 1;
}"""


def test_many_clicks_leave_the_recommendations_in_sight(visit: PageVisit, goods: list[str]) -> None:
    visit.open(*(goods * 7))
    assert len(visit.session()) == 28
    height = visit.page.evaluate("innerHeight")
    box = visit.page.locator("#recommended .row").first.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < height
    visit.page.locator("#recommended .row .icon").first.click()
    # The page draws its clicks again when an answer arrives, so an element found once may be gone a moment later.
    visit.page.wait_for_function(NEWEST_CLICK_IN_SIGHT, arg=28)


def test_the_docs_have_requests_to_try_and_open_what_a_link_names(visit: PageVisit) -> None:
    visit.open()
    visit.page.get_by_role("link", name="API docs").click()
    visit.page.get_by_role("heading", name="Requests").wait_for()
    form = visit.page.locator("form").filter(has_text="POST /v1/recommend").first
    form.get_by_role("button", name="Send").click()
    form.locator("pre").filter(has_text='"popular": false').wait_for()
    assert form.locator("pre").inner_text().startswith("200")
    similar = visit.page.locator("form").filter(has_text="GET /v1/similar")
    similar.get_by_role("button", name="Send").click()
    similar.locator("pre").filter(has_text='"score"').wait_for()
    errors = visit.page.locator("details", has_text="/v1/recommend").locator("details").first
    errors.locator("summary").click()
    assert "The API key is missing or wrong." in errors.inner_text()
    assert errors.bounding_box()["y"] > form.bounding_box()["y"]  # after the example
    assert not visit.page.locator("#RecommendRequest table").is_visible()
    visit.page.locator("a[href='#RecommendRequest']").first.click()
    assert "Item ids, the oldest click first." in visit.page.locator("#RecommendRequest table").inner_text()


def test_the_pages_work_under_their_content_security_policy(chromium: Any, address: str) -> None:
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


def test_other_models_have_no_parts_but_a_strip(chromium: Any, counting_run: Path, goods: list[str]) -> None:
    with serving(counting_run) as url, visiting(chromium, url) as visit:
        visit.open(*goods)
        assert "not a sum of parts" in visit.page.locator("#explained").inner_text()
        assert visit.page.locator(".pull").count() == 4
        assert visit.page.locator(".heat").count() == 0
        assert visit.errors == []


def test_a_network_that_goes_and_comes_back(
    chromium: Any, address: str, recommender: Recommender, goods: list[str]
) -> None:
    with visiting(chromium, address) as visit:
        visit.open(*goods[:2])
        before = visit.shown()
        context = visit.page.context
        context.set_offline(True)
        visit.page.locator(".goods").first.click()
        visit.page.locator("#alert").wait_for()
        assert "can't be reached" in visit.page.locator("#alert").inner_text()
        assert len(visit.session()) == 3
        assert visit.shown() == before  # the old answer, dimmed
        for part in ("#recommended", "#explained"):
            assert visit.page.locator(part).get_attribute("aria-busy") == "true"
        context.set_offline(False)  # the page notices by itself
        visit.page.locator("#alert").wait_for(state="hidden")
        visit.settle()
        session = visit.session()
        assert visit.shown() == [one.item for one in recommender.recommend(session)]


def test_a_busy_server_is_asked_again(visit: PageVisit, goods: list[str]) -> None:
    asked = []

    def busy_once(route: Any) -> None:
        asked.append(route.request.url)
        if len(asked) == 1:
            route.fulfill(status=503, headers={"Retry-After": "1"}, json={"error": "the queue is full"})
        else:
            route.continue_()

    visit.page.route("**/v1/recommend", busy_once)
    visit.open(goods[0])
    assert len(asked) == 2
    assert len(visit.shown()) == 20
    assert visit.page.locator("#alert").is_hidden()
    assert ["503" in said for said in visit.errors] == [True]  # logged by the browser itself
    visit.errors.clear()


def test_the_error_message_of_the_server_is_shown(visit: PageVisit, goods: list[str]) -> None:
    sentence = "a session holds at most 3 clicks here"

    def refuse(route: Any) -> None:
        """Popular items, which an empty session asks for, are answered."""
        if route.request.post_data_json["session"]:
            route.fulfill(status=422, json={"error": sentence})
        else:
            route.continue_()

    visit.page.route("**/v1/recommend", refuse)
    visit.page.goto(f"{visit.address}?item={goods[0]}")
    visit.page.locator("#alert").wait_for()
    assert sentence in visit.page.locator("#alert").inner_text()
    visit.page.get_by_role("button", name="Clear").click()
    visit.page.locator("#alert").wait_for(state="hidden")
    visit.errors.clear()


def test_a_late_answer_does_not_replace_a_newer_one(
    visit: PageVisit, recommender: Recommender, goods: list[str]
) -> None:
    visit.open(goods[0])
    held: list[Any] = []

    def hold_the_first(route: Any) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    visit.page.route("**/v1/recommend", hold_the_first)
    visit.page.locator("[aria-label^='Add']").first.click()
    visit.page.locator(".click").nth(1).wait_for()
    visit.page.locator("[aria-label^='Add']").nth(1).click()
    visit.page.wait_for_function("document.querySelectorAll('.pull').length === 3")
    newest = visit.shown()
    held[0].continue_()
    visit.page.wait_for_load_state("networkidle")
    assert visit.shown() == newest
    assert newest == [one.item for one in recommender.recommend(visit.session())]


def test_an_api_key_is_asked_for_once(chromium: Any, run: Path, goods: list[str]) -> None:
    key = "open sesame"
    with serving(run, api_key=key) as url, visiting(chromium, url) as visit:
        page = visit.page
        page.goto(f"{url}?item={goods[0]}")
        page.get_by_role("dialog").wait_for()
        page.get_by_role("button", name="Cancel").click()
        page.locator("#alert").wait_for()
        assert "API key" in page.locator("#alert").inner_text()
        page.get_by_role("button", name="Try again").click()
        page.get_by_label("API key").last.fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_text("That key was not accepted.").wait_for()
        page.get_by_label("API key").last.fill(key)
        page.keyboard.press("Enter")
        page.locator(".goods").first.wait_for()
        page.locator(".part").first.wait_for()
        assert page.locator("#alert").is_hidden()
        page.reload()
        page.locator(".part").first.wait_for()
        assert not page.get_by_role("dialog").is_visible()
        line = page.locator("#curl").inner_text()
        assert key not in line
        environment = {**os.environ, "POSREC_API_KEY": key}
        answered = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True, env=environment)
        assert [one["item"] for one in json.loads(answered.stdout)["items"]] == visit.shown()

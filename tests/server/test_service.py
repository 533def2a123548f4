"""The estimated work of requests, by which they are computed at once, in the background, or refused."""

from typing import Any

import pytest

from posrec.data.vocabulary import Vocabulary
from posrec.recommend.catalogue import Catalogue
from posrec.recommend.plan import Plan
from posrec.server.schemas import AnswerRequest, GroupLimit
from posrec.server.service import QUICK_WORK, estimated_work

ITEMS = 2000
CATALOGUE = Catalogue(
    Vocabulary([f"i{n}" for n in range(ITEMS)], {"brand": [f"b{n % 7}" for n in range(ITEMS)]}), ITEMS
)
CATALOGUE.attributes.prepare()  # as in a server


def work(sessions: int = 1, size: int = 200, clicks: int = 3, **asked: Any) -> int:
    return estimated_work(AnswerRequest(**asked), sessions, size, CATALOGUE, clicks)


def test_a_plain_request_is_the_unit() -> None:
    assert work() == work(k=1) == work(exclude="seen") == work(filter={"brand": "b1"}) == work(size=2000) == 1
    assert work(sessions=1000) == pytest.approx(1000, rel=0.1)


@pytest.mark.parametrize(
    "asked",
    [
        {"k": 100},
        {"pin": ["i3"]},
        {"boost": {"brand": {"b1": 2.0}}},
        {"diversify": 0.5},
        {"diversify": GroupLimit("brand", 2)},
        {"explore": 0.05},
    ],
)
def test_what_a_page_asks_for_is_quick(asked: dict[str, Any]) -> None:
    assert 1 < work(**asked) <= QUICK_WORK


@pytest.mark.parametrize(
    "more",
    [
        {"k": 1000},
        {"k": 200, "diversify": 0.5},
        {"k": 200, "diversify": "brand"},
        {"k": 200, "diversify": GroupLimit("brand", 2)},
        {"sessions": 3, "explore": 0.05},
        {"boost": {"brand": {f"b{n}": 1.0 + n for n in range(7)}}},
        {"size": 500_000},
        {"sessions": 10},
        {"clicks": 10_000, "size": 20_000},  # the shortest ids
        {"deny": [1] * 5000, "allow": [2] * 5000, "size": 20_000},
    ],
)
def test_more_of_anything_is_more_work(more: dict[str, Any]) -> None:
    assert work(**more) > QUICK_WORK
    assert work(fields=["brand"], **more) >= work(**more)


@pytest.mark.parametrize(
    "rule", [{"filter": {"title": "a"}}, {"boost": {"title": {"a": 2.0}}}, {"diversify": GroupLimit("title", 1)}]
)
def test_the_first_rule_by_titles_is_more_work(rule: dict[str, Any]) -> None:
    catalogue = Catalogue(Vocabulary([f"i{n}" for n in range(20_000)], {"title": [""] * 20_000}), 20_000)
    catalogue.attributes.prepare()
    assert estimated_work(AnswerRequest(**rule), 1, 200, catalogue) > QUICK_WORK
    Plan(catalogue, None, **AnswerRequest(**rule).rules())
    catalogue.attributes["title"].groups  # noqa: B018  # as a search with such a limit does
    assert estimated_work(AnswerRequest(**rule), 1, 200, catalogue) <= QUICK_WORK


def test_a_small_catalogue_has_short_answers() -> None:
    few = Catalogue(Vocabulary(["a", "b"]), 2)
    assert estimated_work(AnswerRequest(k=1000), 1, 200, few) == 1

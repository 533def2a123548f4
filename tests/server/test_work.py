"""The estimated work of requests, by which they are computed at once, in the background, or
refused."""

from typing import Any

import pytest

from posrec.data.vocabulary import Vocabulary
from posrec.recommend.catalogue import Catalogue
from posrec.recommend.plan import Plan
from posrec.server.schemas import AnswerRequest, ColumnLimit, RankRequest
from posrec.server.work import QUICK_WORK, estimated_work


def catalogue(items: int, column: str, values: int) -> Catalogue:
    ids = [f"i{n}" for n in range(items)]
    texts = [f"b{n % values}" for n in range(items)]
    catalogue = Catalogue(Vocabulary(ids, {column: texts}), items)
    catalogue.attributes.prepare()  # as in a server
    return catalogue


CATALOGUE = catalogue(2000, "brand", 7)
PLAIN = range(1, 2)
QUICK = range(2, QUICK_WORK + 1)  # what a page asks for
SLOW = range(QUICK_WORK + 1, 10**6)


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        ({}, PLAIN),
        ({"k": 1}, PLAIN),
        ({"exclude": "seen"}, PLAIN),
        ({"filter": {"brand": "b1"}}, PLAIN),
        ({"size": 2000}, PLAIN),
        ({"k": 100}, QUICK),
        ({"pin": ["i3"]}, QUICK),
        ({"boost": {"brand": {"b1": 2.0}}}, QUICK),
        ({"diversify": 0.5}, QUICK),
        ({"diversify": ColumnLimit("brand", 2)}, QUICK),
        ({"explore": 0.05}, QUICK),
        ({"k": 1000}, SLOW),
        ({"k": 200, "diversify": 0.5}, SLOW),
        ({"k": 200, "diversify": "brand"}, SLOW),
        ({"k": 200, "diversify": ColumnLimit("brand", 2)}, SLOW),
        ({"sessions": 3, "explore": 0.05}, SLOW),
        ({"boost": {"brand": {f"b{n}": 1.0 + n for n in range(7)}}}, SLOW),
        ({"size": 500_000}, SLOW),
        ({"clicks": 10_000, "size": 20_000}, SLOW),  # the shortest ids
        ({"deny": [1] * 5000, "allow": [2] * 5000, "size": 20_000}, SLOW),
        ({"sessions": 1000}, range(900, 1100)),
    ],
    ids=str,
)
def test_the_work_of_a_request(request_fields: dict[str, Any], expected: range) -> None:
    def work(sessions: int = 1, size: int = 200, clicks: int = 3, **more: Any) -> int:
        return estimated_work(AnswerRequest(**more), sessions, size, CATALOGUE, clicks)

    assert work(**request_fields) in expected
    assert work(fields=["brand"], **request_fields) >= work(**request_fields)


@pytest.mark.parametrize(
    ("candidates", "expected"), [(20, PLAIN), (200, QUICK), (1000, SLOW)]
)
def test_the_work_of_ranking_candidates(candidates: int, expected: range) -> None:
    request = RankRequest(session=["i3"], candidates=["i4"] * candidates)
    assert estimated_work(request, 1, 10 * candidates, CATALOGUE, 1) in expected


@pytest.mark.parametrize(
    "rule",
    [
        {"filter": {"title": "a"}},
        {"boost": {"title": {"a": 2.0}}},
        {"diversify": ColumnLimit("title", 1)},
    ],
)
def test_the_first_rule_by_titles_is_more_work(rule: dict[str, Any]) -> None:
    titles = catalogue(20_000, "title", 1)
    request = AnswerRequest(**rule)
    assert estimated_work(request, 1, 200, titles) > QUICK_WORK
    Plan(titles, None, **request.rules())
    titles.attributes["title"].groups  # noqa: B018  # as a search with such a limit does
    assert estimated_work(request, 1, 200, titles) <= QUICK_WORK


def test_a_small_catalogue_has_short_answers() -> None:
    two_items = Catalogue(Vocabulary(["a", "b"]), 2)
    assert estimated_work(AnswerRequest(k=1000), 1, 200, two_items) == 1

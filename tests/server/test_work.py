"""The estimated work of requests, by which they are computed at once, in the background, or
refused."""

from typing import Any

import pytest

from posrec.data.vocabulary import Vocabulary
from posrec.recommend.catalogue import Catalogue
from posrec.recommend.plan import Plan
from posrec.server.schemas import AnswerRequest, ColumnLimit
from posrec.server.work import QUICK_WORK, estimated_work

ITEMS = 2000
CATALOGUE = Catalogue(
    Vocabulary(
        [f"i{n}" for n in range(ITEMS)], {"brand": [f"b{n % 7}" for n in range(ITEMS)]}
    ),
    ITEMS,
)
CATALOGUE.attributes.prepare()  # as in a server
QUICK = range(2, QUICK_WORK + 1)  # what a page asks for
SLOW = range(QUICK_WORK + 1, 10**6)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        *(
            (plain, [1])
            for plain in (
                {},
                {"k": 1},
                {"exclude": "seen"},
                {"filter": {"brand": "b1"}},
                {"size": 2000},
            )
        ),
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
def test_the_work_of_a_request(asked: dict[str, Any], expected: range) -> None:
    def work(sessions: int = 1, size: int = 200, clicks: int = 3, **more: Any) -> int:
        return estimated_work(AnswerRequest(**more), sessions, size, CATALOGUE, clicks)

    assert work(**asked) in expected
    assert work(fields=["brand"], **asked) >= work(**asked)


@pytest.mark.parametrize(
    "rule",
    [
        {"filter": {"title": "a"}},
        {"boost": {"title": {"a": 2.0}}},
        {"diversify": ColumnLimit("title", 1)},
    ],
)
def test_the_first_rule_by_titles_is_more_work(rule: dict[str, Any]) -> None:
    catalogue = Catalogue(
        Vocabulary([f"i{n}" for n in range(20_000)], {"title": [""] * 20_000}), 20_000
    )
    catalogue.attributes.prepare()
    assert estimated_work(AnswerRequest(**rule), 1, 200, catalogue) > QUICK_WORK
    Plan(catalogue, None, **AnswerRequest(**rule).rules())
    catalogue.attributes["title"].groups  # noqa: B018  # as a search with such a limit does
    assert estimated_work(AnswerRequest(**rule), 1, 200, catalogue) <= QUICK_WORK


def test_a_small_catalogue_has_short_answers() -> None:
    assert (
        estimated_work(
            AnswerRequest(k=1000), 1, 200, Catalogue(Vocabulary(["a", "b"]), 2)
        )
        == 1
    )

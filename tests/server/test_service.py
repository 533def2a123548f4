"""The estimated work of requests, by which they are computed at once, in the background, or refused."""

from typing import Any

import pytest

from posrec.data.vocabulary import Vocabulary
from posrec.recommend.catalogue import Catalogue
from posrec.server.schemas import AnswerRequest, GroupLimit
from posrec.server.service import QUICK_WORK, estimated_work

ITEMS = 2000
CATALOGUE = Catalogue(
    Vocabulary([f"i{n}" for n in range(ITEMS)], {"brand": [f"b{n % 7}" for n in range(ITEMS)]}), ITEMS
)
QUICK = range(2, QUICK_WORK + 1)  # what a page asks for
SLOW = range(QUICK_WORK + 1, 10**6)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        *((plain, [1]) for plain in ({}, {"k": 1}, {"exclude": "seen"}, {"filter": {"brand": "b1"}}, {"size": 2000})),
        ({"k": 100}, QUICK),
        ({"pin": ["i3"]}, QUICK),
        ({"boost": {"brand": {"b1": 2.0}}}, QUICK),
        ({"diversify": 0.5}, QUICK),
        ({"diversify": GroupLimit("brand", 2)}, QUICK),
        ({"explore": 0.05}, QUICK),
        ({"k": 1000}, SLOW),
        ({"k": 200, "diversify": 0.5}, SLOW),
        ({"k": 200, "diversify": "brand"}, SLOW),
        ({"k": 200, "diversify": GroupLimit("brand", 2)}, SLOW),
        ({"sessions": 3, "explore": 0.05}, SLOW),
        ({"boost": {"brand": {f"b{n}": 1.0 + n for n in range(7)}}}, SLOW),
        ({"size": 500_000}, SLOW),
        ({"sessions": 1000}, range(900, 1100)),
    ],
    ids=str,
)
def test_the_work_of_a_request(asked: dict[str, Any], expected: range) -> None:
    def work(sessions: int = 1, size: int = 200, catalogue: Catalogue = CATALOGUE, **more: Any) -> int:
        return estimated_work(AnswerRequest(**more), sessions, size, catalogue)

    assert work(**asked) in expected
    assert work(fields=["brand"], **asked) >= work(**asked)


def test_a_small_catalogue_has_short_answers() -> None:
    assert estimated_work(AnswerRequest(k=1000), 1, 200, Catalogue(Vocabulary(["a", "b"]), 2)) == 1

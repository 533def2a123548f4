"""Filters, pins, boosts and diversity: by hand on the shop of five items, and the same by every way
of ranking."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.models.posrecplus import PosRecPlus, PosRecPlusConfig
from posrec.recommend import plan
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.rank.faiss_search import FaissSearch, IndexSettings, build
from posrec.recommend.rank.similarity import marginal_relevance
from posrec.recommend.rank.torch_model import item_table
from posrec.recommend.recommender import Recommender
from posrec.runs.run import Run
from tests.helpers import assert_alike, items_of

COLUMNS = {
    "title": ["Anorak", None, "Clogs", None, "Espresso [new]", "Flask"],
    "category": ["clothes", "clothes", "shoes", "kitchen", "kitchen", "kitchen"],
    "price": [90, 20, 35, None, 12.5, 8],
}


@pytest.fixture
def shop(shop_run: Run) -> Recommender:
    return Recommender(
        replace(shop_run, vocabulary=Vocabulary(list("abcdef"), COLUMNS)), "cpu"
    )


def scored(answer: Any) -> list[tuple[str, float]]:
    return [(one.item, one.score) for one in answer]


# Scores of the session a, b: 2 4 11 0.5 4. Popular: b 9, d 7, e 5, a 3, c 1.


def test_an_option_that_does_not_exist(shop: Recommender) -> None:
    with pytest.raises(TypeError, match=r"no option 'K'; it has k, allow"):
        shop.recommend(["a"], K=3)  # type: ignore[call-overload]


def test_filters_and_fields(shop: Recommender) -> None:
    answer = shop.recommend(
        ["a", "b"], k=1, filter={"category": "shoes"}, fields=["price", "category"]
    )
    assert answer[0].fields == {"price": 35, "category": "shoes"}
    assert answer.as_json()["items"] == [
        {
            "item": "c",
            "score": 11.0,
            "title": "Clogs",
            "fields": {"price": 35, "category": "shoes"},
        }
    ]
    assert scored(shop.recommend([], filter={"category": "kitchen"})) == [
        ("d", 7.0),
        ("e", 5.0),
    ]  # f is not known
    assert scored(shop.recommend(["a"], filter={"category": "hats"})) == []
    assert scored(
        shop.recommend(
            ["a", "b"], filter={"category": "kitchen"}, deny=["e"], allow=["e", "d"]
        )
    ) == [("d", 0.5)]
    with pytest.raises(InputError, match="no column 'colour'"):
        shop.recommend(["a"], fields=["colour"])
    with pytest.raises(InputError, match="fields must be a list"):
        shop.recommend(["a"], fields="price")


def test_pinned_items_come_first_where_they_may(shop: Recommender) -> None:
    answer = shop.recommend(["a", "b"], k=3, pin=["d", "nonsense", "a", "d"])
    assert scored(answer) == [("d", 0.5), ("a", 2.0), ("c", 11.0)]
    assert [one.pinned for one in answer] == [True, True, False]
    assert "pinned" not in answer[2].as_json()
    assert scored(shop.recommend(["a", "b"], k=2, pin=["d", "c", "a"])) == [
        ("d", 0.5),
        ("c", 11.0),
    ]
    assert scored(shop.recommend(["a", "b"], k=1, pin=["d"], deny=["d"])) == [
        ("c", 11.0)
    ]
    assert scored(
        shop.recommend(["a", "b"], k=1, pin=["d"], filter={"category": "shoes"})
    ) == [("c", 11.0)]
    assert scored(shop.recommend(["a", "b"], k=1, pin=["a"], exclude_seen=True)) == [
        ("c", 11.0)
    ]


def test_boosts_multiply_the_scores_of_counting_models_and_popular_items(
    shop: Recommender,
) -> None:
    answer = shop.recommend(
        ["a", "b"], boost={"category": {"clothes": 3, "kitchen": 0.5}}
    )
    assert sorted(scored(answer)) == [
        ("a", 6.0),
        ("b", 12.0),
        ("c", 11.0),
        ("d", 0.25),
        ("e", 2.0),
    ]
    assert items_of(answer) == ["b", "c", "a", "e", "d"]
    both = shop.recommend(
        [], k=2, boost={"category": {"kitchen": 2}, "price": {"12.5": 2}}
    )
    assert scored(both) == [("e", 20.0), ("d", 14.0)]
    for factor in (0, -1, True, "1", math.nan, 1001):
        with pytest.raises(InputError, match=r"must be between 0.001 and 1000"):
            shop.recommend(["a"], boost={"category": {"clothes": factor}})
    with pytest.raises(InputError, match="boost must be like"):
        shop.recommend(["a"], boost={"category": 2})
    with pytest.raises(InputError, match="no column 'brand'"):
        shop.recommend(["a"], boost={"brand": {"own": 2}})


def test_at_most_some_items_of_each_group(shop: Recommender) -> None:
    def of(most: int, **more: Any) -> str:
        return "".join(
            one.item
            for one in shop.recommend(
                [], diversify={"column": "category", "most": most}, **more
            )
        )

    assert (of(1), of(2), of(2, k=3)) == ("bdc", "bdeac", "bde")
    assert of(1, k=4, pin=["e"]) == "ebdc"  # a pinned item does not count
    assert items_of(shop.recommend([], diversify="category")) == ["b", "d", "c"]
    with pytest.raises(InputError, match="no item vectors to diversify by"):
        shop.recommend(["a"], diversify=0.5)
    for wrong in (
        1.5,
        True,
        [0.5],
        {"most": 2},
        {"column": "category"},
        {"column": "category", "most": 0},
    ):
        with pytest.raises(InputError, match="diversify must be"):
            shop.recommend(["a"], diversify=wrong)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="no column 'brand'"):
        shop.recommend(["a"], diversify={"column": "brand", "most": 2})


def test_the_current_item_or_all_seen_ones_are_left_out(shop: Recommender) -> None:
    assert scored(shop.recommend(["a", "b"], k=2, exclude="current")) == [
        ("c", 11.0),
        ("e", 4.0),
    ]
    assert {one.item for one in shop.recommend(["a", "b"], exclude="current")} == {
        "c",
        "e",
        "a",
        "d",
    }
    assert {one.item for one in shop.recommend(["a", "b"], exclude="seen")} == {
        "c",
        "e",
        "d",
    }
    assert shop.recommend(
        ["a", "b"], exclude_seen=True, exclude="current"
    ) == shop.recommend(["a", "b"], exclude="seen")
    # The current item is one that the model does not know, so there is nothing to leave out.
    assert {
        one.item for one in shop.recommend(["a", "b", "x"], exclude="current")
    } == set("abcde")
    assert len(shop.recommend([], exclude="current")) == 5
    assert items_of(shop.recommend(["a", "b"], k=2, exclude="current", pin=["b"])) == [
        "c",
        "e",
    ]
    with pytest.raises(InputError, match="not 'last'"):
        shop.recommend(["a"], exclude="last")  # type: ignore[call-overload]


def test_rules_hold_for_every_request_and_can_change(shop: Recommender) -> None:
    kitchen = {"category": "kitchen"}
    assert len(shop.recommend([], filter=kitchen)) == 2
    shop.catalogue = shop.catalogue.with_rules(
        allow=["b", "d", "c", "nonsense"], deny=["c"]
    )
    assert items_of(shop.recommend([])) == ["b", "d"]
    assert items_of(shop.recommend([], filter=kitchen)) == ["d"]
    assert items_of(shop.recommend(["a"], pin=["c"], allow=["c", "d"])) == ["d"]
    shop.catalogue = shop.catalogue.with_rules(None, None)
    assert len(shop.recommend([], filter=kitchen)) == 2


# The same by every way of ranking, on a catalogue large enough for the rounded search.

ITEMS = 9000
DRAW = np.random.default_rng(3)
CATALOGUE = Vocabulary(
    [f"i{n}" for n in range(ITEMS)],
    {
        "size": [int(one) for one in DRAW.integers(0, 100, ITEMS)],
        "brand": [f"b{one}" for one in DRAW.integers(0, 3, ITEMS)],
        "shelf": [None if n % 7 else f"s{n % 5}" for n in range(ITEMS)],
    },
)
SESSIONS = [["i1", "i2"], ["i70", "i5", "i70"], ["i8000"]]
WANTED: list[dict[str, Any]] = [
    {},
    {"filter": {"size": 7}},
    {
        "filter": {"size": {"max": 70}, "brand": ["b0", "b1"]},
        "exclude_seen": True,
        "deny": ["i5", "i9"],
    },
    {"deny": [f"i{n}" for n in range(0, ITEMS, 2)]},
    {"boost": {"brand": {"b1": 1.5, "b2": 0.25}}, "filter": {"size": {"min": 20}}},
    {"filter": {"shelf": {"not": None}}, "pin": ["i4", "i7", "i1400"]},
    {"diversify": "size", "k": 100},
    {"diversify": 0.4, "filter": {"size": {"min": 10}}},
    {"diversify": {"column": "size", "most": 2}, "k": 150, "exclude": "current"},
    {
        "exclude": "seen",
        "explore": 0.2,
        "pin": ["i4"],
        "filter": {"size": {"above": 5}},
    },
]


def run_of(model: str) -> Run:
    torch.manual_seed(5)
    small: Any = (
        PosRec(ITEMS, PosRecConfig(d=8))
        if model == "posrec"
        else PosRecPlus(ITEMS, PosRecPlusConfig(d=8))
    )
    return Run(
        Path("run"),
        small.eval,
        CATALOGUE,
        {"model": model, "items": ITEMS},
        torch.arange(ITEMS),
    )


@pytest.mark.parametrize("model", ["posrec", "posrec-plus"])
@pytest.mark.parametrize(
    "wanted", WANTED, ids=[", ".join(one) or "none" for one in WANTED]
)
def test_every_way_of_ranking_finds_the_same_items(
    model: str, wanted: dict[str, Any]
) -> None:
    run = run_of(model)
    by_scores = Recommender(run, "cpu")
    by_search = Recommender(run, "cpu", search=ExactSearch(item_table(run)))
    expected = by_scores.recommend(SESSIONS, **wanted)
    assert [len(answer) for answer in expected] == [wanted.get("k", 20)] * len(SESSIONS)
    # posrec-plus: the sum over all items is taken from rounded products, of vectors with only 8
    # numbers.
    close = 1e-4 if model == "posrec" else 0.05
    assert_alike(expected, by_search.recommend(SESSIONS, **wanted), close)


def test_a_filtered_faiss_search_finds_k_items_where_there_are_k() -> None:
    pytest.importorskip("faiss")
    run = run_of("posrec")
    table = item_table(run)
    index, _ = build(table, table[:64], IndexSettings("faiss", lists=64, probes=1))
    rec = Recommender(run, "cpu", search=FaissSearch(table, index))
    exact = Recommender(run, "cpu")
    for share, k in ((99, 20), (50, 20), (20, 500), (1, 50)):
        wanted = {"size": {"max": share}}
        answer = rec.recommend(["i1", "i2"], k=k, filter=wanted, fields=["size"])
        assert len(answer) == k
        assert all(
            one.fields is not None and one.fields["size"] <= share for one in answer
        )
    answer = rec.recommend(["i1", "i2"], k=50, exclude="seen")
    assert (len(answer), "i2" in items_of(answer)) == (50, False)
    small = {"size": [1, 2]}  # few enough to be scored one by one
    assert items_of(rec.recommend(["i1"], filter=small)) == [
        one.item for one in exact.recommend(["i1"], filter=small)
    ]


def test_boosts_add_the_logarithm_for_trained_models() -> None:
    rec = Recommender(run_of("posrec-plus"), "cpu")
    plain = {one.item: one.score for one in rec.recommend(["i1", "i2"], k=ITEMS)}
    answer = rec.recommend(
        ["i1", "i2"], k=ITEMS, boost={"brand": {"b1": 1.5}}, fields=["brand"]
    )
    for one in answer:
        assert one.fields is not None
        gain = math.log(1.5) if one.fields["brand"] == "b1" else 0.0
        assert one.score == pytest.approx(plain[one.item] + gain, abs=1e-4)
    assert [one.score for one in answer] == sorted(
        (one.score for one in answer), reverse=True
    )


def test_marginal_relevance_against_a_slow_restatement() -> None:
    scores = np.sort(DRAW.normal(size=30).astype(np.float32))[::-1].copy()
    vectors = DRAW.normal(size=(30, 4)).astype(np.float32)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    relevance = (scores - scores.min()) / (scores.max() - scores.min())
    for weight in (0.0, 0.3, 0.7, 1.0):
        chosen: list[int] = []
        for _ in range(10):
            gains = {
                place: (1 - weight) * relevance[place]
                - weight
                * max([0.0, *(float(units[place] @ units[other]) for other in chosen)])
                for place in range(30)
                if place not in chosen
            }
            chosen.append(max(gains, key=lambda place: gains[place]))
        assert marginal_relevance(scores, vectors, weight, 10) == chosen
    assert marginal_relevance(scores, vectors, 0.0, 10) == list(range(10))
    assert marginal_relevance(scores[:0], vectors[:0], 0.5, 10) == []


def test_items_after_the_first_thousand_of_a_long_diverse_list_keep_their_order() -> (
    None
):
    rec = Recommender(run_of("posrec"), "cpu")
    plain, diverse = (
        items_of(rec.recommend(["i1"], k=1200, diversify=weight))
        for weight in (None, 0.5)
    )
    assert (
        len(set(diverse)),
        diverse[:1000] != plain[:1000],
        diverse[1000:] == plain[1000:],
    ) == (1200, True, True)


def test_groups_that_are_far_down_the_list_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All good items are of one group, then all of the next: the rest is searched for without the
    groups found."""
    monkeypatch.setattr(plan, "LARGEST_GROUP_POOL", 40)
    rec = Recommender(run_of("posrec"), "cpu")
    order = items_of(rec.recommend(["i1", "i2"], k=ITEMS))
    step = ITEMS // 6
    groups = {item: min(place // step, 5) for place, item in enumerate(order)}
    rec = Recommender(
        replace(
            rec.run,
            vocabulary=Vocabulary(
                CATALOGUE.ids, {"group": [groups[one] for one in CATALOGUE.ids]}
            ),
        ),
        "cpu",
    )
    answer = rec.recommend(["i1", "i2"], k=5, diversify="group", pin=[order[7]])
    assert items_of(answer) == [order[7], *(order[step * group] for group in range(4))]
    answer = rec.recommend(["i1", "i2"], k=50, diversify="group")
    assert items_of(answer) == [order[step * group] for group in range(6)]
    answer = rec.recommend(["i1", "i2"], k=50, diversify={"column": "group", "most": 3})
    assert items_of(answer) == [
        order[step * group + place] for group in range(6) for place in range(3)
    ]


def test_similar_items_by_filter() -> None:
    rec = Recommender(run_of("posrec"), "cpu")
    plain = rec.similar_items("i3", k=ITEMS, fields=["size"])
    assert len(plain) == ITEMS - 1
    kept = [
        one.item for one in plain if one.fields is not None and one.fields["size"] <= 20
    ]
    found = rec.similar_items("i3", k=10, filter={"size": {"max": 20}}, deny=[kept[0]])
    assert items_of(found) == kept[1:11]


# New items: those with fewer than five training clicks.

NEW = [f"i{n}" for n in range(5)]  # the n-th item was clicked n times


@pytest.fixture(scope="module")
def explorer() -> Recommender:
    run = run_of("posrec")
    return Recommender(run, "cpu", search=ExactSearch(item_table(run)))


def explored(answer: Any) -> list[str]:
    return [one.item for one in answer if one.explored]


def test_new_items_get_their_share_of_places(explorer: Recommender) -> None:
    plain = explorer.recommend(["i70", "i80"], k=20)
    answer = explorer.recommend(["i70", "i80"], k=20, explore=0.1)
    assert (len(explored(answer)), len(answer)) == (2, 20)
    assert set(explored(answer)) < set(NEW) - {one.item for one in plain}
    assert [one.item for one in answer if not one.explored] == items_of(plain)[:18]
    assert not answer[0].explored
    assert answer == explorer.recommend(
        ["i70", "i80"], k=20, explore=0.1
    )  # the same session, the same list
    by_score = {
        one.item: one.score for one in explorer.recommend(["i70", "i80"], allow=NEW)
    }
    assert all(
        one.score == pytest.approx(by_score[one.item], abs=1e-4)
        for one in answer
        if one.explored
    )
    assert [one.as_json().get("explored", False) for one in answer] == [
        one.explored for one in answer
    ]


def test_all_new_items_get_their_turn_and_the_best_more_often(
    explorer: Recommender,
) -> None:
    sessions = [[f"i{n}"] for n in range(100, 500)]
    answers = explorer.recommend(sessions, k=10, explore=0.05)
    turns = [item for answer in answers for item in explored(answer)]
    assert 140 < len(turns) < 260  # half a place of each list
    assert set(turns) == set(NEW)
    best = explorer.recommend(sessions, k=1, allow=NEW)
    firsts = sum(
        explored(answer) == [one[0].item]
        for answer, one in zip(answers, best, strict=True)
    )
    assert 0.33 < firsts / len(turns) < 0.55  # 1 / (1 + 1/2 + 1/3 + 1/4 + 1/5) = 0.44
    assert (
        len(
            {
                [one.explored for one in answer].index(True)
                for answer in answers
                if explored(answer)
            }
        )
        == 9
    )


def test_visitors_without_a_session_see_all_new_items_too(
    explorer: Recommender,
) -> None:
    turns = [
        item
        for _ in range(60)
        for item in explored(explorer.recommend([], k=4, explore=0.5))
    ]
    assert set(turns) == set(NEW)


def test_other_rules_hold_for_new_items(explorer: Recommender) -> None:
    wanted = {"k": 8, "explore": 0.5}
    assert set(
        explored(explorer.recommend(["i1"], **wanted, exclude="current", deny=["i0"]))
    ) == {"i2", "i3", "i4"}
    answer = explorer.recommend(["i70"], **wanted, pin=["i3", "i99"])
    assert items_of(answer)[:2] == ["i3", "i99"]
    assert "i3" not in explored(answer)
    assert explored(explorer.recommend(["i70"], **wanted, filter={"size": -1})) == []
    assert (
        sorted(explored(explorer.recommend(["i70"], **wanted, allow=NEW))) == []
    )  # they are in the list anyway
    assert (
        explored(explorer.recommend(["i70"], k=1, explore=0.5)) == []
    )  # never the first
    assert (
        explored(explorer.recommend(["i70"], k=2, pin=["i98", "i99"], explore=0.5))
        == []
    )
    limited = explorer.recommend(
        ["i70"],
        k=8,
        explore=0.5,
        diversify={"column": "brand", "most": 2},
        fields=["brand"],
    )
    brands = [one.fields["brand"] for one in limited if one.fields is not None]
    assert max(brands.count(brand) for brand in brands) <= 2


def test_a_run_without_new_items_answers_as_ever(shop: Recommender) -> None:
    known = Recommender(
        replace(shop.run, popularity=torch.tensor([30, 90, 10, 70, 50])), "cpu"
    )
    assert known.recommend(["a", "b"], explore=0.5) == known.recommend(["a", "b"])
    for wrong in (0.6, -0.1, True, "0.1"):
        with pytest.raises(
            InputError, match=r"explore must be a number from 0 to 0.5, not"
        ):
            shop.recommend(["a"], explore=wrong)  # type: ignore[call-overload]

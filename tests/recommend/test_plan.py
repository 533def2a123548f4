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
from posrec.recommend.rank.faiss_search import IndexSettings, build
from posrec.recommend.rank.similarity import marginal_relevance
from posrec.recommend.rank.torch_model import item_table
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import Run
from tests.fixtures import by_all_scores, with_attributes
from tests.helpers import assert_alike, items_of
from tests.recommend.test_recommender import scored

COLUMNS: dict[str, Any] = {
    "title": ["Anorak", None, "Clogs", None, "Espresso [new]", "Flask"],
    "category": ["clothes", "clothes", "shoes", "kitchen", "kitchen", "kitchen"],
    "price": [90, 20, 35, None, 12.5, 8],
}


@pytest.fixture
def shop(shop_run: Run) -> Recommender:
    vocabulary = Vocabulary(list("abcdef"), COLUMNS)
    return Recommender(replace(shop_run, vocabulary=vocabulary), "cpu")


# Scores of the session a, b: 2 4 11 0.5 4. Popular: b 9, d 7, e 5, a 3, c 1.
AB = ["a", "b"]


def test_an_option_that_does_not_exist(shop: Recommender) -> None:
    with pytest.raises(TypeError, match=r"no option 'K'; it has k, allow"):
        shop.recommend(["a"], K=3)  # type: ignore[call-overload]


def test_filters_and_fields(shop: Recommender) -> None:
    shoes = {"category": "shoes"}
    answer = shop.recommend(AB, k=1, filter=shoes, fields=["price", "category"])
    fields = {"price": 35, "category": "shoes"}
    assert answer[0].fields == fields
    assert answer.as_json()["items"] == [
        {"item": "c", "score": 11.0, "title": "Clogs", "fields": fields}
    ]
    kitchen = {"category": "kitchen"}
    popular = scored(shop.recommend([], filter=kitchen))
    assert popular == [("d", 7.0), ("e", 5.0)]  # f is not known
    assert scored(shop.recommend(["a"], filter={"category": "hats"})) == []
    answer = shop.recommend(AB, filter=kitchen, deny=["e"], allow=["e", "d"])
    assert scored(answer) == [("d", 0.5)]
    with pytest.raises(InputError, match="no column 'colour'"):
        shop.recommend(["a"], fields=["colour"])
    with pytest.raises(InputError, match="fields must be a list"):
        shop.recommend(["a"], fields="price")


def test_pinned_items_come_first_if_they_may_be_recommended(shop: Recommender) -> None:
    answer = shop.recommend(AB, k=3, pin=["d", "nonsense", "a", "d"])
    assert scored(answer) == [("d", 0.5), ("a", 2.0), ("c", 11.0)]
    assert [item.pinned for item in answer] == [True, True, False]
    assert "pinned" not in answer[2].as_json()
    answer = shop.recommend(AB, k=2, pin=["d", "c", "a"])
    assert scored(answer) == [("d", 0.5), ("c", 11.0)]
    forbidden: list[dict[str, Any]] = [
        {"pin": ["d"], "deny": ["d"]},
        {"pin": ["d"], "filter": {"category": "shoes"}},
        {"pin": ["a"], "exclude_seen": True},
    ]
    for rules in forbidden:
        assert scored(shop.recommend(AB, k=1, **rules)) == [("c", 11.0)]


def test_boosts_multiply_the_scores_of_counting_models_and_popular_items(
    shop: Recommender,
) -> None:
    answer = shop.recommend(AB, boost={"category": {"clothes": 3, "kitchen": 0.5}})
    expected = [("b", 12.0), ("c", 11.0), ("a", 6.0), ("e", 2.0), ("d", 0.25)]
    assert scored(answer) == expected
    boost = {"category": {"kitchen": 2}, "price": {"12.5": 2}}
    answer = shop.recommend([], k=2, boost=boost)
    assert scored(answer) == [("e", 20.0), ("d", 14.0)]
    factor: Any
    for factor in (0, -1, True, "1", math.nan, 1001):
        with pytest.raises(InputError, match=r"must be between 0.001 and 1000"):
            shop.recommend(["a"], boost={"category": {"clothes": factor}})
    with pytest.raises(InputError, match="boost must be like"):
        shop.recommend(["a"], boost={"category": 2})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="no column 'brand'"):
        shop.recommend(["a"], boost={"brand": {"own": 2}})


def test_at_most_some_items_of_each_group(shop: Recommender) -> None:
    def recommended(most: int, **rules: Any) -> str:
        limit = {"column": "category", "most": most}
        return "".join(items_of(shop.recommend([], diversify=limit, **rules)))

    assert recommended(1) == "bdc"
    assert recommended(2) == "bdeac"
    assert recommended(2, k=3) == "bde"
    assert recommended(1, k=4, pin=["e"]) == "ebdc"  # a pinned item does not count
    assert items_of(shop.recommend([], diversify="category")) == ["b", "d", "c"]
    with pytest.raises(InputError, match="no item vectors to diversify by"):
        shop.recommend(["a"], diversify=0.5)
    no_column = {"most": 2}
    no_number = {"column": "category"}
    for wrong in (1.5, True, [0.5], no_column, no_number, {**no_number, "most": 0}):
        with pytest.raises(InputError, match="diversify must be"):
            shop.recommend(["a"], diversify=wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no column 'brand'"):
        shop.recommend(["a"], diversify={"column": "brand", "most": 2})


def test_the_current_item_or_all_seen_ones_are_left_out(shop: Recommender) -> None:
    def left(session: list[str], **rules: Any) -> str:
        return "".join(sorted(items_of(shop.recommend(session, **rules))))

    assert left(AB, exclude="current") == "acde"
    assert left(AB, exclude="seen") == "cde"
    assert left(AB, exclude_seen=True, exclude="current") == "cde"
    # The current item is one that the model does not know, so there is nothing to leave out.
    assert left(["a", "b", "x"], exclude="current") == "abcde"
    assert left([], exclude="current") == "abcde"
    assert left(AB, k=2, exclude="current", pin=["b"]) == "ce"
    with pytest.raises(InputError, match="not 'last'"):
        shop.recommend(["a"], exclude="last")  # type: ignore[call-overload]


def test_rules_hold_for_every_request_and_can_change(shop: Recommender) -> None:
    kitchen = {"category": "kitchen"}
    assert len(shop.recommend([], filter=kitchen)) == 2
    allowed = ["b", "d", "c", "nonsense"]
    shop.catalogue = shop.catalogue.with_rules(allowed, deny=["c"])
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
        "size": DRAW.integers(0, 100, ITEMS).tolist(),
        "brand": [f"b{number}" for number in DRAW.integers(0, 3, ITEMS)],
        "shelf": [None if n % 7 else f"s{n % 5}" for n in range(ITEMS)],
    },
)
SESSIONS = [["i1", "i2"], ["i70", "i5", "i70"], ["i8000"]]
MIXED_FILTER = {"size": {"max": 70}, "brand": ["b0", "b1"]}
RULES: list[dict[str, Any]] = [
    {},
    {"filter": {"size": 7}},
    {"filter": MIXED_FILTER, "exclude_seen": True, "deny": ["i5", "i9"]},
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


def run_of(name: str) -> Run:
    torch.manual_seed(5)
    model: PosRec | PosRecPlus
    if name == "posrec":
        model = PosRec(ITEMS, PosRecConfig(d=8))
    else:
        model = PosRecPlus(ITEMS, PosRecPlusConfig(d=8))
    config = {"model": name, "items": ITEMS}
    return Run(Path("run"), model.eval, CATALOGUE, config, np.arange(ITEMS))


@pytest.mark.parametrize("model", ["posrec", "posrec-plus"])
@pytest.mark.parametrize(
    "rules", RULES, ids=[", ".join(rules) or "none" for rules in RULES]
)
def test_every_way_of_ranking_finds_the_same_items(
    model: str, rules: dict[str, Any]
) -> None:
    run = run_of(model)
    by_scores = by_all_scores(run)
    by_search = Recommender(run, "cpu")
    expected = by_scores.recommend(SESSIONS, **rules)
    assert all(len(answer) == rules.get("k", 20) for answer in expected)
    # posrec-plus: the sum over all items is taken from rounded products, of vectors with only 8
    # numbers.
    close = 1e-4 if model == "posrec" else 0.05
    assert_alike(expected, by_search.recommend(SESSIONS, **rules), close)


def test_a_filtered_faiss_search_finds_k_items_if_there_are_k() -> None:
    pytest.importorskip("faiss")
    run = run_of("posrec")
    table = item_table(run)
    search = build(table, table[:64], IndexSettings("faiss", lists=64, probes=1))
    rec = Recommender(run, "cpu", search=search)
    exact = Recommender(run, "cpu")
    for most, k in ((99, 20), (50, 20), (20, 500), (1, 50)):
        up_to = {"size": {"max": most}}
        answer = rec.recommend(["i1", "i2"], k=k, filter=up_to, fields=["size"])
        assert len(answer) == k
        assert all(item.fields and item.fields["size"] <= most for item in answer)
    answer = rec.recommend(["i1", "i2"], k=50, exclude="seen")
    assert (len(answer), "i2" in items_of(answer)) == (50, False)
    small = {"size": [1, 2]}  # few enough to be scored one by one
    expected = items_of(exact.recommend(["i1"], filter=small))
    assert items_of(rec.recommend(["i1"], filter=small)) == expected


def test_boosts_add_the_logarithm_for_trained_models() -> None:
    rec = Recommender(run_of("posrec-plus"), "cpu")
    plain = dict(scored(rec.recommend(["i1", "i2"], k=ITEMS)))
    boost = {"brand": {"b1": 1.5}}
    answer = rec.recommend(["i1", "i2"], k=ITEMS, boost=boost, fields=["brand"])
    for item in answer:
        gain = math.log(1.5) if item.fields == {"brand": "b1"} else 0.0
        assert item.score == pytest.approx(plain[item.item] + gain, abs=1e-4)
    scores = [item.score for item in answer]
    assert scores == sorted(scores, reverse=True)


def test_marginal_relevance_against_a_slow_restatement() -> None:
    scores = np.sort(DRAW.normal(size=30).astype(np.float32))[::-1].copy()
    vectors = DRAW.normal(size=(30, 4)).astype(np.float32)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    relevance = (scores - scores.min()) / (scores.max() - scores.min())
    for weight in (0.0, 0.3, 0.7, 1.0):
        chosen: list[int] = []
        for _ in range(10):
            gains = {}
            for position in set(range(30)) - set(chosen):
                cosines = [float(units[position] @ units[other]) for other in chosen]
                nearest = max([0.0, *cosines])
                gains[position] = (1 - weight) * relevance[position] - weight * nearest
            chosen.append(max(gains, key=lambda position: gains[position]))
        assert marginal_relevance(scores, vectors, weight, 10) == chosen
    assert marginal_relevance(scores, vectors, 0.0, 10) == list(range(10))
    assert marginal_relevance(scores[:0], vectors[:0], 0.5, 10) == []


def test_items_after_the_first_thousand_of_a_long_diverse_list_keep_their_order() -> (
    None
):
    rec = Recommender(run_of("posrec"), "cpu")
    plain = items_of(rec.recommend(["i1"], k=1200))
    diverse = items_of(rec.recommend(["i1"], k=1200, diversify=0.5))
    assert len(set(diverse)) == 1200
    assert diverse[:1000] != plain[:1000]
    assert diverse[1000:] == plain[1000:]


def test_groups_that_are_far_down_the_list_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All good items are of one group, then all of the next: the rest is searched for without the
    groups that are full."""
    monkeypatch.setattr(plan, "LARGEST_GROUP_POOL", 40)
    rec = Recommender(run_of("posrec"), "cpu")
    order = items_of(rec.recommend(["i1", "i2"], k=ITEMS))
    step = ITEMS // 6
    groups = {item: min(rank // step, 5) for rank, item in enumerate(order)}
    columns = {"group": [groups[item] for item in CATALOGUE.ids]}
    run = replace(rec.run, vocabulary=Vocabulary(CATALOGUE.ids, columns))
    rec = Recommender(run, "cpu")
    answer = rec.recommend(["i1", "i2"], k=5, diversify="group", pin=[order[7]])
    assert items_of(answer) == [order[7], *order[: 4 * step : step]]
    answer = rec.recommend(["i1", "i2"], k=50, diversify="group")
    assert items_of(answer) == order[::step]
    answer = rec.recommend(["i1", "i2"], k=50, diversify={"column": "group", "most": 3})
    expected = [order[step * group + rank] for group in range(6) for rank in range(3)]
    assert items_of(answer) == expected


def test_similar_items_by_filter() -> None:
    rec = Recommender(run_of("posrec"), "cpu")
    plain = rec.similar_items("i3", k=ITEMS, fields=["size"])
    assert len(plain) == ITEMS - 1
    small = [item.item for item in plain if item.fields and item.fields["size"] <= 20]
    filtered = rec.similar_items("i3", 10, filter={"size": {"max": 20}}, deny=small[:1])
    assert items_of(filtered) == small[1:11]


# New items: those with fewer than five training clicks, or created of late.

NEW = [f"i{n}" for n in range(5)]  # the n-th item was clicked n times
NOON = 1_795_176_000  # 2026-11-20, in seconds


def explorer_of(attributes: str, **columns: Any) -> Recommender:
    vocabulary = Vocabulary(CATALOGUE.ids, {**CATALOGUE.columns, **columns})
    run = replace(run_of("posrec"), vocabulary=vocabulary)
    return Recommender(with_attributes(run, *attributes.split()), "cpu")


@pytest.fixture(scope="module")
def explorer() -> Recommender:
    return explorer_of("shelf brand")


def explored(answer: Any) -> list[str]:
    return [item.item for item in answer if item.explored]


def test_new_items_get_their_share_of_places(explorer: Recommender) -> None:
    session = ["i70", "i80"]
    plain = items_of(explorer.recommend(session, k=20))
    answer = explorer.recommend(session, k=20, explore=0.1, now=NOON)
    assert (len(explored(answer)), len(answer)) == (2, 20)
    assert set(explored(answer)) < set(NEW) - set(plain)
    assert [item.item for item in answer if not item.explored] == plain[:18]
    assert not answer[0].explored
    # The same session has the same list at the same time.
    assert answer == explorer.recommend(session, k=20, explore=0.1, now=NOON)
    scores = dict(scored(explorer.recommend(session, allow=NEW)))
    for item in answer:
        assert item.as_json().get("explored", False) == item.explored
        if item.explored:
            assert item.score == pytest.approx(scores[item.item], abs=1e-4)


@pytest.mark.parametrize("session", [["i70", "i80"], ["nonsense"], []])
def test_new_items_take_turns(explorer: Recommender, session: list[str]) -> None:
    """Every second the next one, and after the last the first."""
    lists = [
        explored(explorer.recommend(session, k=10, explore=0.1, now=NOON + second))
        for second in range(10)
    ]
    turns = [item for (item,) in lists]
    first = NEW.index(turns[0])
    assert turns == [NEW[(first + second) % 5] for second in range(10)]


def test_sessions_begin_at_different_new_items(explorer: Recommender) -> None:
    sessions = [[f"i{n}"] for n in range(100, 500)]
    answers = explorer.recommend(sessions, k=10, explore=0.05, now=NOON)
    turns = [item for answer in answers for item in explored(answer)]
    assert 140 < len(turns) < 260  # half a place of each list
    assert all(20 < turns.count(item) < 60 for item in NEW)
    marks = [[item.explored for item in answer] for answer in answers]
    assert len({mark.index(True) for mark in marks if any(mark)}) == 9


def test_of_many_new_items_the_nearest_fifth_takes_turns() -> None:
    """Without a session all do."""
    created = ["2026-11-19" if n < 300 else "2020-01-01" for n in range(ITEMS)]
    rec = explorer_of("brand", created=created)
    young = [f"i{n}" for n in range(300)]
    session = ["i1234"]
    nearest = set(items_of(rec.recommend(session, k=60, allow=young)))
    found = set()
    for second in range(60):
        rules: dict[str, Any] = {"k": 40, "explore": 0.05, "now": NOON + second}
        found |= set(explored(rec.recommend(session, **rules)))
    in_list = set(items_of(rec.recommend(session, k=40)))
    assert found == nearest - in_list
    shown = [rec.recommend([], k=40, explore=0.5, now=NOON + s) for s in range(300)]
    assert {item for answer in shown for item in explored(answer)} == set(young)


def test_an_item_is_new_for_some_days_if_it_is_known_since_when() -> None:
    """Items 0 to 4 have few clicks. 0 is long there, 1 expired, 5 to 7 are young or will be."""
    created: list[Any] = [None] * ITEMS
    created[0] = "2026-11-01"
    created[5:9] = ["2026-11-20", "2026-11-13T12:00:01", "2026-11-13", "2026-11-21"]
    expires: list[Any] = [None] * ITEMS
    expires[1] = "2026-11-20"
    rec = explorer_of("brand", created=created, expires=expires)

    def new_items(**rules: Any) -> set[str]:
        answers = [
            rec.recommend([], k=40, explore=0.5, now=NOON, **rules),
            rec.recommend(["i70"], k=40, explore=0.5, now=NOON, **rules),
        ]
        (found, by_session) = [set(explored(answer)) for answer in answers]
        assert found == by_session
        return found

    assert new_items() == {"i2", "i3", "i4", "i5", "i6"}
    assert new_items(explore_days=8) == {"i2", "i3", "i4", "i5", "i6", "i7"}
    assert new_items(explore_days=0.1) == {"i2", "i3", "i4"}
    assert new_items(explore_days=30, deny=["i3"]) == {
        "i0",
        "i2",
        "i4",
        "i5",
        "i6",
        "i7",
    }
    for wrong in (0, -1, True, "7", math.nan):
        with pytest.raises(InputError, match="explore_days must be a number above 0"):
            rec.recommend([], explore=0.1, explore_days=wrong)  # type: ignore[arg-type]


def test_an_item_that_the_model_does_not_know_is_not_explored() -> None:
    """By attributes, or by five clicks: shelf is known of items 0, 7, 14 and so on."""
    created = ["2026-11-19" if n < 10 else None for n in range(ITEMS)]
    rules: dict[str, Any] = {"k": 40, "explore": 0.5, "now": NOON}
    by_shelf = explorer_of("shelf", created=created).recommend(["i70"], **rules)
    assert set(explored(by_shelf)) == {"i0", "i5", "i6", "i7", "i8", "i9"}
    by_any = explorer_of("shelf brand", created=created).recommend(["i70"], **rules)
    assert set(explored(by_any)) == {f"i{n}" for n in range(10)}
    run = replace(explorer_of("brand", created=created).run, attributes=None)
    by_clicks = Recommender(run, "cpu")
    assert by_clicks.recommend(["i70"], **rules) == by_clicks.recommend(["i70"], k=40)


def test_other_rules_hold_for_new_items(explorer: Recommender) -> None:
    def new_items(session: str, k: int = 8, **rules: Any) -> list[str]:
        return explored(explorer.recommend([session], k, explore=0.5, **rules))

    current = new_items("i1", exclude="current", deny=["i0"])
    assert set(current) == {"i2", "i3", "i4"}
    answer = explorer.recommend(["i70"], k=8, explore=0.5, pin=["i3", "i99"])
    assert items_of(answer)[:2] == ["i3", "i99"]
    assert "i3" not in explored(answer)
    assert new_items("i70", filter={"size": -1}) == []
    assert new_items("i70", allow=NEW) == []  # they are in the list anyway
    assert new_items("i70", k=1) == []  # never the first
    assert new_items("i70", k=2, pin=["i98", "i99"]) == []
    limit = {"column": "brand", "most": 2}
    limited = explorer.recommend(
        ["i70"], k=8, explore=0.5, diversify=limit, fields=["brand"]
    )
    brands = [item.fields["brand"] for item in limited if item.fields]
    assert max(brands.count(brand) for brand in brands) <= 2


def test_a_run_without_new_items_answers_as_ever(shop: Recommender) -> None:
    clicks = np.array([30, 90, 10, 70, 50])
    known = Recommender(replace(shop.run, popularity=clicks), "cpu")
    assert known.recommend(AB, explore=0.5) == known.recommend(AB)
    for wrong in (0.6, -0.1, True, "0.1"):
        with pytest.raises(InputError, match=r"explore must be a number from 0 to 0.5"):
            shop.recommend(["a"], explore=wrong)  # type: ignore[arg-type]

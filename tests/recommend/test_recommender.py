"""Recommender: scores, items left out, unknown and popular items, refused input, and runs on disk."""

import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, RunFailed
from posrec.models.base import SessionModel
from posrec.models.registry import MODELS
from posrec.nn.batch import SessionBatch
from posrec.progress import SilentProgress
from posrec.recommend.export.opening import try_out
from posrec.recommend.rank import ranker as module
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.rank.ranker import Query
from posrec.recommend.rank.torch_model import item_table
from posrec.recommend.recommender import Recommender
from posrec.recommend.results import Recommendation
from posrec.recommend.session import Session
from posrec.runs.run import Run, load_run
from tests.fixtures import QUICK, run_of
from tests.helpers import items_of, listed


def scored(answer) -> list[tuple[str, float]]:
    return [(one.item, one.score) for one in answer]


def test_scores_worked_out_by_hand(shop: Recommender) -> None:
    # a gives 0 4 1 0.5 0, b gives 1 0 5 0 2 and counts twice: 2 4 11 0.5 4.
    answer = shop.recommend(["a", "b"], k=2)
    assert answer.items[0] == Recommendation("c", 11.0, "Clogs")
    assert shop.recommend(["c"], k=1).items == (Recommendation("d", 6.0, None),)
    assert (answer[1].score, answer[1].item in ("b", "e")) == (4.0, True)
    assert (len(answer), answer.unknown, answer.popular) == (2, (), False)
    assert scored(shop.recommend(["a", "b"]))[-1] == (
        "d",
        0.5,
    )  # all five, where there are fewer than 20


def test_only_the_latest_clicks_are_read(shop: Recommender) -> None:
    assert scored(shop.recommend(["d", "e", "a", "b"])) == scored(
        shop.recommend(["a", "b"])
    )


def test_unknown_items_are_skipped_and_named(shop: Recommender) -> None:
    # f is in the vocabulary, but training never saw it: the model has no number for it.
    answer = shop.recommend(["a", "nonsense", "f", "b", "nonsense"], k=3)
    assert scored(answer) == scored(shop.recommend(["a", "b"], k=3))
    assert answer.unknown == ("nonsense", "f", "nonsense")
    assert not answer.popular


def test_a_session_without_a_known_item_gets_popular_ones(shop: Recommender) -> None:
    for session in (["x", "f"], [], Session()):
        answer = shop.recommend(session, k=3)
        assert scored(answer) == [("b", 9.0), ("d", 7.0), ("e", 5.0)]
        assert (answer.popular, answer.unknown) == (True, tuple(session))
    assert scored(shop.recommend(["x"], k=3, deny=["d"])) == [
        ("b", 9.0),
        ("e", 5.0),
        ("a", 3.0),
    ]


def test_seen_items_are_left_out_however_long_ago(shop: Recommender) -> None:
    answer = shop.recommend(["c", "e", "a", "b"], exclude_seen=True)
    assert scored(answer) == [
        ("d", 0.5)
    ]  # c and e were clicked too early to be read, but they were clicked
    assert scored(shop.recommend(["a", "b", "c", "d", "e"], exclude_seen=True)) == []


def test_allow_and_deny(shop: Recommender) -> None:
    assert scored(shop.recommend(["a", "b"], allow=["a", "c", "nonsense"])) == [
        ("c", 11.0),
        ("a", 2.0),
    ]
    assert items_of(shop.recommend(["a", "b"], deny={"c", "e", "nonsense"})) == [
        "b",
        "a",
        "d",
    ]
    assert scored(shop.recommend(["a", "b"], allow=["a", "c"], deny=["c"])) == [
        ("a", 2.0)
    ]
    assert len(shop.recommend(["a", "b"], deny=[])) == 5
    assert scored(shop.recommend(["a"], allow=["f"])) == []


def test_many_sessions_get_the_same_results_as_one_by_one(shop: Recommender) -> None:
    sessions = [
        ["a", "b"],
        ["x"],
        [],
        ["c"],
        Session(("d", "a", "e")),
        ("b",),
        ["f", "e"],
    ]
    for options in ({}, {"exclude_seen": True}, {"deny": ["c"]}):
        together = shop.recommend(sessions, k=4, **options)
        assert together == [
            shop.recommend(session, k=4, **options) for session in sessions
        ]


@pytest.mark.parametrize(("at_once", "most"), [(5, 1024), (10, 1024), (1 << 24, 2)])
def test_sessions_are_ranked_in_chunks_with_the_same_results(
    shop: Recommender, monkeypatch: pytest.MonkeyPatch, at_once: int, most: int
) -> None:
    draw = random.Random(0)
    sessions = [draw.choices("abcdefx", k=draw.randrange(1, 5)) for _ in range(23)]
    whole = shop.recommend(sessions, k=3)
    monkeypatch.setattr(module, "SCORES_IN_MEMORY", at_once)
    monkeypatch.setattr(module, "SESSIONS_IN_MEMORY", most)
    queries = [Query(shop.look_up(session), 3) for session in sessions]
    assert max(map(len, shop.ranker.chunks(queries))) == min(at_once // 5, most)
    assert shop.recommend(sessions, k=3) == whole


@pytest.mark.parametrize("k", [0, -1, True, 2.5, "3"])
def test_k_below_1_is_refused(shop: Recommender, k: object) -> None:
    with pytest.raises(InputError, match="whole number, 1 or more"):
        shop.recommend(["a"], k=k)  # type: ignore[call-overload]


def test_k_above_the_number_of_items_gives_all_of_them(shop: Recommender) -> None:
    assert shop.recommend(["a"], k=10**9) == shop.recommend(["a"], k=5)
    assert len(shop.recommend(["x"], k=10**9)) == 5


@pytest.mark.parametrize(
    ("session", "message"),
    [
        ("abc", "a list of item ids, not 'abc'"),
        (None, "a list of item ids, not None"),
        ([None], "whole number, not None"),
        ([1.5], "whole number, not 1.5"),
        ([True], "whole number, not True"),
        ([["a"], "b"], r"whole number, not \['a'\]"),
    ],
)
def test_anything_but_a_session_is_refused(
    shop: Recommender, session: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        shop.recommend(session)  # type: ignore[call-overload]


def test_whole_numbers_are_ids_too(shop_run: Run) -> None:
    numbered = posrec.Vocabulary(["1", "2", "3", "4", "5"])
    shop = Recommender(replace(shop_run, vocabulary=numbered), "cpu")
    assert (
        scored(shop.recommend([1, np.int64(2)], k=1))
        == scored(shop.recommend(["1", "2"], k=1))
        == [("3", 11.0)]
    )


def test_update_session_leaves_the_earlier_session_unchanged(shop: Recommender) -> None:
    first = shop.update_session(None, "a")
    second = shop.update_session(first, "b", 7)
    assert (first.clicks, second.clicks) == (("a",), ("a", "b", "7"))
    assert shop.update_session(["a"], "b").clicks == ("a", "b")
    assert shop.recommend(second, k=2) == shop.recommend(["a", "b", "7"], k=2)
    with pytest.raises(InputError):
        shop.update_session(None, None)  # type: ignore[arg-type]


class FiveVectors(SessionModel):
    def session_vectors(self, batch: SessionBatch) -> torch.Tensor:
        return self.item_vectors()[batch.items[:, 0] - 1]

    def item_vectors(self) -> torch.Tensor:
        return torch.tensor(
            [[1.0, 0.0], [10.0, 1.0], [0.0, 3.0], [-1.0, 0.0], [0.0, 0.0]]
        )


def test_similar_items_by_cosine(shop_run: Run) -> None:
    shop_run = replace(shop_run, load_model=FiveVectors(5, shop_run.model.config).eval)
    found = Recommender(shop_run, "cpu").similar_items("a", k=4)
    assert items_of(found[:1] + found[-1:]) == ["b", "d"]
    assert [round(one.score, 4) for one in found] == [0.9950, 0.0, 0.0, -1.0]
    assert "a" not in items_of(found)
    assert len(Recommender(shop_run, "cpu").similar_items("a")) == 4
    with pytest.raises(InputError, match="'f' is not known"):
        Recommender(shop_run, "cpu").similar_items("f")


def test_a_model_without_vectors_has_no_similar_items(shop: Recommender) -> None:
    with pytest.raises(InputError, match="two has no item vectors"):
        shop.similar_items("a")


# A run on disk.


def test_it_recommends_what_was_learned(trained: Path) -> None:
    rec = Recommender.load(trained)
    assert (
        sum(
            rec.recommend([f"i{n}", f"i{n + 1}"], k=1)[0].item == f"i{n + 2}"
            for n in range(20)
        )
        >= 16
    )


def test_recommended_ranks_are_the_evaluated_ranks(
    trained: Path, small: PreparedDataset
) -> None:
    rec = Recommender.load(trained)
    ranks = np.load(trained / "ranks.npy")
    samples = [
        (session, end)
        for session in range(small.test.sessions)
        for end in range(1, int(small.test.lengths[session]))
    ]
    assert len(samples) == len(ranks)
    sessions = [
        [small.vocabulary.item(item) for item in small.test.session(s)[:end].tolist()]
        for s, end in samples
    ]
    for answer, (session, end), rank in zip(
        rec.recommend(sessions, k=30), samples, ranks, strict=True
    ):
        target = small.vocabulary.item(int(small.test.session(session)[end]))
        assert answer[rank - 1].item == target


def test_each_query_has_its_own_k_and_candidates_by_scores_and_by_search(
    trained: Path,
) -> None:
    run = load_run(trained)
    by_scores = Recommender(run, "cpu")
    by_search = Recommender(run, "cpu", search=ExactSearch(item_table(run)))
    plans = [
        (["i1", "i2"], by_scores.plan(3)),
        (["x"], by_scores.plan(2, deny=["i5"])),
        (["i1", "i2", "i3"], by_scores.plan(1000, exclude_seen=True, deny=["i9", "x"])),
        (
            ["i4", "i6"],
            by_scores.plan(5, exclude_seen=True, allow=["i4", "i7", "i8"], deny=["i8"]),
        ),
        (["i4"], by_scores.plan(5, allow=["x"])),
    ]
    queries = [plan.queries(by_scores.look_up(session))[0] for session, plan in plans]
    rankings = by_scores.ranker.rank(queries)
    assert [len(ranking) for ranking in rankings] == [3, 2, 26, 1, 0]
    assert by_scores.vocabulary.item(rankings[3][0][0]) == "i7"
    alone = [by_scores.ranker.rank([query])[0] for query in queries]
    for found in (alone, by_search.ranker.rank(queries)):
        for ranking, expected in zip(found, rankings, strict=True):
            assert ranking == [
                (number, pytest.approx(score, abs=1e-4)) for number, score in expected
            ]


def test_fit_in_memory_and_save(small: PreparedDataset, tmp_path: Path) -> None:
    rec = posrec.fit(
        small,
        model="posrec",
        device="cpu",
        progress=SilentProgress(),
        **{**QUICK, "epochs": 1},
    )
    answer = rec.recommend(["i1", "i2"], k=5)
    rec.save(tmp_path / "kept", export=False)
    again = Recommender.load(tmp_path / "kept")
    assert again.recommend(["i1", "i2"], k=5) == answer
    assert again.recommend(["x"]) == rec.recommend(["x"])
    assert again.run.metrics == rec.run.metrics
    assert again.run.metrics["samples"] == len(small.test)


def test_save_overwrites_only_a_run_folder_and_only_if_asked(
    shop_run: Run, trained: Path, tmp_path: Path
) -> None:
    rec = Recommender.load(trained)
    rec.save(tmp_path / "kept", export=False)
    with pytest.raises(InputError, match="pass overwrite=True"):
        rec.save(tmp_path / "kept", export=False)
    rec.save(tmp_path / "kept", overwrite=True, export=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="is not a run folder"):
        rec.save(tmp_path / "mine", overwrite=True)
    assert (listed(tmp_path), listed(tmp_path / "mine")) == (
        ["kept", "mine"],
        ["letter.txt"],
    )


def test_popularity_counts_training_clicks(
    trained: Path, small: PreparedDataset
) -> None:
    counts = np.bincount(small.train.items.numpy(), minlength=31)
    answer = Recommender.load(trained).recommend(["nobody"], k=30)
    assert [one.score for one in answer] == sorted(counts[1:], reverse=True)
    assert all(counts[small.vocabulary.index(one.item)] == one.score for one in answer)


@pytest.mark.parametrize("name", list(MODELS))
def test_every_model_recommends_and_explains(name: str, small: PreparedDataset) -> None:
    spec = MODELS[name]
    torch.manual_seed(0)
    model = spec.build(30, spec.config()).eval()
    if not spec.is_trained:
        model.count(small.train.items, small.train.offsets)
    rec = Recommender(run_of(model, small.vocabulary.ids, name), "cpu")
    try_out(rec)
    sessions = [["i1", "i2", "i1", "x"], ["i9"], [f"i{n % 30}" for n in range(70)]]
    for session, answer in zip(sessions, rec.recommend(sessions, k=30), strict=True):
        assert sorted(one.item for one in answer) == sorted(small.vocabulary.ids)
        assert [one.score for one in answer] == sorted(
            (one.score for one in answer), reverse=True
        )
        found = rec.explain(session, answer[0].item)
        assert found.score == pytest.approx(answer[0].score, abs=1e-5)
        assert 1 <= len(found.clicks) <= model.config.max_length
        assert bool(found.parts) == (name in ("posrec", "posrec-plus"))
        assert sum(found.parts.values()) == pytest.approx(
            found.score if found.parts else 0, abs=1e-4
        )


def test_weights_that_are_no_numbers_are_never_shown(trained: Path) -> None:
    """Also where an export, which may be whole, ranks the items: explanations and similar items are
    of the weights."""
    rec = Recommender.load(trained, "cpu")
    with torch.no_grad():
        for weights in rec.model.parameters():
            weights.fill_(math.nan)
    for ask in (
        rec.recommend,
        lambda session: rec.explain(session, "i5"),
        lambda session: rec.similar_items(*session),
    ):
        with pytest.raises(RunFailed, match="a score that is not finite"):
            ask(["i3"])

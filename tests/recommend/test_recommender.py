"""Recommender: scores, items left out, unknown and popular items, refused input, runs on disk."""

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from posrec.recommend.rank import ranker
from posrec.recommend.recommender import Recommender
from posrec.recommend.results import Recommendation
from posrec.recommend.session import Session
from posrec.recommend.try_out import try_out
from posrec.runs.folder import Run
from posrec.runs.run import load_run
from tests.fixtures import QUICK, by_all_scores, run_of
from tests.helpers import items_of, listed, raw


def scored(answer: Iterable[Recommendation]) -> list[tuple[str, float]]:
    return [(item.item, item.score) for item in answer]


def test_scores_worked_out_by_hand(shop: Recommender) -> None:
    # a gives 0 4 1 0.5 0, b gives 1 0 5 0 2 and counts twice: 2 4 11 0.5 4.
    answer = shop.recommend(["a", "b"], k=2)
    assert answer.items[0] == Recommendation("c", 11.0, "Clogs")
    assert shop.recommend(["c"], k=1).items == (Recommendation("d", 6.0, None),)
    assert (answer[1].score, answer[1].item in ("b", "e")) == (4.0, True)
    assert (len(answer), answer.unknown, answer.popular) == (2, (), False)
    assert shop.recommend(["d", "e", "a", "b"], k=2) == answer  # two clicks are read
    # All five, since there are fewer than 20.
    assert scored(shop.recommend(["a", "b"]))[-1] == ("d", 0.5)


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
    answer = shop.recommend(["x"], k=3, deny=["d"])
    assert scored(answer) == [("b", 9.0), ("e", 5.0), ("a", 3.0)]


def test_seen_items_are_left_out_however_long_ago(shop: Recommender) -> None:
    # c and e were clicked too early to be read, but they were clicked.
    answer = shop.recommend(["c", "e", "a", "b"], exclude_seen=True)
    assert scored(answer) == [("d", 0.5)]
    assert scored(shop.recommend(["a", "b", "c", "d", "e"], exclude_seen=True)) == []


def test_allow_and_deny(shop: Recommender) -> None:
    answer = shop.recommend(["a", "b"], allow=["a", "c", "nonsense"])
    assert scored(answer) == [("c", 11.0), ("a", 2.0)]
    answer = shop.recommend(["a", "b"], deny={"c", "e", "nonsense"})
    assert items_of(answer) == ["b", "a", "d"]
    answer = shop.recommend(["a", "b"], allow=["a", "c"], deny=["c"])
    assert scored(answer) == [("a", 2.0)]
    assert len(shop.recommend(["a", "b"], deny=[])) == 5
    assert scored(shop.recommend(["a"], allow=["f"])) == []


def test_candidates_are_ranked_by_scores_worked_out_by_hand(shop: Recommender) -> None:
    ranked = shop.rank(["a", "x", "b"], ["d", "new", "c", "f", "a", "c"])
    assert scored(ranked) == [("c", 11.0), ("a", 2.0), ("d", 0.5)]
    assert (ranked.unknown, ranked.unknown_candidates) == (("x",), ("new", "f"))
    assert (ranked[0].title, len(ranked), ranked.popular) == ("Clogs", 3, False)
    assert ranked.as_json()["unknown_candidates"] == ("new", "f")
    # Without a known click, the order of training clicks, as `recommend` has it.
    ranked = shop.rank(["x"], ["a", "e", "b"])
    assert scored(ranked) == [("b", 9.0), ("e", 5.0), ("a", 3.0)]
    assert ranked.popular
    nothing = shop.rank(["a"], ["new"])
    assert (list(nothing), nothing.unknown_candidates) == ([], ("new",))
    with pytest.raises(InputError, match="candidates must be a list of item ids"):
        shop.rank(["a"], "c")


def test_rules_for_recommending_do_not_hide_candidates(shop: Recommender) -> None:
    shop.catalogue = shop.catalogue.with_rules(allow=["a"], deny=["c"])
    assert items_of(shop.recommend(["a", "b"])) == ["a"]
    assert items_of(shop.rank(["a", "b"], ["a", "c"])) == ["c", "a"]


def test_many_sessions_get_the_same_results_as_one_by_one(shop: Recommender) -> None:
    rules: Any
    sessions: list[Any]
    sessions = [["a", "b"], ["x"], [], ["c"], Session(("d", "a")), ("b",), ["f", "e"]]
    for rules in ({}, {"exclude_seen": True}, {"deny": ["c"]}):
        one_by_one = [shop.recommend(session, k=4, **rules) for session in sessions]
        assert shop.recommend(sessions, k=4, **rules) == one_by_one


@pytest.mark.parametrize(("scores", "sessions"), [(5, 1024), (10, 1024), (1 << 24, 2)])
def test_sessions_are_ranked_in_chunks_with_the_same_results(
    shop: Recommender, monkeypatch: pytest.MonkeyPatch, scores: int, sessions: int
) -> None:
    draw = random.Random(0)
    drawn = [draw.choices("abcdefx", k=draw.randrange(1, 5)) for _ in range(23)]
    together = shop.recommend(drawn, k=3)
    monkeypatch.setattr(ranker, "SCORES_IN_MEMORY", scores)
    monkeypatch.setattr(shop.ranker.search, "at_once", sessions)
    sizes = []
    rank_known = shop.ranker.rank_known

    def recorded(queries: Sequence[ranker.Query]) -> list[ranker.Ranking]:
        sizes.append(len(queries))
        return rank_known(queries)

    monkeypatch.setattr(shop.ranker, "rank_known", recorded)
    assert shop.recommend(drawn, k=3) == together
    assert max(sizes) == min(scores // 5, sessions)


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
    numbers: list[Any] = [1, np.int64(2)]
    for session in (numbers, ["1", "2"]):
        assert scored(shop.recommend(session, k=1)) == [("3", 11.0)]


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
    model = FiveVectors(5, shop_run.model.config)
    shop = Recommender(replace(shop_run, load_model=model.eval), "cpu")
    similar = shop.similar_items("a")
    assert sorted(items_of(similar)) == ["b", "c", "d", "e"]
    assert (similar[0].item, similar[-1].item) == ("b", "d")
    assert [round(item.score, 4) for item in similar] == [0.9950, 0.0, 0.0, -1.0]
    with pytest.raises(InputError, match="'f' is not known"):
        shop.similar_items("f")


def test_a_model_without_vectors_has_no_similar_items(shop: Recommender) -> None:
    with pytest.raises(InputError, match="two has no item vectors"):
        shop.similar_items("a")


# A run on disk.


def test_it_recommends_what_was_learned(trained: Path) -> None:
    rec = Recommender.load(trained)
    answers = rec.recommend([[f"i{n}", f"i{n + 1}"] for n in range(20)], k=1)
    assert sum(answers[n][0].item == f"i{n + 2}" for n in range(20)) >= 16


def test_recommended_ranks_are_the_evaluated_ranks(
    trained: Path, small: PreparedDataset
) -> None:
    rec = Recommender.load(trained)
    ranks = np.load(trained / "ranks.npy")
    sessions = []
    targets = []
    for ids in raw(small.test, small.vocabulary):
        for end in range(1, len(ids)):
            sessions.append(ids[:end])
            targets.append(ids[end])
    answers = rec.recommend(sessions, k=30)
    for answer, target, rank in zip(answers, targets, ranks, strict=True):
        assert answer[rank - 1].item == target


def test_each_query_has_its_own_k_and_candidates_by_scores_and_by_search(
    trained: Path,
) -> None:
    run = load_run(trained)
    by_scores = by_all_scores(run)
    by_search = Recommender(run, "cpu")
    requests: list[tuple[list[str], int, Any]] = [
        (["i1", "i2"], 3, {}),
        (["x"], 2, {"deny": ["i5"]}),
        (["i1", "i2", "i3"], 1000, {"exclude_seen": True, "deny": ["i9", "x"]}),
        (["i4", "i6"], 5, {"exclude_seen": True, "allow": ["i4", "i7"]}),
        (["i4"], 5, {"allow": ["x"]}),
    ]
    queries = []
    for session, k, rules in requests:
        queries += by_scores.plan(k, **rules).queries(by_scores.look_up(session))
    rankings = by_scores.ranker.rank(queries)
    assert [len(ranking) for ranking in rankings] == [3, 2, 26, 1, 0]
    assert by_scores.vocabulary.item(rankings[3][0][0]) == "i7"
    alone = [by_scores.ranker.rank([query])[0] for query in queries]
    for others in (alone, by_search.ranker.rank(queries)):
        for ranking, other in zip(rankings, others, strict=True):
            assert [number for number, _ in ranking] == [number for number, _ in other]
            scores = [score for _, score in other]
            assert [score for _, score in ranking] == pytest.approx(scores, abs=1e-4)


def test_fit_in_memory_and_save(small: PreparedDataset, tmp_path: Path) -> None:
    settings: Any = {**QUICK, "epochs": 1}
    rec = posrec.fit(small, "posrec", "cpu", progress=SilentProgress(), **settings)
    answer = rec.recommend(["i1", "i2"], k=5)
    rec.save(tmp_path / "kept", export=False)
    again = Recommender.load(tmp_path / "kept")
    assert again.recommend(["i1", "i2"], k=5) == answer
    assert again.recommend(["x"]) == rec.recommend(["x"])
    assert again.run.metrics == rec.run.metrics
    assert again.run.metrics["samples"] == len(small.test)


def test_save_overwrites_only_a_run_folder_and_only_if_asked(
    trained: Path, tmp_path: Path
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
    (tmp_path / "kept" / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="holds letter"):
        rec.save(tmp_path / "kept", overwrite=True)
    assert listed(tmp_path) == ["kept", "mine"]
    assert listed(tmp_path / "mine") == ["letter.txt"]


def test_popularity_counts_training_clicks(
    trained: Path, small: PreparedDataset
) -> None:
    """Its sessions began within a second, so that all clicks are late ones."""
    counts = np.bincount(small.train.items.numpy(), minlength=31)
    rec = Recommender.load(trained)
    assert rec.popularity.tolist() == counts[1:].tolist()
    answer = scored(rec.recommend(["nobody"], k=30))
    assert [score for _, score in answer] == pytest.approx(
        sorted(counts[1:], reverse=True), abs=1e-3
    )


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
        assert sorted(items_of(answer)) == sorted(small.vocabulary.ids)
        scores = [item.score for item in answer]
        assert scores == sorted(scores, reverse=True)
        for number in (30, 4):  # few are scored one by one, others searched
            candidates = sorted(small.vocabulary.ids)[:number]
            ranked = dict(scored(rec.rank(session, candidates)))
            of_candidates = [item for item in scored(answer) if item[0] in candidates]
            assert ranked == pytest.approx(dict(of_candidates), abs=1e-5)
            in_order = [score for _, score in of_candidates]
            assert list(ranked.values()) == pytest.approx(in_order, abs=1e-5)
        why = rec.explain(session, answer[0].item)
        assert why.score == pytest.approx(scores[0], abs=1e-5)
        assert 1 <= len(why.clicks) <= model.config.max_length
        assert bool(why.parts) == (name in ("posrec", "posrec-plus"))
        if why.parts:
            assert sum(why.parts.values()) == pytest.approx(why.score, abs=1e-4)


def test_weights_that_are_no_numbers_are_never_shown(trained: Path) -> None:
    """Also if an undamaged export ranks the items: explanations and similar items are of the
    weights."""
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

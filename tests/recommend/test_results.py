"""What is printed for datasets, recommenders and results in Python, and results as frames."""

from pathlib import Path
from typing import Any

import pytest

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.progress import SilentProgress
from posrec.recommend.recommender import Recommender
from posrec.recommend.results import Recommendation, Recommendations
from tests.helpers import plain_values


def test_short_texts(small: PreparedDataset, trained: Path) -> None:
    assert f"{len(small.train):,} training samples" in repr(small)
    assert repr(small.train.part(0, 1)).startswith("SessionDataset(1 session, ")
    vocabulary = posrec.Vocabulary(["a"], {"title": ["A"]})
    assert repr(vocabulary) == "Vocabulary(1 item with title)"
    recommender = posrec.Recommender.load(trained, "cpu")
    assert repr(recommender) == "Recommender(posrec, 30 items, cpu)"
    assert repr(recommender.run) == f"Run({str(trained)!r}: posrec, 30 items)"


def test_recommendations_are_shown_and_become_a_frame() -> None:
    scores = {"a": 2.0, "b": 1.5, "c": 1.0, "d": 0.5}
    items = tuple(Recommendation(item, score) for item, score in scores.items())
    text = repr(Recommendations(items, unknown=("x",)))
    assert text == "Recommendations(4 items: a 2, b 1.5, c 1, ...; 1 unknown)"
    text = repr(Recommendations(items[:1], popular=True))
    assert text == "Recommendations(1 item: a 2; popular)"
    frame = Recommendations(items[:2]).to_frame()
    assert frame.rows() == [(1, "a", 2.0, None), (2, "b", 1.5, None)]
    assert frame.columns == ["rank", "item", "score", "title"]
    assert Recommendations(()).to_frame().schema == frame.schema


def test_frames_have_the_fields_that_were_asked_for(shop: Recommender) -> None:
    prices: dict[str, list[Any]] = {
        "price": [9.5, None, 3.0, 1.0, 2.0, 7.0],
        "rank": list("uvwxyz"),
    }
    columns = {**shop.vocabulary.columns, **prices}
    shop.catalogue = shop.catalogue.with_columns(columns)
    answers = shop.recommend([["a", "b"], ["x"], ["a"]], k=2, fields=["price", "rank"])
    assert answers == [answers[0], answers[1], answers[2]]
    assert isinstance(answers, list)
    frame = answers.to_frame()
    names = ["session", "rank", "item", "score", "title", "price", "item_rank"]
    assert frame.columns == names
    assert frame.rows()[0] == (0, 1, "c", 11.0, "Clogs", 3.0, "w")
    assert frame.rows()[2:4] == [
        (1, 1, "b", 9.0, None, None, "v"),
        (1, 2, "d", 7.0, None, 1.0, "x"),
    ]
    assert frame["session"].to_list() == [0, 0, 1, 1, 2, 2]
    one = answers[2].to_frame()
    assert one.rows() == [row[1:] for row in frame.rows()[4:]]
    assert one.columns == names[1:]


def test_a_frame_of_sessions_without_items_has_its_columns(shop: Recommender) -> None:
    answers = shop.recommend([["a"], ["b"]], allow=["x"])
    assert answers.to_frame().columns == ["session", "rank", "item", "score", "title"]
    assert answers.to_frame().is_empty()
    ranked = shop.rank(["a", "b"], ["d", "x", "c"]).to_frame()
    assert ranked.rows() == [(1, "c", 11.0, "Clogs"), (2, "d", 0.5, None)]


def test_evaluate_gives_the_metrics_of_the_run_and_writes_nothing(
    small: PreparedDataset, trained: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.iterdir()}
    recommender = posrec.Recommender.load(trained, "cpu")
    evaluation = posrec.evaluate(recommender, small, SilentProgress())
    found = plain_values(evaluation.as_json())
    assert found == pytest.approx(plain_values(recommender.run.metrics))
    assert evaluation.by_novelty["all"]["samples"] == len(small.test)
    assert {path: path.stat().st_mtime_ns for path in trained.iterdir()} == before
    assert evaluation.to_frame().row(0, named=True) == found
    recall = evaluation.metrics["recall@20"]
    assert f"recall@20 {100 * recall:.2f} %" in repr(evaluation)

"""What is printed for datasets, recommenders and results in Python, and results as frames."""

from pathlib import Path

import pytest

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.progress import SilentProgress
from posrec.recommend.results import Recommendation, Recommendations


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


def test_evaluate_gives_the_metrics_of_the_run_and_writes_nothing(
    small: PreparedDataset, trained: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.iterdir()}
    recommender = posrec.Recommender.load(trained, "cpu")
    evaluation = posrec.evaluate(recommender, small, SilentProgress())
    assert recommender.run.metrics is not None
    stored = dict(recommender.run.metrics)
    found = evaluation.as_json()
    novelty = stored.pop("by_novelty")
    for name, figures in found.pop("by_novelty").items():
        assert figures == pytest.approx(novelty[name])
    assert found == pytest.approx(stored)
    assert {path: path.stat().st_mtime_ns for path in trained.iterdir()} == before
    assert evaluation.to_frame().row(0, named=True) == found
    recall = evaluation.metrics["recall@20"]
    assert f"recall@20 {100 * recall:.2f} %" in repr(evaluation)

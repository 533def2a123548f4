"""Known, rare and new targets and all clicks: by hand, and against what a recommender answers."""

import json
from pathlib import Path
from typing import Any

import pytest

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.fitting.evaluate_run import evaluate
from posrec.progress import SilentProgress
from tests.data.reading import prepared
from tests.helpers import Click, fitted, raw, write_log

HOUR = 3_600_000
NIGHT = 1_700_006_400_000


def log_of(sessions: list[str], start: int, name: str) -> list[Click]:
    """A session of each text, whose letters are its items, an hour apart."""
    return [
        (f"{name}{number}", item, start + HOUR * number + 1000 * step)
        for number, session in enumerate(sessions)
        for step, item in enumerate(session)
    ]


# Training clicks: a 12, b 11, c 4, d 3; x and y are new. The most clicked items come first.
TRAIN = ["abab"] * 4 + ["abc"] * 3 + ["acd"] + ["dd"]
TODAY = ["xab", "cxyd", "bya", "ab"]
SILENT = SilentProgress()


@pytest.fixture
def data(tmp_path: Path) -> PreparedDataset:
    log = [*log_of(TRAIN, NIGHT, "n"), *log_of(TODAY, NIGHT + 24 * HOUR, "t")]
    path = write_log(tmp_path / "clicks.csv", log)
    return prepared(path, tmp_path / "shop", test_days=0.2, min_support=3)


def test_by_hand(data: PreparedDataset, tmp_path: Path) -> None:
    """With `pop`, whose list is a, b, c, d whatever the session."""
    ids = data.vocabulary.ids
    assert dict(zip(ids, data.train_clicks.tolist()[1:], strict=False)) == {
        "a": 12,
        "b": 11,
        "c": 4,
        "d": 3,
    }
    assert raw(data.test, data.vocabulary) == [
        list(s) for s in ("ab", "cd", "ba", "ab")
    ]
    run, evaluation = fitted(data, "pop", tmp_path / "run")
    # xab: a after no known click is first, b second. cxyd: x and y are misses, d is fourth. bya: y
    # is a miss, a first. ab: b second.
    expected = {
        "known": {
            "samples": 4,
            "recall@20": 1.0,
            "mrr@20": (1 + 1 / 2 + 1 + 1 / 2) / 4,
        },
        "rare": {"samples": 1, "recall@20": 1.0, "mrr@20": 1 / 4},
        "new": {"samples": 3, "recall@20": 0.0, "mrr@20": 0.0},
        "all": {"samples": 8, "recall@20": 5 / 8, "mrr@20": (3 + 1 / 4) / 8},
    }
    for name, figures in expected.items():
        assert evaluation.by_novelty[name] == pytest.approx(figures)
    # The usual row has the samples of ab, cd, ba and ab.
    assert evaluation.metrics["mrr@20"] == pytest.approx(
        (1 / 2 + 1 / 4 + 1 + 1 / 2) / 4
    )
    stored = json.loads((run.path / "metrics.json").read_text())
    assert stored["by_novelty"] == evaluation.by_novelty
    assert "by_novelty" not in evaluation.to_frame().columns


def replayed(
    recommender: posrec.Recommender, data: PreparedDataset, **rules: Any
) -> list[float]:
    """1 / rank of every target of the full test part, as the recommender answers for the clicks
    before it."""
    ids = Vocabulary([*data.vocabulary.ids, *data.new_items])
    gains = []
    for session in raw(data.full_test, ids):
        for position in range(1, len(session)):
            answer = recommender.recommend(session[:position], k=20, **rules)
            listed = [recommendation.item for recommendation in answer]
            target = session[position]
            gains.append(1 / (listed.index(target) + 1) if target in listed else 0.0)
    return gains


SETTINGS: dict[str, Any] = {"d": 8, "epochs": 1, "batch_size": 8, "protocol": "paper"}


@pytest.mark.parametrize("exclude", [None, "seen"])
@pytest.mark.parametrize("model", ["posrec", "posrec-plus", "srgnn", "coclick"])
def test_all_clicks_are_ranked_as_they_are_served(
    data: PreparedDataset, model: str, exclude: str | None
) -> None:
    settings: dict[str, Any] = {} if model == "coclick" else SETTINGS
    rec = posrec.fit(data, model=model, device="cpu", progress=SILENT, **settings)
    gains = replayed(rec, data, exclude=exclude)
    figures = evaluate(rec, data, SILENT, exclude=exclude).by_novelty["all"]
    hits = sum(gain > 0 for gain in gains)
    expected = {"samples": 8, "recall@20": hits / 8, "mrr@20": sum(gains) / 8}
    assert figures == pytest.approx(expected)


def test_an_existing_split_with_unknown_clicks(tmp_path: Path) -> None:
    """They are skipped, though the usual row reads them; sessions without them are not ranked
    again."""
    paths = [
        write_log(tmp_path / f"{name}.csv", log_of(sessions, start, name))
        for name, sessions, start in (("n", TRAIN, NIGHT), ("t", TODAY, 2 * NIGHT))
    ]
    options: dict[str, Any] = {"test": paths[1], "time_unit": "ms"}
    data = prepared(paths[0], tmp_path / "shop", **options)
    assert data.full_test is data.test
    rec = posrec.fit(data, "posrec", device="cpu", progress=SILENT, **SETTINGS)
    gains = replayed(rec, data)
    figures = evaluate(rec, data, SILENT).by_novelty
    assert figures["all"]["mrr@20"] == pytest.approx(sum(gains) / 8)
    assert [figures[name]["samples"] for name in figures] == [4, 1, 3, 8]


def test_excluded_items_by_hand(data: PreparedDataset) -> None:
    """`pop` without the item of the last click, or without all of the session."""
    rec = posrec.fit(data, "pop", device="cpu", progress=SILENT)
    usual = evaluate(rec, data, SILENT)
    current = evaluate(rec, data, SILENT, exclude="current")
    # ab: b is second of a, b, c, d, and first without a. cd: third. ba: first.
    assert usual.ranks.tolist() == [2, 4, 1, 2]
    assert current.ranks.tolist() == [1, 3, 1, 1]
    assert "without current items" in current.as_json()["ranking"]
    with pytest.raises(InputError, match="exclude must be one of current, seen"):
        evaluate(rec, data, SILENT, exclude="all")


@pytest.mark.parametrize("model", ["pop", "sasrec"])
def test_a_target_that_is_left_out_is_a_miss(tmp_path: Path, model: str) -> None:
    sessions = ["abab"] * 12
    log = write_log(tmp_path / "clicks.csv", log_of(sessions, NIGHT, "n"))
    data = prepared(log, tmp_path / "shop")
    settings: dict[str, Any] = {} if model == "pop" else SETTINGS
    rec = posrec.fit(data, model, device="cpu", progress=SILENT, **settings)
    seen = evaluate(rec, data, SILENT, exclude="seen")
    assert (seen.ranks <= 20).tolist() == [True, False, False]  # a > b, ab > a, aba > b
    assert seen.ranks[0] == 1  # the only one that is left

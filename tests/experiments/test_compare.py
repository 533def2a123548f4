"""Models side by side: what is written, what is said, what is refused."""

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from tests.helpers import RecordingProgress, command, fitted, listed, update_checksums

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.data.prepare.pipeline import prepare
from posrec.errors import InputError
from posrec.evaluation.metrics import RANKING
from posrec.experiments.compare import compare, compare_rankings
from posrec.fitting.evaluate_run import evaluate_run
from posrec.models.registry import MODELS
from posrec.progress import SilentProgress
from posrec.runs.run import load_run
from posrec.testing import write_dataset

QUICK = {"d": 16, "epochs": 2, "batch_size": 32, "learning_rate": 0.02}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder = tmp_path_factory.mktemp("compare")
    draw = random.Random(0)
    for name, count in (("train", 300), ("test", 80)):
        lines = []
        for _ in range(count):
            item = draw.randrange(20)
            lines.append(
                " ".join(
                    str((item + step * (draw.random() < 0.9)) % 20)
                    for step in range(draw.randrange(2, 8))
                )
            )
        (folder / name).write_text("\n".join(lines) + "\n")
    return prepare(
        folder / "train",
        "sessions",
        folder / "data",
        test=folder / "test",
        progress=SilentProgress(),
    )


def test_a_comparison_is_written_and_says_who_is_better(
    data: PreparedDataset, tmp_path: Path
) -> None:
    result = compare(
        data, ["posrec", "pop"], tmp_path / "out", QUICK, "cpu", SilentProgress()
    )
    assert {pair.metric for pair in result.pairs} == {"recall@20", "mrr@20"}
    by_metric = {pair.metric: pair for pair in result.pairs}
    assert by_metric["mrr@20"].verdict == "posrec is better"
    assert (
        by_metric["recall@20"].verdict == "no difference shown"
    )  # there are only 20 items
    assert result.lengths["pop"].keys() == result.lengths["posrec"].keys()
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert written["metrics"]["pop"] == result.metrics["pop"]
    report = (tmp_path / "out" / "report.html").read_text()
    assert (
        report.count("<svg") == 6
    )  # two metrics by length, popularity and first repeat
    assert "By mrr@20, posrec is better than pop." in report
    assert report.index("is better than") < report.index("<table")
    command = f"posrec compare {data.path} --models posrec,pop --set d=16 --set epochs=2 --set batch_size=32"
    assert command in report
    assert "<code>learning_rate=0.02</code>" in report
    assert (
        "#ffffff" not in report[report.index("<svg") :]
    )  # no ground is drawn: a dark page inverts the figures
    assert f"{100 * result.metrics['posrec']['mrr@20']:.2f}" in report
    assert not re.search(
        r"(src|href)=.?https?:", report
    )  # needs nothing from elsewhere


def test_in_python_nothing_is_kept_without_a_folder(
    data: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = posrec.compare(
        data,
        models=["pop", MODELS["itemknn"], MODELS["coclick"]],
        progress=SilentProgress(),
    )
    assert listed(tmp_path) == []
    frame = result.to_frame()
    assert frame["model"].to_list() == ["pop", "itemknn", "coclick"]
    assert frame["mrr@20"].to_list() == [
        metrics["mrr@20"] for metrics in result.metrics.values()
    ]
    assert result.pairs_to_frame().select("first", "second").unique().height == 3
    recalls = ", ".join(
        f"{name} {100 * one['recall@20']:.2f}" for name, one in result.metrics.items()
    )
    assert repr(result) == f"ComparisonResult(recall@20: {recalls})"


def test_the_best_model_stands_first_against_all_others(
    data: PreparedDataset, tmp_path: Path
) -> None:
    result = compare(
        data,
        ["pop", "itemknn", "coclick"],
        tmp_path / "out",
        device="cpu",
        progress=SilentProgress(),
    )
    shown = result.pairs_with_best()
    assert len(shown) == 4  # two others, two metrics
    for pair in shown:
        best = max(one[pair.metric] for one in result.metrics.values())
        first = result.metrics[pair.first][pair.metric]
        second = result.metrics[pair.second][pair.metric]
        assert first == best
        assert pair.comparison.difference == pytest.approx(first - second)
        assert pair.comparison.low <= pair.comparison.difference <= pair.comparison.high


def test_five_models_fit_the_terminal(
    data: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight rows of one line each; the report has all twenty comparisons."""
    monkeypatch.setenv("COLUMNS", "80")
    done = command(
        "compare",
        data.path,
        "--models",
        "pop,spop,itemknn,coclick,stan",
        "--out",
        tmp_path / "out",
    )
    assert done.code == 0, done.err
    rows = [line for line in done.out.splitlines() if re.search(r" to [+-]", line)]
    assert len(rows) == 8
    assert all(row.rstrip().endswith(("better", "no difference shown")) for row in rows)
    assert "with all 20 comparisons" in done.out
    assert (tmp_path / "out" / "report.html").read_text().count(
        "<td>recall@20</td>"
    ) == 10


@pytest.fixture(scope="module")
def runs(data: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for model in ("itemknn", "coclick"):
        fitted(data, model, folder / model)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_finished_runs_stand_beside_models(
    data: PreparedDataset, runs: Path, tmp_path: Path
) -> None:
    """By their stored ranks, with the figures that training them again would give."""
    before = content(runs / "itemknn")
    progress = RecordingProgress()
    mixed = compare(
        data,
        ["pop", "itemknn"],
        runs=[runs / "coclick", runs / "itemknn"],
        progress=progress,
    )
    assert list(mixed.metrics) == [
        "pop",
        "itemknn",
        "coclick",
        str(runs / "itemknn"),
    ]  # the path, as the name is taken
    assert mixed.metrics["itemknn"] == mixed.metrics[str(runs / "itemknn")]
    trained = posrec.compare(data, ["pop", "coclick"], progress=SilentProgress())
    of_both = [
        pair for pair in mixed.pairs if (pair.first, pair.second) == ("pop", "coclick")
    ]
    assert [pair.comparison for pair in of_both] == [
        pair.comparison for pair in trained.pairs
    ]
    assert progress.messages == [
        "pop counts the sessions",
        "itemknn counts the sessions",
    ]
    assert content(runs / "itemknn") == before


def test_a_run_that_does_not_say_what_it_was_measured_on_is_ranked_again(
    data: PreparedDataset, runs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "old"
    shutil.copytree(runs / "itemknn", run)
    metrics = json.loads((run / "metrics.json").read_text())
    for name, value in (
        ("dataset", data.fingerprint),
        ("samples", len(data.test)),
        ("ranking", RANKING),
    ):
        assert metrics.pop(name) == value
    (run / "metrics.json").write_text(json.dumps(metrics))
    update_checksums(run)
    before = content(run)
    progress = RecordingProgress()
    result = compare(
        data, runs=[run, runs / "itemknn"], device="cpu", progress=progress
    )
    assert result.metrics["old"] == result.metrics["itemknn"]
    assert "has no stored ranks" in progress.messages[0]
    assert content(run) == before


def test_a_run_of_a_model_of_ones_own_needs_stored_ranks(
    data: PreparedDataset, runs: Path, tmp_path: Path
) -> None:
    """Comparing runs no code that a run names."""
    run = tmp_path / "own"
    shutil.copytree(runs / "itemknn", run)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "model": "mine.py:MINE"}))
    update_checksums(run)
    result = compare(data, runs=[run, runs / "itemknn"], progress=SilentProgress())
    assert result.metrics["own"] == result.metrics["itemknn"]
    (run / "metrics.json").write_text("{}")
    update_checksums(run)
    with pytest.raises(InputError, match="of your own"):
        compare(data, runs=[run, runs / "itemknn"], progress=SilentProgress())


def test_figures_of_different_samples_are_refused(
    data: PreparedDataset, runs: Path, tmp_path: Path
) -> None:
    """Matched by id, a run of other items is ranked on the samples of the others."""
    sessions = [[str((number + step) % 7) for step in range(4)] for number in range(20)]
    other = write_dataset(
        tmp_path / "other", sessions[:15], sessions[15:], begins=10**6
    )
    done = command(
        "compare",
        other.path,
        "--models",
        "pop",
        "--runs",
        runs / "itemknn",
        "--out",
        tmp_path / "out",
    )
    assert done.code == 2
    assert data.fingerprint[:12] in done.err
    assert other.fingerprint[:12] in done.err
    assert not (tmp_path / "out").exists()
    result = compare(
        other,
        ["pop"],
        runs=[runs / "itemknn"],
        match_ids=True,
        progress=SilentProgress(),
    )
    matched = evaluate_run(
        load_run(runs / "itemknn"), other, "cpu", SilentProgress(), match_ids=True
    )
    assert result.metrics["itemknn"] == matched.metrics
    here = posrec.evaluate(
        posrec.Recommender.load(runs / "itemknn", "cpu"), data, SilentProgress()
    )
    with pytest.raises(InputError, match="itemknn was measured on"):
        compare_rankings({"pop": matched, "itemknn": here}, other)

"""Models side by side: what is written, what is said, what is refused."""

import json
import random
import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.evaluation.metrics import RANKING
from posrec.experiments.compare import compare, compare_rankings
from posrec.fitting.evaluate_run import evaluate_run
from posrec.models.registry import MODELS, ModelSpec
from posrec.progress import SilentProgress
from posrec.runs.run import load_run
from posrec.testing import write_dataset
from tests.helpers import (
    RecordingProgress,
    command,
    fitted,
    listed,
    refused,
    update_checksums,
)

QUICK = {"d": 16, "epochs": 2, "batch_size": 32, "learning_rate": 0.02}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """Mostly, item i is followed by i + 1."""
    draw = random.Random(0)
    sessions = []
    for _ in range(380):
        first = draw.randrange(20)
        steps = range(draw.randrange(2, 8))
        items = [(first + step * (draw.random() < 0.9)) % 20 for step in steps]
        sessions.append([str(item) for item in items])
    folder = tmp_path_factory.mktemp("compare")
    return write_dataset(folder / "data", sessions[:300], sessions[300:])


def test_a_comparison_is_written_and_says_who_is_better(
    data: PreparedDataset, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    result = compare(data, ["posrec", "pop"], out, QUICK, "cpu", SilentProgress())
    verdicts = {pair.metric: pair.verdict for pair in result.pairs}
    # There are only 20 items, so that the recall of 20 says nothing.
    assert verdicts == {
        "recall@20": "no difference shown",
        "mrr@20": "posrec is better",
    }
    exported = [path.parent.name for path in out.glob("*/network.onnx")]
    assert exported == (["posrec"] if find_spec("onnxruntime") else [])
    written = json.loads((out / "comparison.json").read_text())
    assert written["metrics"]["pop"] == result.metrics["pop"]
    report = (out / "report.html").read_text()
    # Two metrics by length, popularity, first repeat and day.
    assert report.count("<svg") == 8
    assert "By mrr@20, posrec is better than pop." in report
    assert report.index("is better than") < report.index("<table")
    settings = "--set d=16 --set epochs=2 --set batch_size=32"
    assert f"posrec compare {data.path} --models posrec,pop {settings}" in report
    assert "<code>learning_rate=0.02</code>" in report
    # No background is drawn: a dark page inverts the figures.
    assert "#ffffff" not in report[report.index("<svg") :]
    assert f"{100 * result.metrics['posrec']['mrr@20']:.2f}" in report
    # It needs nothing from elsewhere.
    assert not re.search(r"(src|href)=.?https?:", report)


def test_results_in_python_and_the_best_model_against_all_others(
    data: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models: list[str | ModelSpec] = ["pop", MODELS["itemknn"], MODELS["coclick"]]
    result = posrec.compare(data, models=models, progress=SilentProgress())
    assert listed(tmp_path) == []
    frame = result.to_frame()
    assert frame["model"].to_list() == ["pop", "itemknn", "coclick"]
    metrics = result.metrics.values()
    assert frame["mrr@20"].to_list() == [figures["mrr@20"] for figures in metrics]
    assert result.pairs_to_frame().select("first", "second").unique().height == 3
    recall = 100 * result.metrics["pop"]["recall@20"]
    assert repr(result).startswith(f"ComparisonResult(recall@20: pop {recall:.2f}, ")
    shown = result.pairs_with_best()
    assert len(shown) == 4  # two others, two metrics
    for pair in shown:
        best = max(figures[pair.metric] for figures in metrics)
        second = result.metrics[pair.second][pair.metric]
        assert result.metrics[pair.first][pair.metric] == best
        assert pair.comparison.difference == pytest.approx(best - second)
        assert pair.comparison.low <= pair.comparison.difference <= pair.comparison.high


def test_five_models_fit_the_terminal(
    data: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight rows of one line each; the report has all twenty comparisons."""
    monkeypatch.setenv("COLUMNS", "80")
    models = "pop,spop,itemknn,coclick,stan"
    done = command("compare", data.path, "--models", models, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    rows = [line for line in done.out.splitlines() if re.search(r" to [+-]", line)]
    assert len(rows) == 8
    assert all(row.rstrip().endswith(("better", "no difference shown")) for row in rows)
    assert "with all 20 comparisons" in done.out
    report = (tmp_path / "out" / "report.html").read_text()
    assert report.count("<td>recall@20</td>") == 10


@pytest.fixture(scope="module")
def runs(data: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for model in ("itemknn", "coclick"):
        fitted(data, model, folder / model)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_finished_runs_beside_models(data: PreparedDataset, runs: Path) -> None:
    """By their stored ranks, with the figures that training them again would give."""
    before = content(runs / "itemknn")
    progress = RecordingProgress()
    both = [runs / "coclick", runs / "itemknn"]
    mixed = compare(data, ["pop", "itemknn"], runs=both, progress=progress)
    path = str(runs / "itemknn")  # the name is taken
    assert list(mixed.metrics) == ["pop", "itemknn", "coclick", path]
    assert mixed.metrics["itemknn"] == mixed.metrics[path]
    trained = posrec.compare(data, ["pop", "coclick"], progress=SilentProgress())
    comparisons = [
        pair.comparison
        for pair in mixed.pairs
        if (pair.first, pair.second) == ("pop", "coclick")
    ]
    assert comparisons == [pair.comparison for pair in trained.pairs]
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
    assert metrics.pop("dataset") == data.fingerprint
    assert metrics.pop("samples") == len(data.test)
    assert metrics.pop("ranking") == RANKING
    (run / "metrics.json").write_text(json.dumps(metrics))
    update_checksums(run)
    before = content(run)
    progress = RecordingProgress()
    both = [run, runs / "itemknn"]
    result = compare(data, runs=both, device="cpu", progress=progress)
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
    run = runs / "itemknn"
    sessions = [[str((number + step) % 7) for step in range(4)] for number in range(20)]
    other = write_dataset(
        tmp_path / "other", sessions[:15], sessions[15:], begins=10**6
    )
    options = ("--models", "pop", "--runs", run, "--out", tmp_path / "out")
    error = refused("compare", other.path, *options)
    assert data.fingerprint[:12] in error
    assert other.fingerprint[:12] in error
    assert not (tmp_path / "out").exists()
    silent = SilentProgress()
    result = compare(other, ["pop"], runs=[run], match_ids=True, progress=silent)
    matched = evaluate_run(load_run(run), other, "cpu", silent, match_ids=True)
    assert result.metrics["itemknn"] == matched.metrics
    on_data = posrec.evaluate(posrec.Recommender.load(run, "cpu"), data, silent)
    with pytest.raises(InputError, match="itemknn was measured on"):
        compare_rankings({"pop": matched, "itemknn": on_data}, other)

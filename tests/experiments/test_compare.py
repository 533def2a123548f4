"""Models side by side: what is written, what is said, what is refused."""

import json
import random
import re
from pathlib import Path

import pytest
from tests.helpers import command, listed

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.data.prepare.pipeline import prepare
from posrec.errors import InputError
from posrec.experiments.compare import compare
from posrec.models.registry import MODELS
from posrec.progress import SilentProgress

QUICK = {"d": 16, "epochs": 2, "batch_size": 32, "learning_rate": 0.02}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    folder, draw = tmp_path_factory.mktemp("compare"), random.Random(0)
    for name, count in (("train", 300), ("test", 80)):
        lines = []
        for _ in range(count):
            item = draw.randrange(20)
            lines.append(
                " ".join(str((item + step * (draw.random() < 0.9)) % 20) for step in range(draw.randrange(2, 8)))
            )
        (folder / name).write_text("\n".join(lines) + "\n")
    return prepare(folder / "train", "sessions", folder / "data", test=folder / "test", progress=SilentProgress())


def test_a_comparison_is_written_and_says_who_is_better(data: PreparedDataset, tmp_path: Path) -> None:
    result = compare(data, ["posrec", "pop"], tmp_path / "out", QUICK, "cpu", SilentProgress())
    assert {pair.metric for pair in result.pairs} == {"recall@20", "mrr@20"}
    by_metric = {pair.metric: pair for pair in result.pairs}
    assert by_metric["mrr@20"].verdict == "posrec is better"
    assert by_metric["recall@20"].verdict == "no difference shown"  # there are only 20 items
    assert result.lengths["pop"].keys() == result.lengths["posrec"].keys()
    written = json.loads((tmp_path / "out" / "comparison.json").read_text())
    assert written["metrics"]["pop"] == result.metrics["pop"]
    report = (tmp_path / "out" / "report.html").read_text()
    assert report.count("<svg") == 6  # two metrics by length, popularity and first repeat
    assert "By recall@20, posrec is not shown to differ from pop. By mrr@20, posrec is better than pop." in report
    assert report.index("is better than") < report.index("<table")
    command = f"posrec compare {data.path} --models posrec,pop --set d=16 --set epochs=2 --set batch_size=32"
    assert command in report
    assert "<code>learning_rate=0.02</code>" in report
    # The colours of text, axes and bars are those of the page, light or dark; no ground is drawn.
    drawn = "".join(re.findall("<svg.*?</svg>", report, re.DOTALL))
    assert not re.search("#1c2430|#667085|#e4e7ec|#ffffff", drawn)
    assert f"{100 * result.metrics['posrec']['mrr@20']:.2f}" in report
    assert not re.search(r"(src|href)=.?https?:", report)  # needs nothing from elsewhere


def test_in_python_nothing_is_kept_without_a_folder(
    data: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = posrec.compare(data, models=["pop", MODELS["itemknn"], MODELS["coclick"]], progress=SilentProgress())
    assert listed(tmp_path) == []
    frame = result.to_frame()
    assert frame["model"].to_list() == ["pop", "itemknn", "coclick"]
    assert frame["mrr@20"].to_list() == [metrics["mrr@20"] for metrics in result.metrics.values()]
    assert result.pairs_to_frame().select("first", "second").unique().height == 3
    recalls = ", ".join(f"{name} {100 * one['recall@20']:.2f}" for name, one in result.metrics.items())
    assert repr(result) == f"ComparisonResult(recall@20: {recalls})"


def test_the_best_model_stands_first_against_all_others(data: PreparedDataset, tmp_path: Path) -> None:
    result = compare(data, ["pop", "itemknn", "coclick"], tmp_path / "out", device="cpu", progress=SilentProgress())
    shown = result.pairs_with_best()
    assert len(shown) == 4  # two others, two metrics
    for pair in shown:
        best = max(one[pair.metric] for one in result.metrics.values())
        first, second = result.metrics[pair.first][pair.metric], result.metrics[pair.second][pair.metric]
        assert first == best
        assert pair.comparison.difference == pytest.approx(first - second)
        assert pair.comparison.low <= pair.comparison.difference <= pair.comparison.high


def test_five_models_fit_the_terminal(data: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rows of one line each; the report has all twenty comparisons."""
    monkeypatch.setenv("COLUMNS", "80")
    done = command("compare", data.path, "--models", "pop,spop,itemknn,coclick,stan", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    rows = [line for line in done.out.splitlines() if re.search(r" to [+-]", line)]
    assert len(rows) == 8
    assert all(row.rstrip().endswith(("better", "no difference shown")) for row in rows)
    assert "with all 20 comparisons" in done.out
    assert (tmp_path / "out" / "report.html").read_text().count("<td>recall@20</td>") == 10


@pytest.mark.parametrize("models", [["posrec"], ["pop", "pop"], ["posrec", "nobody"]])
def test_what_cannot_be_compared_is_refused(data: PreparedDataset, tmp_path: Path, models: list[str]) -> None:
    with pytest.raises(InputError):
        compare(data, models, tmp_path / "out", QUICK, "cpu", SilentProgress())
    assert not (tmp_path / "out").exists()

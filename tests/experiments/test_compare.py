"""Models side by side: what is written, what is said, what is refused."""

import json
import random
import re
from pathlib import Path

import pytest

from posrec.data.dataset import PreparedDataset
from posrec.data.prepare import prepare
from posrec.errors import InputError
from posrec.experiments.compare import compare
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
    assert report.count("<svg") == 2
    assert f"{100 * result.metrics['posrec']['mrr@20']:.2f}" in report
    assert not re.search(r"(src|href)=.?https?:", report)  # needs nothing from elsewhere


@pytest.mark.parametrize("models", [["posrec"], ["pop", "pop"], ["posrec", "nobody"]])
def test_what_cannot_be_compared_is_refused(data: PreparedDataset, tmp_path: Path, models: list[str]) -> None:
    with pytest.raises(InputError):
        compare(data, models, tmp_path / "out", QUICK, "cpu", SilentProgress())
    assert not (tmp_path / "out").exists()

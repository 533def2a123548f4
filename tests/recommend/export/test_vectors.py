"""The vectors for a vector database, searched by DuckDB as docs/recommending.md shows it."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.recommend.export.vectors import export_vectors
from posrec.runs.folder import Run
from posrec.runs.run import load_run
from tests.helpers import ROOT, command, listed

pytest.importorskip("onnxruntime")
pytest.importorskip("duckdb")

PAGE = (ROOT / "docs" / "recommending.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"```python\n(import duckdb\n.*?)```", PAGE, re.DOTALL)
SESSIONS = [["i3", "i4"], ["i7"], [f"i{n % 30}" for n in range(9, 60)], ["i5"] * 3]


def products(run: Run, session: list[str]) -> list[tuple[str, float]]:
    """Every item with the product part of its score, the best first."""
    model: Any = run.model
    numbers = [run.vocabulary.index(item) for item in session]
    batch = SessionBatch.of([numbers], model.config.max_length, model.stride)
    with torch.inference_mode():
        scores = (model.session_vectors(batch) @ model.item_vectors().T)[0]
    ids = run.vocabulary.ids[: model.items]
    pairs = zip(ids, scores.tolist(), strict=True)
    return sorted(pairs, key=lambda pair: -pair[1])


def assert_same_first_20(run: Run, find: Any) -> None:
    for session in SESSIONS:
        ours = products(run, session)
        found = find(session)
        expected = pytest.approx([score for _, score in ours[:20]], abs=1e-4)
        assert [score for _, score in found] == expected
        # Items with nearly the same score may change places.
        assert [dict(ours)[item] for item, _ in found] == expected
        assert len({item for item, _ in found}) == 20


@pytest.mark.parametrize("kind", ["trained", "trained_plus"])
def test_the_example_of_the_page_finds_the_same_first_20(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = load_run(request.getfixturevalue(kind))
    encoder = export_vectors(run, tmp_path / "items.parquet")
    assert listed(tmp_path) == [encoder.name, "items.parquet"]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(EXAMPLE.replace('"SAN1-BLU-2", "TEN5-BLK-2"', '"i3", "i4"'), names)
    best = products(run, ["i3", "i4"])[0][1]
    assert names["found"][0][1] == pytest.approx(best, abs=1e-4)

    def find(session: list[str]) -> Any:
        vector = names["session_vector"](session)
        return names["shop"].execute(names["query"], [vector]).fetchall()

    assert_same_first_20(run, find)

    def multiply(session: list[str]) -> Any:
        """As an engine that only multiplies."""
        items = pl.read_parquet("items.parquet")
        stored = np.column_stack([items["vector"].to_numpy(), items["bias"]])
        scores = stored @ np.append(names["session_vector"](session), 1.0)
        pairs = zip(items["id"], scores.tolist(), strict=True)
        return sorted(pairs, key=lambda pair: -pair[1])[:20]

    assert_same_first_20(run, multiply)


def test_the_bias_is_the_trend(trained_plus: Path, tmp_path: Path) -> None:
    run = load_run(trained_plus)
    export_vectors(run, tmp_path / "items.parquet")
    items = pl.read_parquet(tmp_path / "items.parquet")
    assert items.schema == {
        "id": pl.String,
        "vector": pl.Array(pl.Float32, 16),
        "bias": pl.Float32,
    }
    assert items["id"].to_list() == run.vocabulary.ids[:30]
    model: Any = run.model
    assert isinstance(model, SessionModel)
    trend = model.trends.latest()[:30].tolist()
    assert items["bias"].to_list() == pytest.approx(trend, abs=1e-6)
    assert max(map(abs, trend)) > 1e-4
    lengths = np.linalg.norm(items["vector"].to_numpy(), axis=1)
    assert lengths == pytest.approx(np.ones(30), abs=1e-5)  # of cosines


def test_vectors_that_can_not_be_exported(
    counted: Path, trained: Path, tmp_path: Path
) -> None:
    file = tmp_path / "items.parquet"
    done = command("export", counted, "--vectors", file)
    assert (done.code, "pop has no item vectors" in done.err) == (2, True)
    done = command("export", trained, "--vectors", tmp_path / "items.csv")
    assert (done.code, "name it .parquet" in done.err) == (2, True)
    (tmp_path / "items.onnx").touch()
    done = command("export", trained, "--vectors", file)
    assert (done.code, "items.onnx" in done.err) == (2, True)
    assert listed(tmp_path) == ["items.onnx"]

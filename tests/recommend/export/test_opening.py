"""Opening a run: every way of serving it recommends the same, and one that gives useless answers is
refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from posrec.errors import RunFailed
from posrec.io import WEIGHTS, load_tensors, save_tensors
from posrec.recommend.rank.encoder import OWN_OUTPUTS, OnnxModel
from posrec.recommend.recommender import Recommender, open_recommender
from posrec.recommend.try_out import try_out
from posrec.runs.folder import EXPORT, INDEX
from posrec.runs.run import load_run
from tests.fixtures import TWO_LISTS, by_all_scores, with_export
from tests.helpers import assert_alike, command, update_checksums, write_lines


def change_json(name: str, change: Callable[..., object]) -> Callable[[Path], None]:
    def changed(run: Path) -> None:
        content = json.loads((run / name).read_text())
        change(content)
        (run / name).write_text(json.dumps(content))

    return changed


def no_numbers(run: Path) -> None:
    tensors, about = load_tensors(run / WEIGHTS)
    for tensor in tensors.values():
        tensor.fill_(torch.nan)
    save_tensors(run / WEIGHTS, tensors, about)


USELESS = {
    "all weights NaN": (no_numbers, "a score that is not finite"),
    "an infinite setting": (
        change_json("config.json", lambda c: c.update(lambda1=1e300)),
        "a score that is not finite",
    ),
    "an id that is null": (
        change_json("vocabulary.json", lambda v: v["ids"].__setitem__(4, None)),
        "item 5 is None",
    ),
}


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.mark.parametrize("how", USELESS)
def test_commands_refuse_a_useless_run(run: Path, tmp_path: Path, how: str) -> None:
    damage, reason = USELESS[how]
    damage(run)
    update_checksums(run)  # its files belong together: only what they hold is useless
    sessions = write_lines(tmp_path / "in.jsonl", ['["i1", "i2"]'])
    for words in (
        ("score", run, sessions, tmp_path / "out.jsonl"),
        ("recommend", run, "i1", "i2"),
    ):
        done = command(*words)
        assert done.code in (1, 2)
        assert reason in done.err
        assert "Traceback" not in done.err
        assert done.out == ""
    assert not (tmp_path / "out.jsonl").exists()


def test_items_that_occur_twice_are_refused(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recommender = Recommender(load_run(trained), "cpu")
    twice = [(3, 2.0), (3, 1.0)]
    monkeypatch.setattr(
        recommender.ranker, "rank", lambda queries: [twice] * len(queries)
    )
    with pytest.raises(RunFailed, match="items that are not distinct"):
        try_out(recommender)


def test_every_way_of_serving_recommends_the_same(
    trained_plus: Path,
    exported_plus: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("faiss")
    pytest.importorskip("onnxruntime")
    with_export(trained_plus, exported_plus, tmp_path / "onnx, exact")
    both = with_export(trained_plus, exported_plus, tmp_path / "onnx, faiss", TWO_LISTS)
    outputs = OnnxModel(both / "network.onnx").session.get_outputs()
    # No scores: the search takes the products with the items.
    assert {output.name for output in outputs} == {"session_vectors", *OWN_OUTPUTS}
    # Without a network if the model is too large for a file.
    monkeypatch.setattr("posrec.recommend.export.onnx_model.LARGEST_ONNX_FILE", 0)
    copy = tmp_path / "torch, faiss"
    with_export(trained_plus, exported_plus, copy, TWO_LISTS)
    assert [name for name in EXPORT if (copy / name).exists()] == [INDEX]
    shutil.copytree(trained_plus, tmp_path / "torch, exact")
    sessions = [["i1", "i2"], ["i7", "i9", "i7"], [f"i{n}" for n in range(15)]]
    expected = by_all_scores(load_run(trained_plus)).recommend(sessions, k=6)
    for by in ("torch", "onnx"):
        for search in ("exact", "faiss"):
            rec = open_recommender(tmp_path / f"{by}, {search}")
            assert (rec.uses_onnx, rec.ranker.search.kind) == (by == "onnx", search)
            assert_alike(expected, rec.recommend(sessions, k=6), within=2e-3)

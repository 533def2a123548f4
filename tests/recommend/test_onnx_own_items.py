"""ONNX files of a model with a term for the session's own items: the outputs that a search reads, and the export."""

import shutil
from pathlib import Path

import pytest
import torch

from posrec.errors import RunFailed
from posrec.nn.batch import SessionBatch
from posrec.recommend.export.opening import open_recommender
from posrec.recommend.rank.exact_search import ExactSearch
from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run
from tests.fixtures import TWO_LISTS, with_export
from tests.helpers import listed

pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
onnx_model = pytest.importorskip("posrec.recommend.export.onnx_model")

SESSIONS = [[3], [5, 5, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9], [7, 8, 7, 8], [30, 1]]
SEARCHED = ["session_vectors", "own_items", "own_products", "own_raised", "own_repeat", "own_explore"]


def test_the_term_for_own_items_is_that_of_torch(trained_plus: Path, exported_plus: Path) -> None:
    model, runtime = load_run(trained_plus).model, onnx_model.OnnxModel(exported_plus, threads=1)
    batch = SessionBatch.of(SESSIONS)
    with torch.inference_mode():
        vectors, own = model.sessions_and_own_items(batch)
    found_vectors, found = runtime.sessions_and_own_items(batch)
    assert torch.allclose(found_vectors, vectors, atol=1e-4)
    assert torch.equal(found.items, own.items)
    for name in ("products", "raised", "repeat"):
        ours, theirs = getattr(own, name), getattr(found, name)
        assert torch.allclose(theirs[own.known], ours[own.known], atol=1e-4), name
    assert torch.allclose(found.explore, own.explore, atol=1e-4)


def test_scores_are_log_probabilities(exported_plus: Path) -> None:
    scores = onnx_model.OnnxModel(exported_plus).scores(SessionBatch.of(SESSIONS))
    assert scores.exp().sum(1).tolist() == pytest.approx([1] * len(SESSIONS), abs=1e-5)


def test_files_say_whether_they_have_the_term(exported: Path, exported_plus: Path) -> None:
    plain, plus = onnx_model.OnnxModel(exported), onnx_model.OnnxModel(exported_plus)
    assert (plain.has_own_items, plus.has_own_items) == (False, True)
    assert [one.name for one in plain.session.get_outputs()] == ["session_vectors", "scores", "top_scores", "top_items"]
    assert plain.sessions_and_own_items(SessionBatch.of(SESSIONS))[1] is None
    assert plus.config.max_length == 10


def test_a_spoiled_term_is_not_kept(
    trained_plus: Path, exported_plus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output `own_raised` becomes that of `own_products`; scores are as before."""
    proto = onnx.load(exported_plus)
    outputs = [one for one in proto.graph.output if one.name != "own_raised"]
    del proto.graph.output[:]
    proto.graph.output.extend(outputs)
    for node in proto.graph.node:
        for kind in (node.input, node.output):
            kind[:] = ["raised" if name == "own_raised" else name for name in kind]
    proto.graph.node.append(onnx.helper.make_node("Identity", ["own_products"], ["own_raised"]))
    proto.graph.output.append(
        onnx.helper.make_tensor_value_info("own_raised", onnx.TensorProto.FLOAT, ["batch", "length"])
    )
    monkeypatch.setattr(onnx_model, "as_onnx", lambda model, run: proto.SerializeToString())
    with pytest.raises(RunFailed, match="its scores differ from torch's"):
        onnx_model.export_onnx(load_run(trained_plus), tmp_path / "out.onnx")
    assert listed(tmp_path) == []


def test_every_way_of_serving_recommends_the_same(
    trained_plus: Path, exported_plus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    with_export(trained_plus, exported_plus, tmp_path / "onnx, exact")
    both = with_export(trained_plus, exported_plus, tmp_path / "onnx, faiss", TWO_LISTS)
    assert {one.name for one in onnx_model.OnnxModel(both / "network.onnx").session.get_outputs()} == set(SEARCHED)
    monkeypatch.setattr(onnx_model, "LARGEST_ONNX_FILE", 0)  # as if the model were too large for an ONNX file
    index = with_export(trained_plus, exported_plus, tmp_path / "torch, faiss", TWO_LISTS)
    assert [path.name for path in index.iterdir() if path.stem in ("network", "items")] == ["items.faiss"]
    shutil.copytree(trained_plus, tmp_path / "torch, exact")
    sessions = [["i1", "i2"], ["i7", "i9", "i7"], [f"i{n}" for n in range(15)]]
    expected = Recommender(load_run(trained_plus), "cpu").recommend(sessions, k=6)
    for by in ("torch", "onnx"):
        for search in ("exact", "faiss"):
            rec = open_recommender(tmp_path / f"{by}, {search}")
            assert (rec.uses_onnx, rec.ranker.search_kind) == (by == "onnx", search)
            for ours, theirs in zip(expected, rec.recommend(sessions, k=6), strict=True):
                assert [one.item for one in ours] == [one.item for one in theirs], (by, search)
                assert [one.score for one in ours] == pytest.approx([one.score for one in theirs], abs=2e-3)


def test_a_search_needs_no_item_vectors_of_the_file(trained_plus: Path, exported_plus: Path) -> None:
    run = load_run(trained_plus)
    scorer = onnx_model.OnnxModel(exported_plus, threads=1, outputs=SEARCHED)
    assert [one.name for one in scorer.session.get_outputs()] == SEARCHED
    rec = Recommender(run, "cpu", scorer, ExactSearch(run.model.item_vectors().detach().numpy()))
    assert [one.item for one in rec.recommend(["i3", "i4"], 5)] == [
        one.item for one in Recommender(run, "cpu").recommend(["i3", "i4"], 5)
    ]

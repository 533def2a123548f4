"""ONNX files: the same scores as torch for any batch and length, checked before a file is kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posrec.errors import InputError, RunFailed
from posrec.models.registry import MODELS
from posrec.recommend.rank.encoder import OWN_OUTPUTS, OnnxModel
from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run
from tests.fixtures import run_of
from tests.helpers import assert_alike, listed, refused, slowly

pytest.importorskip("onnxruntime")
onnx_model = pytest.importorskip("posrec.recommend.export.onnx_model")
onnx = pytest.importorskip("onnx")
TRAINED = [name for name, spec in MODELS.items() if spec.is_trained]


@pytest.fixture(params=["", "_plus"])
def run_and_file(request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """A run and its export, without and with a term for the session's own items."""
    ending = request.param
    run = request.getfixturevalue(f"trained{ending}")
    return run, request.getfixturevalue(f"exported{ending}")


def test_the_file_has_metadata_and_k_is_optional(exported: Path) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(exported))
    assert [node.name for node in session.get_inputs()] == ["items", "lengths"]
    (optional,) = session.get_overridable_initializers()
    assert optional.name == "k"
    about = session.get_modelmeta().custom_metadata_map
    assert about["model"] == "posrec"
    assert (about["items"], about["max_length"]) == ("30", "10")
    inputs = {"items": np.array([[1, 2]]), "lengths": np.array([2])}
    best, items = session.run(["top_scores", "top_items"], inputs)
    assert best.shape == items.shape == (1, 20)


def test_a_recommender_can_score_by_onnx(run_and_file: tuple[Path, Path]) -> None:
    trained, exported = run_and_file
    run = load_run(trained)
    by_torch = Recommender(run)
    by_onnx = Recommender(run, scorer=OnnxModel(exported))
    sessions = [["i1", "i2"], ["i7", "x", "i7"], ["x"], [f"i{n}" for n in range(25)]]
    expected = by_torch.recommend(sessions, k=5)
    assert_alike(expected, by_onnx.recommend(sessions, k=5), within=1e-4)
    assert by_onnx.explain(["i1", "i2"], "i3").parts


def test_the_network_of_the_default_model_is_lean(
    exported_plus: Path, tmp_path: Path
) -> None:
    """The time of a short session is that of its operations, of which ONNX Runtime leaves these."""
    import onnxruntime

    outputs = ["session_vectors", *OWN_OUTPUTS]
    network = onnx_model.with_outputs(exported_plus.read_bytes(), outputs)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(network, options)
    assert len(onnx.load(tmp_path / "optimized.onnx").graph.node) <= 170


def spoil_table(proto: Any) -> None:
    table = max(proto.graph.initializer, key=lambda array: len(array.raw_data))
    spoiled = bytearray(table.raw_data)
    spoiled[3] ^= 0x01  # the exponent of the first number
    table.raw_data = bytes(spoiled)


def spoil_term(proto: Any) -> None:
    """The output `own_raised` becomes that of `own_repeat`; scores are as before."""
    for node in proto.graph.node:
        for kind in (node.input, node.output):
            kind[:] = ["raised" if name == "own_raised" else name for name in kind]
    identity = onnx.helper.make_node("Identity", ["own_repeat"], ["own_raised"])
    proto.graph.node.append(identity)


def test_a_file_with_other_scores_is_not_kept(
    run_and_file: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained, exported = run_and_file
    run = load_run(trained)
    proto = onnx.load(exported)
    spoil = spoil_term if run.model.has_own_items else spoil_table
    spoil(proto)
    monkeypatch.setattr(onnx_model, "as_onnx", lambda *_: proto.SerializeToString())
    with pytest.raises(RunFailed, match="not written: its scores differ"):
        onnx_model.export_onnx(run, tmp_path / "out.onnx")
    assert listed(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("narm", {}),
        *(slowly(name, {}) for name in TRAINED if name != "narm"),
        slowly("posrec", {"encoding": "rpe", "anchors": False, "layers": 2}),
        slowly("posrec", {"encoding": "dpe", "normalize": True, "max_length": 1}),
    ],
)
def test_every_trained_model_is_exported(
    tmp_path: Path, name: str, settings: dict[str, Any]
) -> None:
    """Also recurrent layers, which torch's newer exporter would unroll for one length."""
    torch.manual_seed(0)
    model = MODELS[name].build(40, MODELS[name].config(**settings))
    run = run_of(model, [], name, tmp_path)
    assert onnx_model.export_onnx(run, tmp_path / "model.onnx") <= 1e-4


def test_unexportable_runs_are_input_errors(
    trained: Path, counted: Path, exported: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.onnx"
    assert "counting model" in refused("export", counted, "--onnx", out)
    assert "exists already" in refused("export", trained, "--onnx", exported)
    assert listed(tmp_path) == []


def test_a_file_that_is_not_onnx_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "fake.onnx").write_text("not a model")
    with pytest.raises(InputError, match=r"fake.onnx can't be read"):
        OnnxModel(tmp_path / "fake.onnx")

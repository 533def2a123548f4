"""The export of a run: training writes it, `posrec export` adds it, and everything that opens the
run uses it."""

import json
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load, save

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.fitting.fit import fit_run
from posrec.recommend.recommender import open_recommender
from posrec.runs.folder import EXPORT, INDEX, ITEMS, NETWORK
from posrec.runs.run import load_run
from tests.fixtures import by_all_scores
from tests.helpers import (
    RecordingProgress,
    assert_alike,
    command,
    items_of,
    refused,
    update_checksums,
)

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

TINY = {"d": 8, "epochs": 1, "batch_size": 64}
SESSIONS = [["i3", "i4"], ["i1", "i2", "i1"], ["i9"]]


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def quick_export(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network of the trained run is that of its ONNX file: to export it again would take
    seconds."""
    monkeypatch.setattr(
        "posrec.recommend.export.writing.checked_onnx",
        lambda run: (exported.read_bytes(), 0.0),
    )


def about_the_export(progress: RecordingProgress) -> list[str]:
    return [text for text in progress.messages if "export" in text]


def exported_files(run: Path) -> list[str]:
    """The files of the export in the folder, which must be those that checksums.json lists."""
    listed = json.loads((run / "checksums.json").read_text())["files"]
    existing = [name for name in EXPORT if (run / name).exists()]
    assert [name for name in EXPORT if name in listed] == existing
    assert not list(run.glob("*unfinished*"))
    return existing


def assert_same_answers(run: Path) -> None:
    """Its export answers as torch does."""
    rec = open_recommender(run)
    assert rec.uses_onnx
    expected = by_all_scores(load_run(run)).recommend(SESSIONS, 5)
    assert_alike(rec.recommend(SESSIONS, 5), expected, within=1e-3)


def test_training_writes_the_export_as_its_last_step(
    small: PreparedDataset, tmp_path: Path
) -> None:
    options = shlex.split("--model stamp --device cpu --set d=8 --epochs 1")
    done = command("train", small.path, "--out", tmp_path / "run", *options)
    assert done.code == 0, done.err
    assert "exported for serving in" in done.err.splitlines()[-1]
    assert exported_files(tmp_path / "run") == [NETWORK, ITEMS]
    assert_same_answers(tmp_path / "run")


def test_the_command_adds_the_export(copy: Path, quick_export: None) -> None:
    done = command("export", copy)
    assert done.code == 0, done.err
    assert "Added the export for serving" in done.out
    assert exported_files(copy) == [NETWORK, ITEMS]
    assert_same_answers(copy)
    assert "pass --overwrite" in refused("export", copy)


@pytest.mark.parametrize("name", EXPORT)
def test_a_damaged_export_is_refused_by_every_command(
    trained_with_index: Path, small: PreparedDataset, tmp_path: Path, name: str
) -> None:
    run = Path(shutil.copytree(trained_with_index, tmp_path / "run"))
    (run / name).write_bytes((run / name).read_bytes()[:-10])
    message = f"{run / name} does not match checksums.json"
    assert message in refused("recommend", run, "i3")
    assert message in refused("evaluate", run, small.path)
    assert message in refused("export", run, "--overwrite")


def test_item_vectors_of_another_size_are_refused_although_the_checksums_match(
    trained_with_export: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained_with_export, tmp_path / "run"))
    arrays = load((run / ITEMS).read_bytes())
    table = arrays["item_vectors"]
    for wrong in (table[:, :3], table[:, 0], table[..., None]):
        arrays["item_vectors"] = wrong.copy()
        (run / ITEMS).write_bytes(save(arrays))
        update_checksums(run)
        assert "can't be used" in refused("recommend", run, "i3", "--device", "cpu")


def fail(*_: object) -> bytes:
    raise RuntimeError("no such operator\nand more")


@pytest.mark.parametrize("absent", ["onnx", "onnxruntime", None])
def test_a_model_that_can_t_be_exported_is_trained_as_before(
    small: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    absent: str | None,
) -> None:
    reason = "(no such operator)"
    if absent:
        monkeypatch.setitem(sys.modules, absent, None)
        reason = "'posrec[serve]'"
    else:
        monkeypatch.setattr("posrec.recommend.export.onnx_model.as_onnx", fail)
    progress = RecordingProgress()
    run, _ = fit_run(small, "stamp", tmp_path / "run", TINY, "cpu", progress=progress)
    (message,) = about_the_export(progress)
    assert reason in message
    assert exported_files(run.path) == []
    assert command("recommend", run.path, "i3").code == 0


def test_a_run_with_an_export_needs_no_onnx_runtime(
    trained_with_export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    rec = open_recommender(trained_with_export)
    assert not rec.uses_onnx
    run = load_run(trained_with_export)
    expected = by_all_scores(run).recommend(["i3"], 3)
    assert items_of(rec.recommend(["i3"], 3)) == items_of(expected)


def test_a_counting_model_has_no_export(
    counted: Path, small: PreparedDataset, tmp_path: Path
) -> None:
    progress = RecordingProgress()
    run, _ = fit_run(small, "pop", tmp_path / "run", {}, "cpu", progress=progress)
    assert (about_the_export(progress), exported_files(run.path)) == ([], [])
    assert "pop is a counting model" in refused("export", counted)
    assert command("recommend", counted, "i3").err == ""


def test_a_large_catalogue_has_an_index(
    copy: Path, quick_export: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr("posrec.recommend.rank.faiss_search.LARGE", 29)
    export = ("export", copy, "--overwrite", "--set", "lists=2", "--set", "probes=2")
    for index, files in (
        ("exact", [NETWORK, ITEMS]),
        ("auto", [NETWORK, ITEMS, INDEX]),
    ):
        done = command(*export, "--set", f"index={index}")
        assert (done.code, exported_files(copy)) == (0, files), done.err
        assert_same_answers(copy)
    assert open_recommender(copy).ranker.search.kind == "faiss"
    monkeypatch.setitem(sys.modules, "faiss", None)
    done = command(*export)
    assert done.code == 0
    assert "the export has no index" in done.err
    assert exported_files(copy) == [NETWORK, ITEMS]
    assert "posrec[scale]" in refused(*export, "--set", "index=faiss")
    assert exported_files(copy) == [NETWORK, ITEMS]


def test_saving_a_recommender_writes_the_export(
    trained: Path, quick_export: None, tmp_path: Path
) -> None:
    rec = posrec.Recommender.load(trained, "cpu")
    rec.save(tmp_path / "with")
    rec.save(tmp_path / "without", export=False)
    assert exported_files(tmp_path / "with") == [NETWORK, ITEMS]
    assert exported_files(tmp_path / "without") == []
    assert_same_answers(tmp_path / "with")
    fingerprint = load_run(tmp_path / "without").fingerprint
    assert load_run(tmp_path / "with").fingerprint == fingerprint

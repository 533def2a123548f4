"""Every edit of a run's config.json that makes it unusable is an error of a line, in every command that reads it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from posrec.data.dataset import PreparedDataset
from tests.fixtures import QUICK
from tests.helpers import command, update_checksums

EDITS: dict[str, dict[str, Any]] = {
    "no model": {"model": None},
    "model a number": {"model": 5},
    "unknown model": {"model": "nonsense"},
    "another model": {"model": "sasrec"},
    "items text": {"items": "30"},
    "items a float": {"items": 30.0},
    "items null": {"items": None},
    "items zero": {"items": 0},
    "items negative": {"items": -1},
    "fewer items": {"items": 29},
    "d text": {"d": "wide"},
    "d zero": {"d": 0},
    "d negative": {"d": -16},
    "d a list": {"d": [16]},
    "heads zero": {"heads": 0},
    "heads true": {"heads": True},
    "layers huge": {"layers": 10**9},
    "max_length null": {"max_length": None},
    "max_length zero": {"max_length": 0},
    "max_length text": {"max_length": "ten"},
    "encoding unknown": {"encoding": "nonsense"},
    "encoding null": {"encoding": None},
    "lambda NaN": {"lambda1": float("nan")},
    "anchors text": {"anchors": "yes"},
    "training null": {"training": None},
    "training a list": {"training": []},
    "dataset null": {"dataset": None},
    "no schema": {"schema": None},
    "schema of the past": {"schema": 2},
    "schema of the future": {"schema": 99},
    "schema text": {"schema": "2"},
}


def edited(trained: Path, folder: Path, text: str) -> Path:
    run = Path(shutil.copytree(trained, folder / "run"))
    (run / "config.json").write_text(text)
    update_checksums(run)
    return run


def changed(trained: Path, folder: Path, change: dict[str, Any]) -> Path:
    config = json.loads((trained / "config.json").read_text())
    return edited(trained, folder, json.dumps({**config, **change}))


def refused(*arguments: object) -> None:
    done = command(*arguments)
    assert done.code == 2, done.out + done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") <= 2
    assert "/run" in done.err, done.err


@pytest.mark.parametrize("edit", EDITS)
def test_recommend_refuses_it(trained: Path, tmp_path: Path, edit: str) -> None:
    refused("recommend", changed(trained, tmp_path, EDITS[edit]), "i1")


@pytest.mark.parametrize("edit", ["training null", "dataset null", "items text", "no model", "d text"])
def test_evaluate_and_resume_refuse_it(trained: Path, small: PreparedDataset, tmp_path: Path, edit: str) -> None:
    run = changed(trained, tmp_path, EDITS[edit])
    refused("evaluate", run, small.path)
    settings = [word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")]
    refused("train", small.path, "--out", run, "--resume", "--device", "cpu", *settings)


@pytest.mark.parametrize(
    "text",
    ["", "{", "null", "[]", "5", '"text"', '{"a": NaN', "[" * 100_000, '{"a":' * 100_000, "\x00", "1" * 10_000],
    ids=range(11),
)
def test_text_that_is_not_a_config(trained: Path, tmp_path: Path, text: str) -> None:
    refused("recommend", edited(trained, tmp_path, text), "i1")


@pytest.mark.parametrize("text", ["", "null", "[]", '{"files": []}', '{"files": {"a": 1}}', '{"files": {"../a": {}}}'])
def test_text_that_is_not_a_list_of_checksums(trained: Path, tmp_path: Path, text: str) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "checksums.json").write_text(text)
    done = command("recommend", run, "i1")
    assert (done.code, "checksums.json" in done.err, "Traceback" in done.err) == (2, True, False)


def test_a_setting_that_is_missing_has_its_default_and_a_new_one_is_ignored(trained: Path, tmp_path: Path) -> None:
    """Runs of earlier and of later versions."""
    config = json.loads((trained / "config.json").read_text())
    del config["dropout"]
    run = edited(trained, tmp_path, json.dumps({**config, "invented": 7}))
    assert command("recommend", run, "i1").code == 0

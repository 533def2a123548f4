"""Every edit of a run's config.json that makes it unusable is an error of a line, in every command
that reads it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from posrec.data.dataset import PreparedDataset
from tests.fixtures import QUICK
from tests.helpers import command, update_checksums

EDITS: dict[str, list[Any]] = {
    "model": [None, 5, "nonsense", "sasrec"],
    "items": ["30", 30.0, None, 0, -1, 29],
    "d": ["wide", 0, -16, [16]],
    "heads": [0, True],
    "layers": [10**9],
    "max_length": [None, 0, "ten"],
    "encoding": ["nonsense", None],
    "lambda1": [float("nan")],
    "anchors": ["yes"],
    "training": [None, []],
    "dataset": [None],
    "schema": [None, 2, 99, "2"],
}


def edited(trained: Path, folder: Path, text: str) -> Path:
    run = Path(shutil.copytree(trained, folder / "run"))
    (run / "config.json").write_text(text)
    update_checksums(run)
    return run


def changed(trained: Path, folder: Path, key: str, value: Any) -> Path:
    config = json.loads((trained / "config.json").read_text())
    return edited(trained, folder, json.dumps({**config, key: value}))


def refused(*arguments: object) -> None:
    done = command(*arguments)
    assert done.code == 2, done.out + done.err
    assert done.err.startswith("error: ")
    assert done.err.count("\n") <= 2
    assert "/run" in done.err, done.err


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key, values in EDITS.items() for value in values],
)
def test_recommend_refuses_it(
    trained: Path, tmp_path: Path, key: str, value: Any
) -> None:
    refused("recommend", changed(trained, tmp_path, key, value), "i1")


@pytest.mark.parametrize("key", ["training", "dataset", "items", "model", "d"])
def test_evaluate_and_resume_refuse_it(
    trained: Path, small: PreparedDataset, tmp_path: Path, key: str
) -> None:
    run = changed(trained, tmp_path, key, EDITS[key][0])
    refused("evaluate", run, small.path)
    settings = [
        word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")
    ]
    refused("train", small.path, "--out", run, "--resume", "--device", "cpu", *settings)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "5",
        '"text"',
        '{"a": NaN',
        "[" * 100_000,
        '{"a":' * 100_000,
        "\x00",
        "1" * 10_000,
    ],
    ids=range(11),
)
def test_text_that_is_not_a_config(trained: Path, tmp_path: Path, text: str) -> None:
    refused("recommend", edited(trained, tmp_path, text), "i1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '{"files": []}',
        '{"files": {"a": 1}}',
        '{"files": {"../a": {}}}',
    ],
)
def test_text_that_is_not_a_list_of_checksums(
    trained: Path, tmp_path: Path, text: str
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "checksums.json").write_text(text)
    done = command("recommend", run, "i1")
    assert done.code == 2
    assert "checksums.json" in done.err
    assert "Traceback" not in done.err


def test_a_setting_that_is_missing_has_its_default_and_a_new_one_is_ignored(
    trained: Path, tmp_path: Path
) -> None:
    """Runs of earlier and of later versions."""
    config = json.loads((trained / "config.json").read_text())
    del config["dropout"]
    run = edited(trained, tmp_path, json.dumps({**config, "invented": 7}))
    assert command("recommend", run, "i1").code == 0

"""The commands and the Python of docs/recommending.md run, on a small run with their ids."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from posrec.data.vocabulary import Vocabulary
from posrec.demo.shop import make_demo
from posrec.recommend.export import onnx_model
from posrec.recommend.recommender import Recommender
from posrec.runs.run import load_run
from tests.helpers import ROOT, command, write_lines

PAGE = (ROOT / "docs" / "recommending.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained run of the tests, with the item ids of the page."""
    folder = tmp_path_factory.mktemp("docs")
    make_demo(folder / "posrec-demo")
    items = sorted(set(re.findall(r"\b[A-Z]{3}\d-[A-Z]{3}-\d\b", PAGE)))
    run = load_run(trained)
    ids = [*items, *run.vocabulary.ids[len(items) :]]
    categories = ["Tents" if item.startswith("TEN") else "Sandals" for item in ids]
    run = replace(run, vocabulary=Vocabulary(ids, {"category": categories}))
    path = folder / "posrec-demo" / "comparison" / "posrec"
    Recommender(run, "cpu").save(path, export=False)
    for name in ("sold-out.txt", "in-stock.txt"):
        write_lines(folder / name, items[:2])
    rows = ["id,expires,sold_at", *(f"{item},2026-11-20,2026-11-21" for item in items)]
    write_lines(folder / "items-of-today.csv", rows)
    lines = [json.dumps(items[:2]), json.dumps({"session": [items[2]], "id": 3})]
    write_lines(folder / "sessions.jsonl", lines)
    pl.DataFrame({"session": [items]}).write_parquet(folder / "sessions.parquet")
    return folder


def test_every_command_and_every_line_of_python_runs(
    folder: Path, exported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    # Saves a second export.
    monkeypatch.setattr(onnx_model, "as_onnx", lambda *_: exported.read_bytes())
    shown = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(shown) == 22
    for line in shown:
        done = command(*shlex.split(line)[1:])
        assert done.code == 0, f"{line}\n{done.err}"
    python = blocks("python")
    assert len(python) == 5
    for block in python:
        exec(compile(block, "docs/recommending.md", "exec"), {})

"""What docs/recommending.md shows runs: its commands and its Python, on a small run of the names it uses."""

import re
import shlex
from pathlib import Path

import polars as pl
import pytest
import torch

from posrec.data.vocabulary import Vocabulary
from posrec.demo.shop import make_demo
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.run import Run, save_run
from tests.helpers import ROOT, command, write_lines

PAGE = (ROOT / "docs" / "recommending.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    make_demo(folder / "posrec-demo")
    items = sorted(set(re.findall(r"\b[A-Z]{3}\d-[A-Z]{3}-\d\b", PAGE)))
    torch.manual_seed(0)
    model = PosRec(len(items), PosRecConfig(d=8))
    config = {"model": "posrec", "items": len(items), "d": 8}
    run = Run(folder, model, Vocabulary(items), config, torch.arange(len(items)))
    save_run(run, folder / "posrec-demo" / "comparison" / "posrec")
    for name in ("sold-out.txt", "in-stock.txt"):
        write_lines(folder / name, items[:2])
    write_lines(folder / "sessions.jsonl", [f'["{items[0]}", "{items[1]}"]', f'{{"session": ["{items[2]}"], "id": 3}}'])
    pl.DataFrame({"session": [items]}).write_parquet(folder / "sessions.parquet")
    return folder


def test_every_command_and_every_line_of_python_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    shown = [line for block in blocks("sh") for line in block.splitlines()]
    assert len(shown) == 10
    for line in shown:
        arguments = [argument if argument != "5" else "3" for argument in shlex.split(line)[1:]]  # fewer items here
        if "-k" in arguments:
            arguments[arguments.index("-k") + 1] = "3"
        done = command(*arguments)
        assert done.code == 0, f"{line}\n{done.err}"
    python = blocks("python")
    assert len(python) == 2
    for block in python:
        exec(compile(re.sub(r"k=5", "k=3", block), "docs/recommending.md", "exec"), {})

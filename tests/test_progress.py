"""Reported progress: a line for an epoch without a terminal, a bar in a notebook."""

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.progress import (
    NotebookProgress,
    Progress,
    SilentProgress,
    TerminalProgress,
    default_progress,
)
from tests.helpers import command

QUICK: dict[str, Any] = {"d": 8, "epochs": 2, "batch_size": 64, "max_length": 10}


class ZMQInteractiveShell:
    """Has the name of the shell that runs the cells of a notebook."""


class Handle:
    def __init__(self) -> None:
        self.drawn: list[str] = []

    def update(self, drawing: str) -> None:
        self.drawn.append(drawing)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Handle:
    handle = Handle()

    def display(drawing: str, display_id: bool) -> Handle:
        assert display_id
        assert handle.drawn == []
        handle.update(drawing)
        return handle

    shell: Any = SimpleNamespace(get_ipython=ZMQInteractiveShell)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    drawing: Any = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython.display", drawing)
    return handle


def test_without_a_terminal_an_epoch_is_a_line(
    small: PreparedDataset, tmp_path: Path
) -> None:
    options = ["--model=posrec", "--protocol=early-stop", "--device=cpu", "--no-export"]
    for name, value in QUICK.items():
        options += ["--set", f"{name}={value}"]
    done = command("train", small.path, "--out", tmp_path / "run", *options)
    first, second = done.err.splitlines()
    epoch = (
        r"epoch {} of 2: loss \d+\.\d{{3}}, \d+\.\d s, mrr@20 \d+\.\d\d on validation"
    )
    assert re.fullmatch(epoch.format(1), first)
    assert re.fullmatch(epoch.format(2), second)


@pytest.mark.parametrize("kind", [Progress, TerminalProgress])
def test_long_work_without_a_terminal_is_a_line_every_half_minute(
    kind: type[Progress],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = 1000.0
    monkeypatch.setattr("posrec.progress.time.monotonic", lambda: now)
    progress = kind()
    for second in range(0, 100, 7):
        now = 1000.0 + second
        epoch = 1 if second < 60 else 2
        progress.update(f"Epoch {epoch} of 2", second, 100, "loss 5.100")
    assert capsys.readouterr().err.splitlines() == [
        "Epoch 1 of 2: 35%, loss 5.100",
        "Epoch 2 of 2: 70%, loss 5.100",
    ]
    SilentProgress().update("Epoch", 1, 0)
    assert capsys.readouterr().err == ""


def test_a_notebook_has_a_bar(
    small: PreparedDataset, notebook: Handle, capsys: pytest.CaptureFixture[str]
) -> None:
    posrec.fit(small, "posrec", "cpu", **QUICK)
    bar = r'Epoch 1 of 2 <progress value="\d+" max="\d+"></progress> loss \d'
    assert re.match(bar, notebook.drawn[0])
    assert notebook.drawn[-1].startswith("Evaluating ")
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_a_bar_is_not_drawn_at_every_step(notebook: Handle) -> None:
    progress = NotebookProgress()
    progress.INTERVAL = 1e9
    for done in range(1, 101):
        progress.update("Epoch <1>", done, 100)
    assert notebook.drawn == [
        f'Epoch &lt;1&gt; <progress value="{done}" max="100"></progress> '
        for done in (1, 100)
    ]


def test_a_terminal_of_ipython_is_not_a_notebook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell: Any = SimpleNamespace(get_ipython=lambda: None)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert type(default_progress()) is Progress
    monkeypatch.delitem(sys.modules, "IPython")
    assert type(default_progress()) is Progress

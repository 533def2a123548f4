"""The training log, and the same figures in TensorBoard's files."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers import command, fitted
from tests.training.runs import log_of

from posrec.data.dataset import PreparedDataset
from posrec.errors import RunStopped
from posrec.progress import SilentProgress
from posrec.training.training_log import EVENTS, LOG

SETTINGS = {
    "d": 16,
    "epochs": 3,
    "batch_size": 64,
    "learning_rate": 0.01,
    "decay_every": 2,
    "max_length": 10,
    "protocol": "early-stop",
    "patience": 9,
}


def points(run: Path) -> dict[str, list[tuple[int, Any]]]:
    """Every scalar's course, as TensorBoard reads it."""
    loading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator"
    )
    events = loading.EventAccumulator(str(run / EVENTS)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_has_the_figures_of_the_log(
    small: PreparedDataset, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    fitted(small, "posrec", run, SETTINGS, track=True)
    log = log_of(run)
    trained = [entry for entry in log if "loss" in entry]
    validated = [entry["validation"] for entry in log if "validation" in entry]
    scalars = points(run)
    for name in ("loss", "learning_rate", "samples_per_second"):
        logged = [(entry["epoch"], pytest.approx(entry[name])) for entry in trained]
        assert scalars[name] == logged
    for name, value in validated[1].items():
        assert scalars[f"validation/{name}"][1] == (2, pytest.approx(value))
    steps = -(-len(small.fitting) // 64)
    by_step = scalars["loss/step"]
    assert [step for step, _ in by_step] == list(range(1, 3 * steps + 1))
    mean = sum(loss for _, loss in by_step[:steps]) / steps
    assert mean == pytest.approx(trained[0]["loss"], rel=1e-5)


class StopInSecondEpoch(SilentProgress):
    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        if work.startswith("Epoch 2 "):
            os.kill(os.getpid(), signal.SIGTERM)


def test_what_was_logged_after_the_last_checkpoint_is_not_logged_twice(
    small: PreparedDataset, tmp_path: Path
) -> None:
    """As after `kill -9` between the line of an epoch and its checkpoint, and within the next
    line."""
    run = tmp_path / "run"
    with pytest.raises(RunStopped):
        fitted(small, "posrec", run, SETTINGS, progress=StopInSecondEpoch())
    before = (run / LOG).read_text()
    with (run / LOG).open("a") as file:
        file.write('{"epoch": 2, "loss": 1.5}\n{"epoch": 2, "valid')
    fitted(small, "posrec", run, SETTINGS, resume=True)
    assert (run / LOG).read_text().startswith(before)
    lines = log_of(run)
    assert [line["epoch"] for line in lines] == [1, 1, 2, 2, 3, 3]
    assert ["loss" in line for line in lines] == [True, False] * 3
    assert lines[2]["loss"] != 1.5


def test_the_command_says_what_to_install(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    done = command("train", small.path, "--out", tmp_path / "run", "--track")
    assert (done.code, "posrec[track]" in done.err) == (2, True)
    assert not (tmp_path / "run").exists()

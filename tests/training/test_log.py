"""The training log, and the same figures in TensorBoard's files."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.helpers import command

from posrec.data.dataset import PreparedDataset
from posrec.errors import RunStopped
from posrec.fitting.fit import fit_run
from posrec.progress import SilentProgress
from posrec.training.training_log import EVENTS, LOG

QUICK = {
    "d": 16,
    "epochs": 3,
    "batch_size": 64,
    "learning_rate": 0.01,
    "decay_every": 2,
    "max_length": 10,
}


def points(run: Path) -> dict[str, list[tuple[int, float]]]:
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
    settings = {**QUICK, "protocol": "early-stop", "patience": 9}
    fit_run(
        small,
        "posrec",
        tmp_path / "run",
        settings,
        "cpu",
        progress=SilentProgress(),
        track=True,
        export=False,
    )
    log = [
        json.loads(line) for line in (tmp_path / "run" / LOG).read_text().splitlines()
    ]
    trained = [e for e in log if "loss" in e]
    validated = [e["validation"] for e in log if "validation" in e]
    found = points(tmp_path / "run")
    for name in ("loss", "learning_rate", "samples_per_second"):
        assert found[name] == [(e["epoch"], pytest.approx(e[name])) for e in trained]
    for name, value in validated[1].items():
        assert found[f"validation/{name}"][1] == (2, pytest.approx(value))
    steps = -(-len(small.fitting) // 64)
    assert [step for step, _ in found["loss/step"]] == list(range(1, 3 * steps + 1))
    first_epoch = [loss for step, loss in found["loss/step"] if step <= steps]
    assert sum(first_epoch) / steps == pytest.approx(trained[0]["loss"], rel=1e-5)


class StopInSecondEpoch(SilentProgress):
    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        if work.startswith("Epoch 2 "):
            os.kill(os.getpid(), signal.SIGTERM)


def test_what_was_logged_after_the_last_checkpoint_is_not_logged_twice(
    small: PreparedDataset, tmp_path: Path
) -> None:
    """As after `kill -9` between the line of an epoch and its checkpoint, and within the next line."""
    run = tmp_path / "run"
    settings = {**QUICK, "protocol": "early-stop", "patience": 9}
    with pytest.raises(RunStopped):
        fit_run(small, "posrec", run, settings, "cpu", progress=StopInSecondEpoch())
    first = (run / LOG).read_text()
    with (run / LOG).open("a") as file:
        file.write('{"epoch": 2, "loss": 1.5}\n{"epoch": 2, "valid')
    fit_run(
        small,
        "posrec",
        run,
        settings,
        "cpu",
        progress=SilentProgress(),
        resume=True,
        export=False,
    )
    assert (run / LOG).read_text().startswith(first)
    lines = [json.loads(line) for line in (run / LOG).read_text().splitlines()]
    assert [(line["epoch"], "loss" in line) for line in lines] == [
        (1, True), (1, False), (2, True), (2, False), (3, True), (3, False),
    ]  # fmt: skip
    assert lines[2]["loss"] != 1.5


def test_the_command_says_what_to_install(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    done = command("train", small.path, "--out", tmp_path / "run", "--track")
    assert (done.code, "pip install 'posrec[track]'" in done.err) == (2, True)
    assert not (tmp_path / "run").exists()

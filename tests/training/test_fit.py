"""Whole training runs: learning, bit-identical repeats, stopping and resuming, errors."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, RunFailed
from posrec.evaluation.metrics import rank_metrics
from posrec.fitting.fit import fit as fit_in_memory
from posrec.io import STATE, WEIGHTS, load_tensors
from posrec.progress import SilentProgress
from posrec.runs.run import load_run
from posrec.testing import same
from posrec.training.epoch import EpochOrder, EpochRunner
from posrec.training.loop import evaluate_on
from posrec.training.tracking import EVENTS
from tests.helpers import fitted, started
from tests.training.runs import log_of, weights_of

QUICK = {
    "d": 16,
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 0.01,
    "max_length": 10,
    "dropout": 0.1,
}


def fit(data: PreparedDataset, out: Path, resume: bool = False, **changes: Any) -> Path:
    run, _ = fitted(data, "posrec", out, {**QUICK, **changes}, resume=resume)
    return run.path


@pytest.fixture(scope="module")
def uncut(small: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped; for reading only."""
    return fit(small, tmp_path_factory.mktemp("uncut") / "run")


def test_the_files_of_a_run_agree_with_its_evaluation(
    small: PreparedDataset, uncut: Path
) -> None:
    metrics = json.loads((uncut / "metrics.json").read_text())
    ranks = torch.from_numpy(np.load(uncut / "ranks.npy", allow_pickle=False))
    assert metrics["samples"] == len(small.test) == len(ranks)
    assert metrics["recall@10"] == pytest.approx(rank_metrics(ranks)["recall@10"])
    log = log_of(uncut)
    assert [entry["epoch"] for entry in log] == [1, 2, 3]
    assert [entry["learning_rate"] for entry in log] == pytest.approx([0.01] * 3)
    assert log[-1]["loss"] < log[0]["loss"]
    assert not (uncut / EVENTS).exists()  # it was not tracked
    opened = load_run(uncut)
    assert opened.vocabulary.ids == small.vocabulary.ids
    assert not opened.model.training


SLOW_COMMAND = """
import time
from posrec.cli import main
from posrec.training.epoch import EpochRunner

run = EpochRunner.run
def slowly(self, order, step):
    time.sleep(0.01)
    print("step", flush=True)
    return run(self, order, step)
EpochRunner.run = slowly
main()
"""


def start(data: PreparedDataset, out: Path, *more: str) -> subprocess.Popen[str]:
    """The real command, slowed down a little, printing a line for each step."""
    settings = [f"--set={name}={value}" for name, value in QUICK.items()]
    words = ("train", data.path, "--model", "posrec", "--out", out, "--device", "cpu")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return started(*words, "--no-export", *settings, *more, code=SLOW_COMMAND, **pipes)


@pytest.mark.slow
@pytest.mark.process
def test_a_run_stopped_three_times_ends_with_the_weights_of_an_uncut_one(
    small: PreparedDataset, uncut: Path, tmp_path: Path
) -> None:
    """Ctrl-C and SIGTERM save a checkpoint; after a kill the run is resumed from its latest one."""
    cut = tmp_path / "cut"
    stops = [(signal.SIGINT, 5), (signal.SIGTERM, 20), (signal.SIGKILL, 30)]
    resume: tuple[str, ...] = ()
    for number, steps in stops:
        process = start(small, cut, *resume)
        resume = ("--resume",)
        assert process.stdout is not None
        for _ in range(steps):
            assert process.stdout.readline() == "step\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=240)
        assert not (cut / WEIGHTS).exists()
        assert (cut / STATE).exists()
        if number == signal.SIGKILL:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 130
            assert "--resume" in errors
            assert "Traceback" not in errors
    resumed = start(small, cut, "--resume")
    _, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    assert same(weights_of(uncut), weights_of(cut))


def test_without_checkpoints_a_run_has_the_same_files_and_weights(
    small: PreparedDataset, uncut: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    fitted(small, "posrec", run, QUICK, resumable=False)
    files = {path.name for path in run.iterdir()}
    assert files | {STATE} == {path.name for path in uncut.iterdir()}
    assert STATE not in files
    assert same(weights_of(uncut), weights_of(run))


def test_resume_is_refused_with_another_setting_or_dataset(
    small: PreparedDataset, other: PreparedDataset, uncut: Path
) -> None:
    with pytest.raises(InputError, match=r"lambda2 was 1\.0, is 0\.5"):
        fit(small, uncut, resume=True, lambda2=0.5)
    with pytest.raises(InputError, match="dataset was"):
        fit(other, uncut, resume=True)
    with pytest.raises(InputError, match="holds a run already"):
        fit(small, uncut)


def test_a_loss_that_is_not_a_number_stops_the_run_and_names_the_step(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = EpochRunner.run
    calls = []

    def poisoned(self: EpochRunner, order: EpochOrder, step: int) -> torch.Tensor:
        calls.append(step)
        losses = run(self, order, step)
        return losses * torch.nan if len(calls) == order.steps + 4 else losses

    monkeypatch.setattr(EpochRunner, "run", poisoned)
    with pytest.raises(RunFailed, match="not a number at step 4 of epoch 2"):
        fit(small, tmp_path / "run")
    tensors, progress = load_tensors(tmp_path / "run" / STATE)
    assert progress["epoch"] == 1
    assert all(tensor.double().isfinite().all() for tensor in tensors.values())


@pytest.mark.parametrize("error", [RunFailed("at once"), KeyboardInterrupt()])
def test_a_run_that_fails_before_its_first_checkpoint_removes_its_folder(
    small: PreparedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    before = fit(small, tmp_path / "before", epochs=1)
    # As a process leaves it that is killed before its first checkpoint.
    (before / WEIGHTS).unlink()
    (before / STATE).unlink()

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("posrec.training.loop.Training.run", fail)
    for resume in (False, True):
        with pytest.raises(type(error)):
            fit(small, tmp_path / "run", resume)
        assert not (tmp_path / "run").exists()
    with pytest.raises(type(error)):
        fit(small, before, resume=True, epochs=1)
    # A run that was there before the call is never removed.
    assert (before / "config.json").exists()


def test_early_stop_chooses_on_validation_and_keeps_the_best(
    small: PreparedDataset, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"epochs": 40, "patience": 2, "learning_rate": 0.03}
    run = fit(small, tmp_path / "run", protocol="early-stop", **settings)
    validated = [entry["validation"] for entry in log_of(run) if "validation" in entry]
    scores = [metrics["mrr@20"] for metrics in validated]
    assert len(scores) < 40
    best = max(range(len(scores)), key=lambda epoch: scores[epoch])
    assert len(scores) - 1 - best == 2
    model = load_run(run).model
    cpu = torch.device("cpu")
    again = evaluate_on(model, small, small.validation, cpu, SilentProgress())
    assert again.metrics["mrr@20"] == pytest.approx(scores[best])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("lamda2", "1", "no setting 'lamda2'"),
        ("epochs", "many", "epochs must be a whole number, not .many."),
        ("anchors", "perhaps", "anchors must be true or false, not .perhaps."),
        ("epochs", 0, "epochs must be at least 1, not 0"),
        ("learning_rate", 0, "learning_rate must be above 0, not 0"),
        ("learning_rate", "inf", "learning_rate must be a finite number, not inf"),
        ("decay", 1.5, "decay must be above 0 and at most 1, not 1.5"),
        ("decay", "nan", "decay must be a finite number, not nan"),
        ("loss", "hinge", "loss must be one of auto, full, .*, not 'hinge'"),
        ("protocol", "best", "protocol must be one of paper, .*, not 'best'"),
        ("heads", 3, "heads=3 must divide"),
        ("encoding", "abc", "encoding='abc' is not known"),
    ],
)
def test_wrong_settings_are_refused(
    small: PreparedDataset, tmp_path: Path, name: str, value: object, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fitted(small, "posrec", tmp_path / "run", {name: value})
    assert not (tmp_path / "run" / WEIGHTS).exists()


def test_a_folder_in_place_of_a_dataset_is_refused(small: PreparedDataset) -> None:
    with pytest.raises(InputError, match=r"posrec\.load .* not str$"):
        fit_in_memory(str(small.path))  # type: ignore[arg-type]

"""Whole training runs: learning, bit-identical repeats, stopping and resuming, errors."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, RunFailed
from posrec.evaluation.metrics import rank_metrics
from posrec.fitting.fit import fit as fit_in_memory
from posrec.fitting.fit import fit_run
from posrec.io import STATE, WEIGHTS, load_tensors
from posrec.progress import SilentProgress
from posrec.runs.run import load_run
from posrec.testing import same
from posrec.training.epoch import EpochRunner
from posrec.training.training_log import EVENTS

QUICK = {
    "d": 16,
    "epochs": 3,
    "batch_size": 32,
    "learning_rate": 0.01,
    "max_length": 10,
    "dropout": 0.1,
}


def fit(data: PreparedDataset, out: Path, **changes):
    return fit_run(
        data,
        "posrec",
        out,
        {**QUICK, **changes},
        "cpu",
        progress=SilentProgress(),
        export=False,
    )


@pytest.fixture(scope="module")
def whole(small: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was never stopped; for reading only."""
    run, _ = fit(small, tmp_path_factory.mktemp("whole") / "run")
    return run.path


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_tensors(run / WEIGHTS)[0]


def test_the_files_of_a_run_agree_with_its_evaluation(
    small: PreparedDataset, whole: Path
) -> None:
    metrics = json.loads((whole / "metrics.json").read_text())
    ranks = torch.from_numpy(np.load(whole / "ranks.npy", allow_pickle=False))
    assert metrics["samples"] == len(small.test) == len(ranks)
    assert metrics["recall@10"] == pytest.approx(rank_metrics(ranks)["recall@10"])
    log = [json.loads(line) for line in (whole / "log.jsonl").read_text().splitlines()]
    assert [entry["epoch"] for entry in log] == [1, 2, 3]
    assert [entry["learning_rate"] for entry in log] == pytest.approx(
        [0.01, 0.01, 0.01]
    )
    assert log[-1]["loss"] < log[0]["loss"]
    assert not (whole / EVENTS).exists()  # it was not tracked
    opened = load_run(whole)
    assert opened.vocabulary.ids == small.vocabulary.ids
    assert not opened.model.training


COMMAND = """
import sys, time
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
    settings = [
        word for key, value in QUICK.items() for word in ("--set", f"{key}={value}")
    ]
    words = ["train", str(data.path), "--model", "posrec", "--out", str(out), "--device", "cpu", "--no-export",
             *settings, *more]  # fmt: skip
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], stdout=pipe, stderr=pipe, text=True
    )


def wait_for_steps(process: subprocess.Popen[str], steps: int) -> None:
    assert process.stdout is not None
    for _ in range(steps):
        assert process.stdout.readline() == "step\n"


@pytest.mark.slow
@pytest.mark.process
def test_a_run_stopped_three_times_ends_with_the_weights_of_a_whole_one(
    small: PreparedDataset, whole: Path, tmp_path: Path
) -> None:
    """Ctrl-C and SIGTERM save a checkpoint; after a kill the run is resumed from its latest one."""
    stops = [(signal.SIGINT, 5), (signal.SIGTERM, 20), (signal.SIGKILL, 30)]
    for number, steps in stops:
        process = start(
            small, tmp_path / "cut", *(() if number == signal.SIGINT else ("--resume",))
        )
        wait_for_steps(process, steps)
        process.send_signal(number)
        _, errors = process.communicate(timeout=240)
        assert process.returncode == (
            -signal.SIGKILL if number == signal.SIGKILL else 130
        )
        assert not (tmp_path / "cut" / WEIGHTS).exists()
        assert (tmp_path / "cut" / STATE).exists()
        if number != signal.SIGKILL:
            assert "--resume" in errors
            assert "Traceback" not in errors
    resumed = start(small, tmp_path / "cut", "--resume")
    _, errors = resumed.communicate(timeout=240)
    assert resumed.returncode == 0, errors
    assert same(weights(whole), weights(tmp_path / "cut"))


def test_without_checkpoints_a_run_has_the_same_files_and_weights(
    small: PreparedDataset, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    fit_run(
        small,
        "posrec",
        run,
        QUICK,
        "cpu",
        progress=SilentProgress(),
        resumable=False,
        export=False,
    )
    assert {path.name for path in whole.iterdir()} - {STATE} == {
        path.name for path in run.iterdir()
    }
    assert same(weights(whole), weights(run))


def test_resume_is_refused_with_another_setting_or_dataset(
    small: PreparedDataset, other: PreparedDataset, whole: Path
) -> None:
    with pytest.raises(InputError, match=r"can't be resumed.*lambda2 was 1.0, is 0.5"):
        fit_run(
            small,
            "posrec",
            whole,
            {**QUICK, "lambda2": 0.5},
            "cpu",
            True,
            SilentProgress(),
        )
    with pytest.raises(InputError, match="dataset was"):
        fit_run(other, "posrec", whole, QUICK, "cpu", True, SilentProgress())
    with pytest.raises(InputError, match="holds a run already"):
        fit(small, whole)


def test_a_loss_that_is_not_a_number_stops_the_run_and_names_the_step(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = EpochRunner.run
    calls = []

    def poisoned(self: EpochRunner, order, step: int):
        calls.append(step)
        return run(self, order, step) * (
            float("nan") if len(calls) == order.steps + 4 else 1
        )

    monkeypatch.setattr(EpochRunner, "run", poisoned)
    with pytest.raises(RunFailed, match="not a number at step 4 of epoch 2"):
        fit(small, tmp_path / "run")
    kept, progress = load_tensors(tmp_path / "run" / STATE)
    assert progress["epoch"] == 1
    assert all(tensor.double().isfinite().all() for tensor in kept.values())


def test_a_run_that_fails_before_its_first_checkpoint_removes_its_folder(
    small: PreparedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(small, tmp_path / "before")
    for name in (
        WEIGHTS,
        STATE,
    ):  # as a process leaves it that is killed before its first checkpoint
        (tmp_path / "before" / name).unlink()
    for error in (RunFailed("at once"), KeyboardInterrupt()):

        def fail(*_: object, error: BaseException = error, **options: object) -> None:
            raise error

        monkeypatch.setattr("posrec.training.loop.Training.run", fail)
        for resume in (False, True):
            with pytest.raises(type(error)):
                fit_run(
                    small,
                    "posrec",
                    tmp_path / "run",
                    QUICK,
                    "cpu",
                    resume=resume,
                    progress=SilentProgress(),
                )
            assert not (tmp_path / "run").exists()
        with pytest.raises(type(error)):
            fit_run(
                small,
                "posrec",
                tmp_path / "before",
                QUICK,
                "cpu",
                resume=True,
                progress=SilentProgress(),
            )
        assert (
            tmp_path / "before" / "config.json"
        ).exists()  # a run that was there before the call is never removed


def test_early_stop_chooses_on_validation_and_keeps_the_best(
    small: PreparedDataset, tmp_path: Path
) -> None:
    fit(
        small,
        tmp_path / "run",
        protocol="early-stop",
        epochs=40,
        patience=2,
        learning_rate=0.03,
    )
    log = [
        json.loads(line)
        for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    ]
    scores = [entry["validation"]["mrr@20"] for entry in log if "validation" in entry]
    assert len(scores) < 40
    best = max(range(len(scores)), key=lambda epoch: scores[epoch])
    assert len(scores) - 1 - best == 2
    from posrec.training.loop import evaluate_on

    opened = load_run(tmp_path / "run")
    again = evaluate_on(
        opened.model, small, small.validation, torch.device("cpu"), SilentProgress()
    )
    assert again.metrics["mrr@20"] == pytest.approx(scores[best])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lamda2": "1"}, "no setting 'lamda2'"),
        ({"epochs": "many"}, "epochs must be a whole number, not .many."),
        ({"anchors": "perhaps"}, "anchors must be true or false, not .perhaps."),
        ({"epochs": 0}, "epochs must be at least 1, not 0"),
        ({"learning_rate": 0}, "learning_rate must be above 0, not 0"),
        ({"learning_rate": "inf"}, "learning_rate must be a finite number, not inf"),
        ({"decay": 1.5}, "decay must be above 0 and at most 1, not 1.5"),
        ({"decay": "nan"}, "decay must be a finite number, not nan"),
        (
            {"loss": "hinge"},
            "loss must be one of auto, full, chunked, sampled, bpr, .*, not 'hinge'",
        ),
        (
            {"protocol": "best"},
            "protocol must be one of paper, early-stop, refit, not 'best'",
        ),
        ({"heads": 3}, "heads=3 must divide"),
        ({"encoding": "abc"}, "encoding='abc' is not known"),
    ],
)
def test_wrong_settings_are_refused(
    small: PreparedDataset, tmp_path: Path, settings: dict, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        fit_run(
            small,
            "posrec",
            tmp_path / "run",
            settings,
            "cpu",
            progress=SilentProgress(),
        )
    assert not (tmp_path / "run" / WEIGHTS).exists()


def test_a_folder_in_place_of_a_dataset_is_refused(small: PreparedDataset) -> None:
    with pytest.raises(
        InputError,
        match=r"must be what posrec\.load or posrec\.prepare returns, not str$",
    ):
        fit_in_memory(str(small.path))  # type: ignore[arg-type]

"""The training log, and the same figures in TensorBoard's files."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, RunStopped
from posrec.progress import SilentProgress
from posrec.recommend.recommender import Recommender
from posrec.training.tracking import EVENTS, MLFLOW_RUN
from posrec.training.training_log import LOG
from tests.helpers import RecordingProgress, command, fitted
from tests.training.runs import log_of

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
    fitted(small, "posrec", run, SETTINGS, track="tensorboard")
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
    done = command(
        "train", small.path, "--out", tmp_path / "run", "--track", "tensorboard"
    )
    assert (done.code, "posrec[track]" in done.err) == (2, True)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """With a store of files, in an experiment of its own. It asks `uname` for the machine."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/store")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "shop")
    return mlflow


def tracked_run(mlflow: Any) -> Any:
    (found,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    return found


@pytest.mark.process
def test_mlflow_has_the_settings_the_figures_and_the_run(
    small: PreparedDataset, tmp_path: Path, mlflow: Any
) -> None:
    run = tmp_path / "tonight"
    _, evaluation = fitted(small, "posrec", run, SETTINGS, track="mlflow")
    found = tracked_run(mlflow)
    assert (found.info.status, found.info.run_name) == ("FINISHED", "tonight")
    assert mlflow.get_experiment(found.info.experiment_id).name == "shop"
    settings = {"model": "posrec", "d": "16", "training.epochs": "3"}
    assert settings.items() <= found.data.params.items()
    client = mlflow.MlflowClient()
    losses = [entry for entry in log_of(run) if "loss" in entry]
    history = client.get_metric_history(found.info.run_id, "loss")
    assert [(point.step, point.value) for point in history] == [
        (entry["epoch"], entry["loss"]) for entry in losses
    ]
    recall = found.data.metrics["test/recall_at_20"]
    assert recall == pytest.approx(evaluation.metrics["recall@20"])
    assert "validation/recall_at_20" in found.data.metrics
    copy = client.download_artifacts(found.info.run_id, "run", str(tmp_path))
    session = ["i1", "i2"]
    again = Recommender.load(copy, "cpu").recommend(session)
    assert again == Recommender.load(run, "cpu").recommend(session)


@pytest.mark.process
def test_a_resumed_training_goes_on_in_its_run_of_mlflow(
    small: PreparedDataset, tmp_path: Path, mlflow: Any
) -> None:
    run = tmp_path / "run"
    stopping = {"progress": StopInSecondEpoch(), "track": "mlflow"}
    with pytest.raises(RunStopped):
        fitted(small, "posrec", run, SETTINGS, **stopping)
    stopped = tracked_run(mlflow)
    assert stopped.info.status == "KILLED"
    fitted(small, "posrec", run, SETTINGS, resume=True, track="mlflow")
    resumed = tracked_run(mlflow)
    assert resumed.info.run_id == stopped.info.run_id
    assert resumed.info.status == "FINISHED"
    epochs = mlflow.MlflowClient().get_metric_history(resumed.info.run_id, "loss")
    assert [point.step for point in epochs] == [1, 2, 3]


@pytest.mark.process
def test_a_store_of_mlflow_that_can_not_be_used_is_an_input_error(
    small: PreparedDataset,
    tmp_path: Path,
    mlflow: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE")
    with pytest.raises(InputError, match="MLFLOW_TRACKING_URI"):
        fitted(small, "posrec", tmp_path / "run", SETTINGS, track="mlflow")
    assert not (tmp_path / "run").exists()


@pytest.mark.process
def test_what_mlflow_does_not_take_does_not_end_the_training(
    small: PreparedDataset,
    tmp_path: Path,
    mlflow: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise mlflow.MlflowException("the server is down")

    monkeypatch.setattr(mlflow.MlflowClient, "log_artifact", refuse)
    progress = RecordingProgress()
    run = tmp_path / "run"
    fitted(small, "posrec", run, SETTINGS, progress=progress, track="mlflow")
    assert (run / MLFLOW_RUN).exists()
    assert any("the server is down" in message for message in progress.messages)


def test_an_unknown_tracker_is_an_input_error(
    small: PreparedDataset, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="one of tensorboard, mlflow, not 'wandb'"):
        fitted(small, "posrec", tmp_path / "run", SETTINGS, track="wandb")
    assert not (tmp_path / "run").exists()

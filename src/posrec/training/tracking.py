"""Experiment tracking with `--track`: the figures of a training for TensorBoard or MLflow."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posrec.errors import InputError, RunStopped, first_line, imported
from posrec.io import RUN, read_json, write_text
from posrec.progress import Progress

EVENTS = "tensorboard"
MLFLOW_RUN = "mlflow.txt"  # its id, so that a resumed training goes on there
# The module that each needs, and the extra that installs it.
TRACKERS = {
    "tensorboard": ("torch.utils.tensorboard", "track"),
    "mlflow": ("mlflow", "mlflow"),
}


class Tracker:
    """Logs nothing."""

    def point(self, name: str, value: float, at: int) -> None:
        """A figure after so many steps."""

    def epoch(self, values: Mapping[str, float], epoch: int) -> None:
        """The figures after an epoch."""

    def finish(self, metrics: Mapping[str, float], files: Sequence[Path]) -> None:
        """The metrics on the test part, and the files of the run."""

    def close(self, status: str) -> None:
        pass


class TensorBoard(Tracker):
    """Writes scalars into the folder `tensorboard` of the run."""

    def __init__(self, run: Path) -> None:
        tensorboard = require_tracker("tensorboard")
        self.events = tensorboard.SummaryWriter(str(run / EVENTS))

    def point(self, name: str, value: float, at: int) -> None:
        self.events.add_scalar(name, value, at)

    def epoch(self, values: Mapping[str, float], epoch: int) -> None:
        for name, value in values.items():
            self.point(name, value, epoch)

    def close(self, status: str) -> None:
        self.events.close()


class MLflow(Tracker):
    """Logs to the server and experiment that MLflow's own variables name. Once the training has
    begun, what can't be logged is only reported."""

    def __init__(self, run: Path, progress: Progress) -> None:
        mlflow = require_tracker("mlflow")
        self.mlflow = mlflow
        self.progress = progress
        file = run / MLFLOW_RUN
        known = file.read_text(encoding="utf-8") if file.exists() else None
        try:
            self.client = mlflow.MlflowClient()
            # Nested, if the caller has begun a run of MLflow.
            begun = mlflow.start_run(known, run_name=run.name, nested=True)
            if known is None:
                mlflow.log_params(flat(read_json(run / RUN)))
        except mlflow.MlflowException as error:
            mlflow.end_run("FAILED")
            raise InputError(
                f"MLflow at {mlflow.get_tracking_uri()} can't be used ({first_line(error)}); "
                "MLFLOW_TRACKING_URI names another"
            ) from None
        self.id: str = begun.info.run_id
        write_text(file, self.id)

    def attempt(self, log: Callable[..., object], *arguments: Any) -> None:
        try:
            log(*arguments)
        except Exception as error:  # MLflow's, and those of what carries its requests
            self.progress.message(
                f"warning: MLflow did not take what was logged: {first_line(error)}"
            )

    def epoch(self, values: Mapping[str, float], epoch: int) -> None:
        now = int(time.time() * 1000)
        metric = self.mlflow.entities.Metric
        # A name can't have the sign of recall@20.
        metrics = [
            metric(name.replace("@", "_at_"), value, now, epoch)
            for name, value in values.items()
        ]
        self.attempt(self.client.log_batch, self.id, metrics)

    def finish(self, metrics: Mapping[str, float], files: Sequence[Path]) -> None:
        tested = {f"test/{name}": value for name, value in metrics.items()}
        self.epoch(tested, 0)
        for file in files:
            self.attempt(self.client.log_artifact, self.id, str(file), "run")

    def close(self, status: str) -> None:
        self.attempt(self.mlflow.end_run, status)


def flat(config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """
    >>> flat({"d": 8, "training": {"epochs": 4, "betas": [0.9, 0.98]}})
    {'d': 8, 'training.epochs': 4, 'training.betas': '[0.9, 0.98]'}
    """
    settings: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict):
            settings |= flat(value, f"{before}{name}.")
        else:
            is_list = isinstance(value, list)
            settings[before + name] = json.dumps(value) if is_list else value
    return settings


def require_tracker(kind: str) -> Any:
    """The tracker's module; an InputError if there is no such tracker, or it is not installed."""
    if kind not in TRACKERS:
        raise InputError(f"track must be one of {', '.join(TRACKERS)}, not {kind!r}")
    module, extra = TRACKERS[kind]
    return imported(module, f"--track {kind}", extra)


@contextmanager
def tracking(kind: str | None, run: Path, progress: Progress) -> Iterator[Tracker]:
    tracker = Tracker()
    if kind == "tensorboard":
        tracker = TensorBoard(run)
    elif kind == "mlflow":
        tracker = MLflow(run, progress)
    status = "FAILED"
    try:
        yield tracker
        status = "FINISHED"
    except (RunStopped, KeyboardInterrupt):
        status = "KILLED"
        raise
    finally:
        tracker.close(status)

"""Experiment tracking with `--track`: the figures of a training for TensorBoard or MLflow."""

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
# The module of each tracker, and the extra that installs it.
MODULES = {
    "tensorboard": ("torch.utils.tensorboard", "track"),
    "mlflow": ("mlflow", "mlflow"),
}


class Tracker:
    """Logs nothing."""

    def point(self, name: str, value: float, step: int) -> None:
        pass

    def epoch(self, values: Mapping[str, float], epoch: int) -> None:
        pass

    def finish(self, metrics: Mapping[str, float], files: Sequence[Path]) -> None:
        """`metrics` on the test part, `files` of the run."""

    def close(self, status: str) -> None:
        pass


class TensorBoard(Tracker):
    """Writes scalars into the folder `tensorboard` of the run."""

    def __init__(self, run: Path) -> None:
        self.events = module_of("tensorboard").SummaryWriter(str(run / EVENTS))

    def point(self, name: str, value: float, step: int) -> None:
        self.events.add_scalar(name, value, step)

    def epoch(self, values: Mapping[str, float], epoch: int) -> None:
        for name, value in values.items():
            self.point(name, value, epoch)

    def close(self, status: str) -> None:
        self.events.close()


class MLflow(Tracker):
    """Logs where MLflow's own variables say. Once it has begun, a failure is only reported."""

    def __init__(self, run: Path, progress: Progress) -> None:
        mlflow = module_of("mlflow")
        self.mlflow = mlflow
        self.progress = progress
        file = run / MLFLOW_RUN
        known = file.read_text(encoding="utf-8") if file.exists() else None
        settings = read_json(run / RUN)
        for name, value in settings.pop("training").items():
            settings[f"training.{name}"] = value
        try:
            # Nested, if the caller has begun a run of MLflow.
            begun = mlflow.start_run(known, run_name=run.name, nested=True)
            if known is None:
                mlflow.log_params(settings)
            self.client = mlflow.MlflowClient()
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
        self.epoch({f"test/{name}": value for name, value in metrics.items()}, 0)
        for file in files:
            self.attempt(self.client.log_artifact, self.id, str(file), "run")

    def close(self, status: str) -> None:
        self.attempt(self.mlflow.end_run, status)


def module_of(kind: str) -> Any:
    """An InputError if there is no such tracker, or it is not installed."""
    if kind not in MODULES:
        raise InputError(f"track must be one of {', '.join(MODULES)}, not {kind!r}")
    module, extra = MODULES[kind]
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

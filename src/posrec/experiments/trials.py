"""The trials of a search for settings: one after the other in this process, or many at a time on a Ray cluster.

Optuna's study stays in this process, and every trial is kept in it when it ends. A Ray task gets the settings of its
trial and the trials that had finished when it began, and compares itself with these to know whether to stop early.
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posrec.config import Choices, Range, SearchSpace, split_settings
from posrec.data.dataset import PreparedDataset, load_once
from posrec.device import choose_device
from posrec.errors import RunFailed, not_installed
from posrec.fitting.fit import network_builder
from posrec.models.base import CountingModel, SessionModel
from posrec.models.registry import ModelSpec
from posrec.progress import Progress, SilentProgress
from posrec.training.distributed.world import World
from posrec.training.loop import Place, evaluate_on, train
from posrec.training.settings import Settings

if TYPE_CHECKING:
    from posrec.io.executor import Cluster

STARTING = 4  # trials that are never stopped early, so that there is a median to compare with
FAILURES = (RunFailed, torch.OutOfMemoryError)  # of a trial, which the search survives


@dataclass(frozen=True)
class Search:
    """What all trials of a search share. `metric` is the value of a trial, on validation."""

    spec: ModelSpec
    space: SearchSpace
    fixed: Mapping[str, Any]
    metric: str
    epochs: int
    seed: int
    device: str

    def settings(self, trial: Any) -> dict[str, Any]:
        """All settings of a trial; Optuna proposes those of the search space."""
        return {**self.fixed, **{name: suggest(trial, name, values) for name, values in self.space.items()}}

    def value(self, data: PreparedDataset, settings: Mapping[str, Any], progress: Progress) -> float:
        where = choose_device(self.device)
        return validation_value(self.spec, data, {**settings, "seed": self.seed}, self.epochs, where, progress)


@dataclass(frozen=True)
class Outcome:
    """How a trial on a cluster ended: its state's name in Optuna, its value, and the metric of every epoch."""

    state: str
    value: float | None
    by_epoch: dict[int, float]


def run_here(search: Search, data: PreparedDataset, study: Any, trials: int, progress: Progress) -> Iterator[Any]:
    """Run trials one after the other until there are `trials`; yield each that has ended."""
    optuna = import_optuna()

    def objective(trial: Any) -> float:
        settings = search.settings(trial)
        progress.update("Trials", len(finished(study)), trials, in_words(trial.params))
        return search.value(data, settings, TrialProgress(trial, optuna, search.metric))

    for _ in range(trials - len(finished(study))):
        study.optimize(objective, n_trials=1, catch=FAILURES)
        yield finished(study)[-1]


def run_on_cluster(
    search: Search, data: PreparedDataset, study: Any, trials: int, progress: Progress, cluster: "Cluster"
) -> Iterator[Any]:
    """Run trials as Ray tasks, each with a core, or with a GPU where the cluster has any; yield each that has ended."""
    states = import_optuna().trial.TrialState
    asked: dict[int, Any] = {}
    before = len(finished(study))

    def proposals() -> Iterator[tuple[int, dict[str, Any], list[Any]]]:
        for _ in range(trials - before):
            trial = study.ask()
            settings = search.settings(trial)
            asked[trial.number] = trial
            yield trial.number, settings, finished(study)

    task, gpus = partial(run_trial, search, data.path.absolute()), cluster.gpus_for(search.device)
    for (number, _, _), ended in cluster.run(task, proposals(), work="Trials", gpus=gpus, queued=1):
        trial = asked.pop(number)
        for epoch, value in ended.by_epoch.items():
            trial.report(value, epoch)
        told = study.tell(trial, ended.value, state=states[ended.state])
        progress.update("Trials", len(finished(study)), trials)
        yield told


def run_trial(search: Search, folder: Path, proposal: tuple[int, dict[str, Any], list[Any]]) -> Outcome:
    """A trial in a process of the cluster, beside the trials that had finished when it was proposed."""
    optuna = import_optuna()
    _, settings, others = proposal
    study = optuna.create_study(direction="maximize", pruner=pruner())
    study.add_trials(others)
    trial = study.ask()
    reporting = TrialProgress(trial, optuna, search.metric)
    try:
        value = search.value(load_once(folder), settings, reporting)
    except optuna.TrialPruned:
        return Outcome("PRUNED", None, reporting.by_epoch)
    except FAILURES:
        return Outcome("FAIL", None, reporting.by_epoch)
    return Outcome("COMPLETE", value, reporting.by_epoch)


def pruner() -> Any:
    """Stops a trial whose best epoch is below the median of the others at the same epoch."""
    return import_optuna().pruners.MedianPruner(n_startup_trials=STARTING, n_warmup_steps=1)


def validation_value(
    spec: ModelSpec,
    data: PreparedDataset,
    settings: dict[str, Any],
    epochs: int,
    device: torch.device,
    progress: Progress,
) -> float:
    """The best epoch's metric on the validation part of a model fitted without that part."""
    wanted = {"protocol": "early-stop", "epochs": epochs, **settings}
    model_config, training = split_settings(wanted, spec.config(), Settings(**spec.settings))
    training.check()
    torch.manual_seed(training.seed)
    network = network_builder(spec, model_config, data, World())()
    if isinstance(network, CountingModel):
        part = data.fitting
        network.count(part.items[: part.clicks], part.offsets)
        return float(evaluate_on(network, data, data.validation, device, SilentProgress()).metrics[training.choose_by])
    assert isinstance(network, SessionModel)
    with tempfile.TemporaryDirectory() as scratch:
        return train(network, data, training, Place(Path(scratch), device, progress, resumable=False)).best


class TrialProgress(Progress):
    """Reports every epoch to Optuna, which may end the trial; messages of single trainings are not passed on."""

    def __init__(self, trial: Any, optuna: Any, metric: str) -> None:
        self.trial, self.optuna, self.metric = trial, optuna, metric
        self.by_epoch: dict[int, float] = {}

    def message(self, text: str) -> None:
        pass

    def validated(self, epoch: int, metrics: dict[str, float]) -> None:
        self.by_epoch[epoch] = metrics[self.metric]
        self.trial.report(metrics[self.metric], epoch)
        if self.trial.should_prune():
            raise self.optuna.TrialPruned


def suggest(trial: Any, name: str, values: Range | Choices) -> Any:
    if isinstance(values, Range):
        return float(f"{trial.suggest_float(name, values.low, values.high, log=True):.3g}")
    return trial.suggest_categorical(name, values)


def finished(study: Any) -> list[Any]:
    """Trials that ended, successfully or not; a trial whose process was killed is replaced by another."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]


def outcome(trial: Any, metric: str) -> str:
    """How a trial ended."""
    state: str = trial.state.name.lower()
    value = "" if trial.value is None else f"{metric} {100 * trial.value:.2f}"
    return value if state == "complete" else f"stopped early at {value}" if state == "pruned" else "failed"


def in_words(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={f'{value:.3g}' if isinstance(value, float) else value}"
                     for name, value in settings.items())  # fmt: skip


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise not_installed("posrec tune", "tune") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna

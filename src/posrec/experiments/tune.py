"""Settings for one's own data: a resumable search on validation, with early stopping of poor trials.

Optuna proposes settings, a model is fitted without the latest tenth of the training sessions, and the value of the
trial is its best `mrr@20` on those, or another metric with `choose_by`. The test part is never used. Every trial is
kept in `study.db`.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from posrec.config import split_settings
from posrec.data.dataset import PreparedDataset
from posrec.device import choose_device
from posrec.errors import InputError, RunFailed, not_installed
from posrec.fitting import network_builder
from posrec.io import write_json
from posrec.models.base import CountingModel, SessionModel
from posrec.models.registry import MODELS, ModelSpec
from posrec.progress import Progress, SilentProgress
from posrec.training.loop import evaluate_on, train
from posrec.training.settings import Settings

STUDY, SUMMARY = "study.db", "tuning.json"
EPOCHS = 15
STARTING = 4  # trials that are never stopped early, so that there is a median to compare with


@dataclass(frozen=True)
class Range:
    """Any number between `low` and `high`, drawn uniformly on a logarithmic scale."""

    low: float
    high: float


Choices = tuple[Any, ...]
TRAINING: dict[str, Range | Choices] = {
    "learning_rate": Range(3e-4, 1e-2),
    "batch_size": (100, 128, 256, 512),
    "l2": (0.0, 1e-6, 1e-5, 1e-4),
}
DROPOUT: Choices = (0.0, 0.1, 0.2, 0.3, 0.5)
WIDTHS: Choices = (50, 64, 100, 128, 200)
# Small on purpose: the settings known to matter for each model. Every space contains the defaults.
SEARCH: dict[str, dict[str, Range | Choices]] = {
    "posrec": {**TRAINING, "d": WIDTHS, "dropout": DROPOUT, "encoding": ("ldpe", "dpe", "lrpe", "none"),
               "anchors": (True, False), "lambda2": (0.25, 0.5, 1.0, 2.0)},
    "posrec-plus": {"learning_rate": Range(5e-4, 5e-3), "batch_size": (256, 512, 1024, 2048), "d": (100, 128, 200, 256),
                    "item_dropout": (0.1, 0.2, 0.35, 0.5), "repeat_dropout": (0.2, 0.5), "scale": (11.0, 13.0, 16.0),
                    "smoothing": (0.0, 0.25, 0.5, 1.0), "recency": (0.0, 1.0, 2.0), "max_length": (20, 50, 100)},
    "pop": {},
    "spop": {},
    "itemknn": {"neighbours": (50, 100, 200, 500), "regularization": (0.0, 10.0, 20.0, 50.0),
                "alpha": (0.25, 0.5, 0.75)},
    "bprmf": {**TRAINING, "d": WIDTHS, "sample_alpha": (0.0, 0.25, 0.5, 0.75)},
    "fpmc": {**TRAINING, "d": WIDTHS, "sample_alpha": (0.0, 0.25, 0.5, 0.75)},
    "gru4rec": {**TRAINING, "dropout": DROPOUT, "embedding_dropout": (0.0, 0.25, 0.5), "truncated": (True, False)},
    "narm": {**TRAINING, "d": WIDTHS, "dropout": DROPOUT, "embedding_dropout": (0.0, 0.25, 0.5)},
    "stamp": {**TRAINING, "d": WIDTHS, "dropout": DROPOUT, "encoding": ("none", "ldpe"), "add_mean": (False, True)},
    "srgnn": {**TRAINING, "d": WIDTHS, "steps": (1, 2, 3), "anchors": (False, True)},
    "fgnn": {**TRAINING, "d": WIDTHS, "layers": (1, 2, 3), "heads": (1, 2, 4, 8), "anchors": (False, True)},
    "gcsan": {**TRAINING, "d": WIDTHS, "layers": (1, 2), "weight": (0.4, 0.6, 0.8), "dropout": DROPOUT},
    "sasrec": {**TRAINING, "d": WIDTHS, "layers": (1, 2, 3), "dropout": DROPOUT, "encoding": ("lpe", "ldpe")},
    "vsknn": {"k": (100, 300, 500, 1000), "sample_size": (1000, 2500, 5000), "idf": (0.0, 1.0, 5.0)},
    "stan": {"k": (100, 200, 500, 1000), "sample_size": (1000, 2500, 5000), "lambda1": (1.0, 2.0, 4.0),
             "lambda3": (1.0, 2.0, 4.0)},
    "coclick": {"window": (3, 6, 10), "before": (0.25, 0.5, 1.0), "smoothing": (1.0, 5.0, 10.0, 20.0),
                "decay": (0.3, 0.5, 0.7), "repeat": (0.05, 0.1, 0.15, 0.3, 0.6), "repeat_decay": (0.5, 0.7, 0.9)},
}  # fmt: skip


@dataclass(frozen=True)
class Tuned:
    """The best settings found, and how many trials there were, how many were stopped early and how many failed."""

    settings: dict[str, Any]
    value: float  # on validation, of the metric `choose_by`
    metric: str
    usual: float | None  # the same with the default settings; None where they were not tried
    trials: int
    pruned: int
    failed: int


def tune(
    data: PreparedDataset,
    model: str,
    trials: int,
    out: Path,
    fixed: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    device: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
) -> Tuned:
    """Search until the study in `out` has `trials` trials, with those of earlier calls. `fixed` is not searched.

    A trial has at most `epochs` epochs; by default as many as the model's learning rate is planned for, or EPOCHS.
    """
    optuna = import_optuna()
    progress = progress or SilentProgress()
    spec, where = searchable_spec(model), choose_device(device)
    fixed = dict(fixed or {})
    space = {name: values for name, values in SEARCH[model].items() if name not in fixed}
    if not space:
        raise InputError(f"model {model} has nothing to tune" + (" except what --set fixes" if fixed else ""))
    usual = asdict(spec.config()) | asdict(Settings(**spec.settings))
    configs = split_settings(fixed, spec.config(), Settings(**spec.settings))  # refuses bad settings before any work
    configs[1].check()
    epochs = most_epochs(spec, fixed, epochs)
    out.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        storage=f"sqlite:///{(out / STUDY).absolute()}",
        study_name=f"{model} {data.fingerprint} epochs={epochs} {sorted(fixed.items())}",
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTING, n_warmup_steps=1),
    )
    before = len(finished(study))
    study.sampler = optuna.samplers.TPESampler(seed=seed + before)  # a resumed search must not repeat its draws
    if before == 0:
        study.enqueue_trial({name: usual[name] for name in space}, skip_if_exists=True)
    elif before < trials:
        progress.message(f"continuing after {before} trials in {out / STUDY}")

    def objective(trial: Any) -> float:
        settings = {**fixed, **{name: suggest(trial, name, values) for name, values in space.items()}}
        progress.update("Trials", len(finished(study)), trials, ", ".join(f"{k}={v}" for k, v in trial.params.items()))
        reporting = TrialProgress(trial, optuna, progress, configs[1].choose_by)
        return validation_value(spec, data, {**settings, "seed": seed}, epochs, where, reporting)

    for _ in range(trials - before):
        study.optimize(objective, n_trials=1, catch=(RunFailed, torch.OutOfMemoryError))
        progress.update("Trials", len(finished(study)), trials)
    metric = configs[1].choose_by
    tuned = best_settings(study, optuna, space, usual, metric)
    all_trials = [{"settings": one.params, "state": one.state.name.lower(), metric: one.value}
                   for one in finished(study)]  # fmt: skip
    write_json(out / SUMMARY, {"model": model, "dataset": data.fingerprint, "fixed": fixed, **asdict(tuned),
                               "all": all_trials})  # fmt: skip
    return tuned


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
    network = network_builder(spec, model_config, data)()
    if isinstance(network, CountingModel):
        part = data.fitting
        network.count(part.items[: part.clicks], part.offsets)
        return float(evaluate_on(network, data, data.validation, device, SilentProgress()).metrics[training.choose_by])
    assert isinstance(network, SessionModel)
    with tempfile.TemporaryDirectory() as scratch:
        return train(network, data, training, Path(scratch), device, progress, resumable=False).best


class TrialProgress(Progress):
    """Reports every epoch to Optuna, which may end the trial; messages of single trainings are not passed on."""

    def __init__(self, trial: Any, optuna: Any, progress: Progress, metric: str) -> None:
        self.trial, self.optuna, self.progress, self.metric = trial, optuna, progress, metric

    def message(self, text: str) -> None:
        pass

    def validated(self, epoch: int, metrics: dict[str, float]) -> None:
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


def best_settings(study: Any, optuna: Any, space: Mapping[str, Any], usual: Mapping[str, Any], metric: str) -> Tuned:
    states = [trial.state for trial in finished(study)]
    of = optuna.trial.TrialState
    if of.COMPLETE not in states:
        raise RunFailed(f"none of {len(states)} trials succeeded; see {STUDY}, or fix smaller settings with --set")
    best = study.best_trial
    settings = {name: rounded(value, space[name]) for name, value in best.params.items()}
    whole = [trial for trial in finished(study) if trial.state == of.COMPLETE]
    as_usual = [one.value for one in whole if all(usual[name] == value for name, value in one.params.items())]
    counts = (len(states), states.count(of.PRUNED), states.count(of.FAIL))
    return Tuned(settings, best.value, metric, as_usual[0] if as_usual else None, *counts)


def rounded(value: Any, values: Range | Choices) -> Any:
    """A number drawn from a range, rounded as it was for the training."""
    return float(f"{value:.3g}") if isinstance(values, Range) else value


def most_epochs(spec: ModelSpec, fixed: Mapping[str, Any], epochs: int | None) -> int:
    planned = Settings(**spec.settings)
    return int(fixed.get("epochs") or epochs or (planned.epochs if planned.schedule == "cosine" else EPOCHS))


def train_command(folder: Path, model: str, tuned: Tuned, fixed: Mapping[str, Any], epochs: int | None = None) -> str:
    """The command that trains with the settings found."""
    spec, protocol = MODELS[model], ""
    if spec.is_trained:
        name = "refit" if Settings(**spec.settings).protocol == "refit" else "early-stop"
        protocol = f" --protocol {name} --epochs {most_epochs(spec, fixed, epochs)}"
    settings = {name: value for name, value in {**fixed, **tuned.settings}.items() if name != "epochs"}
    chosen = "".join(f" --set {name}={value}" for name, value in settings.items())
    return f"posrec train {folder} --model {model} --out runs/tuned{protocol}{chosen}"


def searchable_spec(model: str) -> ModelSpec:
    if model not in SEARCH:
        raise InputError(f"model {model!r} has no search space; choose one of {', '.join(SEARCH)}")
    return MODELS[model]


def import_optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise not_installed("posrec tune", "tune") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna

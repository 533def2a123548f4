"""Settings for one's own data: a resumable search on validation, with early stopping of poor
trials.

Optuna proposes settings; the value of a trial is its best `choose_by` metric on the latest tenth of
the training sessions. The study stays in this process: a trial gets its settings and the trials
that had finished when it began, and compares itself with these to know whether to stop early.
"""

import shlex
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from posrec.config import DEFAULT_MODEL, Choices, Range, SearchSpace, split_settings
from posrec.data.dataset import PreparedDataset
from posrec.device import choose_device
from posrec.errors import InputError, RunFailed, imported, plural
from posrec.fitting.fit import build_network, require_validation_part
from posrec.io import write_json
from posrec.io.executor import Cluster, Executor, ThisProcess
from posrec.io.unfinished import one_writer
from posrec.models.base import CountingModel, SessionModel
from posrec.models.registry import (
    ModelSpec,
    find_spec,
    model_name,
    short_name,
    with_own_encoding,
)
from posrec.progress import Progress, SilentProgress, default_progress
from posrec.training.loop import Training, TrainingContext, evaluate_on
from posrec.training.settings import Settings

if TYPE_CHECKING:
    import polars as pl

STUDY = "study.db"
SUMMARY = "tuning.json"
EPOCHS = 15
FIRST_TRIALS = (
    4  # that are never stopped early, so that there is a median to compare with
)
FAILURES = (RunFailed, torch.OutOfMemoryError)  # of a trial, which the search survives


@dataclass(frozen=True, repr=False)
class Tuned:
    """What `tune` found.

    Attributes:
        settings: the best settings found; `posrec.fit(data, model, **tuned.settings)` trains with them.
        value: their value on validation, of the metric `choose_by`.
        metric: that metric.
        default_value: the value of the default settings; None if they were not tried.
        trials: how many trials there were, those of earlier calls included.
        pruned: how many of them were stopped early.
        failed: how many of them failed.
        history: every trial: its settings, its state (complete, pruned or fail) and its value.
    """

    settings: dict[str, Any]
    value: float
    metric: str
    default_value: float | None
    trials: int
    pruned: int
    failed: int
    history: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        result = f"{self.metric} {100 * self.value:.2f} % on validation after {plural(self.trials, 'trial')}"
        return f"Tuned({result}: {in_words(self.settings)})"

    def to_frame(self) -> "pl.DataFrame":
        """A row for each trial: its number, state, value and settings."""
        import polars as pl

        rows = [
            {
                "trial": number,
                "state": one["state"],
                self.metric: one[self.metric],
                **one["settings"],
            }
            for number, one in enumerate(self.history)
        ]
        return pl.DataFrame(rows, infer_schema_length=None)


def tune(
    data: PreparedDataset,
    model: str | ModelSpec = DEFAULT_MODEL,
    trials: int = 20,
    out: str | Path | None = None,
    fixed: Mapping[str, Any] | None = None,
    epochs: int | None = None,
    device: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Tuned:
    """Search for good settings on the validation part of a dataset. Needs the extra `posrec[tune]`.

    Args:
        data: the dataset, from `posrec.prepare` or `posrec.load`.
        model: a name of `posrec models`, `"my_model.py:MY_SPEC"`, or a ModelSpec; its `search` is what is searched.
        trials: how many trials there are in the end, with those of earlier calls with the same `out`.
        out: the folder of the search, which a later call continues; without it nothing is kept.
        fixed: settings that have other values than the default ones and are not searched.
        epochs: the most epochs of a trial; by default as many as the model's learning rate is planned for, or 15.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        seed: of the search and of every training.
        progress: where to report progress; by default a line for each trial, and a bar in a notebook.
        executor: who runs the trials, by default this process; `posrec.io.executor.ray_cluster` gives one that runs
            many at a time, as tasks of Ray.

    Returns:
        The best settings, and all trials.

    Raises:
        InputError: if the model has nothing to tune, a setting is not valid, or there are too few sessions.
        RunFailed: if no trial succeeded.

    Example::

        tuned = posrec.tune(data, "posrec", trials=30, out="tuning")
        rec = posrec.fit(data, "posrec", **tuned.settings)
    """
    optuna = import_optuna()
    progress = progress or default_progress()
    executor = executor or ThisProcess()
    spec = find_spec(model)
    require_validation_part(data)
    if isinstance(executor, ThisProcess):
        choose_device(device)  # refuses a device that is not there before any work
    fixed = with_own_encoding(dict(fixed or {}))
    space, defaults = space_to_search(spec, short_name(model), fixed)
    configs = split_settings(
        fixed, spec.config(), Settings(**spec.settings)
    )  # refuses bad settings before any work
    configs[1].check()
    epochs = most_epochs(spec, fixed, epochs)
    metric = configs[1].choose_by
    with ExitStack() as stack:
        folder = Path(
            out or stack.enter_context(tempfile.TemporaryDirectory(prefix="posrec-"))
        )
        stack.enter_context(one_writer(folder))
        study = optuna.create_study(
            storage=f"sqlite:///{(folder / STUDY).absolute()}",
            study_name=f"{model_name(model)} {data.fingerprint} epochs={epochs} {sorted(fixed.items())}",
            direction="maximize",
            load_if_exists=True,
            pruner=pruner(),
        )
        before = len(finished(study))
        # A resumed search must not repeat its draws; and trials at the same time must not be of the
        # same settings.
        study.sampler = optuna.samplers.TPESampler(
            seed=seed + before, constant_liar=isinstance(executor, Cluster)
        )
        if before == 0 and all(
            defaults[name] in values for name, values in space.items()
        ):
            study.enqueue_trial(
                {name: defaults[name] for name in space}, skip_if_exists=True
            )
        elif 0 < before < trials:
            progress.message(f"continuing after {before} trials in {folder / STUDY}")

        search = Search(spec, space, fixed, metric, epochs, seed, device)
        for trial in run_trials(search, data, study, trials, progress, executor):
            number = len(finished(study))
            progress.update("Trials", number, trials)
            progress.message(
                f"trial {number} of {trials}: {outcome(trial, metric)}; {in_words(trial.params)}"
            )
        tuned = best_settings(study, space, defaults, metric)
        searched = {
            "model": model_name(model),
            "dataset": data.fingerprint,
            "fixed": fixed,
        }
        write_json(folder / SUMMARY, {**searched, **asdict(tuned)})
    return tuned


def space_to_search(
    spec: ModelSpec, name: str, fixed: Mapping[str, Any]
) -> tuple[SearchSpace, dict[str, Any]]:
    """The search space without the fixed settings, and the default of every setting."""
    if "protocol" in fixed:
        raise InputError(
            "protocol can't be fixed: every trial trains with early stopping on validation"
        )
    defaults = asdict(Settings(**spec.settings)) | asdict(
        spec.config()
    )  # a name in both is the model's setting
    space = {
        setting: values
        for setting, values in spec.search_space.items()
        if setting not in fixed
    }
    if not space:
        hint = (
            " except what --set fixes"
            if fixed
            else "; a spec of your own names what to search: ModelSpec(search=)"
        )
        raise InputError(f"model {name} has nothing to tune{hint}")
    if unknown := sorted(space.keys() - defaults.keys()):
        raise InputError(
            f"the search space of model {name} has settings that do not exist: {', '.join(unknown)}"
        )
    return space, defaults


def best_settings(
    study: Any, space: SearchSpace, defaults: Mapping[str, Any], metric: str
) -> Tuned:
    ended = finished(study)
    history = [
        {"settings": one.params, "state": one.state.name.lower(), metric: one.value}
        for one in ended
    ]
    states = Counter(one["state"] for one in history)
    if not states["complete"]:
        raise RunFailed(
            f"none of {len(ended)} trials succeeded; see {STUDY}, or fix smaller settings with --set"
        )
    default = {name: defaults[name] for name in space}
    by_default = (
        one[metric]
        for one in history
        if one["state"] == "complete" and one["settings"] == default
    )
    settings = {
        name: rounded(value, space[name])
        for name, value in study.best_trial.params.items()
    }
    counts = (len(ended), states["pruned"], states["fail"])
    return Tuned(
        settings, study.best_value, metric, next(by_default, None), *counts, history
    )


@dataclass(frozen=True)
class Search:
    """What all trials of a search share."""

    spec: ModelSpec
    space: SearchSpace
    fixed: Mapping[str, Any]
    metric: str
    epochs: int
    seed: int
    device: str

    def value(
        self, data: PreparedDataset, params: Mapping[str, Any], progress: Progress
    ) -> float:
        """The best epoch's metric on validation of a model fitted without that part."""
        proposed = {
            name: rounded(value, self.space[name]) for name, value in params.items()
        }
        wanted = {
            "protocol": "early-stop",
            "epochs": self.epochs,
            **self.fixed,
            **proposed,
            "seed": self.seed,
        }
        model_config, training = split_settings(
            wanted, self.spec.config(), Settings(**self.spec.settings)
        )
        training.check()
        device = choose_device(self.device)
        torch.manual_seed(training.seed)
        network = build_network(self.spec, model_config, data)
        if isinstance(network, CountingModel):
            part = data.fitting
            network.count(part.items[: part.clicks], part.offsets)
            return float(
                evaluate_on(
                    network, data, data.validation, device, SilentProgress()
                ).metrics[self.metric]
            )
        assert isinstance(network, SessionModel)
        with tempfile.TemporaryDirectory() as scratch:
            context = TrainingContext(Path(scratch), device, progress, resumable=False)
            return Training(network, data, training, context).run().best


# What a trial is given: its number, its settings, and the trials that had finished when it was
# proposed.
Proposal = tuple[int, dict[str, Any], list[Any]]


def run_trials(
    search: Search,
    data: PreparedDataset,
    study: Any,
    trials: int,
    progress: Progress,
    executor: Executor,
) -> Iterator[Any]:
    """Run trials until there are `trials`; yield each that has ended."""
    asked: dict[int, Any] = {}

    def proposals() -> Iterator[Proposal]:
        for _ in range(trials - len(finished(study))):
            trial = study.ask(
                {name: distribution(values) for name, values in search.space.items()}
            )
            asked[trial.number] = trial
            progress.update(
                "Trials", len(finished(study)), trials, in_words(trial.params)
            )
            yield trial.number, trial.params, finished(study)

    task = partial(run_trial, search, data)
    gpus = executor.gpus_for(search.device)
    for (number, _, _), ended in executor.run(
        task, proposals(), work="Trials", gpus=gpus
    ):
        trial = asked.pop(number)
        for epoch, value in ended.intermediate_values.items():
            trial.report(value, epoch)
        is_whole = (
            ended.state.name == "COMPLETE"
        )  # of one that was stopped early Optuna takes the last epoch's value
        yield study.tell(trial, ended.value if is_whole else None, state=ended.state)


def run_trial(search: Search, data: PreparedDataset, proposal: Proposal) -> Any:
    """How a trial ended, beside those that had finished when it was proposed."""
    optuna = import_optuna()
    study = optuna.create_study(direction="maximize", pruner=pruner())
    _, params, others = proposal
    study.add_trials(others)
    trial = study.ask()
    reporting = TrialProgress(trial, optuna.TrialPruned, search.metric)
    try:
        value = search.value(data, params, reporting)
    except optuna.TrialPruned:
        return study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    except FAILURES:
        return study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return study.tell(trial, value)


def pruner() -> Any:
    """Stops a trial whose best epoch is below the median of the others at the same epoch."""
    return import_optuna().pruners.MedianPruner(
        n_startup_trials=FIRST_TRIALS, n_warmup_steps=1
    )


class TrialProgress(SilentProgress):
    """Reports every epoch to Optuna, which may end the trial."""

    def __init__(self, trial: Any, pruned: type[Exception], metric: str) -> None:
        self.trial = trial
        self.pruned = pruned
        self.metric = metric

    def validated(self, epoch: int, metrics: dict[str, float]) -> None:
        self.trial.report(metrics[self.metric], epoch)
        if self.trial.should_prune():
            raise self.pruned


def distribution(values: Range | Choices) -> Any:
    distributions = import_optuna().distributions
    if isinstance(values, Range):
        return distributions.FloatDistribution(values.low, values.high, log=True)
    return distributions.CategoricalDistribution(values)


def rounded(value: Any, values: Range | Choices) -> Any:
    """A number from a range with three digits, enough to read and to type."""
    return float(f"{value:.3g}") if isinstance(values, Range) else value


def finished(study: Any) -> list[Any]:
    """Trials that ended; one whose process was killed is replaced by another."""
    return [
        trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()
    ]


def outcome(trial: Any, metric: str) -> str:
    state: str = trial.state.name.lower()
    value = "" if trial.value is None else f"{metric} {100 * trial.value:.2f}"
    return (
        value
        if state == "complete"
        else f"stopped early at {value}"
        if state == "pruned"
        else "failed"
    )


def in_words(settings: Mapping[str, Any]) -> str:
    texts = {
        name: f"{value:.3g}" if isinstance(value, float) else value
        for name, value in settings.items()
    }
    return ", ".join(f"{name}={text}" for name, text in texts.items())


def import_optuna() -> Any:
    optuna = imported("optuna", "posrec tune", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def most_epochs(spec: ModelSpec, fixed: Mapping[str, Any], epochs: int | None) -> int:
    planned = Settings(**spec.settings)
    return int(
        fixed.get("epochs")
        or epochs
        or (planned.epochs if planned.schedule == "cosine" else EPOCHS)
    )


def train_command(
    folder: Path,
    model: str,
    tuned: Tuned,
    fixed: Mapping[str, Any],
    epochs: int | None = None,
) -> str:
    spec = find_spec(model)
    protocol = []
    if spec.is_trained:
        name = (
            "refit" if Settings(**spec.settings).protocol == "refit" else "early-stop"
        )
        protocol = [
            "--protocol",
            name,
            "--epochs",
            str(most_epochs(spec, fixed, epochs)),
        ]
    settings = {
        name: value
        for name, value in {**fixed, **tuned.settings}.items()
        if name != "epochs"
    }
    chosen = [
        word
        for name, value in settings.items()
        for word in ("--set", f"{name}={value}")
    ]
    return shlex.join(
        [
            "posrec",
            "train",
            str(folder),
            "--model",
            model,
            "--out",
            "runs/tuned",
            *protocol,
            *chosen,
        ]
    )

"""Tuning: a random search for good settings, with the same budget for every model.

The first trial has the default settings. The others are drawn from the values that
`setting(tune=)` declares, by the seed alone, so a search that was interrupted continues with the
same trials. Models take turns. A trial compares its epochs with those of the trials of its model
that had ended when it began, to know whether to stop early.
"""

import math
import random
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from posrec.config import DEFAULT_MODEL, SearchSpace
from posrec.data.dataset import PreparedDataset
from posrec.device import choose_device
from posrec.errors import DoesNotFit, InputError, RunFailed, plural
from posrec.fitting.fit import train_and_score
from posrec.fitting.job import FitOptions, configs_of, require_validation_part
from posrec.io import read_json, write_json
from posrec.io.executor import Executor, ThisProcess
from posrec.io.unfinished import one_writer
from posrec.models.registry import (
    ModelSpec,
    find_spec,
    model_name,
    short_name,
    with_own_encoding,
)
from posrec.progress import Progress, SilentProgress, default_progress
from posrec.training.settings import Settings

if TYPE_CHECKING:
    import polars as pl

TRIALS = "tuning.json"
EPOCHS = 15
# Of several models, so that their figures can be compared; one has its own.
COMMON_METRIC = "ndcg@20"
# So many trials and epochs come before the first that is stopped early, so that there is a median
# to compare with.
FIRST_TRIALS = 4
FIRST_EPOCHS = 2
Trial = dict[str, Any]  # what TRIALS has of one


@dataclass(frozen=True)
class Budget:
    """What every model gets."""

    trials: int = 20
    epochs: int | None = None  # the most of a trial
    seed: int = 0  # of the draws and of every training


@dataclass(frozen=True, repr=False)
class Tuned:
    """What `tune` found; `posrec.fit(data, model, **tuned.settings)` trains with it."""

    settings: dict[str, Any]  # the best
    value: float  # of `metric` on validation, with these
    metric: str  # the setting `choose_by`
    default_value: (
        float | None
    )  # with the default settings; None if they were not tried
    trials: int  # how many there were, including those of earlier calls
    pruned: int  # how many of them were stopped early
    failed: int  # how many of them failed
    seconds: float  # of all trials
    # Every trial: its settings, its state (complete, pruned or fail) and its value.
    history: list[Trial] = field(default_factory=list)

    def __repr__(self) -> str:
        trials = plural(self.trials, "trial")
        result = f"{self.metric} {100 * self.value:.2f} % on validation after {trials}"
        return f"Tuned({result}: {in_words(self.settings)})"

    def to_frame(self) -> "pl.DataFrame":
        """A row for each trial: its number, state, value and settings."""
        import polars as pl

        rows = []
        for trial in self.history:
            outcome = {name: trial[name] for name in ("trial", "state", self.metric)}
            rows.append({**outcome, **trial["settings"]})
        return pl.DataFrame(rows, infer_schema_length=None)


def tune(
    data: PreparedDataset,
    model: str | ModelSpec = DEFAULT_MODEL,
    trials: int = 20,
    out: str | Path | None = None,
    fixed: Mapping[str, Any] | None = None,
    *,
    epochs: int | None = None,
    device: str = "auto",
    seed: int = 0,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> Tuned:
    """Search for good settings on the validation part of a dataset.

    Args:
        data, device, progress: as for `posrec.fit`.
        model: a name of `posrec models`, `"my_model.py:MY_SPEC"`, or a ModelSpec; its `search` is
            what is searched.
        trials: how many trials there are in the end, with those of earlier calls in `out`; fewer
            if the model has fewer settings to try.
        out: the folder of the search, which a later call continues; without it nothing is kept.
        fixed: settings that have other values than the default ones and are not searched.
        epochs: the most epochs of a trial; by default as many as the model's learning rate is
            planned for, or 15.
        seed: of the search and of every training.
        executor: who runs the trials, by default this process; `posrec.io.executor.ray_cluster`
            gives one that runs many at a time, as tasks of Ray.

    Returns:
        The best settings, and all trials.

    Raises:
        InputError: if there is nothing to tune, a setting is not valid, or sessions are too few.
        RunFailed: if no trial succeeded.

    Example::

        tuned = posrec.tune(data, "posrec", trials=30, out="tuning")
        rec = posrec.fit(data, "posrec", **tuned.settings)
    """
    budget = Budget(trials, epochs, seed)
    (tuned,) = tune_models(
        data, [model], budget, out, fixed, device, progress, executor
    ).values()
    return tuned


def tune_models(
    data: PreparedDataset,
    models: Sequence[str | ModelSpec],
    budget: Budget,
    out: str | Path | None = None,
    fixed: Mapping[str, Any] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> dict[str, Tuned]:
    """`tune` for several models, by one metric; by their names."""
    fixed = dict(fixed or {})
    if len(models) > 1:
        fixed.setdefault("choose_by", COMMON_METRIC)
    searches = {}
    for model in models:
        search = plan_search(model, fixed, budget, device)
        searches[search.model] = search
    require_validation_part(data)
    executor = executor or ThisProcess()
    if isinstance(executor, ThisProcess):
        choose_device(device)  # refuses a device that is not there before any work
    with ExitStack() as stack:
        if out is None:
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="posrec-"))
        stack.enter_context(one_writer(Path(out)))
        record = Record(Path(out) / TRIALS, searches, data.fingerprint)
        progress = progress or default_progress()
        run_trials(record, data, progress, executor)
    return {model: record.outcome(model) for model in searches}


@dataclass(frozen=True)
class Search:
    """What all trials of a model share."""

    model: str
    spec: ModelSpec
    space: SearchSpace
    defaults: Mapping[str, Any]  # of the settings that are searched
    fixed: Mapping[str, Any]
    metric: str
    epochs: int
    seed: int
    device: str
    draws: list[dict[str, Any]]  # the settings of all trials

    def about(self, fingerprint: str) -> dict[str, Any]:
        """What a later call must have in common to continue the search."""
        return {
            "dataset": fingerprint,
            "metric": self.metric,
            "epochs": self.epochs,
            "seed": self.seed,
            "fixed": {name: str(value) for name, value in self.fixed.items()},
            "space": {name: str(values) for name, values in self.space.items()},
        }


def plan_search(
    model: str | ModelSpec, fixed: Mapping[str, Any], budget: Budget, device: str
) -> Search:
    """Raise an InputError for what can't be searched, before any work."""
    spec = find_spec(model)
    fixed = with_own_encoding(dict(fixed))
    if "protocol" in fixed:
        raise InputError(
            "protocol can't be fixed: every trial trains with early stopping on validation"
        )
    space = {
        name: values for name, values in spec.search_space.items() if name not in fixed
    }
    name = short_name(model)
    if not space:
        hint = "; a spec of your own names what to search: ModelSpec(search=)"
        if fixed:
            hint = " except what --set fixes"
        raise InputError(f"model {name} has nothing to tune{hint}")
    # A name in both is the model's setting.
    defaults = asdict(Settings(**spec.settings)) | asdict(spec.config())
    if unknown := sorted(space.keys() - defaults.keys()):
        raise InputError(
            f"the search space of model {name} has settings that do not exist: "
            f"{', '.join(unknown)}"
        )
    _, training = configs_of(spec, fixed)
    searched = {name: defaults[name] for name in space}
    return Search(
        model if isinstance(model, str) else model_name(model),
        spec,
        space,
        searched,
        fixed,
        training.choose_by,
        most_epochs(spec, fixed, budget.epochs),
        budget.seed,
        device,
        draw_trials(space, searched, budget),
    )


def draw_trials(
    space: SearchSpace, defaults: Mapping[str, Any], budget: Budget
) -> list[dict[str, Any]]:
    """The settings of each trial, first the default ones if they are in the space. Where there are
    only choices, none is tried twice.

    >>> draw_trials({"k": (10, 20)}, {"k": 20}, Budget(trials=5))
    [{'k': 20}, {'k': 10}]
    """
    choices = [
        len(values) if isinstance(values, tuple) else math.inf
        for values in space.values()
    ]
    different = math.prod(choices)
    draws = []
    if all(defaults[name] in values for name, values in space.items()):
        draws.append(dict(defaults))
    generator = random.Random(budget.seed)
    while len(draws) < min(budget.trials, different):
        drawn = {}
        for name, values in space.items():
            if isinstance(values, tuple):
                drawn[name] = generator.choice(values)
            else:
                logarithm = generator.uniform(
                    math.log(values.low), math.log(values.high)
                )
                # Three digits are enough to read and to type.
                drawn[name] = float(f"{math.exp(logarithm):.3g}")
        if math.isinf(different) or drawn not in draws:
            draws.append(drawn)
    return draws


def most_epochs(spec: ModelSpec, fixed: Mapping[str, Any], epochs: int | None) -> int:
    planned = Settings(**spec.settings)
    default = planned.epochs if planned.schedule == "cosine" else EPOCHS
    return int(fixed.get("epochs") or epochs or default)


class Record:
    """The trials that have ended, by model and number; the file has each as soon as it ends."""

    def __init__(
        self, path: Path, searches: Mapping[str, Search], fingerprint: str
    ) -> None:
        self.path = path
        self.searches = searches
        self.saved = read_json(path) if path.exists() else {}
        entries = self.saved.values() if isinstance(self.saved, dict) else [None]
        if not all(isinstance(entry, dict) and "history" in entry for entry in entries):
            raise InputError(
                f"{path} was not written by posrec tune; name another folder with --out"
            )
        self.trials: dict[str, dict[int, Trial]] = {}
        for model, search in searches.items():
            about = search.about(fingerprint)
            saved = self.saved.setdefault(model, {**about, "history": []})
            for name, value in about.items():
                if saved.get(name) != value:
                    raise InputError(
                        f"{path} has a search of {model} with {name} {saved.get(name)}, now "
                        f"{value}; name another folder with --out"
                    )
            self.trials[model] = {trial["trial"]: trial for trial in saved["history"]}

    def add(self, model: str, trial: Trial) -> None:
        self.trials[model][trial["trial"]] = trial
        history = [trial for _, trial in sorted(self.trials[model].items())]
        self.saved[model]["history"] = history
        write_json(self.path, self.saved)

    def outcome(self, model: str) -> Tuned:
        search = self.searches[model]
        metric = search.metric
        history = self.saved[model]["history"]
        states = Counter(trial["state"] for trial in history)
        complete = [trial for trial in history if trial["state"] == "complete"]
        if not complete:
            raise RunFailed(
                f"{model}: none of {len(history)} trials succeeded; see {self.path}, or fix "
                "smaller settings with --set"
            )
        best = max(complete, key=lambda trial: trial[metric])
        by_default = [
            trial[metric] for trial in complete if trial["settings"] == search.defaults
        ]
        return Tuned(
            best["settings"],
            best[metric],
            metric,
            by_default[0] if by_default else None,
            len(history),
            states["pruned"],
            states["fail"],
            round(sum(trial["seconds"] for trial in history), 1),
            history,
        )


# A trial's model and number, and the values of every epoch of the trials that had ended.
Proposal = tuple[str, int, list[list[float]]]


def run_trials(
    record: Record, data: PreparedDataset, progress: Progress, executor: Executor
) -> None:
    """Run the trials that the record does not have; each is in it as soon as it has ended."""
    searches = record.searches
    most = max(len(search.draws) for search in searches.values())
    missing = [
        (model, number)
        for number in range(most)
        for model, search in searches.items()
        if number < len(search.draws) and number not in record.trials[model]
    ]
    total = sum(len(search.draws) for search in searches.values())
    if missing and (done := total - len(missing)):
        progress.message(f"continuing after {plural(done, 'trial')} in {record.path}")

    def proposals() -> Iterator[Proposal]:
        for done, (model, number) in enumerate(missing, total - len(missing)):
            note = f"{model}: {in_words(searches[model].draws[number])}"
            progress.update("Trials", done, total, note)
            others = [trial["by_epoch"] for trial in record.trials[model].values()]
            yield model, number, others

    devices = {search.device for search in searches.values()}
    gpus = max(map(executor.gpus_for, devices))
    task = partial(run_trial, searches, data)
    results = executor.run(task, proposals(), work="Trials", gpus=gpus)
    for (model, number, _), trial in results:
        record.add(model, trial)
        search = searches[model]
        outcome = f"{outcome_of(trial, search.metric)}; {in_words(trial['settings'])}"
        name = f"{model}, trial {number + 1} of {len(search.draws)}"
        progress.message(f"{name}: {outcome}")


def run_trial(
    searches: Mapping[str, Search], data: PreparedDataset, proposal: Proposal
) -> Trial:
    model, number, others = proposal
    search = searches[model]
    drawn = search.draws[number]
    settings = {
        "epochs": search.epochs,
        **search.fixed,
        **drawn,
        "seed": search.seed,
    }
    progress = TrialProgress(search.metric, others)
    options = FitOptions(settings, search.device, progress)
    value = None
    began = time.monotonic()
    try:
        evaluation = train_and_score(data, search.spec, options, on_validation=True)
    except HopelessTrial:
        state = "pruned"
        value = max(progress.by_epoch)
    except (RunFailed, DoesNotFit):
        state = "fail"
    else:
        state = "complete"
        value = evaluation.metrics[search.metric]
    return {
        "trial": number,
        "settings": drawn,
        "state": state,
        search.metric: value,
        "by_epoch": progress.by_epoch,
        "seconds": round(time.monotonic() - began, 1),
    }


class HopelessTrial(Exception):
    """Ends a training whose best epoch is below the median of others."""


class TrialProgress(SilentProgress):
    """Keeps the metric of every epoch, and ends a trial that is hopeless."""

    def __init__(self, metric: str, others: list[list[float]]) -> None:
        self.metric = metric
        self.others = others
        self.by_epoch: list[float] = []

    def validated(self, epoch: int, metrics: dict[str, float]) -> None:
        self.by_epoch.append(metrics[self.metric])
        at_epoch = [values[epoch - 1] for values in self.others if len(values) >= epoch]
        if len(self.others) < FIRST_TRIALS or epoch < FIRST_EPOCHS or not at_epoch:
            return
        if max(self.by_epoch) < median(at_epoch):
            raise HopelessTrial


def outcome_of(trial: Trial, metric: str) -> str:
    if trial["state"] == "fail":
        return "failed"
    value = f"{metric} {100 * trial[metric]:.2f}"
    return value if trial["state"] == "complete" else f"stopped early at {value}"


def in_words(settings: Mapping[str, Any]) -> str:
    words = []
    for name, value in settings.items():
        text = f"{value:.3g}" if isinstance(value, float) else value
        words.append(f"{name}={text}")
    return ", ".join(words)


def train_command(
    folder: Path,
    model: str,
    tuned: Tuned,
    fixed: Mapping[str, Any],
    epochs: int | None = None,
) -> str:
    spec = find_spec(model)
    words = ["posrec", "train", str(folder), "--model", model, "--out", "runs/tuned"]
    if spec.is_trained:
        planned = Settings(**spec.settings)
        is_refit = planned.protocol == "refit"
        words += ["--protocol", "refit" if is_refit else "early-stop"]
        most = most_epochs(spec, fixed, epochs)
        if tuned.metric != planned.choose_by:  # the common one of several models
            fixed = {**fixed, "choose_by": tuned.metric}
        # Without --epochs, training may go on for longer than the model's default.
        if epochs or "epochs" in fixed or most != planned.epochs:
            words += ["--epochs", str(most)]
    for name, value in {**fixed, **tuned.settings}.items():
        if name != "epochs":
            words += ["--set", f"{name}={value}"]
    return shlex.join(words)

"""Settings for one's own data: a resumable search on validation that stops poor trials early.

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

from posrec.config import DEFAULT_MODEL, Choices, Range, SearchSpace
from posrec.data.dataset import PreparedDataset
from posrec.device import choose_device
from posrec.errors import DoesNotFit, InputError, RunFailed, imported, plural
from posrec.fitting.fit import train_and_score
from posrec.fitting.job import FitOptions, configs_of, require_validation_part
from posrec.io import write_json
from posrec.io.executor import Cluster, Executor, ThisProcess
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

STUDY = "study.db"
SUMMARY = "tuning.json"
EPOCHS = 15
# These are never stopped early, so that there is a median to compare with.
FIRST_TRIALS = 4


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
    # Every trial: its settings, its state (complete, pruned or fail) and its value.
    history: list[dict[str, Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        trials = plural(self.trials, "trial")
        result = f"{self.metric} {100 * self.value:.2f} % on validation after {trials}"
        return f"Tuned({result}: {in_words(self.settings)})"

    def to_frame(self) -> "pl.DataFrame":
        """A row for each trial: its number, state, value and settings."""
        import polars as pl

        rows = []
        for number, trial in enumerate(self.history):
            outcome = {"state": trial["state"], self.metric: trial[self.metric]}
            rows.append({"trial": number, **outcome, **trial["settings"]})
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
    """Search for good settings on the validation part of a dataset. Needs the extra `posrec[tune]`.

    Args:
        data, device, progress: as for `posrec.fit`.
        model: a name of `posrec models`, `"my_model.py:MY_SPEC"`, or a ModelSpec; its `search` is
            what is searched.
        trials: how many trials there are in the end, with those of earlier calls in `out`.
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
    import_optuna()
    search = plan_search(model, fixed or {}, epochs, seed, device)
    require_validation_part(data)
    executor = executor or ThisProcess()
    if isinstance(executor, ThisProcess):
        choose_device(device)  # refuses a device that is not there before any work
    with ExitStack() as stack:
        if out is None:
            out = stack.enter_context(tempfile.TemporaryDirectory(prefix="posrec-"))
        stack.enter_context(one_writer(Path(out)))
        progress = progress or default_progress()
        return run_search(search, data, trials, Path(out), progress, executor)


@dataclass(frozen=True)
class Search:
    """What all trials of a search share."""

    model: str
    spec: ModelSpec
    space: SearchSpace
    defaults: Mapping[str, Any]  # of the settings that are searched
    fixed: Mapping[str, Any]
    metric: str
    epochs: int
    seed: int
    device: str


def plan_search(
    model: str | ModelSpec,
    fixed: Mapping[str, Any],
    epochs: int | None,
    seed: int,
    device: str,
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
    return Search(
        model_name(model),
        spec,
        space,
        {name: defaults[name] for name in space},
        fixed,
        training.choose_by,
        most_epochs(spec, fixed, epochs),
        seed,
        device,
    )


def most_epochs(spec: ModelSpec, fixed: Mapping[str, Any], epochs: int | None) -> int:
    planned = Settings(**spec.settings)
    default = planned.epochs if planned.schedule == "cosine" else EPOCHS
    return int(fixed.get("epochs") or epochs or default)


def run_search(
    search: Search,
    data: PreparedDataset,
    trials: int,
    folder: Path,
    progress: Progress,
    executor: Executor,
) -> Tuned:
    """Begin the study in `folder`, or continue it, until there are `trials`."""
    optuna = import_optuna()
    fixed = sorted(search.fixed.items())
    study = optuna.create_study(
        storage=f"sqlite:///{(folder / STUDY).absolute()}",
        study_name=f"{search.model} {data.fingerprint} epochs={search.epochs} {fixed}",
        direction="maximize",
        load_if_exists=True,
        pruner=pruner(),
    )
    before = len(finished(study))
    # A resumed search must not repeat its draws, and trials that run at the same time must not be
    # of the same settings.
    study.sampler = optuna.samplers.TPESampler(
        seed=search.seed + before, constant_liar=isinstance(executor, Cluster)
    )
    default_is_searched = all(
        search.defaults[name] in values for name, values in search.space.items()
    )
    if before == 0 and default_is_searched:
        study.enqueue_trial(dict(search.defaults), skip_if_exists=True)
    elif 0 < before < trials:
        progress.message(f"continuing after {before} trials in {folder / STUDY}")
    for trial in run_trials(search, data, study, trials, progress, executor):
        number = len(finished(study))
        progress.update("Trials", number, trials)
        outcome = f"{outcome_of(trial, search.metric)}; {in_words(trial.params)}"
        progress.message(f"trial {number} of {trials}: {outcome}")
    tuned = best_settings(study, search)
    about = {"model": search.model, "dataset": data.fingerprint, "fixed": search.fixed}
    write_json(folder / SUMMARY, {**about, **asdict(tuned)})
    return tuned


def best_settings(study: Any, search: Search) -> Tuned:
    metric = search.metric
    history = []
    default_value = None
    for trial in finished(study):
        state = trial.state.name.lower()
        history.append({"settings": trial.params, "state": state, metric: trial.value})
        is_default = state == "complete" and trial.params == search.defaults
        if is_default and default_value is None:
            default_value = trial.value
    states = Counter(trial["state"] for trial in history)
    if not states["complete"]:
        raise RunFailed(
            f"none of {len(history)} trials succeeded; see {STUDY}, or fix smaller settings "
            "with --set"
        )
    return Tuned(
        rounded(study.best_trial.params, search.space),
        study.best_value,
        metric,
        default_value,
        len(history),
        states["pruned"],
        states["fail"],
        history,
    )


# A trial's number, its settings, and the trials that had finished when it was proposed.
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
    distributions = {
        name: distribution(values) for name, values in search.space.items()
    }

    def proposals() -> Iterator[Proposal]:
        for _ in range(trials - len(finished(study))):
            trial = study.ask(distributions)
            asked[trial.number] = trial
            others = finished(study)
            progress.update("Trials", len(others), trials, in_words(trial.params))
            yield trial.number, trial.params, others

    task = partial(run_trial, search, data)
    gpus = executor.gpus_for(search.device)
    results = executor.run(task, proposals(), work="Trials", gpus=gpus)
    for (number, _, _), ended in results:
        trial = asked.pop(number)
        for epoch, value in ended.intermediate_values.items():
            trial.report(value, epoch)
        # Of a trial that was stopped early, Optuna takes the last epoch's value.
        value = ended.value if ended.state.name == "COMPLETE" else None
        yield study.tell(trial, value, state=ended.state)


def run_trial(search: Search, data: PreparedDataset, proposal: Proposal) -> Any:
    optuna = import_optuna()
    states = optuna.trial.TrialState
    study = optuna.create_study(direction="maximize", pruner=pruner())
    _, params, others = proposal
    study.add_trials(others)
    trial = study.ask()
    settings = {
        "epochs": search.epochs,
        **search.fixed,
        **rounded(params, search.space),
        "seed": search.seed,
    }
    progress = TrialProgress(trial, search.metric)
    options = FitOptions(settings, search.device, progress)
    try:
        evaluation = train_and_score(data, search.spec, options, on_validation=True)
    except optuna.TrialPruned:
        return study.tell(trial, state=states.PRUNED)
    except (RunFailed, DoesNotFit):
        return study.tell(trial, state=states.FAIL)
    return study.tell(trial, evaluation.metrics[search.metric])


def pruner() -> Any:
    """Stops a trial whose best epoch is below the median of the others at the same epoch."""
    pruners = import_optuna().pruners
    return pruners.MedianPruner(n_startup_trials=FIRST_TRIALS, n_warmup_steps=1)


class TrialProgress(SilentProgress):
    """Reports every epoch to Optuna, which may end the trial."""

    def __init__(self, trial: Any, metric: str) -> None:
        self.trial = trial
        self.metric = metric

    def validated(self, epoch: int, metrics: dict[str, float]) -> None:
        self.trial.report(metrics[self.metric], epoch)
        if self.trial.should_prune():
            raise import_optuna().TrialPruned


def distribution(values: Range | Choices) -> Any:
    distributions = import_optuna().distributions
    if isinstance(values, Range):
        return distributions.FloatDistribution(values.low, values.high, log=True)
    return distributions.CategoricalDistribution(values)


def rounded(params: Mapping[str, Any], space: SearchSpace) -> dict[str, Any]:
    """Numbers from a range have three digits, enough to read and to type."""
    settings = dict(params)
    for name, value in params.items():
        if isinstance(space[name], Range):
            settings[name] = float(f"{value:.3g}")
    return settings


def finished(study: Any) -> list[Any]:
    """Trials that ended; one whose process was killed is replaced by another."""
    trials = study.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state.is_finished()]


def outcome_of(trial: Any, metric: str) -> str:
    state = trial.state.name.lower()
    if state == "fail":
        return "failed"
    value = "" if trial.value is None else f"{metric} {100 * trial.value:.2f}"
    return value if state == "complete" else f"stopped early at {value}"


def in_words(settings: Mapping[str, Any]) -> str:
    words = []
    for name, value in settings.items():
        text = f"{value:.3g}" if isinstance(value, float) else value
        words.append(f"{name}={text}")
    return ", ".join(words)


def import_optuna() -> Any:
    optuna = imported("optuna", "posrec tune", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


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
        # Without --epochs, training may go on for longer than the model's default.
        if epochs or "epochs" in fixed or most != planned.epochs:
            words += ["--epochs", str(most)]
    for name, value in {**fixed, **tuned.settings}.items():
        if name != "epochs":
            words += ["--set", f"{name}={value}"]
    return shlex.join(words)

"""From a prepared dataset to a run: build the model, train it or count, evaluate it, and write the
run folder."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from posrec.config import DEFAULT_MODEL, split_settings
from posrec.data.dataset import PreparedDataset, with_items_of
from posrec.data.item_attributes import chosen_columns, encode_attributes
from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.device import choose_device, out_of_memory_hint
from posrec.encodings.schemes import OwnEncoding
from posrec.errors import InputError, imported, plural
from posrec.evaluation.evaluate import Evaluation
from posrec.fitting.evaluate_run import evaluate_run
from posrec.fitting.refit import CHOSEN, SELECTION, train_refit
from posrec.fitting.warm_start import (
    STARTED_FROM,
    WarmStart,
    check_same_model,
    inherited_settings,
    open_start,
    origin,
)
from posrec.io import RUN, STATE, WEIGHTS, save_tensors
from posrec.io.unfinished import one_writer
from posrec.models.base import CountingModel, Model, SessionModel
from posrec.models.registry import ModelSpec, find_spec, model_name, with_own_encoding
from posrec.progress import Progress, SilentProgress, default_progress
from posrec.recommend.export.writing import add_export
from posrec.recommend.recommender import Recommender
from posrec.runs.beginning import begin_run, is_new_run, run_config
from posrec.runs.folder import POPULARITY, Run
from posrec.runs.run import finish_run, load_run
from posrec.training.loop import Training, TrainingContext
from posrec.training.settings import Settings
from posrec.training.training_log import EVENTS, LOG


def fit(
    data: PreparedDataset,
    model: str | ModelSpec | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    start_from: str | Path | Run | None = None,
    keep_items: bool = False,
    **settings: Any,
) -> Recommender:
    """Train a model on a prepared dataset.

    Args:
        data: the dataset, from `posrec.prepare` or `posrec.load`.
        model: a name of `posrec models`, or a model of your own: `"my_model.py:MY_SPEC"` or its ModelSpec. By default
            posrec-plus, or the model of the run `start_from`.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        progress: where to report progress; by default an epoch a line, and a bar in a notebook.
        start_from: a run to start from instead of random weights (docs/nightly.md): a folder, or `recommender.run`.
        keep_items: keep the items of that run that the dataset does not have; by default they are dropped.
        **settings: settings of the model and of its training, as in `posrec train --set` (docs/training.md). `encoding`
            can also be a function, a module or a module class of your own (docs/own_encoding.md).

    Returns:
        A Recommender with the trained model. Its `save(folder)` writes a run; without that nothing is kept on disk.

    Raises:
        InputError: if the model, the device or a setting is unknown, or a value is outside its range.

    >>> import posrec, tempfile
    >>> from pathlib import Path
    >>> from posrec.testing import small_dataset
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = small_dataset(Path(folder) / "shop")
    >>> recommender = posrec.fit(data, model="itemknn", neighbours=20)
    >>> len(recommender.recommend(["1", "2"], k=3))
    3
    """
    if not isinstance(data, PreparedDataset):  # often the dataset's folder
        raise InputError(
            f"data must be what posrec.load or posrec.prepare returns, not {type(data).__name__}"
        )
    with tempfile.TemporaryDirectory(prefix="posrec-") as folder:
        options: dict[str, Any] = {
            "progress": progress,
            "start_from": start_from,
            "keep_items": keep_items,
        }
        out = Path(folder) / "run"
        run, outcome = fit_run(
            data, model, out, settings, device, resumable=False, export=False, **options
        )
    return Recommender(
        replace(run, metrics=outcome.as_json() if outcome.metrics else None), device
    )


def fit_run(
    data: PreparedDataset,
    model: str | ModelSpec | None,
    out: str | Path,
    settings: dict[str, Any] | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
    track: bool = False,
    resumable: bool = True,
    start_from: str | Path | Run | None = None,
    keep_items: bool = False,
    export: bool = True,
    training: type[Training] = Training,
) -> tuple[Run, Evaluation]:
    """Train a model, evaluate it on the test part if there is one, and write everything into a run
    folder.

    Args:
        data, model, device, progress, keep_items: as for `posrec.fit`.
        out: the run folder to create, or to continue with `resume`.
        settings: settings of the model and of its training by name; values may be text, as in `--set key=value`.
        resume: continue the run in `out` from its latest checkpoint; the dataset and all settings must be the same.
        track: write the folder `tensorboard` too.
        resumable: save checkpoints.
        start_from: as for `posrec.fit`; settings that are not given are then the run's own, at a tenth of its learning
            rate.
        export: write the export for serving too, as the last step, which takes some seconds (docs/serving.md).
        training: how a model is trained; `fit_together` gives another class.

    Returns:
        The run, and its evaluation on the test part; without metrics if the dataset has no test part.

    Raises:
        InputError: if an argument is not valid, or if `out` exists and can't be resumed.
        RunStopped: if SIGINT or SIGTERM stopped the training; a checkpoint was saved.
        RunFailed: if the loss was not a number.
    """
    progress = progress or default_progress()
    context = TrainingContext(
        Path(out), choose_device(device), progress, resume, track, resumable
    )
    job = plan_fit(data, model, settings or {}, start_from, keep_items, progress)
    if track:
        imported(
            "torch.utils.tensorboard", "--track", "track"
        )  # fail before the training rather than in it
    with out_of_memory_hint(advice(job)):
        start = warm_start(job, progress)
        with run_folder(job, context):
            learn(job, start, context, training)
            finish_run(context.run)
        encoding = getattr(job.model_config, "encoding", None)
        run = load_run(
            context.run,
            job.spec,
            encoding if isinstance(encoding, OwnEncoding) else None,
        )
        if job.data.test.sessions:
            evaluation = evaluate_run(run, job.data, device, progress)
        else:
            progress.message(
                f"{data.path} has no test part, so the run was not evaluated"
            )
            evaluation = Evaluation(
                {}, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
            )
    if export:
        add_export(run, progress)
    return run, evaluation


def fit_together(
    data: PreparedDataset,
    model: str | ModelSpec | None,
    out: str | Path,
    settings: dict[str, Any],
    device: str = "auto",
    resume: bool = False,
    start_from: str | Path | Run | None = None,
    keep_items: bool = False,
    **options: Any,
) -> tuple[Run, Evaluation] | None:
    """`fit_run`, in each of the processes that torchrun has started.

    The first process writes the run and returns it. The others take part in the training and return
    None; a model that counts needs no help."""
    from posrec.training.distributed import SharedTraining, several_processes

    with several_processes(device) as is_first:
        if is_first:
            options |= {
                "start_from": start_from,
                "keep_items": keep_items,
                "training": SharedTraining,
            }
            return fit_run(data, model, out, settings, device, resume, **options)
        context = TrainingContext(
            Path(out), choose_device(device), SilentProgress(), resume, writes=False
        )
        job = plan_fit(data, model, settings, start_from, keep_items, context.progress)
        if job.spec.is_trained:
            with out_of_memory_hint(advice(job)):
                learn(job, warm_start(job, context.progress), context, SharedTraining)
        return None


@dataclass(frozen=True)
class FitJob:
    """What is trained: a model with its settings, on a dataset, from the weights of another run or
    from random ones."""

    name: str
    spec: ModelSpec
    model_config: Any
    training: Settings
    data: PreparedDataset
    before: Run | None

    @property
    def items(self) -> int:
        return items_of(self.model_config, self.data)

    def build(self) -> Model:
        return build_network(self.spec, self.model_config, self.data)

    def config(self) -> dict[str, Any]:
        """The config.json of the run."""
        more = {} if self.before is None else {STARTED_FROM: origin(self.before)}
        return {
            **run_config(
                self.name, self.model_config, self.training, self.data, self.items
            ),
            **more,
        }


def plan_fit(
    data: PreparedDataset,
    model: str | ModelSpec | None,
    settings: dict[str, Any],
    start_from: str | Path | Run | None,
    keep_items: bool,
    progress: Progress,
) -> FitJob:
    """Choose the model and its settings, and raise an InputError for what can't be trained."""
    settings = with_own_encoding(settings)
    before = open_start(start_from, model, settings.get("encoding"))
    model = model or (before.config["model"] if before is not None else DEFAULT_MODEL)
    name = model_name(model)
    spec = find_spec(model)
    configs = (spec.config(), Settings(**spec.settings))
    if keep_items and before is None:
        raise InputError("--keep-items needs --from, the run whose items are kept")
    if before is not None:
        check_same_model(before, name)
        if keep_items:
            clicked = data.train_items
            data = with_items_of(data, before.vocabulary, before.model.items)
            count = plural(data.train_items - clicked, "item")
            progress.message(
                f"keeping {count} of the run that the dataset does not have"
            )
        configs = inherited_settings(before, spec)
    model_config, training = split_settings(settings, *configs)
    training.check()
    if spec.is_trained and training.protocol != "paper":
        require_validation_part(data)
    return FitJob(name, spec, model_config, training, data, before)


def warm_start(job: FitJob, progress: Progress) -> WarmStart | None:
    """The start from the weights of another run, if there is one."""
    if job.before is None:
        return None
    start = WarmStart(
        job.before, job.data.vocabulary, job.items, job.data.trained_until is not None
    )
    for text in start.messages(job.data, job.training.protocol):
        progress.message(text)
    return start


def learn(
    job: FitJob,
    start: WarmStart | None,
    context: TrainingContext,
    training: type[Training],
) -> None:
    """Count or train, and write the weights."""
    torch.manual_seed(job.training.seed)
    if job.spec.is_trained and job.training.protocol == "refit":
        build = cast(Callable[[], SessionModel], job.build)
        train_refit(build, job.data, job.training, context, start, training)
        return
    network = job.build()
    if isinstance(network, CountingModel):
        network.count(job.data.train.items, job.data.train.offsets)
        save_tensors(context.run / WEIGHTS, network.state_dict(), {})
    elif isinstance(network, SessionModel):
        training(network, job.data, job.training, context, start).run()
    else:
        raise InputError(
            f"{type(network).__name__} must be a subclass of SessionModel or CountingModel"
        )


def items_of(model_config: Any, data: PreparedDataset) -> int:
    """The number of items of a model; it has those of the items file too if it reads attributes."""
    return (
        data.recommendable_items
        if getattr(model_config, "attributes", None)
        else data.train_items
    )


def build_network(spec: ModelSpec, model_config: Any, data: PreparedDataset) -> Model:
    """The model for the items of a dataset."""
    items = items_of(model_config, data)
    network = spec.build(items, model_config)
    if columns := getattr(model_config, "attributes", None):
        assert isinstance(network, SessionModel)
        network.describe(
            encode_attributes(
                data.vocabulary, chosen_columns(columns, data.vocabulary), items
            )
        )
    return network


def require_validation_part(data: PreparedDataset) -> None:
    """Raise an InputError if the validation part, or what is left without it, has no samples."""
    if not len(data.validation) or not len(data.fitting):
        raise InputError(
            f"{data.path} has too few training sessions to validate on the latest tenth of them; prepare a longer log "
            "(posrec train --protocol paper needs no validation)"
        )


@contextmanager
def run_folder(job: FitJob, context: TrainingContext) -> Iterator[None]:
    """Begin the run or continue it; no other process trains in its folder during the block."""
    run = context.run
    config = job.config()
    if context.resume and not (run / RUN).exists():
        context.progress.message(f"{run} has no run to resume; a new one is trained")
    with (
        one_writer(run),
        remove_run_that_never_started(run, is_new_run(run, config, context.resume)),
    ):
        begin_run(run, config, job.data)
        yield


@contextmanager
def remove_run_that_never_started(path: Path, is_new: bool) -> Iterator[None]:
    """Remove the files of a new run if training fails before its first checkpoint, so that the
    folder can be used."""
    try:
        yield
    except BaseException:
        if is_new and not any(
            (path / name).exists()
            for name in (STATE, WEIGHTS, f"{SELECTION}/{STATE}", CHOSEN)
        ):
            for name in (SELECTION, EVENTS):
                shutil.rmtree(path / name, ignore_errors=True)
            for name in (RUN, VOCABULARY, POPULARITY, LOG):
                (path / name).unlink(missing_ok=True)
        raise


def advice(job: FitJob) -> str:
    """What a user can do if the run does not fit into memory."""
    if not job.spec.is_trained:
        return "train on less: posrec prepare --fraction keeps the most recent part"
    sizes = {**asdict(job.training), **asdict(job.model_config)}
    lower = [
        f"{name} (now {sizes[name]})"
        for name in ("batch_size", "max_length", "d")
        if name in sizes
    ]
    return f"lower {', '.join(lower)}, or set loss=chunked (now {job.training.loss})"

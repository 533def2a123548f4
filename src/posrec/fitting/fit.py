"""From a prepared dataset to a run: train a model or count, evaluate it, and write the run folder.

Users call `fit` and `fit_run`, commands `write_run`, and experiments `train_and_score`.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.device import out_of_memory_hint
from posrec.encodings.schemes import OwnEncoding
from posrec.errors import InputError
from posrec.evaluation.evaluate import Evaluation
from posrec.fitting.evaluate_run import evaluate_run
from posrec.fitting.job import FitJob, FitOptions, plan_fit
from posrec.fitting.refit import CHOSEN, SELECTION, train_refit
from posrec.io import CHECKSUMS, RUN, STATE, WEIGHTS, save_tensors
from posrec.io.unfinished import one_writer
from posrec.models.base import CountingModel, Model, SessionModel
from posrec.models.registry import ModelSpec
from posrec.progress import Progress, SilentProgress, default_progress
from posrec.recommend.export.writing import add_export
from posrec.recommend.recommender import Recommender
from posrec.runs.folder import EXPORT, FILES, POPULARITY, RECENT, Run
from posrec.runs.run import begin_run, finish_run, is_new_run, load_run
from posrec.training.loop import Training, TrainingContext, evaluate_on
from posrec.training.tracking import EVENTS, MLFLOW_RUN, module_of, tracking
from posrec.training.training_log import LOG

NONE = torch.empty(0, dtype=torch.int64)  # ranks and lengths that were not computed


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
        model: a name of `posrec models`, or a model of your own: `"my_model.py:MY_SPEC"` or its
            ModelSpec. By default posrec-plus, or the model of the run `start_from`.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        progress: where to report progress; by default an epoch a line, and a bar in a notebook.
        start_from: a run to start from instead of random weights (docs/nightly.md): a folder, or
            `recommender.run`.
        keep_items: keep the items of that run that the dataset does not have.
        **settings: settings of the model and of its training, as in `posrec train --set`
            (docs/training.md). `encoding` can also be a function, a module or a module class of
            your own (docs/own_encoding.md).

    Returns:
        A Recommender. Its `save(folder)` writes a run; without that nothing is kept on disk.

    Raises:
        InputError: if the model, the device or a setting is unknown, or a value is not allowed.

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
        kind = type(data).__name__
        raise InputError(
            f"data must be what posrec.load or posrec.prepare returns, not {kind}"
        )
    options = FitOptions(
        settings,
        device,
        progress or default_progress(),
        start_from=start_from,
        keep_items=keep_items,
        resumable=False,
        export=False,
    )
    with tempfile.TemporaryDirectory(prefix="posrec-") as folder:
        run, outcome = write_run(data, model, Path(folder) / "run", options)
    metrics = outcome.as_json() if outcome.metrics else None
    return Recommender(replace(run, metrics=metrics), device)


def fit_run(
    data: PreparedDataset,
    model: str | ModelSpec | None,
    out: str | Path,
    settings: dict[str, Any] | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
    *,
    track: str | None = None,
    resumable: bool = True,
    start_from: str | Path | Run | None = None,
    keep_items: bool = False,
    export: bool = True,
) -> tuple[Run, Evaluation]:
    """Train a model, evaluate it on the test part if there is one, and write everything into a run
    folder.

    Args:
        data, model, device, progress, keep_items: as for `posrec.fit`.
        out: the run folder to create, or to continue with `resume`.
        settings: of the model and of its training; values may be text, as in `--set key=value`.
        resume: continue the run in `out`, of the same dataset and settings, from its latest
            checkpoint.
        track: "tensorboard" writes the folder `tensorboard` too, "mlflow" logs to an MLflow server.
        resumable: save checkpoints.
        start_from: as for `posrec.fit`; the run's settings are then the default ones, at a tenth
            of its learning rate.
        export: write the export for serving too, which takes some seconds (docs/serving.md).

    Returns:
        The run, and its evaluation; without metrics if the dataset has no test part.

    Raises:
        InputError: if an argument is not valid, or if `out` exists and can't be resumed.
        RunStopped: if SIGINT or SIGTERM stopped the training; a checkpoint was saved.
        RunFailed: if the loss was not a number.
    """
    options = FitOptions(
        settings or {},
        device,
        progress or default_progress(),
        resume,
        track,
        resumable,
        start_from,
        keep_items,
        export,
    )
    return write_run(data, model, Path(out), options)


def fit_together(
    data: PreparedDataset, model: str | ModelSpec | None, out: Path, options: FitOptions
) -> tuple[Run, Evaluation] | None:
    """`write_run`, in each of the processes that torchrun has started.

    The first process writes the run and returns it; the others take part in the training.
    """
    from posrec.training.distributed import SharedTraining, several_processes

    with several_processes(options.device) as is_first:
        if is_first:
            return write_run(data, model, out, options, SharedTraining)
        options = replace(options, progress=SilentProgress())
        context = replace(options.context(out), writes=False)
        job = plan_fit(data, model, options)
        if job.spec.is_trained:  # counting needs no help
            with out_of_memory_hint(job.memory_advice()):
                learn(job, context, SharedTraining)
        return None


def train_and_score(
    data: PreparedDataset,
    model: str | ModelSpec,
    options: FitOptions,
    out: Path | None = None,
    on_validation: bool = False,
) -> Evaluation:
    """Train a model and score it on the test part: for `compare`, `tune` and `reproduce`.

    Its run is written into the folder `out`; nothing is kept if there is none.
    With `on_validation`, the latest tenth of the training sessions is held out and scored, and
    the test part is not used. A trained model then has one metric, `choose_by` of its best epoch.
    """
    if out is not None and not on_validation:
        return write_run(data, model, out, options)[1]
    options = replace(options, resumable=False, export=False)
    with tempfile.TemporaryDirectory(prefix="posrec-") as folder:
        if on_validation:
            return score_on_validation(data, model, Path(folder), options)
        return write_run(data, model, Path(folder) / "run", options)[1]


def score_on_validation(
    data: PreparedDataset, model: str | ModelSpec, scratch: Path, options: FitOptions
) -> Evaluation:
    settings = {**options.settings, "protocol": "early-stop"}
    job = plan_fit(data, model, replace(options, settings=settings))
    context = options.context(scratch)
    with out_of_memory_hint(job.memory_advice()):
        torch.manual_seed(job.training.seed)
        network = job.build()
        if isinstance(network, SessionModel):
            state = Training(network, data, job.training, context).run()
            return Evaluation({job.training.choose_by: state.best}, NONE, NONE)
        count(network, data.fitting)
        device = context.device
        network.to(device)
        return evaluate_on(network, data, data.validation, device, options.progress)


def write_run(
    data: PreparedDataset,
    model: str | ModelSpec | None,
    out: Path,
    options: FitOptions,
    training: type[Training] = Training,
) -> tuple[Run, Evaluation]:
    progress = options.progress
    context = options.context(out)
    job = plan_fit(data, model, options)
    if options.track is not None:
        # What is missing is reported before the training rather than in it.
        module_of(options.track)
    with ExitStack() as stack, out_of_memory_hint(job.memory_advice()):
        with run_folder(job, context):
            tracker = stack.enter_context(tracking(options.track, out, progress))
            learn(job, replace(context, tracker=tracker), training)
            finish_run(out)
        encoding = getattr(job.model_config, "encoding", None)
        own_encoding = encoding if isinstance(encoding, OwnEncoding) else None
        run = load_run(out, job.spec, own_encoding)
        if job.data.test.sessions:
            evaluation = evaluate_run(run, job.data, options.device, progress)
        else:
            progress.message("without a test part, the run was not evaluated")
            evaluation = Evaluation({}, NONE, NONE)
        if options.export:
            add_export(run, progress)
        files = [out / name for name in (CHECKSUMS, *FILES, *EXPORT)]
        tracker.finish(evaluation.metrics, list(filter(Path.exists, files)))
    return run, evaluation


def learn(job: FitJob, context: TrainingContext, training: type[Training]) -> None:
    """Count or train, and write the weights."""
    torch.manual_seed(job.training.seed)
    if job.spec.is_trained and job.training.protocol == "refit":
        build = cast(Callable[[], SessionModel], job.build)
        train_refit(build, job.data, job.training, context, job.start, training)
        return
    network = job.build()
    if isinstance(network, SessionModel):
        training(network, job.data, job.training, context, job.start).run()
    else:
        count(network, job.data.train)
        save_tensors(context.run / WEIGHTS, network.state_dict(), {})


def count(network: Model, sessions: SessionDataset) -> None:
    if not isinstance(network, CountingModel):
        kind = type(network).__name__
        raise InputError(f"{kind} must be a subclass of SessionModel or CountingModel")
    network.count(sessions.items[: sessions.clicks], sessions.offsets)


@contextmanager
def run_folder(job: FitJob, context: TrainingContext) -> Iterator[None]:
    """Begin the run or continue it; no other process trains in its folder during the block."""
    run = context.run
    config = job.config()
    if context.resume and not (run / RUN).exists():
        context.progress.message(f"{run} has no run to resume; a new one is trained")
    with one_writer(run):
        is_new = is_new_run(run, config, context.resume)
        try:
            begin_run(run, config, job.data)
            yield
        except BaseException:
            if is_new:
                remove_beginning(run)
            raise


def remove_beginning(run: Path) -> None:
    """Remove the files of a run without a checkpoint, so that its folder can be used again."""
    checkpoints = (STATE, WEIGHTS, f"{SELECTION}/{STATE}", CHOSEN)
    if any((run / name).exists() for name in checkpoints):
        return
    for name in (SELECTION, EVENTS):
        shutil.rmtree(run / name, ignore_errors=True)
    for name in (RUN, VOCABULARY, POPULARITY, RECENT, LOG, MLFLOW_RUN):
        (run / name).unlink(missing_ok=True)

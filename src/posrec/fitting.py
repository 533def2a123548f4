"""From a prepared dataset to a run: build the model, train it or count, evaluate it, and write the run folder."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch

from posrec.config import DEFAULT_MODEL, split_settings
from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.device import choose_device, out_of_memory_hint
from posrec.errors import InputError
from posrec.evaluation.evaluate import Evaluation
from posrec.evaluation.lists import list_metrics
from posrec.io import RUN, WEIGHTS, replace_array, save_tensors, write_json
from posrec.models.base import CountingModel, Model, SessionModel
from posrec.models.lookup import find_spec, model_name
from posrec.models.registry import ModelSpec
from posrec.progress import Progress
from posrec.recommend.recommender import Recommender
from posrec.run import METRICS, POPULARITY, RANKS, Run, begin_run, load_run, write_popularity
from posrec.training.checkpoint import STATE
from posrec.training.log import EVENTS, LOG, check_tracking
from posrec.training.loop import evaluate_on, train
from posrec.training.refit import CHOSEN, SELECTION, train_refit
from posrec.training.settings import Settings


def fit(
    data: PreparedDataset,
    model: str = DEFAULT_MODEL,
    device: str = "auto",
    progress: Progress | None = None,
    **settings: Any,
) -> Recommender:
    """Train a model on a prepared dataset.

    Args:
        data: the dataset, from `posrec.prepare` or `posrec.load`.
        model: a name of `posrec models`, or a model of your own as `"my_model.py:MY_SPEC"`.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        progress: where to report progress; by default messages are printed to standard error.
        **settings: settings of the model and of its training, as in `posrec train --set` (docs/training.md).

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
    with tempfile.TemporaryDirectory(prefix="posrec-") as folder:
        run, outcome = fit_run(data, model, Path(folder) / "run", settings, device, progress=progress, resumable=False)
    return Recommender(replace(run, metrics=outcome.as_json() if outcome.metrics else None), device)


def fit_run(
    data: PreparedDataset,
    model: str | ModelSpec,
    out: str | Path,
    settings: dict[str, Any] | None = None,
    device: str = "auto",
    resume: bool = False,
    progress: Progress | None = None,
    track: bool = False,
    resumable: bool = True,
) -> tuple[Run, Evaluation]:
    """Train a model, evaluate it on the test part if there is one, and write everything into a run folder.

    Args:
        data: the dataset, from `posrec.prepare` or `posrec.load`.
        model: a name of `posrec models`, `"my_model.py:MY_SPEC"`, or a ModelSpec (docs/own_model.md).
        out: the run folder to create, or to continue with `resume`.
        settings: settings of the model and of its training by name; values may be text, as in `--set key=value`.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        resume: continue the run in `out` from its latest checkpoint; the dataset and all settings must be the same.
        progress: where to report progress; by default messages are printed to standard error.
        track: write the folder `tensorboard` too.
        resumable: save checkpoints.

    Returns:
        The run, and its evaluation on the test part; without metrics if the dataset has no test part.

    Raises:
        InputError: if an argument is not valid, or if `out` exists and can't be resumed.
        RunStopped: if SIGINT or SIGTERM stopped the training; a checkpoint was saved.
        RunFailed: if the loss was not a number.
    """
    progress = progress or Progress()
    spec, torch_device, path = find_spec(model), choose_device(device), Path(out)
    model_config, training = split_settings(settings or {}, spec.config(), Settings(**spec.settings))
    training.check()
    if spec.is_trained and training.protocol != "paper" and not len(data.validation):
        raise InputError(
            f"the validation part of {data.path} has no samples, and protocol {training.protocol} needs some; "
            "use --protocol paper, or prepare a longer log"
        )
    if track:
        check_tracking()
    with out_of_memory_hint(advice(spec, model_config, training)):
        torch.manual_seed(training.seed)
        network = spec.build(data.train_items, model_config)
        exists = (path / RUN).exists()
        begin_run(path, model_name(model), model_config, training, data, resume)
        with nullcontext() if exists else remove_run_that_never_started(path):
            if isinstance(network, CountingModel):
                network.count(data.train.items, data.train.offsets)
                save_tensors(path / WEIGHTS, network.state_dict(), {})
            elif isinstance(network, SessionModel):
                if training.protocol == "refit":
                    del network  # two models are built in its place, one after the other

                    def build() -> SessionModel:
                        return cast(SessionModel, spec.build(data.train_items, model_config))

                    train_refit(build, data, training, path, torch_device, progress, resume, track, resumable)
                else:
                    train(network, data, training, path, torch_device, progress, resume, track, resumable)
            else:
                raise InputError(f"{type(network).__name__} must be a subclass of SessionModel or CountingModel")
        run = load_run(path, spec)
        if not data.test.sessions:
            progress.message(f"{data.path} has no test part, so the run was not evaluated")
            return run, Evaluation({}, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
        return run, evaluate_run(run, data, device, progress)


@contextmanager
def remove_run_that_never_started(path: Path) -> Iterator[None]:
    """Remove the run's folder if training fails before its first checkpoint, so that a new run can use it."""
    try:
        yield
    except BaseException:
        if not any((path / name).exists() for name in (STATE, WEIGHTS, f"{SELECTION}/{STATE}", CHOSEN)):
            for name in (SELECTION, EVENTS):
                shutil.rmtree(path / name, ignore_errors=True)
            for name in (RUN, VOCABULARY, POPULARITY, LOG):
                (path / name).unlink(missing_ok=True)
            with suppress(OSError):  # the folder holds other files, which are not the run's
                path.rmdir()
        raise


def advice(spec: ModelSpec, model_config: Any, training: Settings) -> str:
    """What a user can do if the run does not fit into memory."""
    if not spec.is_trained:
        return "train on less: posrec prepare --fraction keeps the most recent part"
    sizes = {**asdict(training), **asdict(model_config)}
    lower = [f"{name} (now {sizes[name]})" for name in ("batch_size", "max_length", "d") if name in sizes]
    return f"lower {', '.join(lower)}, or set loss=chunked (now {training.loss})"


def evaluate_run(run: Run, data: PreparedDataset, device: str = "auto", progress: Progress | None = None) -> Evaluation:
    """Evaluate a run on the test part of a dataset, and write metrics.json and ranks.npy into its folder.

    Args:
        run: the run, from `load_run`.
        data: a dataset with the same items as the one that the run was trained on.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        progress: where to report progress; by default messages are printed to standard error.

    Returns:
        The metrics, and the rank of every test target.

    Raises:
        InputError: if the dataset has other items than the run, or no test part.
    """
    data.require_test_part()
    if run.config["dataset"] != data.fingerprint and run.vocabulary.ids != data.vocabulary.ids:
        raise InputError(f"{run.path} was trained on other items than {data.path} has; evaluate it on its own dataset")
    outcome = evaluate_on(run.model, data, data.test, choose_device(device), progress or Progress())
    outcome = with_list_metrics(outcome, run.model, data)
    if run.popularity is None and run.config["dataset"] == data.fingerprint:
        write_popularity(run.path, data)
    write_json(run.path / METRICS, outcome.as_json())
    replace_array(run.path / RANKS, outcome.ranks.numpy())
    return outcome


@torch.inference_mode()
def with_list_metrics(outcome: Evaluation, model: Model, data: PreparedDataset) -> Evaluation:
    """The same evaluation with metrics of the lists beyond accuracy."""
    assert outcome.top is not None
    _, places = data.test.locate(torch.arange(len(data.test)))
    clicks = torch.bincount(data.train.items.long(), minlength=data.train_items + 1)
    vectors = model.similarity_vectors().cpu() if isinstance(model, SessionModel) else None
    targets, columns = data.test.items[places].long(), data.vocabulary.columns
    return replace(outcome, of_lists=list_metrics(outcome.top, targets, clicks, vectors, columns))

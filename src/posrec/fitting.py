"""From a prepared dataset to a run: build the model, train it or count, evaluate it, and write the run folder."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch

from posrec.config import DEFAULT_MODEL, split_settings
from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.device import choose_device, out_of_memory_hint
from posrec.encodings.own import OwnEncoding
from posrec.errors import InputError
from posrec.evaluation.evaluate import Evaluation
from posrec.evaluation.lists import list_metrics
from posrec.io import RUN, STATE, WEIGHTS, save_tensors
from posrec.models.base import CountingModel, Model, SessionModel
from posrec.models.lookup import find_spec, model_name, with_own_encoding
from posrec.models.registry import ModelSpec
from posrec.progress import Progress, default_progress
from posrec.recommend.recommender import Recommender
from posrec.run import POPULARITY, Run, finish_run, load_run, write_evaluation
from posrec.run_start import begin_run, is_new_run, lock_run, run_config
from posrec.training.log import EVENTS, LOG, check_tracking
from posrec.training.loop import evaluate_on, train
from posrec.training.refit import CHOSEN, SELECTION, train_refit
from posrec.training.settings import Settings


def fit(
    data: PreparedDataset,
    model: str | ModelSpec = DEFAULT_MODEL,
    device: str = "auto",
    progress: Progress | None = None,
    **settings: Any,
) -> Recommender:
    """Train a model on a prepared dataset.

    Args:
        data: the dataset, from `posrec.prepare` or `posrec.load`.
        model: a name of `posrec models`, or a model of your own: `"my_model.py:MY_SPEC"` or its ModelSpec.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        progress: where to report progress; by default an epoch a line, and a bar in a notebook.
        **settings: settings of the model and of its training, as in `posrec train --set` (docs/training.md). `encoding`
            can also be a function, a module or a module class of your own (docs/encodings.md).

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
        progress: where to report progress; by default an epoch a line, and a bar in a notebook.
        track: write the folder `tensorboard` too.
        resumable: save checkpoints.

    Returns:
        The run, and its evaluation on the test part; without metrics if the dataset has no test part.

    Raises:
        InputError: if an argument is not valid, or if `out` exists and can't be resumed.
        RunStopped: if SIGINT or SIGTERM stopped the training; a checkpoint was saved.
        RunFailed: if the loss was not a number.
    """
    progress = progress or default_progress()
    spec, torch_device, path = find_spec(model), choose_device(device), Path(out)
    settings = with_own_encoding(settings or {})
    model_config, training = split_settings(settings, spec.config(), Settings(**spec.settings))
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
        config = run_config(model_name(model), model_config, training, data)
        with lock_run(path), remove_run_that_never_started(path, is_new_run(path, config, resume)):
            begin_run(path, config, data)
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
            finish_run(path)
        own_encoding = getattr(model_config, "encoding", None)
        run = load_run(path, spec, own_encoding if isinstance(own_encoding, OwnEncoding) else None)
        if not data.test.sessions:
            progress.message(f"{data.path} has no test part, so the run was not evaluated")
            return run, Evaluation({}, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
        return run, evaluate_run(run, data, device, progress)


@contextmanager
def remove_run_that_never_started(path: Path, is_new: bool) -> Iterator[None]:
    """Remove the files of a new run if training fails before its first checkpoint, so that the folder can be used."""
    try:
        yield
    except BaseException:
        if is_new and not any((path / name).exists() for name in (STATE, WEIGHTS, f"{SELECTION}/{STATE}", CHOSEN)):
            for name in (SELECTION, EVENTS):
                shutil.rmtree(path / name, ignore_errors=True)
            for name in (RUN, VOCABULARY, POPULARITY, LOG):
                (path / name).unlink(missing_ok=True)
        raise


def advice(spec: ModelSpec, model_config: Any, training: Settings) -> str:
    """What a user can do if the run does not fit into memory."""
    if not spec.is_trained:
        return "train on less: posrec prepare --fraction keeps the most recent part"
    sizes = {**asdict(training), **asdict(model_config)}
    lower = [f"{name} (now {sizes[name]})" for name in ("batch_size", "max_length", "d") if name in sizes]
    return f"lower {', '.join(lower)}, or set loss=chunked (now {training.loss})"


def evaluate(recommender: Recommender, data: PreparedDataset, progress: Progress | None = None) -> Evaluation:
    """Evaluate a recommender on the test part of a dataset; nothing is written.

    Args:
        recommender: from `posrec.fit` or `Recommender.load`.
        data: a dataset with the same items as the one that the recommender was trained on.
        progress: where to report progress; by default a bar in a notebook, and nothing elsewhere.

    Returns:
        The metrics, and the rank of every test target.

    Raises:
        InputError: if the dataset has other items than the recommender, or no test part.

    >>> import posrec, tempfile
    >>> from posrec.testing import small_dataset
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = small_dataset(Path(folder) / "shop")
    >>> posrec.evaluate(posrec.fit(data, model="pop"), data).to_frame().columns[:2]
    ['recall@5', 'recall@10']
    """
    check_evaluable(recommender.run, data)
    return evaluate_on(recommender.model, data, data.test, recommender.device, progress or default_progress())


def check_evaluable(run: Run, data: PreparedDataset) -> None:
    """Raise an InputError if the dataset has no test part or other items than the run."""
    data.require_test_part()
    if run.config.get("dataset") != data.fingerprint and run.vocabulary.ids != data.vocabulary.ids:
        raise InputError(f"{run.path} was trained on other items than {data.path} has; evaluate it on its own dataset")


def evaluate_run(run: Run, data: PreparedDataset, device: str = "auto", progress: Progress | None = None) -> Evaluation:
    """Evaluate a run on the test part of a dataset, and write metrics.json and ranks.npy into its folder.

    Args:
        run: the run, from `load_run`.
        data: a dataset with the same items as the one that the run was trained on.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        progress: where to report progress; by default a bar in a notebook, and nothing elsewhere.

    Returns:
        The metrics, and the rank of every test target.

    Raises:
        InputError: if the dataset has other items than the run, or no test part.
    """
    check_evaluable(run, data)
    outcome = evaluate_on(run.model, data, data.test, choose_device(device), progress or default_progress())
    outcome = with_list_metrics(outcome, run.model, data)
    write_evaluation(run, outcome.as_json(), outcome.ranks, data)
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

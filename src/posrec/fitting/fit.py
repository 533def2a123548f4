"""From a prepared dataset to a run: build the model, train it or count, evaluate it, and write the run folder."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch

from posrec.config import DEFAULT_MODEL, split_settings
from posrec.data.dataset import PreparedDataset
from posrec.data.item_attributes import chosen_columns, encode_attributes
from posrec.data.kept_items import with_items_of
from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.device import choose_device, out_of_memory_hint
from posrec.encodings.own import OwnEncoding
from posrec.errors import InputError, plural
from posrec.evaluation.evaluate import Evaluation
from posrec.fitting.evaluate_run import evaluate_run
from posrec.fitting.refit import CHOSEN, SELECTION, train_refit
from posrec.fitting.warm_start import STARTED_FROM, WarmStart, check_same_model, inherited_settings, open_start, origin
from posrec.io import RUN, STATE, WEIGHTS, save_tensors
from posrec.models.base import CountingModel, Model, SessionModel
from posrec.models.lookup import find_spec, model_name, with_own_encoding
from posrec.models.registry import ModelSpec
from posrec.progress import Progress, default_progress
from posrec.recommend.export.writing import add_export
from posrec.recommend.recommender import Recommender
from posrec.runs.beginning import begin_run, is_new_run, lock_run, run_config
from posrec.runs.folder import POPULARITY
from posrec.runs.run import Run, finish_run, load_run
from posrec.training.checkpoint import load_weights
from posrec.training.distributed.rows import keep_own_rows
from posrec.training.distributed.world import World, entered_by_first
from posrec.training.loop import train
from posrec.training.settings import Settings
from posrec.training.training_log import EVENTS, LOG, check_tracking


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
        raise InputError(f"data must be what posrec.load or posrec.prepare returns, not {type(data).__name__}")
    with tempfile.TemporaryDirectory(prefix="posrec-") as folder:
        run, outcome = fit_run(data, model, Path(folder) / "run", settings, device, progress=progress, resumable=False,
                               start_from=start_from, keep_items=keep_items, export=False)  # fmt: skip
    return Recommender(replace(run, metrics=outcome.as_json() if outcome.metrics else None), device)


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
    world: World | None = None,
    export: bool = True,
) -> tuple[Run, Evaluation]:
    """Train a model, evaluate it on the test part if there is one, and write everything into a run folder.

    Args:
        data: the dataset, from `posrec.prepare` or `posrec.load`.
        model: a name of `posrec models`, `"my_model.py:MY_SPEC"`, or a ModelSpec (docs/own_model.md); None is the
            model of the run `start_from`, or posrec-plus.
        out: the run folder to create, or to continue with `resume`.
        settings: settings of the model and of its training by name; values may be text, as in `--set key=value`.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        resume: continue the run in `out` from its latest checkpoint; the dataset and all settings must be the same.
        progress: where to report progress; by default an epoch a line, and a bar in a notebook.
        track: write the folder `tensorboard` too.
        resumable: save checkpoints.
        start_from: a run to start from instead of random weights (docs/nightly.md): its folder, or a Run. Settings that
            are not given are then the run's own, at a tenth of its learning rate.
        keep_items: keep the items of that run that the dataset does not have; by default they are dropped.
        world: the processes that train together (docs/scaling.md), each of which calls this function; the first
            writes the run. The model of the run that is returned holds the item vectors of its process alone.
        export: write the export for serving too, as the last step, which takes some seconds (docs/serving.md). A run
            that several processes train has none; `posrec export` adds it.

    Returns:
        The run, and its evaluation on the test part; without metrics if the dataset has no test part.

    Raises:
        InputError: if an argument is not valid, or if `out` exists and can't be resumed.
        RunStopped: if SIGINT or SIGTERM stopped the training; a checkpoint was saved.
        RunFailed: if the loss was not a number.
    """
    progress, torch_device, path = progress or default_progress(), choose_device(device), Path(out)
    world = world or World()
    if not world.is_alone and start_from is not None:
        raise InputError("--from reads whole item tables, in one process; leave it out, or start without torchrun")
    settings = with_own_encoding(settings or {})
    before = open_start(start_from, model, settings.get("encoding"))
    model = model or (before.config["model"] if before is not None else DEFAULT_MODEL)
    spec = find_spec(model)
    configs = (spec.config(), Settings(**spec.settings))
    defaults = {**asdict(configs[0]), **asdict(configs[1])}
    start, more = None, {}
    if keep_items and before is None:
        raise InputError("--keep-items needs --from, the run whose items are kept")
    if before is not None:
        check_same_model(before, model_name(model))
        if keep_items:
            of_log = data.train_items
            data = with_items_of(data, before.vocabulary, before.model.items)
            kept = plural(data.train_items - of_log, "item")
            progress.message(f"keeping {kept} of the run that the dataset does not have")
        configs, more = inherited_settings(before, spec), {STARTED_FROM: origin(before)}
    model_config, training = split_settings(settings, *configs)
    training.check()
    if not world.is_alone:
        check_shardable(spec, model_name(model))
    build = network_builder(spec, model_config, data, world)
    if spec.is_trained and training.protocol != "paper":
        check_validation(data, training.protocol)
    if track:
        check_tracking()
    with out_of_memory_hint(advice(spec, model_config, training)):
        torch.manual_seed(training.seed)
        network = build()
        if before is not None:
            start = WarmStart(before, data.vocabulary, network.items, data.trained_until is not None)
            for text in start.messages(data, training.protocol):
                progress.message(text)
        config = {**run_config(model_name(model), model_config, training, data, network.items), **more}
        if resume and world.is_first and not (path / RUN).exists():
            progress.message(f"{path} has no run to resume; a new one is trained")
        with run_folder(path, config, defaults, data, resume, world, torch_device):
            if isinstance(network, CountingModel):
                network.count(data.train.items, data.train.offsets)
                save_tensors(path / WEIGHTS, network.state_dict(), {})
            elif isinstance(network, SessionModel):
                if training.protocol == "refit":
                    del network  # two models are built in its place, one after the other
                    rebuild = cast(Callable[[], SessionModel], build)
                    train_refit(rebuild, data, training, path, torch_device, progress, resume, track, resumable, start,
                                world)  # fmt: skip
                else:
                    train(network, data, training, path, torch_device, progress, resume, track, resumable, start=start)
            else:
                raise InputError(f"{type(network).__name__} must be a subclass of SessionModel or CountingModel")
            if world.is_first:
                finish_run(path)
        if world.is_alone:
            own_encoding = getattr(model_config, "encoding", None)
            run = load_run(path, spec, own_encoding if isinstance(own_encoding, OwnEncoding) else None)
        else:
            run = load_own_rows(path, spec, model_config, config, data, world, torch_device)
        if data.test.sessions:
            evaluation = evaluate_run(run, data, device, progress)
        else:
            progress.message(f"{data.path} has no test part, so the run was not evaluated")
            evaluation = Evaluation({}, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    if export and world.is_alone:
        add_export(run, progress)
    elif export and world.is_first:
        progress.message(f"posrec export {path} adds the export for serving")
    return run, evaluation


def network_builder(
    spec: ModelSpec, model_config: Any, data: PreparedDataset, world: World | None = None
) -> Callable[[], Model]:
    """Builds the model for the items of a dataset; with those of the items file if it reads attributes."""
    columns = asdict(model_config).get("attributes")
    if not columns:
        return lambda: build_model(spec, data.train_items, model_config, world)
    items = data.recommendable_items
    attributes = encode_attributes(data.vocabulary, chosen_columns(columns, data.vocabulary), items)

    def build() -> Model:
        network = build_model(spec, items, model_config, world)
        assert isinstance(network, SessionModel)
        network.describe(attributes)
        return network

    return build


def build_model(spec: ModelSpec, items: int, model_config: Any, world: World | None) -> Model:
    """The model for items 1..items. Where several processes train together, it holds this process's item vectors."""
    network = spec.build(items, model_config)
    return network if world is None or world.is_alone else keep_own_rows(network, world)


def check_validation(data: PreparedDataset, protocol: str) -> None:
    """Raise an InputError if the validation part, or what is left without it, has no samples."""
    if not len(data.validation):
        raise InputError(
            f"the validation part of {data.path} has no samples, and protocol {protocol} needs some; "
            "use --protocol paper, or prepare a longer log"
        )
    if not len(data.fitting):
        raise InputError(
            f"{data.path} has no samples before its validation part, and protocol {protocol} needs some; "
            "use --protocol paper, or prepare a longer log"
        )


def check_shardable(spec: ModelSpec, name: str) -> None:
    """Raise an InputError for a model that several processes can't train together."""
    if not spec.is_trained:
        raise InputError(f"{name} counts the sessions in one process and is not trained; start it without torchrun")


@contextmanager
def run_folder(
    path: Path, config: dict[str, Any], defaults: dict[str, Any], data: PreparedDataset, resume: bool,
    world: World, device: torch.device,
) -> Iterator[None]:  # fmt: skip
    """Begin the run or continue it, in the first process; no other process trains in its folder during the block."""
    with ExitStack() as stack:
        with entered_by_first(world, device):
            if world.is_first:
                stack.enter_context(lock_run(path))
                is_new = is_new_run(path, config, defaults, resume)
                stack.enter_context(remove_run_that_never_started(path, is_new))
                begin_run(path, config, data)
        yield


def load_own_rows(
    path: Path, spec: ModelSpec, model_config: Any, config: dict[str, Any], data: PreparedDataset, world: World,
    device: torch.device,
) -> Run:  # fmt: skip
    """A finished run whose model holds the item vectors of this process alone."""
    network = build_model(spec, config["items"], model_config, world)
    assert isinstance(network, SessionModel)
    load_weights(path, network.to(device).eval())
    popularity = torch.bincount(data.train.items.long(), minlength=network.items + 1)[1 : network.items + 1]
    return Run(path, network, data.vocabulary, config, popularity.numpy())


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

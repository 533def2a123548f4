"""From a prepared dataset to a run: build the model, train or count, evaluate, write everything down."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posrec.config import split_settings
from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import FILE as VOCABULARY
from posrec.device import choose_device, out_of_memory_hint
from posrec.errors import InputError
from posrec.evaluation.evaluate import Evaluation
from posrec.io import RUN, WEIGHTS, save_tensors, write_json
from posrec.models.base import CountingModel, SessionModel
from posrec.models.lookup import find_spec, model_name
from posrec.models.registry import ModelSpec
from posrec.progress import Progress
from posrec.recommend.recommender import Recommender
from posrec.run import METRICS, POPULARITY, RANKS, Run, begin_run, load_run, write_popularity
from posrec.training.checkpoint import STATE
from posrec.training.log import LOG, check_tracking
from posrec.training.loop import evaluate_on, train
from posrec.training.settings import Settings


def fit(
    data: PreparedDataset,
    model: str = "posrec",
    device: str = "auto",
    progress: Progress | None = None,
    **settings: Any,
) -> Recommender:
    """Train `model` on `data` and give what recommends with it; `Recommender.save` keeps it.

    `settings` are those of `posrec train --set`: fields of the model's config and of training.settings.Settings.
    """
    with tempfile.TemporaryDirectory(prefix="posrec-") as folder:
        run, outcome = fit_run(data, model, Path(folder) / "run", settings, device, progress=progress, resumable=False)
    return Recommender(replace(run, metrics=outcome.as_json()), device)


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
    """Train `model` on `data` into the folder `out` and evaluate it on the test part.

    `model` is a name of the catalog, `my_model.py:MY_SPEC`, or a ModelSpec (docs/own_model.md).
    `settings` are fields of the model's config and of training.settings.Settings, as text or as values.
    With `track` the course of training is written for TensorBoard too. Unless `resumable` no checkpoints are written.
    """
    progress = progress or Progress()
    spec, where, path = find_spec(model), choose_device(device), Path(out)
    model_config, training = split_settings(settings or {}, spec.config(), Settings(**spec.settings))
    training.check()
    if track:
        check_tracking()
    with out_of_memory_hint(advice(spec, model_config, training)):
        torch.manual_seed(training.seed)
        try:
            network = spec.build(data.train_items, model_config)
        except ValueError as error:
            raise InputError(str(error)) from None
        goes_on = (path / RUN).exists()
        begin_run(path, model_name(model), model_config, training, data, resume)
        with nullcontext() if goes_on else remove_run_that_never_started(path):
            if isinstance(network, CountingModel):
                network.count(data.train.items, data.train.offsets)
                save_tensors(path / WEIGHTS, network.state_dict(), {})
            elif isinstance(network, SessionModel):
                train(network, data, training, path, where, progress, resume, track, resumable)
        run = load_run(path, spec)
        return run, evaluate_run(run, data, device, progress)


@contextmanager
def remove_run_that_never_started(path: Path) -> Iterator[None]:
    """A run that fails before anything of it was saved frees its folder: the next try has other settings."""
    try:
        yield
    except Exception:
        if not any((path / name).exists() for name in (STATE, WEIGHTS)):
            for name in (RUN, VOCABULARY, POPULARITY, LOG):
                (path / name).unlink(missing_ok=True)
            with suppress(OSError):  # there is more in it, which is not ours
                path.rmdir()
        raise


def advice(spec: ModelSpec, model_config: Any, training: Settings) -> str:
    """What to do about a run that does not fit in memory."""
    if not spec.is_trained:
        return "train on less: posrec prepare --fraction keeps the most recent part"
    sizes = {**asdict(training), **asdict(model_config)}
    lower = [f"{name} (now {sizes[name]})" for name in ("batch_size", "max_length", "d") if name in sizes]
    return f"lower {', '.join(lower)}, or set loss=chunked (now {training.loss})"


def evaluate_run(run: Run, data: PreparedDataset, device: str = "auto", progress: Progress | None = None) -> Evaluation:
    """Rank the test part and write metrics.json and ranks.npy into the run."""
    if run.config["dataset"] != data.fingerprint and run.vocabulary.ids != data.vocabulary.ids:
        raise InputError(f"{run.path} was trained on other items than {data.path} has; evaluate it on its own dataset")
    outcome = evaluate_on(run.model, data, data.test, choose_device(device), progress or Progress())
    if run.popularity is None and run.config["dataset"] == data.fingerprint:
        write_popularity(run.path, data)
    write_json(run.path / METRICS, outcome.as_json())
    np.save(run.path / RANKS, outcome.ranks.numpy())
    return outcome

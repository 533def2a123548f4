"""A run: the folder that training writes, and that evaluation, recommending and serving read.

config.json         the model, its settings, how it was trained, on what (fingerprint), with which versions
model.safetensors   the weights
vocabulary.json     the items
popularity.npy      the training clicks of each item, for sessions without known items
metrics.json        the evaluation on the test part
ranks.npy           the rank of every test target, for significance tests
log.jsonl           a line for each epoch
selection.json      protocol refit: the number of epochs that was chosen on validation
state.safetensors   the latest checkpoint, for --resume
"""

import platform
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import posrec
from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import FILE as VOCABULARY_FILE
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.io import (
    RUN,
    WEIGHTS,
    load_tensors,
    read_json,
    replace_array,
    require_folder,
    save_tensors,
    whole_folder,
    write_array,
    write_json,
    write_text,
)
from posrec.models.base import CountingModel, Model
from posrec.models.lookup import find_spec
from posrec.models.registry import MODELS, ModelSpec

METRICS, RANKS, POPULARITY = "metrics.json", "ranks.npy", "popularity.npy"
RENAMED = {"start": "initialization"}  # old names of settings in config.json, and their present names


@dataclass(frozen=True)
class Run:
    """A finished run, loaded into memory; `load_run` opens one.

    Attributes:
        path: the run folder.
        model: the trained model, on the CPU and in evaluation mode.
        vocabulary: the ids of the items, with their titles and other columns.
        config: the contents of config.json: the model's name, its settings, versions.
        popularity: [n] training clicks of items 1..n; None in runs of versions that did not write them.
        metrics: the metrics of the last evaluation, if there was one.
    """

    path: Path
    model: Model
    vocabulary: Vocabulary
    config: dict[str, Any]
    popularity: Tensor | None = None
    metrics: dict[str, float] | None = None


def begin_run(
    path: Path,
    name: str,
    model_config: Any,
    settings: Any,
    data: PreparedDataset,
    resume: bool,
    items: int,
    more: dict[str, Any] | None = None,
) -> None:
    """Create the run folder and write its config, with `more` in it; with `resume`, check that it is the same."""
    config = {
        "model": name,
        "items": items,
        **asdict(model_config),
        "training": asdict(settings),
        "dataset": data.fingerprint,
        **(more or {}),
        "posrec": posrec.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    if (path / RUN).exists():
        if not resume:
            raise InputError(f"{path} holds a run already; name another folder, or pass --resume to continue it")
        refuse_other(path, with_present_names(read_json(path / RUN)), config)
        return
    if path.exists() and any(path.iterdir()):
        raise InputError(f"{path} exists and is not a run folder; name another folder")
    path.mkdir(parents=True, exist_ok=True)
    write_text(path / VOCABULARY_FILE, data.vocabulary.to_json())
    write_popularity(path, data, items)
    write_json(path / RUN, config)


def write_popularity(path: Path, data: PreparedDataset, items: int) -> None:
    """Write the number of training clicks of each item."""
    clicks = np.bincount(data.train.items.numpy(), minlength=items + 1)[1 : items + 1]
    replace_array(path / POPULARITY, clicks.astype(np.int64))


def refuse_other(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise an error if the model, a setting or the dataset is not that of the run; versions may differ."""
    before, now = ({**config, **config["training"]} for config in (before, now))
    ignored = {"posrec", "torch", "python", "training"}
    differing = [key for key in sorted({*before, *now} - ignored) if before.get(key) != now.get(key)]
    if differing:
        shown = "; ".join(f"{key} was {before.get(key)!r}, is {now.get(key)!r}" for key in differing)
        raise InputError(f"{path} can't be resumed with another setting: {shown}")


def read_config(path: Path) -> dict[str, Any]:
    """The config of a finished run."""
    require_folder(path, RUN)
    config = read_json(path / RUN)
    if not isinstance(config, dict) or "model" not in config:
        raise InputError(f"{path / RUN} names no model; it is damaged, or another program wrote it")
    if not (path / WEIGHTS).is_file():
        raise InputError(f"{path} is unfinished (it has no {WEIGHTS}); continue it with posrec train --resume")
    return with_present_names(config)


def with_present_names(config: dict[str, Any]) -> dict[str, Any]:
    return {RENAMED.get(name, name): value for name, value in config.items()}


def load_run(folder: str | Path, spec: str | ModelSpec | None = None) -> Run:
    """Open a finished run.

    Args:
        folder: the run folder.
        spec: needed for a run of a model of your own: its ModelSpec, or its name such as `"my_model.py:MY_SPEC"`. The
            name in config.json is not used, because opening a run from an unknown source must not run code.

    Returns:
        The run, with its model on the CPU.

    Raises:
        InputError: if the folder is not a finished run, is damaged, or needs a spec.

    >>> import tempfile
    >>> from posrec.fitting import fit_run
    >>> from posrec.testing import small_dataset
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = fit_run(small_dataset(Path(folder) / "shop"), "pop", Path(folder) / "run")
    ...     run = load_run(Path(folder) / "run")
    >>> run.config["model"], run.model.items
    ('pop', 30)
    """
    path = Path(folder)
    config = read_config(path)
    if spec is None and config["model"] not in MODELS:
        raise InputError(
            f"{path} holds a model that is not posrec's own, {config['model']}; if you trust that code, name it: "
            "posrec evaluate --model FILE.py:SPEC, or posrec.load_run(folder, SPEC) in Python"
        )
    spec = find_spec(spec or config["model"])
    settings = {name: config[name] for name in spec.config.__dataclass_fields__ if name in config}  # type: ignore[attr-defined]
    model = spec.build(config["items"], spec.config(**settings))
    tensors, _ = load_tensors(path / WEIGHTS)
    for buffer_name, buffer in model.named_buffers():
        if isinstance(model, CountingModel) and buffer.numel() == 0 and buffer_name in tensors:
            buffer.resize_(tensors[buffer_name].shape)  # its size depends on the sessions that were counted
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(f"{path / WEIGHTS} does not fit its {RUN}: {str(error).splitlines()[0]}") from None
    metrics = read_json(path / METRICS) if (path / METRICS).exists() else None
    return Run(path, model.eval(), Vocabulary.load(path), config, load_popularity(path, config["items"]), metrics)


def load_popularity(path: Path, items: int) -> Tensor | None:
    if not (path / POPULARITY).exists():
        return None
    try:
        clicks = np.load(path / POPULARITY, allow_pickle=False)
    except Exception as error:  # numpy parses the header as Python: damage there can raise almost anything
        raise InputError(
            f"{path / POPULARITY} can't be read ({error}); remove the file and evaluate the run again"
        ) from None
    if clicks.shape != (items,):
        raise InputError(
            f"{path / POPULARITY} does not fit the run's {items} items; remove the file and evaluate the run again"
        )
    return torch.from_numpy(clicks)


def save_run(run: Run, folder: Path, overwrite: bool = False) -> Run:
    """Write a run to another folder, completely or not at all; without its checkpoint, so it can't be resumed."""
    if folder.exists() and not overwrite:
        raise InputError(f"{folder} exists already; name another folder, or pass overwrite=True")
    with whole_folder(folder, overwrite, marker=RUN) as unfinished:
        write_text(unfinished / VOCABULARY_FILE, run.vocabulary.to_json())
        if run.popularity is not None:
            write_array(unfinished / POPULARITY, run.popularity.numpy())
        if run.metrics is not None:
            write_json(unfinished / METRICS, run.metrics)
        save_tensors(unfinished / WEIGHTS, run.model.state_dict(), {})
        write_json(unfinished / RUN, run.config)
    return replace(run, path=folder)

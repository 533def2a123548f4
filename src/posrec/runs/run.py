"""The first and the last files of a training, and opening a run with its model."""

import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import FILE as VOCABULARY_FILE
from posrec.errors import InputError
from posrec.io import (
    ATTRIBUTES,
    CONTINUATION,
    RUN,
    WEIGHTS,
    FolderReader,
    changing,
    save_tensors,
    whole_folder,
    write_array,
    write_checksums,
    write_json,
    write_text,
)
from posrec.io.unfinished import LOCK, UNFINISHED
from posrec.models.base import Model
from posrec.models.own_code import is_own
from posrec.models.registry import MODELS, ModelSpec, find_encoding, find_spec
from posrec.models.restore import WrongWeights, restore_model
from posrec.runs.folder import (
    EXPORT,
    FILES,
    METRICS,
    POPULARITY,
    RANKS,
    RECENT,
    SCHEMA,
    Run,
    WeightedClicks,
    read_config,
    read_parts,
    read_run,
)
from posrec.version import __version__

DAY = 86_400_000  # milliseconds


def run_config(
    name: str, model_config: Any, settings: Any, data: PreparedDataset, items: int
) -> dict[str, Any]:
    """The content of config.json."""
    return {
        "schema": SCHEMA,
        "model": name,
        "items": items,
        **asdict(model_config),
        "training": asdict(settings),
        "dataset": data.fingerprint,
        "trained_until": data.trained_until,
        "posrec": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def is_new_run(path: Path, config: dict[str, Any], resume: bool) -> bool:
    """Whether there is no run yet; an error if there is one that is not to be resumed."""
    if (path / RUN).exists():
        if not resume:
            raise InputError(
                f"{path} holds a run already; name another folder, or pass --resume to continue it"
            )
        refuse_other(path, read_config(path), config)
        return False
    for file in path.iterdir():
        # What a process leaves that is killed while it begins a run.
        is_ours = file.name in (LOCK, VOCABULARY_FILE, POPULARITY, RECENT)
        if not is_ours and not UNFINISHED.fullmatch(file.name):
            raise InputError(
                f"{path} exists and is not a run folder; name another folder"
            )
    return True


def refuse_other(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """An error if the model, a setting or the dataset is another. The versions of posrec, torch and
    Python may differ."""
    if not isinstance(before.get("training"), dict):
        raise InputError(
            f"{path / RUN} has no settings of the training; "
            "it is damaged, or another program wrote it"
        )
    old = {**before, **before["training"]}
    new = {**now, **now["training"]}
    ignored = {"schema", "trained_until", "posrec", "torch", "python", "training"}
    differences = [
        f"{key} was {old.get(key)!r}, is {new.get(key)!r}"
        for key in sorted({*old, *new} - ignored)
        if old.get(key) != new.get(key)
    ]
    if differences:
        raise InputError(
            f"{path} can't be resumed with another setting: {'; '.join(differences)}"
        )


def begin_run(path: Path, config: dict[str, Any], data: PreparedDataset) -> None:
    """Write what a run has before its training, or what a resumed run lacks of it."""
    if not (path / RUN).exists():
        for name in (VOCABULARY_FILE, POPULARITY, RECENT):
            # A run that was killed before it had a config may have left it.
            (path / name).unlink(missing_ok=True)
        # The config is first: a run that is killed afterwards can be resumed.
        write_json(path / RUN, config)
    if not (path / VOCABULARY_FILE).exists():
        write_text(path / VOCABULARY_FILE, data.vocabulary.to_json())
    if not (path / POPULARITY).exists():
        items = config["items"]
        clicks = data.train_clicks[1 : items + 1]
        write_array(path / POPULARITY, clicks.numpy())
    if not (path / RECENT).exists():
        recent = recent_clicks(data, config["items"], config["training"]["half_life"])
        write_array(path / RECENT, recent)


def recent_clicks(
    data: PreparedDataset, items: int, half_life: float
) -> WeightedClicks:
    """[n] The training clicks of items 1..n. Each `half_life` days between a session's begin and
    the last one's halve its clicks, if the log has times."""
    ages = np.zeros(data.train.sessions)
    if data.trained_until is not None:
        ages = (data.trained_until - data.train.times.numpy()) / DAY
    weights = np.repeat(0.5 ** (ages / half_life), data.train.lengths.numpy())
    clicks = np.bincount(data.train.items.numpy(), weights, items + 1)
    return clicks[1 : items + 1].astype(np.float64)


def finish_run(path: Path) -> None:
    """Write checksums.json: from now on the run can be loaded."""
    write_checksums(path, FILES)


def write_evaluation(run: Run, metrics: dict[str, Any], ranks: Tensor) -> None:
    with changing(run.path, METRICS, RANKS):
        write_json(run.path / METRICS, metrics)
        write_array(run.path / RANKS, ranks.numpy())


def load_run(
    folder: str | Path, spec: str | ModelSpec | None = None, encoding: Any = None
) -> Run:
    """Open a finished run.

    Args:
        folder: the run folder.
        spec: for a model of your own, as in `Recommender.load`. The name in config.json is not
            used: opening a run must not run unknown code.
        encoding: for an encoding of your own, likewise.

    Returns:
        The run, with its model on the CPU.

    Raises:
        InputError: if the folder is not a finished run, is damaged, or needs a spec or an encoding.
    """
    path = Path(folder)

    def read(reader: FolderReader, config: dict[str, Any]) -> Run:
        parts = read_parts(reader, config)
        tensors, _ = reader.tensors(WEIGHTS)
        model = model_of_run(path, config, tensors, spec, encoding)
        if reader.has(CONTINUATION):
            parts["continuation"] = reader.tensors(CONTINUATION)
        return Run(load_model=lambda: model, **parts)

    return read_run(path, read)


def model_of_run(
    path: Path,
    config: dict[str, Any],
    tensors: Mapping[str, Tensor],
    spec: str | ModelSpec | None,
    encoding: Any,
) -> Model:
    if spec is None and config["model"] not in MODELS:
        raise InputError(
            f"{path} holds a model that is not posrec's own, {config['model']}; "
            "if you trust that code, name it with --model FILE.py:SPEC, or in Python with "
            "Recommender.load(folder, spec=SPEC) or load_run(folder, SPEC)"
        )
    settings = dict(config)
    if encoding is not None or "encoding" in config:
        settings["encoding"] = encoding_of_run(path, config.get("encoding"), encoding)
    try:
        model_spec = find_spec(spec or config["model"])
        return restore_model(model_spec, config["items"], settings, tensors)
    except WrongWeights as error:
        raise InputError(f"{path / WEIGHTS} does not fit its {RUN}: {error}") from None
    except InputError as error:
        raise InputError(f"{path / RUN}: {error}") from None


def encoding_of_run(path: Path, recorded: Any, named: Any) -> Any:
    """The recorded name of one of the package's, or the user's own that the caller names."""
    is_users_own = isinstance(recorded, str) and is_own(recorded)
    if named is None and is_users_own:
        raise InputError(
            f"{path} has an encoding that is not posrec's own, {recorded}; "
            "if you trust that code, name it with --encoding FILE.py:NAME, or in Python with "
            "Recommender.load(folder, encoding=NAME)"
        )
    if named is not None and not is_users_own:
        fact = "no encoding" if recorded is None else f"posrec's encoding {recorded}"
        raise InputError(
            f"{path} has {fact}, so it needs no other; leave out the encoding"
        )
    return recorded if named is None else find_encoding(named)


@contextmanager
def saving(run: Run, folder: Path, overwrite: bool) -> Iterator[Run]:
    """Write a run to another folder, whole or not at all, without its checkpoint. The block gets
    the run in the unfinished folder and may add an export."""
    if folder.exists() and not overwrite:
        raise InputError(
            f"{folder} exists already; name another folder, or pass overwrite=True"
        )
    with whole_folder(folder, overwrite, marker=RUN) as unfinished:
        write_text(unfinished / VOCABULARY_FILE, run.vocabulary.to_json())
        write_array(unfinished / POPULARITY, np.asarray(run.popularity))
        recent = run.popularity if run.recent is None else run.recent
        write_array(unfinished / RECENT, np.asarray(recent))
        if run.metrics is not None:
            write_json(unfinished / METRICS, run.metrics)
        save_tensors(unfinished / WEIGHTS, run.model.state_dict(), {})
        if run.continuation is not None:
            save_tensors(unfinished / CONTINUATION, *run.continuation)
        if run.attributes is not None:
            arrays, about = run.attributes.parts
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            save_tensors(unfinished / ATTRIBUTES, tensors, about)
        write_json(unfinished / RUN, {**run.config, "schema": SCHEMA})
        yield replace(run, path=unfinished)
        write_checksums(unfinished, (*FILES, *EXPORT))

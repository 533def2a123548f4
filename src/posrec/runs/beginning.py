"""The start of a run: its first files, and whether a run that is there can be resumed."""

import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import FILE as VOCABULARY_FILE
from posrec.errors import InputError
from posrec.io import RUN, write_array, write_json, write_text
from posrec.io.unfinished import LOCK, UNFINISHED
from posrec.runs.folder import POPULARITY, SCHEMA, read_config
from posrec.version import __version__


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
    """Whether `path` holds no run yet; an error if it holds one that is not to be resumed."""
    if (path / RUN).exists():
        if not resume:
            raise InputError(
                f"{path} holds a run already; name another folder, or pass --resume to continue it"
            )
        refuse_other(path, read_config(path), config)
        return False
    for file in path.iterdir():
        # What a process leaves that is killed while it begins a run.
        is_ours = file.name in (LOCK, VOCABULARY_FILE, POPULARITY)
        if not is_ours and not UNFINISHED.fullmatch(file.name):
            raise InputError(
                f"{path} exists and is not a run folder; name another folder"
            )
    return True


def refuse_other(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise an error if the model, a setting or the dataset is not that of the run. The versions of
    posrec, torch and Python may differ."""
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
        for name in (VOCABULARY_FILE, POPULARITY):
            # A run that was killed before it had a config may have left it.
            (path / name).unlink(missing_ok=True)
        # The config is first: a run that is killed afterwards can be resumed.
        write_json(path / RUN, config)
    if not (path / VOCABULARY_FILE).exists():
        write_text(path / VOCABULARY_FILE, data.vocabulary.to_json())
    if not (path / POPULARITY).exists():
        items = config["items"]
        clicks = np.bincount(data.train.items.numpy(), minlength=items + 1)
        write_array(path / POPULARITY, clicks[1 : items + 1].astype(np.int64))

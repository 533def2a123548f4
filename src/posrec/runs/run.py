"""Opening a run with its model, and writing what training makes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from posrec.data.vocabulary import FILE as VOCABULARY_FILE
from posrec.errors import InputError
from posrec.io import (
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
    SCHEMA,
    Run,
    read_parts,
    read_run,
)


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
        if run.metrics is not None:
            write_json(unfinished / METRICS, run.metrics)
        save_tensors(unfinished / WEIGHTS, run.model.state_dict(), {})
        if run.continuation is not None:
            save_tensors(unfinished / CONTINUATION, *run.continuation)
        write_json(unfinished / RUN, {**run.config, "schema": SCHEMA})
        yield replace(run, path=unfinished)
        write_checksums(unfinished, (*FILES, *EXPORT))

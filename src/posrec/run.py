"""A run: the folder that training writes, and that evaluation, recommending and serving read.

config.json         the model, its settings, how it was trained, on what (fingerprint), with which versions
model.safetensors   the weights
continuation.safetensors  what a warm start needs besides them: Adam's second moments, and how far the sessions reach
vocabulary.json     the items
popularity.npy      the training clicks of each item, for sessions without known items
metrics.json        the evaluation on the test part
ranks.npy           the rank of every test target, for significance tests
log.jsonl           a line for each epoch
selection.json      protocol refit: the number of epochs that was chosen on validation
checksums.json      the size and SHA-256 of every file above; a run without it is unfinished
state.safetensors   the latest checkpoint, for --resume
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset
from posrec.data.vocabulary import FILE as VOCABULARY_FILE
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.io import (
    CHECKSUMS,
    CONTINUATION,
    RUN,
    WEIGHTS,
    Continuation,
    FolderReader,
    changing,
    parse_array,
    read_json,
    replace_array,
    require_folder,
    save_tensors,
    whole_folder,
    write_array,
    write_checksums,
    write_json,
    write_text,
)
from posrec.models.base import Model
from posrec.models.lookup import find_encoding, find_spec
from posrec.models.own_code import is_own
from posrec.models.registry import MODELS, ModelSpec
from posrec.models.restore import WrongWeights, restore_model

METRICS, RANKS, POPULARITY = "metrics.json", "ranks.npy", "popularity.npy"
# What checksums.json lists; the last two are written by training/log.py and training/refit.py.
FILES = (RUN, WEIGHTS, VOCABULARY_FILE, POPULARITY, METRICS, RANKS, CONTINUATION, "log.jsonl", "selection.json")
SCHEMA = 2  # of config.json: 1, or none given, is a run from before checksums.json
RENAMED = {"start": "initialization"}  # old names of settings in config.json, and their present names


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run, loaded into memory; `load_run` opens one.

    Attributes:
        path: the run folder.
        model: the trained model, on the CPU and in evaluation mode.
        vocabulary: the ids of the items, with their titles and other columns.
        config: the contents of config.json: the model's name, its settings, versions.
        popularity: [n] training clicks of items 1..n; None in runs of versions that did not write them.
        metrics: the metrics of the last evaluation, if there was one.
        sha256: the SHA-256 of every file that was read, by its name.
        verified: whether the files were compared with checksums.json; False for a run from before that file.
        continuation: what a training that starts from the run needs besides its weights; None in runs of counting
            models and of versions that did not write it.
    """

    path: Path
    model: Model
    vocabulary: Vocabulary
    config: dict[str, Any]
    popularity: Tensor | None = None
    metrics: dict[str, float] | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    verified: bool = True
    continuation: Continuation | None = None

    @property
    def fingerprint(self) -> str:
        """Twelve characters that differ between runs with different settings or weights."""
        return hashlib.sha256("".join(self.sha256.get(name, "") for name in (RUN, WEIGHTS)).encode()).hexdigest()[:12]

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.config['model']}, {self.config['items']:,} items)"


def finish_run(path: Path) -> None:
    """Write checksums.json: from now on the run can be loaded."""
    write_checksums(path, FILES)


def write_evaluation(run: Run, metrics: dict[str, Any], ranks: Tensor, data: PreparedDataset) -> None:
    """Write metrics.json and ranks.npy into a finished run, and popularity.npy if an old run has none."""
    adds_popularity = run.popularity is None and run.config.get("dataset") == data.fingerprint
    with changing(run.path, METRICS, RANKS, *([POPULARITY] if adds_popularity else [])):
        if adds_popularity:
            write_popularity(run.path, data, run.model.items)
        write_json(run.path / METRICS, metrics)
        replace_array(run.path / RANKS, ranks.numpy())
    if not run.verified:
        finish_run(run.path)


def write_popularity(path: Path, data: PreparedDataset, items: int) -> None:
    """Write the number of training clicks of each item."""
    clicks = np.bincount(data.train.items.numpy(), minlength=items + 1)[1 : items + 1]
    replace_array(path / POPULARITY, clicks.astype(np.int64))


def read_config(path: Path) -> dict[str, Any]:
    """The config of a run, which need not be finished."""
    require_folder(path, RUN)
    return parsed_config(path, read_json(path / RUN))


def parsed_config(path: Path, config: Any) -> dict[str, Any]:
    if not isinstance(config, dict) or not isinstance(config.get("model"), str):
        raise InputError(f"{path / RUN} names no model; it is damaged, or another program wrote it")
    return with_present_names(config)


def open_finished(path: Path) -> tuple[FolderReader, dict[str, Any]]:
    """A reader of a finished run's files, and its config."""
    require_folder(path, RUN)
    reader = FolderReader(path)
    config = parsed_config(path, reader.json(RUN))
    schema = config.get("schema", 1)
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise InputError(f"{path / RUN} has schema {schema!r}, and this version reads up to {SCHEMA}; update posrec")
    if not (path / WEIGHTS).exists():
        raise InputError(f"{path} is unfinished (it has no {WEIGHTS}); continue it with posrec train --resume")
    if schema == SCHEMA and reader.checksums is None:
        raise InputError(
            f"{path} is unfinished or was copied in part (it has no {CHECKSUMS}); continue it with posrec train "
            "--resume, or copy it again"
        )
    return reader, config


def with_present_names(config: dict[str, Any]) -> dict[str, Any]:
    return {RENAMED.get(name, name): value for name, value in config.items()}


def load_run(folder: str | Path, spec: str | ModelSpec | None = None, encoding: Any = None) -> Run:
    """Open a finished run.

    Args:
        folder: the run folder.
        spec: needed for a run of a model of your own: its ModelSpec, or its name such as `"my_model.py:MY_SPEC"`. The
            name in config.json is not used, because opening a run from an unknown source must not run code.
        encoding: needed in the same way for a run with an encoding of your own: the function, module or module
            class, or its name such as `"my_encoding.py:nearness"`.

    Returns:
        The run, with its model on the CPU.

    Raises:
        InputError: if the folder is not a finished run, is damaged, or needs a spec or an encoding.

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
    reader, config = open_finished(path)
    if spec is None and config["model"] not in MODELS:
        raise InputError(
            f"{path} holds a model that is not posrec's own, {config['model']}; if you trust that code, name it with "
            "--model FILE.py:SPEC, or in Python with Recommender.load(folder, spec=SPEC) or load_run(folder, SPEC)"
        )
    check_fields(path, config)
    vocabulary = Vocabulary.from_json(reader.json(VOCABULARY_FILE), path / VOCABULARY_FILE)
    if len(vocabulary) < config["items"]:
        raise InputError(
            f"{path / VOCABULARY_FILE} holds fewer than the model's {config['items']} items; the run is damaged"
        )
    settings = config
    if encoding is not None or "encoding" in config:
        settings = {**config, "encoding": encoding_of_run(path, config.get("encoding"), encoding)}
    popularity = read_popularity(reader, config["items"])
    tensors, _ = reader.tensors(WEIGHTS)
    try:
        model = restore_model(find_spec(spec or config["model"]), config["items"], settings, tensors)
    except WrongWeights as error:
        raise InputError(f"{path / WEIGHTS} does not fit its {RUN}: {error}") from None
    except InputError as error:
        raise InputError(f"{path / RUN}: {error}") from None
    metrics = reader.json(METRICS) if reader.has(METRICS) else None
    continuation = read_continuation(reader)
    reader.check_rest()
    return Run(path, model, vocabulary, config, popularity, metrics, reader.sha256, reader.checksums is not None,
               continuation)  # fmt: skip


def encoding_of_run(path: Path, recorded: Any, named: Any) -> Any:
    """The run's encoding: the recorded name of one of the package's, or the user's own that the caller has named."""
    is_users_own = isinstance(recorded, str) and is_own(recorded)
    if named is None and is_users_own:
        raise InputError(
            f"{path} has an encoding that is not posrec's own, {recorded}; if you trust that code, name it with "
            "--encoding FILE.py:NAME, or in Python with Recommender.load(folder, encoding=NAME)"
        )
    if named is not None and not is_users_own:
        found = "has no encoding" if recorded is None else f"has posrec's encoding {recorded}"
        raise InputError(f"{path} {found}, so it needs no other; leave out the encoding")
    return recorded if named is None else find_encoding(named)


def check_fields(path: Path, config: dict[str, Any]) -> None:
    """Raise an error if a field is of another type. A run that was built by hand may lack all but `items`."""
    fields = {"items": (int, "a whole number"), "dataset": (str, "a text"), "training": (dict, "an object")}
    for name, (kind, about) in fields.items():
        if (name in config or name == "items") and type(config.get(name)) is not kind:
            raise InputError(f"{path / RUN}: {name} must be {about}, not {config.get(name)!r}; it is damaged")
    if config["items"] < 1:
        raise InputError(f"{path / RUN}: items must be at least 1, not {config['items']}; it is damaged")


def read_continuation(reader: FolderReader) -> Continuation | None:
    if not reader.has(CONTINUATION):
        return None
    tensors, about = reader.tensors(CONTINUATION)
    if type(about.get("trained_until")) is not int:
        raise InputError(f"{reader.folder / CONTINUATION} has no trained_until; it is damaged, copy the run again")
    return Continuation(tensors, about["trained_until"])


def read_popularity(reader: FolderReader, items: int) -> Tensor | None:
    if not reader.has(POPULARITY):
        return None
    path, content = reader.folder / POPULARITY, reader.read(POPULARITY)
    fix = "remove the file and evaluate the run again" if reader.checksums is None else "copy or train the run again"
    try:
        clicks = parse_array(content)
    except Exception as error:  # numpy parses the header as Python: damage there can raise almost anything
        raise InputError(f"{path} can't be read ({error}); {fix}") from None
    if clicks.shape != (items,):
        raise InputError(f"{path} does not fit the run's {items} items; {fix}")
    if clicks.dtype.kind not in "iuf" or not np.isfinite(clicks).all() or (clicks < 0).any():
        raise InputError(f"{path} does not hold the numbers of clicks, from 0 up; {fix}")
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
        if run.continuation is not None:
            run.continuation.save(unfinished)
        write_json(unfinished / RUN, {**run.config, "schema": SCHEMA})
        finish_run(unfinished)
    return replace(run, path=folder)

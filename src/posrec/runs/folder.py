"""A run folder, read without torch: everything that a run holds besides its model.

docs/files.md lists its files. checksums.json is written last: a run without it is unfinished.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from posrec.data.vocabulary import FILE as VOCABULARY_FILE, Vocabulary
from posrec.errors import InputError
from posrec.io import (
    ATTRIBUTES,
    CHECKSUMS,
    CONTINUATION,
    RUN,
    WEIGHTS,
    FolderReader,
    read_json,
    require_folder,
)
from posrec.io.folders import read_checksums
from posrec.io.unfinished import locked
from posrec.runs.attributes import Attributes

if TYPE_CHECKING:
    from torch import Tensor

    from posrec.models.base import Model

METRICS = "metrics.json"
RANKS = "ranks.npy"
POPULARITY = "popularity.npy"
RECENT = "recent.npy"
# What checksums.json lists. training/training_log.py and fitting/refit.py write the last two.
FILES = (
    RUN,
    WEIGHTS,
    VOCABULARY_FILE,
    POPULARITY,
    RECENT,
    METRICS,
    RANKS,
    CONTINUATION,
    ATTRIBUTES,
    "log.jsonl",
    "selection.json",
)
NETWORK = "network.onnx"
ITEMS = "items.safetensors"
INDEX = "items.faiss"
EXPORT = (NETWORK, ITEMS, INDEX)  # added to a finished run
SCHEMA = 4  # of config.json

Clicks = npt.NDArray[np.int64]
WeightedClicks = npt.NDArray[np.float64]
Result = TypeVar("Result")


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run; `load_run` opens one.

    Attributes:
        path: the run folder.
        load_model: returns the trained model, on the CPU, at the first use of `model`.
        vocabulary: the ids of the items, with their titles and other columns.
        config: the contents of config.json: the model's name, its settings, versions.
        popularity: [n] training clicks of items 1..n.
        metrics: the contents of metrics.json, if there was an evaluation.
        sha256: the SHA-256 of every file that was read, by its name.
        continuation: the tensors and the note of continuation.safetensors, for a training that
            starts from the run; None for a counting model.
        attributes: what gives items that come later their vectors, if the run was trained with
            attributes.
        recent: [n] the same clicks, of which old ones count less (the setting `half_life`); None if
            all count alike.
    """

    path: Path
    load_model: "Callable[[], Model]"
    vocabulary: Vocabulary
    config: dict[str, Any]
    popularity: Clicks
    metrics: dict[str, Any] | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    continuation: "tuple[dict[str, Tensor], dict[str, Any]] | None" = None
    attributes: Attributes | None = None
    recent: WeightedClicks | None = None

    @cached_property
    def model(self) -> "Model":
        return self.load_model()

    @cached_property
    def fingerprint(self) -> str:
        """Twelve characters that differ between runs with different settings or weights."""
        sums = self.sha256.get(RUN, "") + self.sha256.get(WEIGHTS, "")
        return hashlib.sha256(sums.encode()).hexdigest()[:12]

    @property
    def has_export(self) -> bool:
        return any(name in self.sha256 for name in EXPORT)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.config['model']}, {self.config['items']:,} items)"


def read_config(path: Path) -> dict[str, Any]:
    """The config of a run, which need not be finished."""
    require_folder(path, RUN)
    return parsed_config(path, read_json(path / RUN))


def parsed_config(path: Path, config: Any) -> dict[str, Any]:
    if not isinstance(config, dict) or not isinstance(config.get("model"), str):
        raise InputError(
            f"{path / RUN} names no model; it is damaged, or another program wrote it"
        )
    return config


def read_run(
    path: Path, read: Callable[[FolderReader, dict[str, Any]], Result]
) -> Result:
    """What `read` makes of a finished run's files and its config.

    The files that it does not read are compared with their checksums too. If another process
    replaces files meanwhile, they are read again.
    """
    while True:
        require_folder(path, RUN)
        # While files are replaced, checksums.json does not list them.
        with locked(path):
            reader, config = open_finished(path)
        try:
            result = read(reader, config)
            reader.check_rest()
            return result
        except InputError:
            if read_checksums(path) == reader.checksums:
                raise


def open_finished(path: Path) -> tuple[FolderReader, dict[str, Any]]:
    require_folder(path, RUN)
    reader = FolderReader(path) if (path / CHECKSUMS).exists() else None
    content = read_json(path / RUN) if reader is None else reader.json(RUN)
    config = parsed_config(path, content)
    schema = config.get("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise InputError(
            f"{path} was trained by another version of posrec "
            f"(schema {schema!r}, and this one reads {SCHEMA}); train it again"
        )
    if not (path / WEIGHTS).exists():
        raise InputError(
            f"{path} is unfinished (it has no {WEIGHTS}); continue it with posrec train --resume"
        )
    if reader is None:
        raise InputError(
            f"{path} is unfinished or was copied in part (it has no {CHECKSUMS}); "
            "continue it with posrec train --resume, or copy it again"
        )
    return reader, config


def read_parts(reader: FolderReader, config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a finished `Run` besides its model; the config is checked first."""
    check_fields(reader.folder, config)
    items: int = config["items"]
    path = reader.folder / VOCABULARY_FILE
    vocabulary = Vocabulary.from_json(reader.json(VOCABULARY_FILE), path)
    if len(vocabulary) < items:
        raise InputError(
            f"{path} holds fewer than the model's {items} items; the run is damaged"
        )
    return {
        "path": reader.folder,
        "vocabulary": vocabulary,
        "config": config,
        "popularity": read_clicks(reader, POPULARITY, items),
        "recent": read_clicks(reader, RECENT, items),
        "metrics": reader.json(METRICS) if reader.has(METRICS) else None,
        "attributes": read_attributes(reader, config),
        "sha256": reader.sha256,
    }


def read_attributes(reader: FolderReader, config: dict[str, Any]) -> Attributes | None:
    if not reader.has(ATTRIBUTES):
        return None
    path = reader.folder / ATTRIBUTES
    if not config.get("attributes") or "cosine" not in config:
        raise InputError(
            f"{path} does not belong to the run, whose model has no attributes; remove the file, "
            "or copy the run again"
        )
    return Attributes.parse(reader.read(ATTRIBUTES), path, config.get("d"))


def check_fields(path: Path, config: dict[str, Any]) -> None:
    """A run that was built by hand may lack every field but `items`."""
    fields = {
        "items": (int, "a whole number"),
        "dataset": (str, "a text"),
        "training": (dict, "an object"),
    }
    for name, (kind, description) in fields.items():
        value = config.get(name)
        is_required = name in config or name == "items"
        if is_required and type(value) is not kind:
            raise InputError(
                f"{path / RUN}: {name} must be {description}, not {value!r}; it is damaged"
            )
    if config["items"] < 1:
        raise InputError(
            f"{path / RUN}: items must be at least 1, not {config['items']}; it is damaged"
        )


def read_clicks(reader: FolderReader, name: str, items: int) -> npt.NDArray[Any]:
    path = reader.folder / name
    clicks = reader.array(name)
    fix = "copy or train the run again"
    if clicks.shape != (items,):
        raise InputError(f"{path} does not fit the run's {items} items; {fix}")
    is_number = clicks.dtype.kind in "iuf"
    if not is_number or not np.isfinite(clicks).all() or (clicks < 0).any():
        raise InputError(
            f"{path} does not hold the numbers of clicks, from 0 up; {fix}"
        )
    return clicks

"""The arrays of a prepared dataset: names, types, how they are read, and the fingerprint."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posrec.data.vocabulary import FILE as VOCABULARY_FILE
from posrec.errors import InputError
from posrec.io import FolderReader

SCHEMA = 1  # of a prepared dataset
# Formats of a log in which a session's time is its position in the file.
WITHOUT_TIMES = ("sessions", "srgnn", "recbole-prefixes")
ARRAYS = {  # file -> type; the order is the fingerprint's
    "train_items": np.int32,
    "train_offsets": np.int64,
    "train_times": np.int64,
    "test_items": np.int32,
    "test_offsets": np.int64,
    "test_times": np.int64,
}
# Each is written only if the options of `posrec prepare` ask for it.
OPTIONAL_ARRAYS = {
    "train_weights": np.float32,
    "train_targets": np.int64,
    "test_targets": np.int64,
    # The test part with its clicks on items that training did not see.
    "full_test_items": np.int32,
    "full_test_offsets": np.int64,
    "full_test_times": np.int64,
    "full_test_targets": np.int64,
}
NEW_ITEMS = "new_items.json"  # the ids of those that are not in the vocabulary
ALL_ARRAYS = {**ARRAYS, **OPTIONAL_ARRAYS}


def read_array(reader: FolderReader, name: str) -> npt.NDArray[Any]:
    path = reader.folder / f"{name}.npy"
    array = reader.array(path.name)
    expected = np.dtype(ALL_ARRAYS[name])
    if array.dtype != expected or array.ndim != 1:
        raise InputError(
            f"{path} holds {array.dtype}, not {expected}; prepare the dataset again"
        )
    return array


def read_optional(reader: FolderReader, name: str) -> npt.NDArray[Any] | None:
    if not (reader.folder / f"{name}.npy").exists():
        return None
    return read_array(reader, name)


def fingerprint(folder: Path, validation_start: int) -> str:
    """A hash of the arrays, the vocabulary and where validation starts."""
    digest = hashlib.blake2b(digest_size=16)
    paths = [folder / f"{name}.npy" for name in ARRAYS]
    paths.append(folder / VOCABULARY_FILE)
    optional = [folder / f"{name}.npy" for name in OPTIONAL_ARRAYS]
    optional.append(folder / NEW_ITEMS)
    paths += filter(Path.exists, optional)
    for path in paths:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        with path.open("rb") as file:
            while data := file.read(1 << 24):
                digest.update(data)
    digest.update(f"validation {validation_start}".encode())
    return digest.hexdigest()

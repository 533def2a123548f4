"""SessionDataset: sessions as one flat array with offsets; and the prepared dataset, a folder of them.

A training sample is a pair (session, end): the clicks before `end` and the click at it. Samples are counted, never
copied: session s of n clicks gives the n - 1 ends 1..n-1. With `offsets[s]` clicks before it, it has `offsets[s] - s`
samples before it, and sample i, where it belongs to session s, has its target at click `i + s + 1`.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from posrec.data.vocabulary import FILE as VOCABULARY_FILE
from posrec.data.vocabulary import Vocabulary
from posrec.errors import InputError
from posrec.io import (
    DATASET,
    FolderReader,
    parse_array,
    read_json,
    require_folder,
    whole_folder,
    write_array,
    write_checksums,
    write_json,
    write_text,
)
from posrec.nn.batch import PADDING, SessionBatch

SCHEMA = 1
VALIDATION_SHARE = 0.1
MANIFEST, CEILING = DATASET, "ceiling.json"
ARRAYS = {  # file -> type; the order is the fingerprint's
    "train_items": np.int32,
    "train_offsets": np.int64,
    "train_times": np.int64,
    "test_items": np.int32,
    "test_offsets": np.int64,
    "test_times": np.int64,
}


@dataclass(frozen=True)
class SessionDataset:
    """`items [clicks]` int32, `offsets [sessions + 1]` int64, and `times [sessions]` int64, when each session began."""

    items: Tensor
    offsets: Tensor
    times: Tensor
    sample_offsets: Tensor = field(init=False, repr=False)  # [sessions + 1] samples before each session

    def __post_init__(self) -> None:
        sessions = torch.arange(len(self.offsets), device=self.offsets.device)
        object.__setattr__(self, "sample_offsets", self.offsets - self.offsets[0] - sessions)

    def __len__(self) -> int:
        """The number of samples."""
        return int(self.sample_offsets[-1])

    @property
    def sessions(self) -> int:
        return len(self.offsets) - 1

    @property
    def clicks(self) -> int:
        return int(self.offsets[-1] - self.offsets[0])

    @cached_property
    def lengths(self) -> Tensor:
        return self.offsets.diff()

    @property
    def longest(self) -> int:
        return int(self.lengths.max()) if self.sessions else 0

    def session(self, number: int) -> Tensor:
        """The clicks of one session, oldest first; a view."""
        return self.items[self.offsets[number] : self.offsets[number + 1]]

    def clicks_before(self, sample_ids: Tensor) -> Tensor:
        """How many clicks come before the target of each sample, [B]."""
        session = torch.searchsorted(self.sample_offsets, sample_ids, right=True) - 1
        return sample_ids - self.sample_offsets[session] + 1

    def part(self, start: int, end: int) -> "SessionDataset":
        """Sessions start..end-1 over the same memory."""
        return SessionDataset(self.items, self.offsets[start : end + 1], self.times[start:end])

    def to(self, device: torch.device | str) -> "SessionDataset":
        return SessionDataset(self.items.to(device), self.offsets.to(device), self.times.to(device))


def collate(dataset: SessionDataset, sample_ids: Tensor, max_length: int) -> SessionBatch:
    """The samples `sample_ids [B]` as a batch of width `max_length`: the latest clicks of each, and its target.

    Only tensor operations on the dataset's device, and no value is read back to the CPU: the batch is the same on CPU
    and GPU, and a CUDA graph can capture it. The top of this file explains how samples are numbered.
    """
    sample_ids = sample_ids.to(dataset.offsets)
    session = torch.searchsorted(dataset.sample_offsets, sample_ids, right=True) - 1  # [B]
    target = dataset.offsets[0] + sample_ids + session + 1  # [B] index of the target click
    lengths = (target - dataset.offsets[session]).clamp(max=max_length)  # [B]
    column = torch.arange(max_length, device=lengths.device)  # [L]
    inside = column < lengths[:, None]  # [B, L]
    click = torch.where(inside, (target - lengths)[:, None] + column, target[:, None])  # [B, L], always a real click
    items = torch.where(inside, dataset.items[click], PADDING).long()
    return SessionBatch(items, lengths, dataset.items[target].long())


@dataclass(frozen=True)
class PreparedDataset:
    """What `posrec prepare` writes: training and test sessions in order of time, and the vocabulary."""

    train: SessionDataset
    test: SessionDataset
    vocabulary: Vocabulary
    manifest: dict[str, Any]
    path: Path

    @property
    def fitting(self) -> SessionDataset:
        """The training sessions without the validation part, to fit models that are compared on that part."""
        return self.train.part(0, self.manifest["validation_start"])

    @property
    def validation(self) -> SessionDataset:
        """The last tenth of the training sessions in time; a view of `train`, not a copy."""
        return self.train.part(self.manifest["validation_start"], self.train.sessions)

    @property
    def train_items(self) -> int:
        """Items 1..train_items occur in training; those above occur only in the test part."""
        return int(self.manifest["counts"]["train_items"])

    @property
    def fingerprint(self) -> str:
        return str(self.manifest["fingerprint"])

    @property
    def ceiling(self) -> dict[str, Any] | None:
        """The best figures that any model can reach, if the process behind the clicks is known (the demo shop)."""
        return read_json(self.path / CEILING) if (self.path / CEILING).exists() else None


def load(folder: str | Path) -> PreparedDataset:
    """Open a prepared dataset: read its files into memory, about 4 bytes a click and 16 a session.

    Every file is compared with checksums.json. A dataset made before posrec wrote that file is compared with the
    fingerprint in its manifest.

    >>> data = load("shop")  # doctest: +SKIP
    """
    path = Path(folder)
    require_folder(path, DATASET)
    reader = FolderReader(path)
    manifest = reader.json(MANIFEST)
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{path} has dataset schema {schema}, and this version reads {SCHEMA}; prepare it again")
    if missing := {"validation_start", "counts", "fingerprint"} - set(manifest):
        raise InputError(f"{path / MANIFEST} lacks {', '.join(sorted(missing))}; it is damaged, prepare it again")
    arrays = {name: torch.from_numpy(read_array(reader, name)) for name in ARRAYS}
    train, test = (SessionDataset(*(arrays[f"{part}_{name}"] for name in ("items", "offsets", "times")))
                   for part in ("train", "test"))  # fmt: skip
    for part, sessions in (("train", train), ("test", test)):
        if len(sessions.items) != sessions.clicks or len(sessions.times) != sessions.sessions:
            raise InputError(f"{path}: the {part} arrays don't fit together; the folder is damaged, prepare it again")
    vocabulary = Vocabulary.from_json(reader.json(VOCABULARY_FILE), path / VOCABULARY_FILE)
    if len(vocabulary) != manifest["counts"].get("items"):
        raise InputError(f"{path}: the vocabulary doesn't fit the manifest; the folder is damaged, prepare it again")
    reader.check_rest()
    if reader.checksums is None and fingerprint(path, manifest["validation_start"]) != manifest["fingerprint"]:
        raise InputError(f"{path} was changed after it was prepared: its fingerprint differs; prepare it again")
    return PreparedDataset(train, test, vocabulary, manifest, path)


def read_array(reader: FolderReader, name: str) -> npt.NDArray[Any]:
    """An array of ARRAYS, copied into memory: a mapped file changes with the file, or ends the process with SIGBUS."""
    path = reader.folder / f"{name}.npy"
    content = reader.read(path.name)
    try:
        array = parse_array(content)
    except Exception as error:  # numpy parses the header as Python: damage there can raise almost anything
        raise InputError(f"{path} can't be read ({error}); the folder is damaged, prepare it again") from None
    if array.dtype != ARRAYS[name] or array.ndim != 1:
        raise InputError(f"{path} holds {array.dtype}, not {np.dtype(ARRAYS[name])}; prepare the dataset again")
    return array


def fingerprint(folder: Path, validation_start: int) -> str:
    """A hash of the content: sessions, their times, where validation starts, and the vocabulary with its columns."""
    digest = hashlib.blake2b(digest_size=16)
    for name in [*(f"{name}.npy" for name in ARRAYS), VOCABULARY_FILE]:
        digest.update(f"{name} {(folder / name).stat().st_size}\n".encode())
        with (folder / name).open("rb") as file:
            while data := file.read(1 << 24):
                digest.update(data)
    digest.update(f"validation {validation_start}".encode())
    return digest.hexdigest()


def save_dataset(
    folder: Path,
    arrays: Mapping[str, npt.NDArray[Any]],
    vocabulary: Vocabulary,
    manifest: Mapping[str, Any],
    overwrite: bool = False,
) -> None:
    """Write a prepared dataset, whole or not at all: `arrays` are those of ARRAYS, `manifest` says where it is from.

    The validation part, the counts and the fingerprint are added to the manifest.
    """
    sessions = {part: len(arrays[f"{part}_times"]) for part in ("train", "test")}
    clicks = {part: len(arrays[f"{part}_items"]) for part in ("train", "test")}
    validation_start = sessions["train"] - max(1, round(VALIDATION_SHARE * sessions["train"]))
    counts = {
        "clicks": clicks["train"] + clicks["test"],
        "train_samples": clicks["train"] - sessions["train"],
        "test_samples": clicks["test"] - sessions["test"],
        "train_sessions": sessions["train"],
        "test_sessions": sessions["test"],
        "items": len(vocabulary),
        "train_items": int(arrays["train_items"].max()),
    }
    with whole_folder(folder, overwrite) as unfinished:
        for name, kind in ARRAYS.items():
            write_array(unfinished / f"{name}.npy", arrays[name].astype(kind, copy=False))
        write_text(unfinished / VOCABULARY_FILE, vocabulary.to_json())
        added = {"validation_start": validation_start, "counts": counts}
        content = fingerprint(unfinished, validation_start)
        write_json(unfinished / MANIFEST, {**manifest, **added, "fingerprint": content})
        write_checksums(unfinished, [*(f"{name}.npy" for name in ARRAYS), VOCABULARY_FILE, MANIFEST])

"""SessionDataset: sessions as one flat array with offsets; PreparedDataset: the folder with them.

A sample is a pair (session, end): the clicks before `end` and the click at it. Samples are never
copied: session s of n clicks gives the ends 1..n-1, and `offsets[s] - s` samples come before them,
so that sample i of the dataset, in session s, has its target at click `i + s + 1`.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from posrec.data.arrays import (
    NEW_ITEMS,
    SCHEMA,
    WITHOUT_TIMES,
    read_array,
    read_optional,
)
from posrec.data.vocabulary import FILE as VOCABULARY_FILE, Vocabulary
from posrec.errors import InputError, plural
from posrec.io import DATASET, FolderReader, read_json, require_folder
from posrec.nn.batch import PADDING, SessionBatch
from posrec.nn.first_read import first_read

CEILING = "ceiling.json"


@dataclass(frozen=True, repr=False)
class SessionDataset:
    """Sessions in order of time. Without `targets`, every click but a session's first is one."""

    items: Tensor  # [clicks] int32
    offsets: Tensor  # [sessions + 1] int64, the index in `items` of each session's first click
    times: Tensor  # [sessions] int64, when each session began
    targets: Tensor | None = None  # [samples] int64, indices in `items`, increasing

    @cached_property
    def sample_offsets(self) -> Tensor:
        """[sessions + 1] the samples before each session, without `targets`."""
        sessions = torch.arange(len(self.offsets), device=self.offsets.device)
        return self.offsets - self.offsets[0] - sessions

    def __len__(self) -> int:
        """The number of samples."""
        if self.targets is not None:
            return len(self.targets)
        return int(self.sample_offsets[-1])

    def __repr__(self) -> str:
        sessions = plural(self.sessions, "session")
        return f"SessionDataset({sessions}, {plural(len(self), 'sample')})"

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
        return self.items[self.offsets[number] : self.offsets[number + 1]]

    def locate(self, sample_ids: Tensor) -> tuple[Tensor, Tensor]:
        """The session [B] of each sample, and the index [B] in `items` of its target.

        >>> offsets = torch.tensor([0, 3, 5])
        >>> samples = SessionDataset(torch.tensor([1, 2, 3, 4, 5]), offsets, torch.tensor([0, 0]))
        >>> samples.locate(torch.tensor([0, 1, 2]))
        (tensor([0, 0, 1]), tensor([1, 2, 4]))
        """
        if self.targets is not None:
            target = self.targets[sample_ids]
            return torch.searchsorted(self.offsets, target, right=True) - 1, target
        session = torch.searchsorted(self.sample_offsets, sample_ids, right=True) - 1
        return session, self.offsets[0] + sample_ids + session + 1

    def clicks_before(self, sample_ids: Tensor) -> Tensor:
        """[B] the clicks of the session before each sample's target."""
        session, target = self.locate(sample_ids)
        return target - self.offsets[session]

    @property
    def days(self) -> npt.NDArray[np.datetime64]:
        """[sessions] the day (UTC) on which each began."""
        return self.times.numpy().astype("datetime64[ms]").astype("datetime64[D]")

    def begun_after(self, time: int) -> Tensor:
        """[samples] whether the sample's session began after `time`."""
        session, _ = self.locate(torch.arange(len(self), device=self.times.device))
        return self.times[session] > time

    def moment_of(self, click: Tensor) -> Tensor:
        """[B] the share of all clicks that came before each of these."""
        return (click - self.offsets[0]).double() / (self.offsets[-1] - self.offsets[0])

    def renumbered(self, numbers: Tensor) -> "SessionDataset":
        return replace(self, items=numbers[self.items.long()])

    def part(self, start: int, end: int) -> "SessionDataset":
        """Sessions start..end-1 over the same memory."""
        offsets = self.offsets[start : end + 1]
        targets = self.targets
        if targets is not None:
            first, after = torch.searchsorted(targets, offsets[[0, -1]]).tolist()
            targets = targets[first:after]
        return SessionDataset(self.items, offsets, self.times[start:end], targets)

    def cut(self, start: int, end: int) -> "SessionDataset":
        """As `part`, with the items of these sessions alone."""
        part = self.part(start, end)
        first, after = part.offsets[[0, -1]].tolist()
        targets = None if part.targets is None else part.targets - first
        items = self.items[first:after]
        return SessionDataset(items, part.offsets - first, part.times, targets)

    def to(self, device: torch.device | str) -> "SessionDataset":
        items = self.items.to(device)
        offsets = self.offsets.to(device)
        times = self.times.to(device)
        targets = None if self.targets is None else self.targets.to(device)
        return SessionDataset(items, offsets, times, targets)


def collate(
    dataset: SessionDataset, sample_ids: Tensor, max_length: int, stride: int = 1
) -> SessionBatch:
    """The samples `sample_ids [B]` as a batch: their latest `max_length` clicks, and targets.

    No value is read back to the CPU, so that a CUDA graph can capture it.
    """
    sample_ids = sample_ids.to(dataset.offsets)
    session, target = dataset.locate(sample_ids)
    clicks = target - dataset.offsets[session]
    lengths = clicks - first_read(clicks, max_length, stride)
    items = padded(dataset, target - lengths, lengths, max_length)
    return SessionBatch(items, lengths, dataset.items[target].long())


def padded(
    dataset: SessionDataset, first: Tensor, lengths: Tensor, width: int
) -> Tensor:
    """[B, width] the `lengths` [B] items from the clicks `first` [B] on, then padding."""
    column = torch.arange(width, device=first.device)
    inside = column < lengths[:, None]  # [B, width]
    # Padding reads the first click, so that every index is that of a click.
    click = torch.where(inside, first[:, None] + column, first[:, None])
    return torch.where(inside, dataset.items[click], PADDING).long()


@dataclass(frozen=True, repr=False)
class PreparedDataset:
    """What `posrec prepare` writes: training and test sessions, and the vocabulary.

    Attributes:
        train: the training sessions.
        test: the test sessions; none if the log was prepared with `--no-test`.
        vocabulary: the ids of the items, with their titles and other columns.
        manifest: the contents of manifest.json.
        path: the folder.
        target_weights: [clicks of `train`] float32, what the loss of each click as a target is
            multiplied by, from its kind of event (`--event-weights`); None without weights.
        full_test: the test sessions with all clicks on items that training did not see; `test`
            itself where it lacks none.
        new_items: the ids that follow those of the vocabulary, of items of `full_test` alone.
    """

    train: SessionDataset
    test: SessionDataset
    vocabulary: Vocabulary
    manifest: dict[str, Any]
    path: Path
    target_weights: npt.NDArray[np.float32] | None
    full_test: SessionDataset
    new_items: list[str]

    def __repr__(self) -> str:
        train = plural(len(self.train), "training sample")
        test = plural(len(self.test), "test sample")
        items = plural(len(self.vocabulary), "item")
        return f"PreparedDataset({str(self.path)!r}: {train}, {test}, {items})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process receives the path, and loads the dataset from it."""
        return load, (self.path.absolute(),)

    @property
    def fitting(self) -> SessionDataset:
        """The training sessions before those of `validation`; a view."""
        return self.train.part(0, self.manifest["validation_start"])

    @property
    def validation(self) -> SessionDataset:
        """The last tenth of the training sessions in time; a view."""
        return self.train.part(self.manifest["validation_start"], self.train.sessions)

    @property
    def trained_until(self) -> int | None:
        """When the last training session began; None if the log had no times."""
        if self.manifest.get("format") in WITHOUT_TIMES:
            return None
        return int(self.train.times.max())

    def require_test_part(self) -> None:
        if not self.test.sessions:
            raise InputError(
                f"{self.path} has no test part to evaluate on, because it was prepared with "
                "--no-test; prepare the log again without it"
            )

    @cached_property
    def train_clicks(self) -> Tensor:
        """[items + 1] how often each item was clicked in training, also those of `new_items`."""
        items = len(self.vocabulary) + len(self.new_items) + 1
        return torch.bincount(self.train.items.long(), minlength=items)

    @property
    def train_items(self) -> int:
        """Items 1..train_items occur in training."""
        return int(self.manifest["counts"]["train_items"])

    @property
    def recommendable_items(self) -> int:
        """Items 1..recommendable_items can be recommended: with `--all-items`, also those that
        only the items file has."""
        return int(self.manifest["counts"].get("recommendable_items", self.train_items))

    @property
    def fingerprint(self) -> str:
        return str(self.manifest["fingerprint"])

    @property
    def ceiling(self) -> dict[str, Any] | None:
        """The best figures that any model can reach, if that is known (the demo shop)."""
        path = self.path / CEILING
        return read_json(path) if path.exists() else None


def load(folder: str | Path) -> PreparedDataset:
    """Open a prepared dataset: read its files into memory and check their checksums."""
    path = Path(folder)
    require_folder(path, DATASET)
    reader = FolderReader(path)
    manifest = read_manifest(reader)
    train = read_sessions(reader, "train")
    test = read_sessions(reader, "test")
    weights = read_optional(reader, "train_weights")
    if weights is not None and len(weights) != train.clicks:
        raise unfitting_arrays(path, "train")
    vocabulary_path = path / VOCABULARY_FILE
    vocabulary = Vocabulary.from_json(reader.json(VOCABULARY_FILE), vocabulary_path)
    if len(vocabulary) != manifest["counts"].get("items"):
        raise InputError(
            f"{path}: the vocabulary doesn't fit the manifest; the folder is damaged, "
            "prepare it again"
        )
    full_test = test
    new_items: list[str] = []
    if reader.has("full_test_items.npy"):
        full_test = read_sessions(reader, "full_test")
        new_items = reader.json(NEW_ITEMS) if reader.has(NEW_ITEMS) else []
    reader.check_rest()
    return PreparedDataset(
        train, test, vocabulary, manifest, path, weights, full_test, new_items
    )


def read_manifest(reader: FolderReader) -> dict[str, Any]:
    path = reader.folder
    manifest = reader.json(DATASET)
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        raise InputError(
            f"{path} has dataset schema {schema}, and this version reads {SCHEMA}; prepare it again"
        )
    if missing := {"validation_start", "counts", "fingerprint"} - set(manifest):
        raise InputError(
            f"{path / DATASET} lacks {', '.join(sorted(missing))}; it is damaged, prepare it again"
        )
    return dict(manifest)


def read_sessions(reader: FolderReader, split: str) -> SessionDataset:
    items = torch.from_numpy(read_array(reader, f"{split}_items"))
    offsets = torch.from_numpy(read_array(reader, f"{split}_offsets"))
    times = torch.from_numpy(read_array(reader, f"{split}_times"))
    listed = read_optional(reader, f"{split}_targets")
    targets = None if listed is None else torch.from_numpy(listed)
    dataset = SessionDataset(items, offsets, times, targets)
    fits = len(items) == dataset.clicks and len(times) == dataset.sessions
    if targets is not None and len(targets):
        fits = fits and bool(0 < targets[0] <= targets[-1] < dataset.clicks)
    if not fits:
        raise unfitting_arrays(reader.folder, split)
    return dataset


def unfitting_arrays(folder: Path, split: str) -> InputError:
    return InputError(
        f"{folder}: the {split} arrays don't fit together; the folder is damaged, prepare it again"
    )


def with_items_of(
    data: PreparedDataset, older: Vocabulary, older_items: int
) -> PreparedDataset:
    """The same sessions, with the first items of an older run among the items of training.

    Items of the training sessions keep their numbers, the added ones come next, the others last.
    """
    ids = data.vocabulary.ids
    train_ids = ids[: data.train_items]
    in_training = set(train_ids)
    added = [item for item in older.ids[:older_items] if item not in in_training]
    if not added:
        return data
    moved = set(added)
    rest = [item for item in ids[data.train_items :] if item not in moved]
    vocabulary = Vocabulary([*train_ids, *added, *rest])
    for name, values in data.vocabulary.columns.items():
        older_values = older.columns.get(name, [None] * len(older))
        value_of = dict(zip(older.ids, older_values, strict=True))
        value_of.update(zip(ids, values, strict=True))
        vocabulary.columns[name] = [value_of.get(item) for item in vocabulary.ids]
    new_items = [item for item in data.new_items if item not in vocabulary]
    index = Vocabulary([*vocabulary.ids, *new_items]).index
    numbers = torch.tensor(
        [PADDING, *map(index, [*ids, *data.new_items])], dtype=data.test.items.dtype
    )
    test = full_test = data.test.renumbered(numbers)
    if data.full_test is not data.test:
        full_test = data.full_test.renumbered(numbers)
    newly_recommendable = moved.difference(ids[: data.recommendable_items])
    counts = {
        **data.manifest["counts"],
        "items": len(vocabulary),
        "train_items": len(train_ids) + len(added),
        "recommendable_items": data.recommendable_items + len(newly_recommendable),
    }
    content = hashlib.blake2b(data.fingerprint.encode(), digest_size=16)
    content.update("\n".join(added).encode())
    manifest = {**data.manifest, "counts": counts, "fingerprint": content.hexdigest()}
    return replace(
        data,
        test=test,
        full_test=full_test,
        new_items=new_items,
        vocabulary=vocabulary,
        manifest=manifest,
    )
